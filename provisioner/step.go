package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Act carries out an action. An error means that the database could not be asked: try the same action again. A step
// that fails is not an error here: the transition that says so decides what follows.
func (e *Engine) Act(ctx context.Context, a Action) error {
	switch a.Kind {
	case ActStep:
		return e.actStep(ctx, a)
	case ActPlace:
		return e.actPlace(ctx, a.OrderID)
	case ActFence:
		return e.actFence(ctx, a.MachineID)
	case ActPort:
		return e.actPort(ctx, a.MachineID)
	case ActLeave:
		return e.actLeave(ctx, a)
	case ActProbe:
		return e.actProbe(ctx, a)
	case ActEnrol:
		return e.actEnrol(ctx, a)
	}
	return fmt.Errorf("carry out action: unknown kind %q", a.Kind)
}

// stepTime bounds one try of a controller step: a BMC that does not answer or obey for so long is reported as such. It is shorter
// than what the queue grants an action, so that running out of it is a verdict and not a shutdown.
const stepTime = 60 * time.Second

// actStep claims the step in a first transition, works without a lock, and reports in a second one. An action that is
// not the newest of its job, because another replica took the step up or the job went on, does nothing.
func (e *Engine) actStep(ctx context.Context, a Action) error {
	var m machine.Machine
	var j machine.Job
	var o *machine.Order
	mine := false
	err := e.Store.OnMachine(ctx, a.MachineID, func(w *Work) error {
		if !current(w, a) {
			return nil
		}
		if w.Machine.State == machine.Reserved {
			if err := w.machineEvent(machine.Provision, "%s job begins", w.Job.Kind); err != nil {
				return err
			}
			if err := w.orderEvent(machine.OrderStart, "machine %s is being prepared", w.Machine.Name); err != nil {
				return err
			}
		}
		mine, m, j = true, *w.Machine, *w.Job
		if w.Order != nil {
			c := *w.Order
			o = &c
		}
		return nil
	})
	if err != nil || !mine {
		return err
	}
	step, _, _ := e.step(j.Kind, j.Step)
	within, _ := e.tryTime(step)
	work, cancel := context.WithTimeout(ctx, within)
	var told *heard
	var found *Kept
	var set *settled
	var failure error
	if j.Kind == machine.AcceptanceJob && (j.Step == machine.StepAskBMC || j.Step == machine.StepVerdict) {
		told, failure = e.consult(work, m, j)
	} else if j.Step == machine.StepBIOS || j.Step == machine.StepBIOSCheck {
		set, failure = e.settleBIOS(work, m, j)
	} else if j.Step == machine.StepJudge {
		found, failure = e.rule(work, m, j)
	} else {
		failure = e.carryOut(work, m, j, o)
	}
	cancel()
	if ctx.Err() != nil {
		return ctx.Err() // shutting down, not a verdict on the machine
	}
	return e.Store.OnMachine(ctx, a.MachineID, func(w *Work) error {
		if !current(w, a) {
			return nil
		}
		if told != nil {
			return e.consulted(ctx, w, *told)
		}
		if failure == nil && set != nil {
			set.tell(w)
			return e.advance(ctx, w)
		}
		if failure == nil && found != nil {
			return e.ruled(ctx, w, *found)
		}
		if failure == nil {
			return e.advance(ctx, w)
		}
		if errors.Is(failure, network.ErrPending) {
			return e.await(ctx, w, failure)
		}
		return e.failTry(ctx, w, failure)
	})
}

func current(w *Work, a Action) bool {
	return w.Job != nil && w.Job.ID == a.JobID && w.Job.State == machine.JobRunning && w.Job.Turn == a.Turn
}

// failTry tries a controller step again after a growing pause, or gives the attempt up.
func (e *Engine) failTry(ctx context.Context, w *Work, failure error) error {
	step, _, _ := e.step(w.Job.Kind, w.Job.Step)
	var changed *changedError
	if errors.As(failure, &changed) {
		err := e.failAttempt(ctx, w, true, failure.Error())
		w.Machine.Reason = clip(fmt.Sprintf("%s: %s", w.Machine.Reason, changed.detail())) // the order's events, which its customer reads, have only how many
		return err
	}
	if step.Name == machine.StepRotate && (errors.Is(failure, ipmi.ErrLied) || errors.Is(failure, ipmi.ErrPassword)) {
		return e.failAttempt(ctx, w, true, failure.Error()) // each try is a failed login on the way to a lock-out
	}
	if errors.Is(failure, ipmi.ErrCredentials) || errors.Is(failure, ipmi.ErrLocked) || untrusted(failure) {
		return e.failAttempt(ctx, w, true, failure.Error()) // trying again locks the BMC's account, or calls a stranger
	}
	pause := time.Duration(w.Job.Try*w.Job.Try) * time.Second
	silent := errors.Is(failure, ipmi.ErrUnreachable)
	if silent { // it was asked for a moment only: a BMC that starts anew is not given up earlier for that
		pause = max(pause, time.Duration(w.Job.Try)*cmp.Or(e.ObeyWithin, stepTime)/6)
	}
	if w.Job.Try >= step.Tries || w.Now.Add(pause).After(w.Job.StepAt.Add(step.Deadline)) {
		var disc *discError
		if errors.As(failure, &disc) && w.Job.Kind != machine.AcceptanceJob { // whose end it is, with its report kept
			w.Job.Finding = also(clip(disc.Error()), w.Job.Finding)
			return e.advance(ctx, w)
		}
		return e.failAttempt(ctx, w, step.Name == machine.StepRotate, failure.Error()) // another attempt would erase the disks once more
	}
	w.note("job.try", "try %d of %d failed: %v; next in %s", w.Job.Try, step.Tries, failure, pause)
	w.Job.Try++
	e.schedule(w, step, pause)
	if silent { // it may wait for longer than a lease: taken up anew it would wait among the others. A server's death the queue sees to
		w.Actions[len(w.Actions)-1].Slow = true
		w.Job.Due = w.Job.StepAt.Add(step.Deadline)
	}
	return nil
}

// How often a step looks whether somebody has done what it waits for, and how long it waits.
const (
	lookAgain = 5 * time.Second
	patience  = 24 * time.Hour
)

// await lets a controller step wait for a person without counting a try. SeenAt keeps when the step began.
func (e *Engine) await(ctx context.Context, w *Work, failure error) error {
	step, _, _ := e.step(w.Job.Kind, w.Job.Step)
	if w.Now.Sub(w.Job.SeenAt) > patience && errors.Is(failure, errUsed) {
		return e.failOrder(w, fmt.Sprintf("no address could be given within %s: %v", patience, failure))
	}
	if w.Now.Sub(w.Job.SeenAt) > patience {
		return e.failAttempt(ctx, w, false, fmt.Sprintf("nobody did it within %s: %v", patience, failure))
	}
	if why := failure.Error(); w.Job.Reason != why {
		w.Job.Reason = why
		w.note("job.wait", "%v", failure)
	}
	w.Job.StepAt = w.Now // its deadline is for programs
	e.schedule(w, step, lookAgain)
	return nil
}

// carryOut does the work of a controller step. Each is idempotent: a replica may die in the middle and another begins anew.
func (e *Engine) carryOut(ctx context.Context, m machine.Machine, j machine.Job, o *machine.Order) error {
	switch j.Step {
	case machine.StepIsolate:
		if o != nil && j.Kind != machine.ProvisionJob {
			e.lastReading(ctx, m, o.ID)
		}
		err := e.Edge.Apply(ctx, nil, []string{m.ID})
		if err != nil {
			err = fmt.Errorf("withdraw public address: %w", err)
		}
		err = errors.Join(err, e.closePorts(ctx, m)) // that one waits for somebody must not leave the other open
		if j.Kind == machine.ProvisionJob && o != nil && err == nil {
			_, err = e.prove(ctx, o.ID, j.Try >= probeTries)
		}
		return err
	case machine.StepShutDown: // the power first: a drive that does not obey must not keep the machine on
		if err := e.bmc(ctx, m, func(t ipmi.Target) error { return e.Power.SetPower(ctx, t, ipmi.OpOff) }); err != nil {
			return err
		}
		if err := e.ejectDisc(ctx, m); err != nil {
			return &discError{err}
		}
		return nil
	case machine.StepPowerOff:
		return e.bmc(ctx, m, func(t ipmi.Target) error { return e.Power.SetPower(ctx, t, ipmi.OpOff) })
	case machine.StepNextBoot:
		return e.bmc(ctx, m, func(t ipmi.Target) error {
			if j.Boots > 0 {
				e.bootIgnored(ctx, m, t)
			}
			if (j.Kind == machine.ProvisionJob || j.Kind == machine.ReinstallJob) && j.Boots == 0 {
				e.shutInBand(ctx, m, t)
			}
			if byMedia(&m, &j) {
				return nil // with the disc, at power-on
			}
			err := e.Power.SetNextBoot(ctx, t, ipmi.DevicePXE, m.Firmware == machine.UEFI)
			if errors.Is(err, ipmi.ErrOff) {
				return nil // this BMC takes it only while the host is on: power-on does both
			}
			return err
		})
	case machine.StepPowerOn:
		road := machine.BootNetwork
		if byMedia(&m, &j) {
			road = machine.BootMedia
		}
		e.tracePower(m, fmt.Sprintf("power on, next boot %s (%s job, attempt %d)", roadText(road), j.Kind, j.Attempt))
		if err := e.openPort(ctx, m, machine.ProvisionNIC); err != nil {
			return err
		}
		if road == machine.BootMedia {
			return e.powerOnMedia(ctx, m, j)
		}
		return e.bmc(ctx, m, func(t ipmi.Target) error {
			// Again, because a server that was restarted since does not know whether this BMC has forgotten it.
			err := e.Power.SetNextBoot(ctx, t, ipmi.DevicePXE, m.Firmware == machine.UEFI)
			if errors.Is(err, ipmi.ErrOff) {
				return e.Power.BootFrom(ctx, t, ipmi.DevicePXE, m.Firmware == machine.UEFI)
			}
			if err != nil {
				return err
			}
			return e.Power.SetPower(ctx, t, ipmi.OpOn)
		})
	case machine.StepBootDisk:
		e.tracePower(m, fmt.Sprintf("power off and on, next boot from disk (%s job, attempt %d)", j.Kind, j.Attempt))
		if err := e.ejectDisc(ctx, m); err != nil {
			return err
		}
		return e.bmc(ctx, m, func(t ipmi.Target) error {
			if err := e.Power.SetNextBoot(ctx, t, ipmi.DeviceDisk, m.Firmware == machine.UEFI); err != nil {
				return err
			}
			// Not a cycle: off and on are each seen, and a board that forgets its override at a reset has none to forget.
			if err := e.Power.SetPower(ctx, t, ipmi.OpOff); err != nil {
				return err
			}
			return e.Power.SetPower(ctx, t, ipmi.OpOn)
		})
	case machine.StepNetwork:
		if o == nil {
			return errors.New("program edge: no order holds the machine")
		}
		if err := e.openPort(ctx, m, machine.PublicNIC); err != nil {
			return err
		}
		return e.Edge.Apply(ctx, []network.Port{PublicPort(m, *o)}, nil)
	case machine.StepBaseline:
		return e.recordBaseline(ctx, m, j.Kind)
	case machine.StepHandOver:
		if err := e.setPort(ctx, m, machine.ProvisionNIC, false); err != nil {
			return err
		}
		if o == nil || !m.Public {
			return errors.New("hand over: no order holds the machine")
		}
		if err := e.ejectDisc(ctx, m); err != nil { // it was, before the boot from disk
			return err
		}
		m.State = machine.Active // the port is known to be shut: the customer gets in now, and not before
		return e.Edge.Apply(ctx, []network.Port{PublicPort(m, *o)}, nil)
	case machine.StepCompare:
		return e.compareBaseline(ctx, m, o)
	case machine.StepRotate:
		return e.renew(ctx, m, o)
	case machine.StepRelease:
		return e.closePorts(ctx, m) // the rest is in the transition
	}
	return fmt.Errorf("carry out step: %q is not a step of the controller", j.Step)
}

// setPort opens or closes a machine's port of a role. A port that the record does not name is nobody's to drive.
func (e *Engine) setPort(ctx context.Context, m machine.Machine, role machine.NICRole, open bool) error {
	nic, ok := m.Hardware.NICByRole(role)
	if !ok || nic.Port == "" {
		return nil
	}
	return e.Ports.Set(ctx, nic.Port, open)
}

// openPort opens a port to its machine alone.
func (e *Engine) openPort(ctx context.Context, m machine.Machine, role machine.NICRole) error {
	nic, ok := m.Hardware.NICByRole(role)
	if !ok || nic.Port == "" {
		return nil
	}
	if err := e.Ports.Pin(ctx, nic.Port, nic.MAC); err != nil {
		return fmt.Errorf("pin port %s: %w", nic.Port, err)
	}
	return e.Ports.Set(ctx, nic.Port, true)
}

func (e *Engine) closePorts(ctx context.Context, m machine.Machine) error {
	return errors.Join(e.setPort(ctx, m, machine.PublicNIC, false), e.setPort(ctx, m, machine.ProvisionNIC, false))
}

// actFence cuts a machine off; it is tried again until it is true.
func (e *Engine) actFence(ctx context.Context, machineID string) error {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return err
	}
	if m.JobID != "" {
		return nil // a job is at work on it again, and isolates it itself
	}
	var wires []error
	if !m.Public {
		e.lastReading(ctx, m, m.OrderID)
		wires = append(wires, e.Edge.Apply(ctx, nil, []string{m.ID}))
	}
	if !m.PortOpen {
		wires = append(wires, e.setPort(ctx, m, machine.ProvisionNIC, false))
	}
	if !m.Public {
		wires = append(wires, e.setPort(ctx, m, machine.PublicNIC, false))
	}
	var failed error
	if m.State != machine.Active {
		failed = e.bmc(ctx, m, func(t ipmi.Target) error { return e.Power.SetPower(ctx, t, ipmi.OpOff) })
	}
	if !errors.Is(failed, ipmi.ErrUnreachable) { // who was silent is not asked twice
		if err := e.ejectDisc(ctx, m); err != nil { // EmptyDrives goes on with it: a disc that stays must not have the power cut again and again
			e.log().Warn("a disc is left in a fenced machine", "machine", m.Name, "err", err)
		}
	}
	if err := errors.Join(wires...); err != nil {
		if failed != nil {
			err = fmt.Errorf("%w; %v", err, failed) // not a silent BMC's: this must not wait among those
		}
		return fmt.Errorf("fence machine %s: %w", m.Name, err)
	}
	if failed != nil {
		return fmt.Errorf("fence machine %s: %w", m.Name, failed)
	}
	return nil
}

// conclude is what the last step of a job brings about, in the same transition.
func (e *Engine) conclude(ctx context.Context, w *Work) error {
	switch w.Job.Kind {
	case machine.ProvisionJob:
		w.port() // whoever repaired the edge between the step and this has shut it again
		return handOver(w)
	case machine.ReinstallJob:
		w.port()
		w.Order.Image, w.Order.ImageDigest = w.Job.Image, w.Job.ImageDigest
		w.Machine.Reason = ""
		return w.machineEvent(machine.HandOver, "reinstalled with %s", w.Job.Image)
	case machine.ReclaimJob:
		if w.Order != nil {
			if err := w.Stock.FreeAddresses(ctx, w.Order.ID, true); err != nil {
				return err
			}
		}
		if w.Job.Finding != "" {
			w.Machine.Reason, w.Machine.OrderID = w.Job.Finding, ""
			w.tellOperators("machine.finding", w.Job.Finding)
			return w.machineEvent(machine.Quarantine, "wiped and proven clean, and kept out of stock")
		}
		w.Machine.Reason = ""
		if err := w.machineEvent(machine.Reclaimed, "wiped and proven clean, back in stock"); err != nil {
			return err
		}
		w.Machine.OrderID = ""
	case machine.ExamineJob:
		return concludeExamination(w)
	}
	return nil
}

func handOver(w *Work) error {
	w.Order.Started, w.Order.Until = billing.Period(w.Now, w.Order.Months, 0, time.UTC)
	w.Order.Reason = ""
	w.Charges = append(w.Charges, Charge{OrderID: w.Order.ID, From: w.Order.Started, To: w.Order.Until,
		Amount: w.Order.Price, Currency: w.Order.Currency})
	if err := w.machineEvent(machine.HandOver, "handed over"); err != nil {
		return err
	}
	return w.orderEvent(machine.OrderHandOver, "machine %s is yours at %s", w.Machine.Name, w.Order.Address)
}
