package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// OnMachine implements provisioner.Store.
func (db *DB) OnMachine(ctx context.Context, machineID string, fn func(*provisioner.Work) error) error {
	return db.transition(ctx, func(tx pgx.Tx, w *provisioner.Work) error {
		if err := lockHeld(ctx, tx, w, machineID); err != nil {
			return err
		}
		return fn(w)
	})
}

// OnOrder implements provisioner.Store. Locks are taken in the same order as OnMachine takes them, machine first, so
// the order's machine is looked up without a lock and looked at again under it.
func (db *DB) OnOrder(ctx context.Context, orderID string, fn func(*provisioner.Work) error) error {
	return db.transition(ctx, func(tx pgx.Tx, w *provisioner.Work) error {
		seen, err := getOrder(ctx, tx, orderID, "")
		if err != nil {
			return err
		}
		if seen.MachineID != "" {
			if err := lockMachine(ctx, tx, w, seen.MachineID); err != nil {
				return err
			}
		}
		o, err := getOrder(ctx, tx, orderID, "FOR UPDATE")
		if err != nil {
			return err
		}
		if o.MachineID != seen.MachineID {
			return errMoved
		}
		w.Order = &o
		if w.Machine != nil && w.Machine.OrderID != o.ID { // ended long ago; the machine is somebody else's
			w.Machine, w.Job = nil, nil
		}
		return fn(w)
	})
}

// Place implements provisioner.Store.
func (db *DB) Place(ctx context.Context, o machine.Order, key, digest string, fn func(*provisioner.Work) error) (machine.Order, error) {
	placed := o
	err := db.transition(ctx, func(tx pgx.Tx, w *provisioner.Work) error {
		now := w.Now
		o.Placed, o.Updated = now, now
		tag, err := insertOrder(ctx, tx, o, key, digest)
		if err != nil {
			return err
		}
		if tag == 0 {
			placed, err = sameRequest(ctx, tx, o.Project, key, digest)
			return err
		}
		w.Order = &o
		err = fn(w)
		placed = o
		return err
	})
	return placed, err
}

// Placed implements provisioner.Store.
func (db *DB) Placed(ctx context.Context, project, key, digest string) (o machine.Order, there bool, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) (err error) {
		o, err = sameRequest(ctx, tx, project, key, digest)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return o, false, nil
	}
	return o, err == nil, err
}

// lockHeld locks a machine, its active job and the order that holds it.
func lockHeld(ctx context.Context, tx pgx.Tx, w *provisioner.Work, id string) error {
	if err := lockMachine(ctx, tx, w, id); err != nil || w.Machine.OrderID == "" {
		return err
	}
	o, err := getOrder(ctx, tx, w.Machine.OrderID, "FOR UPDATE")
	if err != nil {
		return err
	}
	w.Order = &o
	return nil
}

func lockMachine(ctx context.Context, tx pgx.Tx, w *provisioner.Work, id string) error {
	m, err := getMachine(ctx, tx, `WHERE id = $1 FOR UPDATE`, id)
	if err != nil {
		return err
	}
	w.Machine = &m
	if m.State == machine.Accepting {
		if w.Trial, err = openTrial(ctx, tx, id); err != nil {
			return err
		}
	}
	if m.JobID == "" {
		return nil
	}
	j, err := getJob(ctx, tx, m.JobID, "FOR UPDATE")
	if err != nil {
		return err
	}
	w.Job = &j
	w.Seen, err = sighting(ctx, tx, id)
	return err
}

// errMoved says that the order got another machine between look-up and lock.
var errMoved = errors.New("order moved to another machine meanwhile")

// transition runs one transaction and tries again when the database or errMoved asks for it.
func (db *DB) transition(ctx context.Context, fn func(pgx.Tx, *provisioner.Work) error) error {
	for try := 0; ; try++ {
		err := db.once(ctx, fn)
		if try < 10 && (errors.Is(err, errMoved) || retryable(err)) {
			continue
		}
		if err == nil && db.tuned.AfterCommit != nil {
			db.tuned.AfterCommit()
		}
		return err
	}
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001") // deadlock, serialization
}

func (db *DB) once(ctx context.Context, fn func(pgx.Tx, *provisioner.Work) error) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		w := &provisioner.Work{Stock: stock{tx}, Moves: stock{tx}, Terms: terms{tx}}
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&w.Now); err != nil {
			return fmt.Errorf("begin transition: %w", err)
		}
		if err := fn(tx, w); err != nil {
			return err
		}
		return db.write(ctx, tx, w)
	})
}

// write puts back all that a Work holds.
func (db *DB) write(ctx context.Context, tx pgx.Tx, w *provisioner.Work) error {
	if w.Order != nil {
		if err := putOrder(ctx, tx, *w.Order, w.Now); err != nil {
			return err
		}
	}
	if w.Past != nil {
		if err := putJob(ctx, tx, *w.Past, false); err != nil {
			return err
		}
	}
	if w.Job != nil {
		if err := putJob(ctx, tx, *w.Job, w.NewJob); err != nil {
			return err
		}
	}
	if w.Machine != nil {
		if err := putMachine(ctx, tx, *w.Machine, w.Now); err != nil {
			return err
		}
	}
	if w.Trial != nil {
		if err := putTrial(ctx, tx, *w.Trial); err != nil {
			return err
		}
		if w.Reopen {
			if err := reopenRun(ctx, tx, w.Trial.RunID); err != nil {
				return err
			}
		}
	}
	if w.Unsee {
		if _, err := tx.Exec(ctx, `DELETE FROM sighting WHERE machine_id = $1`, w.Machine.ID); err != nil {
			return fmt.Errorf("forget sighting: %w", err)
		}
	}
	if b := w.InBand; b != nil {
		if _, err := tx.Exec(ctx, `UPDATE bmc SET in_band = $2, in_band_why = $3, in_band_at = $4 WHERE machine_id = $1`, w.Machine.ID, b.State, b.Why, w.Now); err != nil {
			return fmt.Errorf("write in-band access: %w", err)
		}
	}
	for _, t := range w.Spend {
		if err := putTicket(ctx, tx, t); err != nil {
			return err
		}
	}
	for _, c := range w.Charges {
		if _, err := tx.Exec(ctx, `INSERT INTO charge (order_id, begins, ends, amount, currency) VALUES ($1,$2,$3,$4,$5)`,
			c.OrderID, c.From, c.To, c.Amount, c.Currency); err != nil {
			return fmt.Errorf("write charge: %w", err)
		}
	}
	for _, k := range w.Kept {
		if err := keepReport(ctx, tx, k, w.Now); err != nil {
			return err
		}
	}
	for _, k := range w.Erased {
		if err := keepErasure(ctx, tx, k); err != nil {
			return err
		}
	}
	for _, ev := range w.Events {
		if _, err := tx.Exec(ctx, `INSERT INTO event (at, kind, machine_id, order_id, job_id, attempt, step, text) VALUES ($1,$2,$3,$4,$5,$6,$7,$8)`,
			ev.At, ev.Kind, ev.MachineID, ev.OrderID, ev.JobID, ev.Attempt, ev.Step, ev.Text); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
	}
	return db.enqueue(ctx, tx, w.Actions, w.Now)
}

// Overdue implements provisioner.Store.
func (db *DB) Overdue(ctx context.Context, n int) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT machine_id FROM job WHERE state = 'running' AND due < now() ORDER BY due LIMIT $1`, n)
	if err != nil {
		return nil, fmt.Errorf("list overdue jobs: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Exposed implements provisioner.Store.
func (db *DB) Exposed(ctx context.Context) ([]network.Port, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+machineColumns+`, `+orderColumns+` FROM machine m JOIN orders o ON o.id = m.order_id WHERE m.public`)
	if err != nil {
		return nil, fmt.Errorf("list exposed machines: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (network.Port, error) {
		var m machine.Machine
		var r orderRow
		err := row.Scan(append(machineFields(&m), r.fields()...)...)
		return provisioner.PublicPort(m, r.order()), err
	})
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
