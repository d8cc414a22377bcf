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

// terms implements provisioner.Terms inside a transaction.
type terms struct{ q querier }

const changeColumns = `id, order_id, kind, state, up, down, was_up, was_down, made, begins, ends, term, days`

func scanChange(row pgx.CollectableRow) (c provisioner.Change, err error) {
	var ends *time.Time
	err = row.Scan(&c.ID, &c.OrderID, &c.Kind, &c.State, &c.Rates.Up, &c.Rates.Down, &c.Was.Up, &c.Was.Down, &c.Made, &c.Begins, &ends, &c.Term, &c.Days)
	c.Ends = orZero(ends)
	return c, err
}

func (t terms) Changes(ctx context.Context, orderID string) ([]provisioner.Change, error) {
	rows, err := t.q.Query(ctx, `SELECT `+changeColumns+` FROM bandwidth_change WHERE order_id = $1 ORDER BY made, begins, id`, orderID)
	if err != nil {
		return nil, fmt.Errorf("list changes of bandwidth: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanChange)
	if err != nil {
		return nil, fmt.Errorf("list changes of bandwidth: %w", err)
	}
	return list, nil
}

func (t terms) PutChange(ctx context.Context, c provisioner.Change) error {
	var id string
	err := t.q.QueryRow(ctx, `INSERT INTO bandwidth_change (`+changeColumns+`) VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)
		ON CONFLICT (id) DO UPDATE SET state = $4 RETURNING id`, c.ID, c.OrderID, c.Kind, c.State, c.Rates.Up, c.Rates.Down, c.Was.Up, c.Was.Down, c.Made, c.Begins, nilTime(c.Ends), c.Term, c.Days).Scan(&id)
	if err != nil {
		return fmt.Errorf("write change of bandwidth: %w", err)
	}
	return nil
}

func (t terms) Answered(ctx context.Context, orderID, key, digest string) (answer []byte, ok bool, err error) {
	var first string
	err = t.q.QueryRow(ctx, `SELECT digest, answer FROM request WHERE order_id = $1 AND key = $2`, orderID, key).Scan(&first, &answer)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read request: %w", err)
	}
	if first != digest {
		return nil, false, &machine.Error{Code: machine.Conflict, Field: "Idempotency-Key",
			Message: "this key was used for another request", Hint: "use a new key for a new request, the same request for a repetition"}
	}
	return answer, true, nil
}

func (t terms) Answer(ctx context.Context, orderID, key, digest string, answer []byte) error {
	var at time.Time
	err := t.q.QueryRow(ctx, `INSERT INTO request (order_id, key, digest, answer) VALUES ($1, $2, $3, $4)
		ON CONFLICT (order_id, key) DO UPDATE SET answer = $4 RETURNING at`, orderID, key, digest, answer).Scan(&at)
	if err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	return nil
}

// Changes lists the changes of an order's bandwidth, oldest first.
func (db *DB) Changes(ctx context.Context, orderID string) ([]provisioner.Change, error) {
	return terms{db.pool}.Changes(ctx, orderID)
}

// OrdersDue implements provisioner.Calendar.
func (db *DB) OrdersDue(ctx context.Context, n int) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT id FROM orders WHERE change_due <= now() AND state IN ('active', 'expired') ORDER BY change_due LIMIT $1`, n)
	if err != nil {
		return nil, fmt.Errorf("list orders due: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
