package provisioner

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// examineAtOnce bounds how many machines of the stock are looked at together: each is powered on for some minutes.
const examineAtOnce = 4

// ExamineStock begins to look at machines in stock that nobody has looked at for the configured time.
func (e *Engine) ExamineStock(ctx context.Context) error {
	if e.Reports == nil || e.Validation.HealthEvery <= 0 {
		return nil
	}
	ids, err := e.Reports.ExamineDue(ctx, e.Validation.HealthEvery, examineAtOnce)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		_, err := e.examine(ctx, id, true)
		if err != nil && machine.CodeOf(err) != machine.Conflict { // an order was quicker
			errs = append(errs, fmt.Errorf("examine machine %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// Examine boots a machine that is in stock or quarantined into the RAM disk and judges what that can see of it, by plan health. A machine of the stock
// that fails is quarantined, and goes back to stock otherwise; one in quarantine stays there, with what was found: an operator decides.
func (e *Engine) Examine(ctx context.Context, machineID string) (machine.Job, error) {
	return e.examine(ctx, machineID, false)
}

func (e *Engine) examine(ctx context.Context, machineID string, stock bool) (machine.Job, error) {
	if stock {
		return e.beginExamination(ctx, machineID, "its health is looked at; an order would take it", "", machine.Available)
	}
	return e.beginExamination(ctx, machineID, "an operator wants it validated",
		"a machine that is available or quarantined can be validated; a customer's is validated by a reinstallation", machine.Available, machine.Quarantined)
}

// beginExamination starts the job on a machine that is in one of the states, to which it goes back.
func (e *Engine) beginExamination(ctx context.Context, machineID, why, hint string, states ...machine.State) (machine.Job, error) {
	var j machine.Job
	err := e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		from := w.Machine.State
		if !slices.Contains(states, from) {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s is %s", w.Machine.Name, from), Hint: hint}
		}
		if w.Machine.OrderID != "" { // its job would be the order's, for its customer to read
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s is %s, and not free of order %s", w.Machine.Name, from, w.Machine.OrderID),
				Hint: "release the order; of one that is over `bareyard machine return` wipes what is left, and looks at the machine too"}
		}
		if err := w.machineEvent(machine.Accept, "%s", why); err != nil {
			return err
		}
		if err := e.startJob(w, machine.ExamineJob, func(j *machine.Job) { j.From = from }); err != nil {
			return err
		}
		j = *w.Job
		return nil
	})
	return j, err
}

// concludeExamination puts a machine that passed back to where it was.
func concludeExamination(w *Work) error {
	if finding := w.Job.Finding; finding != "" {
		w.Machine.Reason = besides(w, finding)
		return w.machineEvent(machine.Quarantine, "kept out of stock: %s", finding)
	}
	if w.Job.From == machine.Enrolled {
		w.Machine.Reason = ""
		return w.machineEvent(machine.Enroll, "passed plan health; it is as new as it was")
	}
	if w.Job.From == machine.Quarantined {
		w.Machine.Reason = clip(fmt.Sprintf("%s (report %s)%s%s", passedHealth, reportID(*w.Job), passedAfter, sinceFirst(w.Machine.Reason)))
		return w.machineEvent(machine.Quarantine, "passed plan health, which puts no load on cards; `bareyard acceptance run` does, `bareyard machine return` wipes it and returns it to stock")
	}
	w.Machine.Reason = ""
	return w.machineEvent(machine.Admit, "healthy, back in stock")
}

// What an examination puts before the reason for which a machine is in quarantine.
const (
	passedHealth = "it passed plan health"
	passedAfter  = " after: "
)

// sinceFirst is why a machine is in quarantine, without what examinations that it passed have put before that.
func sinceFirst(reason string) string {
	for strings.HasPrefix(reason, passedHealth) {
		_, rest, ok := strings.Cut(reason, passedAfter)
		if !ok {
			break
		}
		reason = rest
	}
	return reason
}

// besides is the reason of a machine of which its job has found something: with the old one, where the machine was in quarantine already.
func besides(w *Work, found string) string {
	const share = 1000 // of what is told of a machine: the old reason wants its part
	if len(found) > share {
		found = strings.ToValidUTF8(found[:share], "") + "…"
	}
	switch old := sinceFirst(w.Machine.Reason); {
	case w.Job.From != machine.Quarantined || old == "":
		return found
	case strings.HasPrefix(old, found):
		return old
	default:
		return clip(found + "; in quarantine before it for: " + old)
	}
}

// interrupt takes a machine for an order that is only being looked at: nothing is written to it, so that it is as good as in stock. It returns
// soldOut where there is none.
func (e *Engine) interrupt(ctx context.Context, w *Work, p Pick, soldOut error) (bool, error) {
	m, j, err := w.Stock.Examined(ctx, p)
	if err != nil {
		return false, err
	}
	if m == nil {
		return false, soldOut
	}
	w.Machine, w.Job = m, j
	if err := w.jobEvent(machine.JobCancel, "order %s takes the machine", w.Order.ID); err != nil {
		return false, err
	}
	return true, w.machineEvent(machine.Admit, "its examination gives way to order %s", w.Order.ID)
}

// Bounds of a waiver: none is for ever.
const longestWaiver = 366 * 24 * time.Hour

var checkName = regexp.MustCompile(`^[a-z]+\.[a-z]+$`)

// NewWaiver checks a waiver of a machine and gives it its id.
func NewWaiver(w Waiver, now time.Time) (Waiver, error) {
	refuse := func(field, message, hint string) (Waiver, error) {
		return Waiver{}, &machine.Error{Code: machine.Invalid, Field: field, Message: message, Hint: hint}
	}
	w.Card, w.Who, w.Why = machine.CleanText(w.Card), machine.CleanText(w.Who), machine.CleanText(w.Why)
	switch {
	case !checkName.MatchString(w.Check):
		return refuse("check", fmt.Sprintf("%q is the name of no check", machine.CleanText(w.Check)), "name it as a report does, e.g. card.ecc")
	case w.Check == "card.count" || w.Check == "card.identity":
		return refuse("check", w.Check+" cannot be waived: the customer would not get what was ordered", "correct the machine's record or class")
	case len(w.Who) < 2:
		return refuse("who", "nobody takes it on himself", "say who decides")
	case len(w.Why) < 8:
		return refuse("why", "a waiver wants a reason", "say why the machine may be handed over all the same")
	case !w.Until.After(now):
		return refuse("until", "the waiver would be over before it begins", "give a time to come, e.g. --for 720h")
	case w.Until.Sub(now) > longestWaiver:
		return refuse("until", "a waiver holds for a year at most", "make it shorter; it can be made anew")
	}
	w.ID = NewID("w")
	return w, nil
}
