package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

const taskColumns = `t.id, t.kind, t.subject, t.title, t.steps, t.proof, t.wanted, t.state, t.opened, t.closed, t.closer, t.note`

func scanTask(row pgx.CollectableRow) (t network.Task, err error) {
	var closed *time.Time
	err = row.Scan(&t.ID, &t.Kind, &t.Subject, &t.Title, &t.Steps, &t.Check, &t.Wanted, &t.State, &t.Opened, &closed, &t.By, &t.Note)
	t.Closed = orZero(closed)
	return t, err
}

// Open implements network.Tasks.
func (db *DB) Open(ctx context.Context, t network.Task) error {
	for try := 0; ; try++ {
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return openTask(ctx, tx, t) })
		if retryable(err) && try < 10 {
			continue
		}
		return err
	}
}

func openTask(ctx context.Context, tx pgx.Tx, t network.Task) error {
	// One at a time for a subject: of two who ask for different things the later one wins, and nobody sees two open.
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "task/"+t.Kind+"/"+t.Subject); err != nil {
		return fmt.Errorf("open task: %w", err)
	}
	rows, err := tx.Query(ctx, `UPDATE task t SET state = 'withdrawn', closed = clock_timestamp(), note = 'something else was asked for'
		WHERE kind = $1 AND subject = $2 AND id <> $3 AND state = 'open' RETURNING `+taskColumns, t.Kind, t.Subject, t.ID)
	if err != nil {
		return fmt.Errorf("withdraw task: %w", err)
	}
	withdrawn, err := pgx.CollectRows(rows, scanTask)
	if err != nil {
		return fmt.Errorf("withdraw task: %w", err)
	}
	tag, err := tx.Exec(ctx, `INSERT INTO task (id, kind, subject, title, steps, proof, wanted, state) VALUES ($1,$2,$3,$4,$5,$6,$7,'open')
		ON CONFLICT (id) DO UPDATE SET state = 'open', opened = clock_timestamp(), closed = NULL, closer = '', note = '', title = $4, steps = $5, proof = $6
		WHERE task.state <> 'open'`, t.ID, t.Kind, t.Subject, t.Title, append([]string{}, t.Steps...), t.Check, t.Wanted)
	if err != nil {
		return fmt.Errorf("open task: %w", err)
	}
	for _, w := range withdrawn {
		if err := taskEvent(ctx, tx, w, "task.withdraw", "task %s is withdrawn: %s", w.ID, w.Title); err != nil {
			return err
		}
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	return taskEvent(ctx, tx, t, "task.open", "task %s for an operator: %s", t.ID, t.Title)
}

// taskEvent writes an event about a task, on the machine that it is about if it is about one.
func taskEvent(ctx context.Context, tx pgx.Tx, t network.Task, kind, format string, a ...any) error {
	_, err := tx.Exec(ctx, `INSERT INTO event (at, kind, machine_id, text) SELECT clock_timestamp(), $1, coalesce((SELECT id FROM machine WHERE id = $2), ''), $3`,
		kind, t.Subject, fmt.Sprintf(format, a...))
	if err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// Latest implements network.Tasks.
func (db *DB) Latest(ctx context.Context, kind string) (map[string]network.Task, error) {
	rows, err := db.pool.Query(ctx, `SELECT DISTINCT ON (t.subject) `+taskColumns+` FROM task t WHERE t.kind = $1 ORDER BY t.subject, t.opened DESC, t.id`, kind)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanTask)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	latest := make(map[string]network.Task, len(list))
	for _, t := range list {
		latest[t.Subject] = t
	}
	return latest, nil
}

// Tasks lists tasks, the oldest open ones first and then the newest of the others; all, or those in a state.
func (db *DB) Tasks(ctx context.Context, state network.TaskState) ([]network.Task, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+taskColumns+` FROM task t WHERE $1 = '' OR t.state = $1
		ORDER BY t.state <> 'open', CASE WHEN t.state = 'open' THEN t.opened END, t.closed DESC, t.id LIMIT 1000`, state)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanTask)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return list, nil
}

// Task returns a task.
func (db *DB) Task(ctx context.Context, id string) (network.Task, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+taskColumns+` FROM task t WHERE t.id = $1`, id)
	if err != nil {
		return network.Task{}, fmt.Errorf("read task: %w", err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanTask)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, notFound("task", id)
	}
	if err != nil {
		return t, fmt.Errorf("read task: %w", err)
	}
	return t, nil
}

// CloseTask says what a person has done about a task: TaskDone or TaskRefused. A refusal may be taken back by doing it; a
// task that was withdrawn, or is done, is not there to be refused. Saying the same again changes nothing. Whoever waits for it
// looks again at once.
func (db *DB) CloseTask(ctx context.Context, id string, to network.TaskState, by, note string) (network.Task, error) {
	var t network.Task
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+taskColumns+` FROM task t WHERE t.id = $1 FOR UPDATE`, id)
		if err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		t, err = pgx.CollectExactlyOneRow(rows, scanTask)
		if errors.Is(err, pgx.ErrNoRows) {
			return notFound("task", id)
		}
		if err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		if t.State == to {
			return nil
		}
		if t.State != network.TaskOpen && !(t.State == network.TaskRefused && to == network.TaskDone) {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("task %s is %s", id, t.State), Hint: "see what is wanted now with `bareyard task list`"}
		}
		var closed time.Time
		err = tx.QueryRow(ctx, `UPDATE task SET state = $2, closed = clock_timestamp(), closer = $3, note = $4 WHERE id = $1 RETURNING closed`, id, to, by, note).Scan(&closed)
		if err != nil {
			return fmt.Errorf("close task: %w", err)
		}
		t.State, t.Closed, t.By, t.Note = to, closed, by, note
		if _, err := tx.Exec(ctx, `UPDATE ptr SET due = now() WHERE state = 'waiting' AND host(addr) = $1`, t.Subject); err != nil {
			return fmt.Errorf("wake reverse DNS: %w", err)
		}
		word := "done"
		if to == network.TaskRefused {
			word = "refused"
		}
		if note != "" {
			word += ": " + note
		}
		return taskEvent(ctx, tx, t, "task."+string(to), "task %s (%s) is %s", t.ID, t.Title, word)
	})
	return t, err
}

var _ network.Tasks = (*DB)(nil)
var _ provisioner.Calendar = (*DB)(nil)
