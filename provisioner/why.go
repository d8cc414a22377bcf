package provisioner

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
)

// tracePower notes that a machine is switched on now: its boot begins here.
func (e *Engine) tracePower(m machine.Machine, asked string) {
	if nic, ok := m.Hardware.NICByRole(machine.ProvisionNIC); ok {
		e.traced(trace.Line{MAC: nic.MAC, Proto: trace.BMC, Asked: asked}, trace.Answered, "")
	}
}

// traceHello notes what became of an agent's hello.
func (e *Engine) traceHello(mac string, from netip.Addr, err error) {
	line := trace.Line{MAC: mac, From: from, Proto: trace.Agent, Asked: trace.AskedHello}
	switch {
	case err == nil:
		e.traced(line, trace.Answered, "")
	case errors.Is(err, ErrStale):
		e.traced(line, trace.Refused, "its job and attempt are over")
	case errors.Is(err, ErrDenied):
		why := strings.TrimSuffix(err.Error(), ": "+ErrDenied.Error())
		if why == ErrDenied.Error() {
			why = "its nonce is none of ours, or was used already"
		}
		e.traced(line, trace.Refused, why)
	default:
		e.traced(line, trace.Failed, "the server could not answer, see its log")
	}
}

// waitsFor is how the reason of a job begins that waits for its agent.
const waitsFor = "waiting for the agent"

// explainAfter is how long a job waits for the agent before it says why: most machines take minutes.
const explainAfter = 2 * time.Minute

// Explain puts into each job that waits for its agent where the boot stands, once for each situation.
func (e *Engine) Explain(ctx context.Context) error {
	if e.Boots == nil {
		return nil
	}
	ids, err := e.Boots.AtHello(ctx, explainAfter)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if err := e.explainOne(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("explain machine %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) explainOne(ctx context.Context, machineID string) error {
	boots, err := e.bootsOf(ctx, machineID)
	if err != nil {
		return err
	}
	return e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if w.Job == nil || w.Job.State != machine.JobRunning || w.Job.Step != machine.StepHello {
			return nil
		}
		d := diagnose(boots, w)
		said := fmt.Sprintf("%s (%s)", waitsFor, d.Code)
		if d.Verdict != trace.Stopped || strings.HasPrefix(w.Job.Reason, said) {
			return nil
		}
		w.Job.Reason = said + ": " + d.String()
		w.note("job.wait", "%s: %s", waitsFor, d)
		return nil
	})
}

// bootsOf lists a machine's boots.
func (e *Engine) bootsOf(ctx context.Context, machineID string) ([]trace.Boot, error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return nil, err
	}
	var macs []string
	for _, n := range m.Hardware.NICs {
		macs = append(macs, n.MAC)
	}
	return e.Boots.Boots(ctx, macs)
}

// diagnose says where the boot stands that a job waits for. Boots from before the machine was switched on for it say nothing.
func diagnose(boots []trace.Boot, w *Work) trace.Diagnosis {
	on := w.Job.StepAt
	boot := trace.Boot{Lines: []trace.Line{{At: on, Proto: trace.BMC}}}
	if len(boots) > 0 && boots[0].Ended.After(on.Add(-time.Minute)) { // it was switched on a moment before the BMC said so
		boot = boots[0]
	}
	return trace.Diagnose(boot, trace.Context{Now: w.Now, Waiting: true})
}

// whyNoHello is why an agent has not said hello in time, as a part of a reason; empty when it cannot be told. It asks the
// database before the machine is locked.
func (e *Engine) whyNoHello(ctx context.Context, machineID string) func(*Work) string {
	if e.Boots == nil {
		return func(*Work) string { return "" }
	}
	boots, err := e.bootsOf(ctx, machineID)
	return func(w *Work) string {
		if err != nil || w.Job.Step != machine.StepHello {
			return ""
		}
		return ": " + diagnose(boots, w).String()
	}
}
