package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/network"
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
		opts := &river.InsertOpts{MaxAttempts: math.MaxInt16} // at a minute each, three weeks: a fence is tried until it is true
		if a.Slow {
			opts.Queue = slowQueue
		}
		if a.Kind == provisioner.ActFence {
			opts.Priority = 4 // a row of dead BMCs must not keep living machines waiting
		}
		if a.After > 0 {
			opts.ScheduledAt = now.Add(a.After)
		}
		if _, err := db.queue.InsertTx(ctx, tx, actionArgs{Action: a}, opts); err != nil {
			return fmt.Errorf("enqueue %s action: %w", a.Kind, err)
		}
	}
	return nil
}

// slowQueue is where those wait whose BMC was silent: however many they are, they have no more than a part of the workers.
const slowQueue = "slow"

type actionWorker struct {
	river.WorkerDefaults[actionArgs]
	db  *DB
	act func(context.Context, provisioner.Action) error
}

// Timeout implements river.Worker.
func (w *actionWorker) Timeout(job *river.Job[actionArgs]) time.Duration {
	return ActionTimeout + job.Args.Action.Longer
}

func (w *actionWorker) Work(ctx context.Context, job *river.Job[actionArgs]) error {
	err := w.act(ctx, job.Args.Action)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return river.JobSnooze(0) // this server stops: whoever is next begins anew, without a pause
	}
	if errors.Is(err, network.ErrPending) {
		return river.JobSnooze(5 * time.Second)
	}
	if errors.Is(err, ipmi.ErrUnreachable) && job.Queue != slowQueue {
		return w.db.moveToSlow(context.WithoutCancel(ctx), job.Args.Action)
	}
	return err
}

// moveToSlow tries an action again among those that wait for silent BMCs. Should this server die in the midst of it, the action is there twice,
// which the engine bears.
func (db *DB) moveToSlow(ctx context.Context, a provisioner.Action) error {
	a.Slow, a.After = true, 5*time.Second
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return db.enqueue(ctx, tx, []provisioner.Action{a}, time.Now()) })
}

// NextRetry overrides River's long back-off: a fence that failed is tried again soon.
func (w *actionWorker) NextRetry(job *river.Job[actionArgs]) time.Time {
	pause := time.Duration(min(job.Attempt, 12)) * 5 * time.Second
	if job.Attempt > 12 {
		pause = 5 * time.Minute
	}
	return time.Now().Add(pause)
}

// ActionTimeout bounds one action that does not say that it takes longer. It is shorter than the engine's lease, so that an action that another replica takes
// up again is not still running here.
const ActionTimeout = 75 * time.Second

// Work carries out actions until ctx ends, at most n at a time and a quarter as many of machines whose BMC was silent. node names this server among those that share the database,
// and is the same after a restart: what a server of that name was at when it was killed is begun anew at once. What other
// servers were at is taken up by the engine's lease and by the queue's own rescue, within minutes.
func (db *DB) Work(ctx context.Context, node string, n int, act func(context.Context, provisioner.Action) error) error {
	if err := db.takeUp(ctx, node); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &actionWorker{db: db, act: act})
	client, err := river.NewClient(riverpgxv5.New(db.pool), &river.Config{
		ID:                   node,
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: n}, slowQueue: {MaxWorkers: max(n/4, 1)}},
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

// takeUp puts back into the queue what a server of this name left running, and lets go of the queue's leadership that it
// held. Should two servers have one name by mistake, an action may run twice, which the engine bears: of the two only the
// first to finish may go on.
func (db *DB) takeUp(ctx context.Context, node string) error {
	tag, err := db.pool.Exec(ctx, `UPDATE river_job SET state = 'available', scheduled_at = now()
		WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1`, node)
	if err != nil {
		return fmt.Errorf("take up actions: %w", err)
	}
	if n := tag.RowsAffected(); n > 0 && db.log != nil {
		db.log.Info("actions that were cut short are begun anew", "actions", n)
	}
	if _, err := db.pool.Exec(ctx, `DELETE FROM river_leader WHERE leader_id = $1`, node); err != nil {
		return fmt.Errorf("take up leadership: %w", err)
	}
	return nil
}
