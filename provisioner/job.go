package provisioner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// startJob gives the machine a job and enqueues its first action. The machine must have no active one.
func (e *Engine) startJob(w *Work, kind machine.JobKind, set func(*machine.Job)) error {
	if w.Job != nil && w.Job.State == machine.JobRunning {
		return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s has a %s job under way", w.Machine.Name, w.Job.Kind),
			Hint: "wait for it, or cancel it first"}
	}
	j := &machine.Job{
		ID: NewID("j"), Kind: kind, MachineID: w.Machine.ID, State: machine.JobRunning, Attempt: 1,
		Step: e.plan(kind)[0].Name, Started: w.Now,
	}
	if w.Order != nil {
		j.OrderID = w.Order.ID
		w.Order.JobID = j.ID
	}
	if set != nil {
		set(j)
	}
	w.Past, w.Job, w.NewJob = w.Job, j, true
	w.Machine.JobID, w.Machine.Parked = j.ID, false
	w.note("job.start", "%s job starts", kind)
	e.enter(w)
	return nil
}

// enter begins the step that the job now names: sets its clocks, what is wanted of the network, and its action.
func (e *Engine) enter(w *Work) {
	j := w.Job
	step, _, _ := e.step(j.Kind, j.Step)
	j.StepAt, j.SeenAt, j.Try = w.Now, w.Now, 1
	j.Progress = machine.Progress{}
	switch j.Step {
	case machine.StepIsolate:
		w.Machine.Public, w.Machine.PortOpen = false, false
	case machine.StepPowerOn: // it was seen off: from here on no tenant's system runs until hand-over
		w.Machine.PortOpen = true
		w.Unsee, w.Seen = true, Sighting{}
	case machine.StepNetwork:
		w.Machine.Public = true
	case machine.StepHandOver, machine.StepRelease:
		w.Machine.PortOpen = false
	}
	e.schedule(w, step, 0)
}

// schedule sets the job's due time and, for a controller step, enqueues the action that carries it out.
func (e *Engine) schedule(w *Work, step machine.Step, after time.Duration) {
	j := w.Job
	j.Turn++
	j.Due = j.StepAt.Add(deadline(j, step))
	quiet := silence(j, step)
	if step.Actor == machine.Controller {
		_, more := e.tryTime(step)
		quiet = after + e.lease() + more
		w.Actions = append(w.Actions, Action{Kind: ActStep, MachineID: w.Machine.ID, JobID: j.ID, Turn: j.Turn, After: after, Longer: more})
	}
	if j.Step == machine.StepHello && w.Seen.At.IsZero() && !byMedia(w.Machine, j) { // what loads from a disc is not on the wire
		quiet = e.SeenWithin
	}
	if q := w.Now.Add(quiet); quiet > 0 && q.Before(j.Due) {
		j.Due = q
	}
}

// seen notes a sign of life of the step's actor.
func (e *Engine) seen(w *Work) {
	step, _, _ := e.step(w.Job.Kind, w.Job.Step)
	w.Job.SeenAt = w.Now
	w.Job.Due = w.Job.StepAt.Add(deadline(w.Job, step))
	if quiet := silence(w.Job, step); quiet > 0 && w.Now.Add(quiet).Before(w.Job.Due) {
		q := w.Now.Add(quiet)
		w.Job.Due = q
	}
}

// advance ends the current step and enters the next, or ends the job.
func (e *Engine) advance(ctx context.Context, w *Work) error {
	done, _, next := e.step(w.Job.Kind, w.Job.Step)
	began := w.Job.StepAt
	if done.Actor == machine.Controller { // it may have waited for somebody
		began = w.Job.SeenAt
	}
	took := w.Now.Sub(began).Round(100 * time.Millisecond)
	if next == "" {
		if err := e.conclude(ctx, w); err != nil {
			return err
		}
		if err := w.jobEvent(machine.JobSucceed, "%s done after %s; job succeeded", done.Name, took); err != nil || w.Job.Kind != machine.AcceptanceJob {
			return err
		}
		return e.passTrial(w)
	}
	if err := w.jobEvent(machine.JobAdvance, "%s done after %s", done.Name, took); err != nil {
		return err
	}
	if strings.HasPrefix(w.Job.Reason, waitsFor) {
		w.Job.Reason = ""
	}
	w.Job.Step = next
	e.enter(w)
	return nil
}

// failAttempt ends the attempt: a new one begins, or the job fails when none is left or a retry cannot help.
func (e *Engine) failAttempt(ctx context.Context, w *Work, fatal bool, reason string) error {
	if w.Job.Step == machine.StepAccept {
		return e.hung(w, reason)
	}
	w.Job.Reason = fmt.Sprintf("%s: %s", w.Job.Step, reason)
	fatal = fatal || e.past(w.Job, machine.StepAccept) // hours of trial are not repeated for what comes after
	if !fatal && w.Job.Attempt < machine.MaxAttempts {
		if err := w.jobEvent(machine.JobRetry, "attempt %d failed at %s: %s; starting over", w.Job.Attempt, w.Job.Step, reason); err != nil {
			return err
		}
		w.Job.Attempt++
		w.Job.Boots = 0
		w.Job.Step = e.plan(w.Job.Kind)[0].Name
		e.enter(w)
		return nil
	}
	return e.failJob(ctx, w)
}

// failJob ends the job for good and compensates by kind: whatever happens, nobody gets a machine that was not proven.
func (e *Engine) failJob(ctx context.Context, w *Work) error {
	kind, step, reason := w.Job.Kind, w.Job.Step, w.Job.Reason
	if err := w.jobEvent(machine.JobFail, "%s job failed after %d attempts: %s", kind, w.Job.Attempt, reason); err != nil {
		return err
	}
	w.Machine.Reason = besides(w, fmt.Sprintf("%s job failed at %s", kind, reason))
	if kind == machine.ReinstallJob {
		return e.failReinstall(w, step)
	}
	if kind == machine.AcceptanceJob {
		if err := e.failTrial(w); err != nil {
			return err
		}
	}
	move := machine.Quarantine
	switch {
	case w.Machine.State == machine.Reserved:
		move = machine.Unreserve // no server came to it: nothing was touched
	case kind == machine.ProvisionJob && w.Machine.State == machine.Provisioning && e.unseen(kind, step):
		move = machine.Park // a BMC or a cable, not dirt: nothing was looked at or written yet
	}
	if err := w.machineEvent(move, "%s", w.Machine.Reason); err != nil {
		return err
	}
	e.fence(w)
	if kind != machine.ProvisionJob || w.Order == nil {
		return nil
	}
	w.Order.Tried = append(w.Order.Tried, w.Machine.ID)
	w.Order.Reason = fmt.Sprintf("machine %s failed at %s", w.Machine.Name, reason)
	w.Order.MachineID, w.Machine.OrderID = "", ""
	if len(w.Order.Tried) >= maxTried {
		w.Order.Reason += fmt.Sprintf("; %d machines failed, so the fault is likely to be the order's or the image's, and no more are tried", len(w.Order.Tried))
		if err := w.Stock.FreeAddresses(ctx, w.Order.ID, true); err != nil {
			return err
		}
		return w.orderEvent(machine.OrderFail, "%s", w.Order.Reason)
	}
	if w.Order.State == machine.OrderProvisioning {
		if err := w.orderEvent(machine.OrderMove, "%s; looking for another machine of class %s", w.Order.Reason, w.Order.Class); err != nil {
			return err
		}
	}
	w.Actions = append(w.Actions, Action{Kind: ActPlace, OrderID: w.Order.ID})
	return nil
}

// failOrder ends a job and its order for what is not its machine's fault: that goes back to stock, as after a cancellation.
func (e *Engine) failOrder(w *Work, reason string) error {
	w.Order.Reason, w.Job.Reason = reason, fmt.Sprintf("%s: %s", w.Job.Step, reason)
	if err := w.orderEvent(machine.OrderFail, "%s", reason); err != nil {
		return err
	}
	if err := w.jobEvent(machine.JobFail, "%s", reason); err != nil {
		return err
	}
	return e.reclaim(w)
}

// maxTried is how many machines an order may bring down: a bad image must not empty a class.
const maxTried = 3

// failReinstall leaves the machine with its customer, out of service: its data disks are his, and he may try again.
// A machine that failed its validation goes to quarantine, where only an operator can decide.
func (e *Engine) failReinstall(w *Work, step machine.StepName) error {
	move := machine.Park
	if step == machine.StepValidate || step == machine.StepJudge {
		move = machine.Quarantine
	}
	if err := w.machineEvent(move, "%s", w.Machine.Reason); err != nil {
		return err
	}
	e.fence(w)
	return nil
}

// unseen reports whether the named step comes before the first look at the machine.
func (e *Engine) unseen(kind machine.JobKind, name machine.StepName) bool {
	_, at, _ := e.step(kind, name)
	_, hello, _ := e.step(kind, machine.StepHello)
	return at <= hello
}

// past reports whether a job is behind the named step of its plan.
func (e *Engine) past(j *machine.Job, name machine.StepName) bool {
	_, at, _ := e.step(j.Kind, j.Step)
	_, named, _ := e.step(j.Kind, name)
	return named >= 0 && at > named
}

// fence cuts a machine off: no public address, no provisioning port, no power.
func (e *Engine) fence(w *Work) {
	w.Machine.Public, w.Machine.PortOpen = false, false
	w.Actions = append(w.Actions, Action{Kind: ActFence, MachineID: w.Machine.ID})
}
