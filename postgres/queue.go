package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/bareyard/bareyard/provisioner"
)

// actionArgs is an action as a River job.
type actionArgs struct {
	Action provisioner.Action `json:"action"`
}

func (actionArgs) Kind() string { return "action" }

// enqueue leaves actions in the queue, in the transaction that calls for them: none is lost, none runs for a state
// that was rolled back.
func (db *DB) enqueue(ctx context.Context, tx pgx.Tx, actions []provisioner.Action, now time.Time) error {
	for _, a := range actions {
		opts := &river.InsertOpts{MaxAttempts: 20}
		if a.After > 0 {
			opts.ScheduledAt = now.Add(a.After)
		}
		if _, err := db.queue.InsertTx(ctx, tx, actionArgs{Action: a}, opts); err != nil {
			return fmt.Errorf("enqueue %s action: %w", a.Kind, err)
		}
	}
	return nil
}

type actionWorker struct {
	river.WorkerDefaults[actionArgs]
	act func(context.Context, provisioner.Action) error
}

func (w *actionWorker) Work(ctx context.Context, job *river.Job[actionArgs]) error {
	return w.act(ctx, job.Args.Action)
}

// NextRetry overrides River's long back-off: a fence that failed is tried again soon.
func (w *actionWorker) NextRetry(job *river.Job[actionArgs]) time.Time {
	return time.Now().Add(time.Duration(min(job.Attempt, 12)) * 5 * time.Second)
}

// ActionTimeout bounds one action. It is shorter than the engine's lease, so that an action that another replica takes
// up again is not still running here.
const ActionTimeout = 75 * time.Second

// Work carries out actions until ctx ends, at most n at a time.
func (db *DB) Work(ctx context.Context, n int, act func(context.Context, provisioner.Action) error) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &actionWorker{act: act})
	client, err := river.NewClient(riverpgxv5.New(db.pool), &river.Config{
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: n}},
		Workers:              workers,
		JobTimeout:           ActionTimeout,
		RescueStuckJobsAfter: 2 * time.Minute,
		FetchPollInterval:    500 * time.Millisecond,
		Logger:               quiet(db.log),
	})
	if err != nil {
		return fmt.Errorf("make queue workers: %w", err)
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start queue workers: %w", err)
	}
	<-ctx.Done()
	// an action that is cut short is taken up again by whoever is next: no need to wait for a BMC
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := client.StopAndCancel(stop); err != nil {
		return fmt.Errorf("stop queue workers: %w", err)
	}
	return nil
}
