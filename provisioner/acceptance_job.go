package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// deadline is how long a step may take: that of the plan, or for the trial itself that of its run.
func deadline(j *machine.Job, step machine.Step) time.Duration {
	if step.Name == machine.StepAccept && j.Acceptance != nil {
		return j.Acceptance.Plan.Whole()
	}
	return step.Deadline
}

// silence is how long the actor of a step may be silent; zero is until the deadline.
func silence(j *machine.Job, step machine.Step) time.Duration {
	if step.Name == machine.StepAccept && j.Acceptance != nil && j.Acceptance.Plan.Silence > 0 {
		return time.Duration(j.Acceptance.Plan.Silence)
	}
	return step.Quiet
}

// heard is what the BMC told in a step of an acceptance job, and at its end the report that is kept.
type heard struct {
	cursor string
	facts  accelerator.BMC
	kept   *Kept
}

// mostJudged is how many new entries of a BMC's log are judged. A report has the newest of them, as mostEvents says.
const mostJudged = 10_000

// overhear asks the BMC. What its log held when the job began is passed by; what is behind that came with the job, whatever the BMC's clock says.
func (e *Engine) overhear(ctx context.Context, m machine.Machine, j machine.Job) (heard, error) {
	if e.Facts == nil {
		return heard{facts: accelerator.BMC{Taken: time.Now().UTC(), Error: "the server does not ask BMCs"}}, nil
	}
	entries := mostJudged
	if j.Step == machine.StepAskBMC {
		entries = 0 // where the log ends is enough
	}
	facts, cursor, err := e.readBMC(ctx, m, j.Acceptance.Cursor, entries)
	for i, ev := range facts.Events {
		switch {
		case ev.At.Before(j.Started):
			facts.Events[i].At = j.Started
		case ev.At.After(facts.Taken):
			facts.Events[i].At = facts.Taken
		}
	}
	return heard{cursor: cursor, facts: facts}, err
}

// consult is the work of the two steps at which an acceptance job asks the BMC. After the trial one that does not answer is a finding at last, not the
// job's end: the report is made all the same, in time that is left for it.
func (e *Engine) consult(ctx context.Context, m machine.Machine, j machine.Job) (*heard, error) {
	asking, cancel := context.WithTimeout(ctx, e.askTime(j))
	h, err := e.overhear(asking, m, j)
	cancel()
	if err != nil {
		step, _, _ := e.step(j.Kind, j.Step)
		final := errors.Is(err, ipmi.ErrCredentials) || errors.Is(err, ipmi.ErrLocked) || untrusted(err)
		if j.Step == machine.StepAskBMC || j.Try < step.Tries && !final {
			return nil, err // the next steps need it as much, or it is tried again
		}
		if h.cursor = j.Acceptance.Cursor; h.facts.LogError == "" {
			h.facts = accelerator.BMC{Taken: time.Now().UTC(), Error: clip(err.Error())}
		}
	}
	if j.Step == machine.StepVerdict {
		if h.kept, err = e.ruleTrial(ctx, m, j, h.facts); err != nil {
			return nil, err
		}
	}
	return &h, nil
}

// ruleTrial makes the report of a machine that was tried whole, or one that says that it sent none.
func (e *Engine) ruleTrial(ctx context.Context, m machine.Machine, j machine.Job, b accelerator.BMC) (*Kept, error) {
	if len(j.Result) == 0 {
		k, err := NewKept(verdictOf(m, j), noAnswer(m, j, accelerator.PlanAcceptance, accelerator.Fail, time.Now().UTC(), j.Reason).WithBMC(&b, j.Started).Brief(mostEvents), e.ReportKey)
		return &k, err
	}
	r, err := e.drawn(ctx, m, j)
	if err != nil {
		return nil, err
	}
	return e.keep(ctx, m, j, r.WithBMC(&b, j.Started).Brief(mostEvents))
}

// consulted is the transition behind consult.
func (e *Engine) consulted(ctx context.Context, w *Work, h heard) error {
	if w.Job.Step == machine.StepAskBMC {
		work := *w.Job.Acceptance
		work.Cursor = h.cursor
		w.Job.Acceptance = &work
		return e.advance(ctx, w)
	}
	if e.Reports != nil {
		w.Kept = append(w.Kept, *h.kept)
	}
	if len(w.Job.Result) == 0 { // it died, hung or said nothing: the BMC may have seen why
		reason := w.Job.Reason
		for _, ev := range h.facts.Events {
			if len(reason) > 4096 {
				break // it is clipped anyway
			}
			if ev.Asserted && (ev.Severity == string(ipmi.Critical) || ev.Severity == string(ipmi.Warning)) {
				reason += fmt.Sprintf("; the BMC saw %s: %s", ev.Sensor, ev.Text)
			}
		}
		w.Trial.Findings = []machine.Finding{{Level: string(accelerator.Fail), Check: "acceptance", Text: clip(reason), Action: string(accelerator.ActPowerCycle)}}
		w.Job.Reason = clip(reason)
		return e.failJob(ctx, w)
	}
	rep := h.kept.Report
	var err error
	if w.Job.Result, err = json.Marshal(rep); err != nil {
		return fmt.Errorf("write report of machine %s: %w", w.Machine.Name, err)
	}
	if w.Trial != nil {
		w.Trial.Findings = findings(rep)
	}
	w.note("validation", "%s: %d cards, %d checks (report %s)", rep.Outcome, len(rep.Cards), len(rep.Checks), h.kept.ID)
	if rep.Blocks() {
		w.Job.Reason = clip(rep.Reason())
		return e.failJob(ctx, w)
	}
	return e.advance(ctx, w)
}

// hung takes a job whose machine died, hung or gave up while it was tried on to its judgement, where the BMC is asked. That is a result: the
// machine is not tried again by itself.
func (e *Engine) hung(w *Work, reason string) error {
	b := w.Job.Progress.Burn
	if b.Stage != "" {
		reason += fmt.Sprintf(" (stage %s, after %s", b.Stage, time.Duration(b.Done)*time.Second)
		if b.Total > 0 {
			reason += fmt.Sprintf(" of %s", time.Duration(b.Total)*time.Second)
		}
		if b.Hottest > 0 {
			reason += fmt.Sprintf(", hottest card %d °C", b.Hottest)
		}
		reason += ")"
	}
	w.Job.Reason, w.Job.Result = clip(reason), nil
	if err := w.jobEvent(machine.JobAdvance, "the trial ended without a report: %s", w.Job.Reason); err != nil {
		return err
	}
	_, _, next := e.step(w.Job.Kind, w.Job.Step)
	w.Job.Step = next
	e.enter(w)
	return nil
}

// failTrial ends the machine's part in a run with its job.
func (e *Engine) failTrial(w *Work) error {
	if w.Trial == nil || w.Trial.State != machine.TrialRunning {
		return nil
	}
	ev := machine.TrialLeave // nobody knows whether the machine is good
	if w.Job.Step == machine.StepVerdict {
		for _, f := range w.Trial.Findings {
			if f.Level == string(accelerator.Fail) {
				ev = machine.TrialFail
			}
		}
	}
	return w.trialEvent(ev, "%s", w.Job.Reason)
}

// passTrial ends it with success.
func (e *Engine) passTrial(w *Work) error {
	if w.Trial == nil {
		return fmt.Errorf("end acceptance of machine %s: no run holds it", w.Machine.Name)
	}
	if err := w.trialEvent(machine.TrialPass, "%s", warnings(w.Trial.Findings)); err != nil {
		return err
	}
	w.Machine.Reason = "passed acceptance run " + w.Trial.RunID + "; held until it is admitted"
	return nil
}

func warnings(list []machine.Finding) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return "1 warning: " + list[0].Check + ": " + list[0].Text
	}
	return fmt.Sprintf("%d warnings, first %s: %s", len(list), list[0].Check, list[0].Text)
}

// findings are what a person must know of a report: of cards by card, of the rest by check.
func findings(r accelerator.Report) []machine.Finding {
	var out []machine.Finding
	action := map[string]accelerator.Action{}
	onCard := map[string]bool{}
	for _, c := range r.Checks {
		action[c.ID] = c.Action
	}
	for _, k := range r.Cards {
		for _, p := range k.Problems {
			id, text, _ := strings.Cut(p, ": ")
			f := machine.Finding{Part: k.Slot, Level: string(k.Outcome), Check: id, Text: clip(text)}
			if k.Card != nil && k.Card.Serial.Known() {
				f.Serial = clip(k.Card.Serial.Value)
			}
			if a := action[id]; a != accelerator.ActNone {
				f.Action = string(a)
			}
			onCard[id] = true
			out = append(out, f)
		}
	}
	for _, c := range r.Checks {
		if c.Outcome == accelerator.Pass || c.Outcome == accelerator.Skip && !c.Required || onCard[c.ID] {
			continue
		}
		f := machine.Finding{Level: string(c.Outcome), Check: c.ID, Text: clip(c.Summary)}
		if len(c.Evidence) > 0 {
			f.Text = clip(c.Summary + ": " + strings.Join(c.Evidence[:min(3, len(c.Evidence))], "; "))
		}
		if c.Action != accelerator.ActNone {
			f.Action = string(c.Action)
		}
		out = append(out, f)
	}
	return out
}
