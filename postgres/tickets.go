package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// ByMAC implements provisioner.Tickets.
func (db *DB) ByMAC(ctx context.Context, mac string) (machine.Machine, *machine.Job, error) {
	m, err := getMachine(ctx, db.pool, `JOIN machine_mac x ON x.machine_id = m.id WHERE x.mac = $1::macaddr`, mac)
	if err != nil || m.JobID == "" {
		return m, nil, err
	}
	j, err := getJob(ctx, db.pool, m.JobID, "")
	return m, &j, err
}

// Nonce implements provisioner.Tickets.
func (db *DB) Nonce(ctx context.Context, hash []byte) (provisioner.Ticket, error) {
	return db.ticket(ctx, hash, `role = 'nonce'`)
}

// Token implements provisioner.Tickets.
func (db *DB) Token(ctx context.Context, hash []byte) (provisioner.Ticket, error) {
	return db.ticket(ctx, hash, `role <> 'nonce'`)
}

func (db *DB) ticket(ctx context.Context, hash []byte, which string) (provisioner.Ticket, error) {
	t := provisioner.Ticket{Hash: hash}
	var addr *netip.Addr
	err := db.pool.QueryRow(ctx, `SELECT role, machine_id, job_id, attempt, addr, parent, used FROM ticket WHERE hash = $1 AND `+which, hash).
		Scan(&t.Role, &t.MachineID, &t.JobID, &t.Attempt, &addr, &t.Parent, &t.Used)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, provisioner.ErrDenied
	}
	if err != nil {
		return t, fmt.Errorf("read ticket: %w", err)
	}
	if addr != nil {
		t.Addr = *addr
	}
	return t, nil
}
