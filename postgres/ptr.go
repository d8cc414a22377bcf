package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// mostNames bounds the reverse DNS of one IPv6 prefix.
const mostNames = 256

// SetName implements provisioner.Directory. It asks for a name, or with "" for its removal, in the reverse DNS of an address
// that the order holds.
func (db *DB) SetName(ctx context.Context, orderID string, addr netip.Addr, name string) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var prefix netip.Prefix
		// The row's lock keeps the address from being released in between, and its name from outliving the order.
		err := tx.QueryRow(ctx, `SELECT addr FROM address WHERE order_id = $1 AND addr >>= $2::inet AND NOT leaving FOR UPDATE`, orderID, addr).Scan(&prefix)
		if err != nil {
			return &machine.Error{Code: machine.NotFound, Field: "address", Message: fmt.Sprintf("%s is no address of order %s", addr, orderID), Hint: "see `bareyard order show`"}
		}
		if name == "" {
			_, err := tx.Exec(ctx, `UPDATE ptr SET name = '', state = 'waiting', due = now(), tries = 0, problem = '' WHERE addr = $1 AND name <> ''`, addr)
			return err
		}
		var others int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM ptr WHERE prefix = $1 AND addr <> $2`, prefix, addr).Scan(&others); err != nil {
			return fmt.Errorf("count names: %w", err)
		}
		if others >= mostNames {
			return &machine.Error{Code: machine.Conflict, Field: "address", Message: fmt.Sprintf("%s has %d names already", prefix, others), Hint: "clear one first"}
		}
		_, err = tx.Exec(ctx, `INSERT INTO ptr (addr, prefix, name, state) VALUES ($1, $2, $3, 'waiting')
			ON CONFLICT (addr) DO UPDATE SET name = $3, state = 'waiting', due = now(), tries = 0, problem = '' WHERE ptr.name <> $3`, addr, prefix, name)
		if err != nil {
			return fmt.Errorf("write name: %w", err)
		}
		_, err = tx.Exec(ctx, `INSERT INTO event (at, kind, machine_id, order_id, text) SELECT now(), 'address.name', machine_id, id, $2 FROM orders WHERE id = $1`,
			orderID, fmt.Sprintf("%s is to be called %s", addr, name))
		return err
	})
}

// Names lists the reverse DNS of an order's addresses.
func (db *DB) Names(ctx context.Context, orderID string) ([]provisioner.Name, error) {
	rows, err := db.pool.Query(ctx, `SELECT p.addr, p.name, p.state, p.problem FROM ptr p JOIN address a ON a.addr = p.prefix WHERE a.order_id = $1 ORDER BY p.addr`, orderID)
	return collect[provisioner.Name](rows, err, "list names")
}

// NamesDue implements provisioner.Directory.
func (db *DB) NamesDue(ctx context.Context, n int) ([]provisioner.Name, error) {
	rows, err := db.pool.Query(ctx, `WITH pick AS (SELECT addr FROM ptr WHERE state = 'waiting' AND due <= now() AND busy <= now() ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE ptr p SET busy = now() + interval '1 minute', tries = tries + 1 FROM pick WHERE p.addr = pick.addr RETURNING p.addr, p.name, p.state, p.problem`, n)
	return collect[provisioner.Name](rows, err, "list names that are due")
}

// NameTold implements provisioner.Directory. What was asked for since is told next, and not while this was being told: an
// old name must not arrive after it was cleared.
func (db *DB) NameTold(ctx context.Context, n provisioner.Name) error {
	done := `UPDATE ptr SET state = 'set', problem = '' WHERE addr = $1 AND name = $2 AND state = 'waiting'`
	if n.Name == "" {
		done = `DELETE FROM ptr WHERE addr = $1 AND name = $2 AND state = 'waiting'`
	}
	if err := db.exec(ctx, "write name", done, n.Addr, n.Name); err != nil {
		return err
	}
	return db.exec(ctx, "write name", `UPDATE ptr SET busy = now() WHERE addr = $1`, n.Addr)
}

// NameFailed implements provisioner.Directory.
func (db *DB) NameFailed(ctx context.Context, n provisioner.Name, again time.Duration, problem string) error {
	return db.exec(ctx, "write name", `UPDATE ptr SET busy = now(), due = CASE WHEN name = $2 THEN now() + $3::interval * least(tries, 12) ELSE due END,
		problem = CASE WHEN name = $2 THEN $4 ELSE problem END WHERE addr = $1 AND state = 'waiting'`, n.Addr, n.Name, again, problem)
}
