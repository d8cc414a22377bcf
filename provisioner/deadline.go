package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Watch gives up or takes up steps that are past their due time, and keeps the edge as it is wanted, until ctx ends.
// Every replica may run it: the row is the referee.
func (e *Engine) Watch(ctx context.Context, every time.Duration) error {
	e.watching.Store(time.Now().UnixNano())
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		if err := errors.Join(e.sweep(ctx), e.settleDue(ctx), e.TendRuns(ctx)); err != nil && ctx.Err() == nil {
			e.log().Error("deadline sweep failed", "err", err)
		}
		if n%5 == 0 {
			if err := e.Explain(ctx); err != nil && ctx.Err() == nil {
				e.log().Error("boots cannot be explained", "err", err)
			}
		}
		if n%15 == 7 {
			if err := e.ExamineStock(ctx); err != nil && ctx.Err() == nil {
				e.log().Error("stock cannot be examined", "err", err)
			}
		}
		if n%1800 == 60 {
			if err := e.forgetReports(ctx); err != nil && ctx.Err() == nil {
				e.log().Error("old reports cannot be forgotten", "err", err)
			}
		}
		if n%15 == 0 {
			if err := e.Reconcile(ctx); err != nil && ctx.Err() == nil {
				e.log().Error("edge reconciliation failed", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// forgetReports drops the reports that have been kept for long enough.
func (e *Engine) forgetReports(ctx context.Context) error {
	if e.Reports == nil || e.Validation.KeepReports <= 0 {
		return nil
	}
	n, err := e.Reports.ForgetReports(ctx, time.Now().Add(-e.Validation.KeepReports))
	if n > 0 {
		e.log().Info("old reports are forgotten", "count", n)
	}
	return err
}

// hearing is how long agents get to report to a server that has just started, or has its database back, before their silence counts.
const hearing = 30 * time.Second

func (e *Engine) sweep(ctx context.Context) error {
	asked := time.Now()
	ids, err := e.Store.Overdue(ctx, 100)
	if err != nil || time.Since(asked) > hearing {
		e.watching.Store(time.Now().UnixNano()) // nobody could report meanwhile
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if err := e.Expire(ctx, id); err != nil { // one that cannot be moved must not keep the others waiting
			errs = append(errs, fmt.Errorf("expire job of machine %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// settleDue brings about what has fallen due of the orders' networks, whoever missed it for however long.
func (e *Engine) settleDue(ctx context.Context) error {
	if e.Calendar == nil {
		return nil
	}
	ids, err := e.Calendar.OrdersDue(ctx, 100)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if err := e.SettleOrder(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("settle order %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// Expire acts on a job that is past its due time. A controller step whose replica has gone silent is taken up again;
// anything else ends the attempt.
func (e *Engine) Expire(ctx context.Context, machineID string) error {
	silent := e.whyNoHello(ctx, machineID)
	return e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if w.Job == nil || w.Job.State != machine.JobRunning || w.Now.Before(w.Job.Due) {
			return nil
		}
		step, _, _ := e.step(w.Job.Kind, w.Job.Step)
		end := w.Job.StepAt.Add(deadline(w.Job, step))
		began := e.watching.Load()
		justBack := began > 0 && time.Since(time.Unix(0, began)) < hearing
		if justBack && step.Actor != machine.Controller && (w.Now.Before(end) || step.Name == machine.StepAccept) {
			return nil // we were down, or the database, not they: let them speak first
		}
		if justBack && step.Actor == machine.Controller && !w.Now.Before(end) && e.past(w.Job, machine.StepAccept) {
			w.Job.StepAt, end = w.Now, w.Now.Add(deadline(w.Job, step)) // what hours of trial have shown is not lost for that
		}
		if w.Now.Before(end) && step.Actor == machine.Controller {
			w.note("job.resume", "%s was left by another server; taken up again", step.Name)
			e.schedule(w, step, 0)
			return nil
		}
		if step.Name == machine.StepHello && w.Now.Before(end) {
			return e.unseenBoot(ctx, w, silent(w))
		}
		why := fmt.Sprintf("not done within %s", deadline(w.Job, step))
		if w.Now.Before(end) {
			why = fmt.Sprintf("no sign of life for %s", w.Now.Sub(w.Job.SeenAt).Round(time.Second))
		}
		if step.Name == machine.StepValidate {
			return e.failSilent(ctx, w, why)
		}
		return e.failAttempt(ctx, w, false, why+silent(w))
	})
}

// Reconcile repairs what differs between the edge and what is wanted, machine by machine under its lock, so that it
// cannot put back what a job is just withdrawing.
func (e *Engine) Reconcile(ctx context.Context) error {
	var errs []error
	have, err := e.Edge.Read(ctx)
	var lost *network.UnreachableError
	if err != nil {
		err = fmt.Errorf("read edge: %w", err)
		if !errors.As(err, &lost) {
			return err
		}
		errs = append(errs, err)
	}
	want, err := e.Store.Exposed(ctx)
	if err != nil {
		return err
	}
	if lost != nil { // the edges of the other sites are looked after all the same
		want = slices.DeleteFunc(want, func(p network.Port) bool { return lost.Covers(p.Site) })
	}
	for i, now := 0, time.Now(); i < len(want); i++ {
		want[i] = want[i].At(now) // a blackhole may have run out
	}
	set, remove := network.Diff(want, have)
	for _, p := range set {
		remove = append(remove, p.Machine)
	}
	for _, id := range remove {
		err := e.Store.OnMachine(ctx, id, func(w *Work) error {
			if w.Machine.Public && w.Order != nil {
				return e.applyPort(ctx, w)
			}
			return e.Edge.Apply(ctx, nil, []string{id})
		})
		if machine.CodeOf(err) == machine.NotFound {
			err = e.Edge.Apply(ctx, nil, []string{id})
		}
		if errors.Is(err, network.ErrPending) {
			continue // somebody has it on his list
		}
		if err != nil { // one that cannot be repaired must not leave the others exposed
			errs = append(errs, fmt.Errorf("repair edge for machine %s: %w", id, err))
			continue
		}
		e.log().Warn("edge was not as wanted, repaired", "machine", id)
	}
	if err := e.Edge.Apply(ctx, nil, nil); err != nil { // what all ports share
		errs = append(errs, fmt.Errorf("repair edge: %w", err))
	}
	return errors.Join(errs...)
}
