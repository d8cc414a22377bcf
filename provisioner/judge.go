package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// Validation is how machines are validated. The zero value is right.
type Validation struct {
	Plan        accelerator.Plan // after an installation; empty: postboot
	Load        time.Duration    // under the burn after an installation; zero: as the plan has it
	HealthEvery time.Duration    // machines in stock are looked at so often; zero: never
	KeepReports time.Duration    // how long reports are kept; zero: for ever
	Profiles    string           // folder of the operator's profiles of cards; "" for none
}

// validate is what a validator is told.
func (e *Engine) validate() *machine.Validate {
	v := e.Validation
	return &machine.Validate{Plan: string(cmp.Or(v.Plan, accelerator.PlanPostboot)), Load: v.Load, Within: machine.ValidateWithin, Profiles: e.inForce().files}
}

// rule makes the report of a job's machine whole: what its BMC says, whose the cards are, what is waived. It changes nothing, and may be done
// again by another server.
func (e *Engine) rule(ctx context.Context, m machine.Machine, j machine.Job) (*Kept, error) {
	r, err := e.drawn(ctx, m, j)
	if err != nil {
		return nil, err
	}
	if e.Facts != nil {
		// What is logged from the moment that the machine was handed its image on is this installation's. Of the machine's own clock only what it
		// counted is believed, and no more of that than it had.
		took := min(max(r.Seconds, 0), machine.ValidateWithin.Seconds())
		began := j.StepAt.Add(-time.Duration(took*float64(time.Second)) - bootSlack)
		b := e.askedBMC(ctx, m, j)
		if j.OrderID != "" {
			o, err := e.Shelf.Order(ctx, j.OrderID)
			if err != nil {
				return nil, err
			}
			b.Events = since(b.Events, holdsSince(o, j))
		}
		r = r.WithBMC(b, began)
	}
	return e.keep(ctx, m, j, r)
}

// holdsSince is when an order got the machine of its job. What the BMC logged before was another's time, which is not told to who reads the report.
func holdsSince(o machine.Order, j machine.Job) time.Time {
	if j.Kind == machine.ProvisionJob || o.Started.IsZero() {
		return j.Started
	}
	return o.Started
}

func since(list []accelerator.SELEvent, t time.Time) []accelerator.SELEvent {
	return slices.DeleteFunc(list, func(ev accelerator.SELEvent) bool { return ev.At.Before(t) })
}

// drawn is the report that a machine sent, or that is drawn here from what its RAM disk saw.
func (e *Engine) drawn(ctx context.Context, m machine.Machine, j machine.Job) (accelerator.Report, error) {
	if j.Kind != machine.ExamineJob && j.Kind != machine.ReclaimJob {
		r, err := accelerator.DecodeReport(j.Result)
		if err != nil {
			return r, fmt.Errorf("read validation report: %w", err)
		}
		return r.Unwaived(), nil
	}
	f, err := accelerator.DecodeFacts(j.Result)
	if err != nil {
		return accelerator.Report{}, fmt.Errorf("read what the RAM disk saw: %w", err)
	}
	rules := e.inForce().rules
	f.RAMDisk, f.Plan = true, accelerator.PlanHealth
	if j.Kind == machine.ReclaimJob && j.OrderID != "" && e.Reports != nil {
		handover, ok, err := e.Reports.HandOver(ctx, j.OrderID, m.ID)
		if err != nil {
			return accelerator.Report{}, err
		}
		if ok {
			return accelerator.JudgeReturn(f, *expect(m.Hardware), rules, handover.Report), nil
		}
	}
	return accelerator.Judge(f, *expect(m.Hardware), rules), nil
}

// bootSlack is what a machine takes from power on to its validation, at most.
const bootSlack = 15 * time.Minute

// keep judges a report by what is on record of the machine and its cards, and makes of it what is stored.
func (e *Engine) keep(ctx context.Context, m machine.Machine, j machine.Job, r accelerator.Report) (*Kept, error) {
	v := verdictOf(m, j)
	var strays []string
	if e.Reports != nil {
		back, err := e.Reports.Background(ctx, m.ID, serialsOf(r))
		if err != nil {
			return nil, err
		}
		check, disputed := checkRecord(r, back)
		r, strays = r.With(check), disputed
		for _, w := range back.Waivers {
			r, _ = r.Waive(w.Check, slotsOf(r, w.Card), w.Note())
		}
	}
	r.Subject = subjectOf(m, j)
	k, err := NewKept(v, r, e.ReportKey)
	k.Strays = strays
	return &k, err
}

// verdictOf begins what is known of a report of a job.
func verdictOf(m machine.Machine, j machine.Job) Verdict {
	v := Verdict{ID: reportID(j), MachineID: m.ID, OrderID: j.OrderID, JobID: j.ID, Class: m.Class}
	if j.Acceptance != nil {
		v.RunID = j.Acceptance.RunID
	}
	return v
}

func subjectOf(m machine.Machine, j machine.Job) accelerator.Subject {
	return accelerator.Subject{Report: reportID(j), Machine: m.ID, Name: m.Name, Serial: m.Hardware.Serial, Class: m.Class, Order: j.OrderID, Job: j.ID}
}

// reportID names the report of an attempt. A step that is done again makes it again.
func reportID(j machine.Job) string {
	return fmt.Sprintf("r-%s-%d", strings.TrimPrefix(j.ID, "j-"), j.Attempt)
}

// ruled brings about what a report decides, and keeps it, in one transition.
func (e *Engine) ruled(ctx context.Context, w *Work, k Kept) error {
	if e.Reports != nil {
		w.Kept = append(w.Kept, k)
	}
	e.noteProfiles(w)
	if k.Blocks && w.Job.Kind == machine.ReclaimJob { // its customer's data is wiped first, whatever it has
		w.Job.Finding = also(fmt.Sprintf("report %s: %s", k.ID, k.Reason), w.Job.Finding)
		w.note("validation", "%s: %s (report %s); it is wiped, and then kept out of stock", k.Outcome, k.Reason, k.ID)
		return e.advance(ctx, w)
	}
	if k.Blocks {
		w.note("validation", "%s: %s (report %s)", k.Outcome, k.Reason, k.ID)
		return e.failAttempt(ctx, w, true, also(k.Reason, w.Job.Finding))
	}
	w.note("validation", "%s: %d cards, %d checks (report %s)", k.Outcome, k.Cards, k.Checks, k.ID)
	return e.advance(ctx, w)
}

// failSilent ends an attempt whose machine fell silent in its validation. Once may be the network's; a machine that does it again is quarantined.
func (e *Engine) failSilent(ctx context.Context, w *Work, why string) error {
	if e.Reports != nil {
		k, err := NewKept(verdictOf(*w.Machine, *w.Job), noAnswer(*w.Machine, *w.Job, accelerator.PlanPostboot, accelerator.Error, w.Now, why), e.ReportKey)
		if err != nil {
			return err
		}
		w.Kept = append(w.Kept, k)
	}
	return e.failAttempt(ctx, w, w.Job.Attempt > 1, why)
}

// noAnswer is the report of a machine that sent none.
func noAnswer(m machine.Machine, j machine.Job, plan accelerator.Plan, o accelerator.Outcome, now time.Time, why string) accelerator.Report {
	r := accelerator.Report{Schema: accelerator.Schema, Taken: now, Subject: subjectOf(m, j), Rules: accelerator.RulesVersion, Plan: plan, Cards: []accelerator.CardResult{}, Drivers: []accelerator.DriverNote{}}
	return r.With(accelerator.Check{ID: "plan.answer", Outcome: o, Required: true, Summary: "the machine sent no report of its validation", Action: accelerator.ActReboot,
		Evidence: []string{why}, Advice: "read its console and its BMC's log of that time; a machine that falls silent under load again has a fault"})
}

// askTime bounds the reading of a BMC for a report, which is made of what was read in the time that is left of the step's try.
func (e *Engine) askTime(j machine.Job) time.Duration {
	step, _, _ := e.step(j.Kind, j.Step)
	within, _ := e.tryTime(step)
	return within * 3 / 4
}

// askedBMC is what a machine's BMC says for its report. A BMC that does not answer is a finding, no error.
func (e *Engine) askedBMC(ctx context.Context, m machine.Machine, j machine.Job) *accelerator.BMC {
	ctx, cancel := context.WithTimeout(ctx, e.askTime(j))
	defer cancel()
	out, _, err := e.readBMC(ctx, m, "", mostEvents)
	if err != nil && out.LogError == "" {
		out.Error = clip(err.Error())
	}
	return &out
}

// mostEvents is how many entries of a BMC's log go into a report: the newest, which are at its end.
const mostEvents = 200

func serialsOf(r accelerator.Report) []string {
	var out []string
	for _, c := range r.Cards {
		if s := CardSerial(c); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// slotsOf are the slots of the cards that a waiver names by slot or serial number; nil for a waiver of the whole check.
func slotsOf(r accelerator.Report, card string) []string {
	if card == "" {
		return nil
	}
	slots := []string{accelerator.Slot(card)}
	for _, c := range r.Cards {
		if CardSerial(c) == card && !slices.Contains(slots, c.Slot) {
			slots = append(slots, c.Slot)
		}
	}
	return slots
}

// Note says in a report who lets it pass.
func (w Waiver) Note() string {
	return fmt.Sprintf("by %s until %s: %s (%s)", w.Who, w.Until.UTC().Format("2006-01-02 15:04 UTC"), w.Why, w.ID)
}
