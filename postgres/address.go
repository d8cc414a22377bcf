package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// addressState is the state of an address a as people see it.
const addressState = `CASE WHEN a.state <> 'stock' THEN a.state WHEN a.leaving THEN 'leaving' WHEN a.order_id IS NOT NULL THEN 'held'
	WHEN a.free_at > now() OR EXISTS (SELECT 1 FROM ptr WHERE ptr.prefix = a.addr) THEN 'cooling' ELSE 'free' END`

// Addresses lists addresses in their order.
func (db *DB) Addresses(ctx context.Context, f provisioner.AddressFilter) ([]provisioner.Address, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 1000
	}
	var after *netip.Prefix
	if f.After.IsValid() {
		after = &f.After
	}
	rows, err := db.pool.Query(ctx, `SELECT a.addr, a.line, l.site, a.pool, `+addressState+`, a.note, coalesce(a.order_id, ''), coalesce(o.project, ''), a.since,
		CASE WHEN a.free_at > now() AND a.order_id IS NULL THEN a.free_at END
		FROM address a JOIN line l ON l.name = a.line LEFT JOIN orders o ON o.id = a.order_id
		WHERE ($1 = '' OR a.line = $1) AND ($2 = '' OR `+addressState+` = $2) AND ($3 = '' OR a.order_id = $3) AND ($4::inet IS NULL OR a.addr > $4)
		ORDER BY a.addr LIMIT $5`, f.Line, f.State, f.Order, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanAddress)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return list, nil
}

func scanAddress(row pgx.CollectableRow) (a provisioner.Address, err error) {
	var since, free *time.Time
	err = row.Scan(&a.Prefix, &a.Line, &a.Site, &a.Pool, &a.State, &a.Note, &a.OrderID, &a.Project, &since, &free)
	a.Since, a.FreeAt = orZero(since), orZero(free)
	return a, err
}

// KeepBack takes all addresses within a prefix out of stock, as reserved or as a gateway's; state AddressFree puts them back.
// When one of them is held nothing is changed.
func (db *DB) KeepBack(ctx context.Context, p netip.Prefix, state provisioner.AddressState, note string) (n int64, err error) {
	to := string(state)
	if state == provisioner.AddressFree {
		to, note = "stock", ""
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var total, held int
		var example *netip.Prefix
		if _, err := tx.Exec(ctx, `SELECT 1 FROM address WHERE addr <<= $1::inet ORDER BY addr FOR UPDATE`, p); err != nil {
			return fmt.Errorf("keep addresses back: %w", err)
		}
		err := tx.QueryRow(ctx, `SELECT count(*), count(order_id), (array_agg(addr) FILTER (WHERE order_id IS NOT NULL))[1] FROM address WHERE addr <<= $1::inet`, p).Scan(&total, &held, &example)
		if err != nil {
			return fmt.Errorf("keep addresses back: %w", err)
		}
		if total == 0 {
			return &machine.Error{Code: machine.NotFound, Field: "address", Message: fmt.Sprintf("%s is in no pool", bare(p)), Hint: "see `bareyard address pools`"}
		}
		if held > 0 {
			return &machine.Error{Code: machine.Conflict, Field: "address", Message: fmt.Sprintf("an order holds %s", bare(*example)), Hint: "see whose it is with `bareyard address list`"}
		}
		tag, err := tx.Exec(ctx, `UPDATE address SET state = $2, note = $3, used_by = '' WHERE addr <<= $1::inet AND (state, note) <> ($2, $3)`, p, to, note)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// History lists who had an address, newest first; an address within an IPv6 prefix is the prefix's. With a time, only who
// had it then.
func (db *DB) History(ctx context.Context, addr netip.Addr, at time.Time) ([]provisioner.Tenure, error) {
	rows, err := db.pool.Query(ctx, `SELECT s.addr, s.order_id, s.project, coalesce(o.hostname, ''), s.machine_id, coalesce(m.name, ''), lower(s.during), upper(s.during)
		FROM assignment s LEFT JOIN orders o ON o.id = s.order_id LEFT JOIN machine m ON m.id = s.machine_id
		WHERE s.addr >>= $1::inet AND NOT isempty(s.during) AND ($2::timestamptz IS NULL OR s.during @> $2) ORDER BY lower(s.during) DESC, s.addr LIMIT 1000`, addr, nilTime(at))
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t provisioner.Tenure, err error) {
		var to *time.Time
		err = row.Scan(&t.Prefix, &t.OrderID, &t.Project, &t.Hostname, &t.MachineID, &t.Machine, &t.From, &to)
		t.To = orZero(to)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return list, nil
}

// Address returns the address that a prefix is, or lies in.
func (db *DB) Address(ctx context.Context, p netip.Prefix) (provisioner.Address, error) {
	rows, err := db.pool.Query(ctx, `SELECT a.addr, a.line, l.site, a.pool, `+addressState+`, a.note, coalesce(a.order_id, ''), coalesce(o.project, ''), a.since,
		CASE WHEN a.free_at > now() AND a.order_id IS NULL THEN a.free_at END
		FROM address a JOIN line l ON l.name = a.line LEFT JOIN orders o ON o.id = a.order_id WHERE a.addr >>= $1::inet`, p)
	if err != nil {
		return provisioner.Address{}, fmt.Errorf("read address: %w", err)
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanAddress)
	if errors.Is(err, pgx.ErrNoRows) {
		return a, &machine.Error{Code: machine.NotFound, Field: "address", Message: fmt.Sprintf("%s is in no pool", bare(p)), Hint: "see `bareyard address pools`"}
	}
	if err != nil {
		return a, fmt.Errorf("read address: %w", err)
	}
	return a, nil
}
