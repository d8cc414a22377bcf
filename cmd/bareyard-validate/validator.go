package main

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

const (
	pollEvery  = time.Second      // while told to wait
	aliveEvery = 10 * time.Second // while validating; a step's silence is bounded by the plan
	firstRetry = time.Second      // after the server could not be reached, doubled each time
	lastRetry  = 30 * time.Second // up to this
	giveUp     = 20 * time.Minute // without any answer
	giveUpLate = 5 * time.Minute  // likewise, once the result is delivered: hand-over closes the port that we speak through
)

// validator follows the server's instructions.
type validator struct {
	post func(context.Context, machine.Report) (machine.Instruction, error)
	read func(context.Context, machine.Expect) accelerator.Report
	plan func(machine.Validate) error // takes in how the server wants it; nil: as the flags say
	try  func(context.Context, machine.Expect, machine.AcceptancePlan) accelerator.Report
	now  func() machine.Burn // how far try is
	log  *slog.Logger

	delivered bool // the result
}

// run phones home and then does as it is told, until it is told that all is done. It returns nil then, and when the attempt is over.
func (v *validator) run(ctx context.Context) error {
	report := machine.Report{Step: machine.StepFirstBoot, Phase: machine.Done}
	for {
		in, err := v.say(ctx, report)
		if errors.Is(err, errGone) {
			v.log.Info("the attempt is over")
			return nil
		}
		if err != nil {
			return err
		}
		switch in.Do {
		case machine.DoFinish, machine.DoPowerOff: // the power is the BMC's to take, not ours from inside a customer's OS
			v.log.Info("all done")
			return nil
		case machine.DoStep:
			report, err = v.step(ctx, in)
			if errors.Is(err, errGone) {
				return nil
			}
			if err != nil {
				return err
			}
		default:
			if err := sleep(ctx, pollEvery); err != nil {
				return err
			}
			if report.Phase == machine.Done && report.Step != machine.StepFirstBoot {
				v.delivered = true
			}
			report = machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle}
		}
	}
}

// say posts a report until it is answered: the server may be restarting, and the network of a machine that just booted comes late.
func (v *validator) say(ctx context.Context, r machine.Report) (machine.Instruction, error) {
	began, wait, patience := time.Now(), firstRetry, giveUp
	if v.delivered {
		patience = giveUpLate
	}
	for {
		in, err := v.post(ctx, r)
		if err == nil || errors.Is(err, errGone) {
			return in, err
		}
		if ctx.Err() != nil {
			return in, ctx.Err()
		}
		if time.Since(began)+wait > patience {
			return in, fmt.Errorf("give up after %v: %w", patience, err)
		}
		v.log.Warn("server does not answer, trying again", "error", err, "in", wait)
		if err := sleep(ctx, wait); err != nil {
			return in, err
		}
		wait = min(2*wait, lastRetry)
	}
}

// step carries out the one step that is ours and returns the report of it.
func (v *validator) step(ctx context.Context, in machine.Instruction) (machine.Report, error) {
	report := machine.Report{Step: in.Step, Phase: machine.Failed}
	if in.Step == machine.StepAccept {
		return v.accept(ctx, in)
	}
	switch {
	case in.Step != machine.StepValidate:
		report.Error = fmt.Sprintf("the validator does not know step %q", in.Step)
		return report, nil
	case in.Expect == nil:
		report.Error = "the instruction does not say what to expect"
		return report, nil
	}
	within := machine.ValidateWithin
	if in.Validate != nil && v.plan != nil {
		if err := v.plan(*in.Validate); err != nil {
			report.Error = err.Error()
			return report, nil
		}
		within = cmp.Or(in.Validate.Within, within)
	}
	result, err := v.validate(ctx, *in.Expect, within)
	if err != nil {
		return report, err
	}
	v.log.Info("validated", "outcome", result.Outcome, "blocks", result.Blocks(), "reason", result.Reason())
	data, err := json.Marshal(result)
	if err != nil {
		report.Error = fmt.Sprintf("encode the report: %v", err)
		return report, nil
	}
	return machine.Report{Step: machine.StepValidate, Phase: machine.Done, Result: data}, nil
}

// lastCall is how long reading may go on after its time is over: children are killed then, and one that is stuck in the kernel is given up.
const lastCall = 15 * time.Second

// validate reads and judges while it tells the server that it is alive; it stops when the server no longer wants it. When the time is over,
// it reports what was read by then; when even that does not come about, that.
func (v *validator) validate(ctx context.Context, expect machine.Expect, within time.Duration) (accelerator.Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan accelerator.Report, 1)
	began := time.Now()
	go func() { // ends with its context; left behind when a driver holds it in the kernel
		ctx, over := context.WithTimeout(ctx, max(within-lastCall, within/2))
		defer over()
		results <- v.read(ctx, expect)
	}()
	late := time.NewTimer(within)
	defer late.Stop()
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case r := <-results:
			return r, ctx.Err()
		case <-late.C:
			return overdue(began, within), ctx.Err()
		case <-ctx.Done():
			return accelerator.Report{}, ctx.Err()
		case <-tick.C:
			in, err := v.post(ctx, machine.Report{Step: machine.StepValidate, Phase: machine.Working})
			switch {
			case errors.Is(err, errGone) || err == nil && (in.Do == machine.DoPowerOff || in.Do == machine.DoFinish):
				return accelerator.Report{}, errGone
			case err != nil:
				v.log.Warn("server does not answer", "error", err)
			}
		}
	}
}

// overdue is the report of a machine that did not let itself be read.
func overdue(began time.Time, within time.Duration) accelerator.Report {
	r := accelerator.Report{Schema: accelerator.Schema, Taken: began.UTC(), Rules: accelerator.RulesVersion, Plan: accelerator.PlanPostboot, Cards: []accelerator.CardResult{}, Drivers: []accelerator.DriverNote{}}
	return r.With(accelerator.Check{ID: "plan.answer", Outcome: accelerator.Fail, Required: true, Summary: fmt.Sprintf("the machine could not be read in %v", within), Action: accelerator.ActReboot,
		Evidence: []string{"something hangs in the kernel: a driver that does not return"}, Advice: "restart the machine; when it hangs again, exchange the card that its kernel log names"})
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// pemBlock returns the contents of the first block of data and what follows; nil at the end.
func pemBlock(data []byte) (der, rest []byte) {
	block, rest := pem.Decode(data)
	if block == nil {
		return nil, nil
	}
	return block.Bytes, rest
}
