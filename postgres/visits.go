package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// visitLife is how long the boot of a machine that nobody has enrolled may take, until its report.
const visitLife = time.Hour

// Standing implements provisioner.Visits.
func (db *DB) Standing(ctx context.Context, mac string) (provisioner.Standing, error) {
	var ours, stray bool
	var state *string
	err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM machine_mac WHERE mac = $1::macaddr),
		EXISTS (SELECT 1 FROM sighted_mac WHERE mac = $1::macaddr AND machine_id IS NOT NULL),
		(SELECT d.state FROM sighted_mac s JOIN discovery d ON d.id = s.discovery_id WHERE s.mac = $1::macaddr)`, mac).Scan(&ours, &stray, &state)
	switch {
	case err != nil:
		return "", fmt.Errorf("read standing of port: %w", err)
	case ours:
		return provisioner.Ours, nil
	case stray:
		return provisioner.Stray, nil
	case state != nil && machine.State(*state) == machine.Retired:
		return provisioner.Rejected, nil
	}
	return provisioner.Stranger, nil
}

// PutVisit implements provisioner.Visits. Boots that came to nothing are forgotten.
func (db *DB) PutVisit(ctx context.Context, v provisioner.Visit, most int) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM visit WHERE created < now() - $1::interval`, visitLife); err != nil {
			return fmt.Errorf("forget old visits: %w", err)
		}
		tag, err := tx.Exec(ctx, `INSERT INTO visit (mac, addr, nonce, token) SELECT $1::macaddr, $2, $3, $4
			WHERE EXISTS (SELECT 1 FROM visit WHERE mac = $1::macaddr) OR (SELECT count(*) FROM visit) < $5
			ON CONFLICT (mac) DO UPDATE SET addr = $2, nonce = $3, token = $4, created = now()`, v.MAC, v.Addr, v.Nonce, v.Token, most)
		if err != nil {
			return fmt.Errorf("write visit: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return &machine.Error{Code: machine.Exhausted, Message: fmt.Sprintf("%d machines are being discovered already", most), Hint: "wait until they are done"}
		}
		return nil
	})
}

// Visit implements provisioner.Visits.
func (db *DB) Visit(ctx context.Context, hash []byte) (provisioner.Visit, error) {
	var v provisioner.Visit
	err := db.pool.QueryRow(ctx, `SELECT mac::text, addr, nonce, token FROM visit WHERE (nonce = $1 OR token = $1) AND created >= now() - $2::interval`, hash, visitLife).
		Scan(&v.MAC, &v.Addr, &v.Nonce, &v.Token)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, provisioner.ErrDenied
	}
	if err != nil {
		return v, fmt.Errorf("read visit: %w", err)
	}
	return v, nil
}

// EndVisit implements provisioner.Visits.
func (db *DB) EndVisit(ctx context.Context, mac string) error {
	return db.exec(ctx, "end visit", `DELETE FROM visit WHERE mac = $1::macaddr`, mac)
}
