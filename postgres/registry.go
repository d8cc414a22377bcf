package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/network"
)

// NextTold implements provisioner.Outbox.
func (db *DB) NextTold(ctx context.Context) (a network.Assignment, since time.Time, ok bool, err error) {
	// Two statements: a change that was committed while the first took its turn is seen by the second, as it has the newer since.
	err = db.pool.QueryRow(ctx, `WITH pick AS (SELECT addr FROM netbox_address WHERE state = 'waiting' AND due <= now() AND busy <= now() ORDER BY due LIMIT 1 FOR UPDATE SKIP LOCKED)
		UPDATE netbox_address n SET busy = now() + interval '3 minutes', tries = tries + 1 FROM pick WHERE n.addr = pick.addr RETURNING n.addr, n.since`).Scan(&a.Prefix, &since)
	if errors.Is(err, pgx.ErrNoRows) {
		return a, since, false, nil
	}
	if err != nil {
		return a, since, false, fmt.Errorf("take next address to tell: %w", err)
	}
	err = db.pool.QueryRow(ctx, `SELECT o.id IS NOT NULL, coalesce(o.id, ''), coalesce(o.project, ''), coalesce(m.name, ''),
			coalesce((SELECT p.name FROM ptr p WHERE p.prefix = t.addr AND p.addr = set_masklen(t.addr, 32) AND family(t.addr) = 4), '')
		FROM (SELECT $1::inet AS addr) t LEFT JOIN address a ON a.addr = t.addr LEFT JOIN orders o ON o.id = a.order_id LEFT JOIN machine m ON m.id = o.machine_id`, a.Prefix).
		Scan(&a.Held, &a.OrderID, &a.Project, &a.Machine, &a.Name)
	if err != nil {
		return a, since, false, fmt.Errorf("read address to tell: %w", err)
	}
	return a, since, true, nil
}

// WasTold implements provisioner.Outbox.
func (db *DB) WasTold(ctx context.Context, p netip.Prefix, since time.Time) error {
	return db.exec(ctx, "write that an address was told", `UPDATE netbox_address SET busy = now(), state = CASE WHEN since = $2 THEN 'told' ELSE state END,
		problem = '', tries = 0 WHERE addr = $1`, p, since)
}

// NotTold implements provisioner.Outbox.
func (db *DB) NotTold(ctx context.Context, p netip.Prefix, again time.Duration, problem string) error {
	return db.exec(ctx, "write that an address was not told", `UPDATE netbox_address SET busy = now(), due = now() + $2::interval * least(tries, 60), problem = $3 WHERE addr = $1 AND state = 'waiting'`, p, again, problem)
}

// TellAgain implements provisioner.Outbox.
func (db *DB) TellAgain(ctx context.Context, has []netip.Prefix) (int, error) {
	tag, err := db.pool.Exec(ctx, `UPDATE netbox_address n SET state = 'waiting', due = now(), tries = 0 FROM address a
		WHERE a.addr = n.addr AND a.order_id IS NOT NULL AND n.state = 'told' AND n.since < now() - interval '1 minute' AND n.addr <> ALL ($1::inet[])`, append([]netip.Prefix{}, has...))
	if err != nil {
		return 0, fmt.Errorf("list addresses to tell again: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
