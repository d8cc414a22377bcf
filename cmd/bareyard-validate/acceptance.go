package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// stageOf is what a plan says of a stage.
func stageOf(p machine.AcceptancePlan, s accelerator.Stage) machine.StagePlan {
	switch s {
	case accelerator.StageSanity:
		return p.Sanity
	case accelerator.StageValidation:
		return p.Validation
	case accelerator.StagePerformance:
		return p.Performance
	}
	return p.Stress
}

// acceptance goes from stage to stage, and not on when one of them blocks or does not end in its time.
func (m *measurer) acceptance(ctx context.Context, f *accelerator.Facts, expect machine.Expect) {
	plan := machine.AcceptancePlan{Stress: machine.StagePlan{Load: machine.Span(m.duration)}}
	if m.trial != nil {
		plan = *m.trial
	} else if m.duration == 0 {
		plan.Stress.Load = machine.Span(defaultStress)
	}
	if m.trial == nil { // what a person asked for is over soon
		plan.Validation.Load = min(plan.Stress.Load, machine.Span(shortBurn))
	}
	plan = plan.Filled()
	f.Asked = time.Duration(plan.Stress.Load).Seconds()
	stop := &watch{}
	var slots []string
	for _, stage := range accelerator.Stages() {
		m.say("stage %s", stage)
		part := stageOf(plan, stage)
		m.pace.begin(string(stage), time.Duration(part.Load))
		within, end := context.WithTimeout(ctx, time.Duration(part.Limit))
		if stage == accelerator.StageValidation {
			slots = loadable(*f, expect)
			stop = m.watch(ctx, slots)
		}
		if stage == accelerator.StageStress {
			go m.lookOut(within, end, *f, expect) // ends with the stage
		}
		m.carryOut(within, stage, time.Duration(part.Load), slots, f, expect, stop.rate)
		over := ctx.Err() == nil && errors.Is(within.Err(), context.DeadlineExceeded)
		end()
		if over {
			f.Overrun = stage
			m.say("stage %s did not end in %v", stage, time.Duration(part.Limit))
			break
		}
		f.Stages = append(f.Stages, stage)
		if ctx.Err() != nil || m.stuck(*f, expect) {
			m.say("stage %s blocks: the rest is not begun", stage)
			break
		}
	}
	m.pace.begin("reading again", 0)
	f.Series = stop.end()
	if len(f.Stages) > 1 || f.Overrun != "" {
		m.again(ctx, f, expect)
	}
}

// carryOut does the work of one stage.
func (m *measurer) carryOut(ctx context.Context, stage accelerator.Stage, load time.Duration, slots []string, f *accelerator.Facts, expect machine.Expect, rate func(string, float64)) {
	switch stage {
	case accelerator.StageValidation:
		f.Loads = merge(f.Loads, m.burn.Stress(ctx, slots, load/patternShare, load, rate))
		m.diagnose(ctx, f, expect, "healthCheck", 2)
	case accelerator.StagePerformance:
		f.Loads = merge(f.Loads, m.burn.Rates(ctx, slots))
		f.Loads = merge(f.Loads, m.burn.Pairs(ctx, slots))
		if len(slots) > 0 {
			f.Loads = merge(f.Loads, m.tools.Bandwidth(ctx, slots))
			f.Loads = merge(f.Loads, m.tools.AllReduce(ctx, len(slots)))
		}
		m.diagnose(ctx, f, expect, "performanceCheck", 0)
	case accelerator.StageStress:
		began := time.Now()
		f.Loads = merge(f.Loads, m.burn.Stress(ctx, slots, load/patternShare, load, rate))
		m.diagnose(ctx, f, expect, "stressTest", 3)
		if f.Seconds = burned(f.Loads); len(slots) == 0 {
			f.Seconds = time.Since(began).Seconds()
		}
	}
}

// lookOutEvery is how often a long stage is held against the kernel's log.
const lookOutEvery = 30 * time.Second

// lookOut ends a long stage when the kernel's log tells of a fault that no more load can make better: hours of burn on a card that has left the
// bus prove nothing. f is a copy.
func (m *measurer) lookOut(ctx context.Context, end context.CancelFunc, f accelerator.Facts, expect machine.Expect) {
	for sleep(ctx, min(lookOutEvery, m.every*30)) == nil {
		f.Log = accelerator.ReadKernelLog(m.roots)
		if c, ok := fails(accelerator.Judge(f, expect, m.rules), "log.kernel"); ok {
			m.pace.tell(c)
			m.say("the kernel's log tells of a fault, the stage is ended: %s", c)
			end()
			return
		}
	}
}

// fails returns what a check of a report says, when it failed.
func fails(r accelerator.Report, id string) (string, bool) {
	i := slices.IndexFunc(r.Checks, func(c accelerator.Check) bool { return c.ID == id && c.Outcome == accelerator.Fail })
	if i < 0 {
		return "", false
	}
	return id + ": " + r.Checks[i].Summary, true
}

// stuck reports whether something failed in the stages so far. What was not run yet is a skip, and no reason to stop.
func (m *measurer) stuck(f accelerator.Facts, expect machine.Expect) bool {
	f.Asked = 0
	r := accelerator.Judge(f, expect, m.rules)
	worst, failed := "", false
	for _, c := range r.Checks {
		switch {
		case c.Outcome == accelerator.Fail && !failed:
			worst, failed = c.ID+": "+c.Summary, true
		case c.Outcome == accelerator.Warn && worst == "":
			worst = c.ID + ": " + c.Summary
		}
	}
	m.pace.tell(worst)
	return failed
}

// pace is how far an acceptance is, for whoever asks.
type pace struct {
	mu    sync.Mutex
	stage string
	began time.Time
	total time.Duration
	heat  map[string]float64 // °C by card, as last seen
	watts map[string]float64
	worst string
}

func (p *pace) begin(stage string, total time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage, p.began, p.total = stage, time.Now(), total
	p.heat, p.watts = map[string]float64{}, map[string]float64{}
}

// sample notes what a card shows under load.
func (p *pace) sample(slot string, s accelerator.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heat == nil {
		return
	}
	if s.Temperature.Known() {
		p.heat[slot] = float64(s.Temperature)
	}
	if s.Power.Known() {
		p.watts[slot] = float64(s.Power)
	}
}

func (p *pace) tell(worst string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.worst = worst
}

// now is how far it is.
func (p *pace) now() machine.Burn {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := machine.Burn{Stage: p.stage, Total: int64(p.total.Seconds()), Worst: p.worst}
	if !p.began.IsZero() {
		b.Done = int64(time.Since(p.began).Seconds())
	}
	watts := 0.0
	for slot, heat := range p.heat {
		b.Hottest = max(b.Hottest, int64(heat))
		watts += p.watts[slot]
	}
	b.Watts = int64(watts)
	return b
}

// accept tries the machine for the server that asks for it, and tells it all the while how far it is.
func (v *validator) accept(ctx context.Context, in machine.Instruction) (machine.Report, error) {
	report := machine.Report{Step: in.Step, Phase: machine.Failed}
	if in.Expect == nil || in.Acceptance == nil || v.try == nil {
		report.Error = "the instruction does not say what to expect, and how to try it"
		return report, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan accelerator.Report, 1)
	go func() { results <- v.try(ctx, *in.Expect, *in.Acceptance) }() // ends with its context
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case r := <-results:
			v.log.Info("tried", "outcome", r.Outcome, "reason", r.Reason())
			data, err := json.Marshal(r)
			if err != nil {
				report.Error = fmt.Sprintf("encode the report: %v", err)
				return report, nil
			}
			return machine.Report{Step: in.Step, Phase: machine.Done, Result: data}, ctx.Err()
		case <-ctx.Done():
			return report, ctx.Err()
		case <-tick.C:
			answer, err := v.post(ctx, machine.Report{Step: in.Step, Phase: machine.Working, Progress: machine.Progress{Burn: v.now()}})
			switch {
			case errors.Is(err, errGone) || err == nil && (answer.Do == machine.DoPowerOff || answer.Do == machine.DoFinish):
				return report, errGone
			case err != nil:
				v.log.Warn("server does not answer", "error", err)
			}
		}
	}
}

// accept carries out the acceptance that a server asks for, and judges.
func (m *measurer) accept(ctx context.Context, expect machine.Expect, plan machine.AcceptancePlan) accelerator.Report {
	m.plan, m.trial = accelerator.PlanAcceptance, &plan
	m.pace.begin("reading", 0)
	return m.report(ctx, expect)
}
