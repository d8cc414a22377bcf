package provisioner_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// board is a BMC that says what a test wants.
type board struct {
	readings []ipmi.Reading
	events   []ipmi.Event
	err      error
	logErr   error // of its log alone
	last     string
}

func (b *board) Health(context.Context, ipmi.Target) (ipmi.Health, error) {
	b.last = "health"
	return ipmi.Health{Readings: b.readings}, b.err
}

func (b *board) Inventory(context.Context, ipmi.Target) (ipmi.Inventory, error) {
	b.last = "inventory"
	return ipmi.Inventory{}, b.err
}

func (b *board) Events(context.Context, ipmi.Target, string) (ipmi.EventPage, error) {
	b.last = "log"
	return ipmi.EventPage{Events: b.events}, cmp.Or(b.err, b.logErr)
}

// found is the report of a machine that has cards with these serial numbers, and nothing wrong but what change puts in.
func found(serials ...string) accelerator.Report {
	r := accelerator.Report{Schema: accelerator.Schema, Taken: time.Now().UTC(), Plan: accelerator.PlanPostboot,
		Checks: []accelerator.Check{{ID: "card.count", Outcome: accelerator.Pass, Required: true, Action: accelerator.ActNone}}}
	for i, s := range serials {
		slot := fmt.Sprintf("0000:%02x:00.0", i+1)
		r.Cards = append(r.Cards, accelerator.CardResult{Slot: slot, Outcome: accelerator.Pass, PCI: &accelerator.PCICard{Slot: slot, Vendor: "10de", Device: "2b85"},
			Card: &accelerator.Card{Index: i, Slot: slot, Serial: accelerator.Measured(s, "", "nvml")}})
	}
	return r
}

// validated takes an order's machine to its validation, gives it a report, and lets the server judge.
func (y *yard) validated(machineID string, r accelerator.Report) {
	y.t.Helper()
	ram := y.walk(machineID, machine.StepValidate)
	_, err := ram.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	if ram.last.Validate == nil || ram.last.Validate.Plan != string(cmp.Or(y.Validation.Plan, accelerator.PlanPostboot)) || ram.last.Validate.Within != machine.ValidateWithin {
		y.t.Errorf("the validator is told %+v", ram.last.Validate)
	}
	_, err = ram.report(machine.Report{Step: machine.StepValidate, Phase: machine.Done, Result: encode(r)})
	y.must(err)
	y.turn(machineID)
}

func (y *yard) newest(f provisioner.ReportFilter) provisioner.Kept {
	y.t.Helper()
	list, err := y.db.Reports(y.t.Context(), f)
	y.must(err)
	if len(list) == 0 {
		y.t.Fatalf("no report for %+v", f)
	}
	k, err := y.db.Report(y.t.Context(), list[0].ID)
	y.must(err)
	return k
}

// at is a report of a machine whose clock is off, and which says that it was under load for so long.
func at(off time.Duration, seconds float64, r accelerator.Report) accelerator.Report {
	r.Taken, r.Seconds = r.Taken.Add(off), seconds
	return r
}

func check(t *testing.T, r accelerator.Report, id string) accelerator.Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("the report has no check %s", id)
	return accelerator.Check{}
}

// TestValidationFaults: whatever the fault is, the machine is quarantined with the reason, the signed report says so, and the order goes to
// another machine.
func TestValidationFaults(t *testing.T) {
	broken := func(id string, o accelerator.Outcome, required bool) accelerator.Report {
		return found("S1", "S2").With(accelerator.Check{ID: id, Outcome: o, Required: required, Summary: "it is so", Evidence: []string{"0000:01:00.0: bad"}})
	}
	y := newYard(t)
	_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("203.0.113.64/26"))
	y.must(err)
	public, key, err := ed25519.GenerateKey(nil)
	y.must(err)
	y.ReportKey = key
	number, written := 0, time.Now()
	for name, c := range map[string]struct {
		report  accelerator.Report
		board   board
		blocked string // the check that blocks
	}{
		"a card is missing":           {report: broken("card.count", accelerator.Fail, true), blocked: "card.count"},
		"a required burn was not run": {report: broken("load.burn", accelerator.Skip, true), blocked: "load.burn"},
		"the driver lacks a function": {report: broken("card.driver", accelerator.Error, true), blocked: "card.driver"},
		"a power supply has failed":   {report: found("S1", "S2"), board: board{readings: []ipmi.Reading{{Name: "PSU2", Kind: ipmi.PowerSupply, State: ipmi.Critical, Text: "failure detected"}}}, blocked: "host.power"},
		"a fan stands still":          {report: found("S1", "S2"), board: board{readings: []ipmi.Reading{{Name: "FAN3", Kind: ipmi.Fan, Known: true, Unit: "RPM", State: ipmi.OK}}}, blocked: "host.fans"},
		"the BMC logged something":    {report: found("S1", "S2"), board: board{events: []ipmi.Event{{At: time.Now(), Sensor: "PCIe", Severity: ipmi.Critical, Message: "fatal bus error"}}}, blocked: "host.sel"},
		"two cards have one serial":   {report: found("165001234", "165001234"), blocked: "card.record"},
		"a machine may not waive itself": {report: func() accelerator.Report {
			r := broken("card.ecc", accelerator.Fail, true)
			r.Checks[1].Waived = "by me"
			return r
		}(), blocked: "card.ecc"},
		"its clock is ahead, the BMC logged something":          {report: at(8*time.Hour, 60, found("S1", "S2")), board: board{events: []ipmi.Event{{At: time.Now(), Severity: ipmi.Critical, Message: "fatal bus error"}}}, blocked: "host.sel"},
		"its clock is behind, the BMC logged something":         {report: at(-8*time.Hour, 60, found("S1", "S2")), board: board{events: []ipmi.Event{{At: time.Now(), Severity: ipmi.Critical, Message: "fatal bus error"}}}, blocked: "host.sel"},
		"its clock is ahead, the entry is of the tenant before": {report: at(8*time.Hour, 60, found("S1", "S2")), board: board{events: []ipmi.Event{{At: time.Now().Add(-4 * time.Hour), Severity: ipmi.Critical, Message: "fatal bus error"}}}},
		"its clock is behind, so is an entry before it":         {report: at(-8*time.Hour, 60, found("S1", "S2")), board: board{events: []ipmi.Event{{At: time.Now().Add(-4 * time.Hour), Severity: ipmi.Critical, Message: "fatal bus error"}}}},
		"it says that it took hours":                            {report: at(0, 1e300, found("S1", "S2")), board: board{events: []ipmi.Event{{At: time.Now().Add(-4 * time.Hour), Severity: ipmi.Critical, Message: "fatal bus error"}}}},
		"it says that it took less than nothing":                {report: at(0, -1e300, found("S1", "S2")), board: board{events: []ipmi.Event{{At: time.Now(), Severity: ipmi.Critical, Message: "fatal bus error"}}}, blocked: "host.sel"},
		"the BMC's log cannot be read":                          {report: found("S1", "S2"), board: board{logErr: errors.New("SEL is busy"), readings: []ipmi.Reading{{Name: "PSU2", Kind: ipmi.PowerSupply, State: ipmi.Critical}}}, blocked: "host.power"},
		"a healthy one goes on":                                 {report: found("S1", "S2"), board: board{readings: []ipmi.Reading{{Name: "PSU1", Kind: ipmi.PowerSupply, State: ipmi.OK, Text: "presence detected"}, {Name: "bay 2", Kind: ipmi.PowerSupply, State: ipmi.Unclear, Text: "not there"}}}},
		"a BMC that cannot be asked":                            {report: found("S1", "S2"), board: board{err: errors.New("no answer")}},
		"an old entry of the BMC's log":                         {report: found("S1", "S2"), board: board{events: []ipmi.Event{{At: time.Now().Add(-48 * time.Hour), Severity: ipmi.Critical, Message: "fatal bus error"}}}},
		"a BMC whose clock is ahead":                            {report: found("S1", "S2"), board: board{events: []ipmi.Event{{At: time.Now().Add(8 * time.Hour), Severity: ipmi.Critical, Message: "fatal bus error"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			y.t = t
			y.Facts = &c.board
			bad, good := y.addMachine(number+1), y.addMachine(number+2)
			number += 2
			serial := func(n int) string { return fmt.Sprintf("165%06d", 10*number+n) } // each its own: else the next machine has this one's cards
			for i := range c.report.Cards {
				if c.report.Cards[i].Card.Serial.Value != "165001234" {
					c.report.Cards[i].Card.Serial.Value = serial(i)
				}
			}
			o, err := y.Place(t.Context(), y.request(), "")
			y.must(err)
			for i := range c.board.events { // "now" is while the order has the machine
				c.board.events[i].At = c.board.events[i].At.Add(time.Since(written))
			}
			y.validated(bad.ID, c.report)
			k := y.newest(provisioner.ReportFilter{MachineID: bad.ID})
			if r, err := document.Verify(k.Body, public); err != nil || r.Subject.Name != bad.Name || r.Subject.Order != o.ID {
				t.Errorf("the kept report is of %+v, %v", r.Subject, err)
			}
			if sel := check(t, k.Report, "host.sel"); c.board.logErr != nil && (sel.Outcome != accelerator.Error || !strings.Contains(sel.Evidence[0], "SEL is busy") || sel.Blocks()) {
				t.Errorf("of a log that cannot be read: %+v", sel)
			}
			if c.board.err == nil && c.board.last != "log" {
				t.Errorf("the BMC's log was read before its %s", c.board.last)
			}
			for _, ev := range k.Report.BMC.Events {
				if ev.At.Before(time.Now().Add(-time.Hour)) {
					t.Errorf("the report of the order tells what was logged before it: %+v", ev)
				}
			}
			if k.Blocks != (c.blocked != "") {
				t.Errorf("blocks: %v, %s", k.Blocks, k.Reason)
			}
			if c.blocked == "" {
				if got := y.machine(bad.ID); got.State != machine.Active {
					t.Errorf("machine is %s: %s", got.State, got.Reason)
				}
				y.must(y.Move(t.Context(), good.ID, machine.Retire, "not needed"))
				return
			}
			if !check(t, k.Report, c.blocked).Blocks() {
				t.Errorf("%s does not block: %+v", c.blocked, k.Report.Checks)
			}
			got := y.machine(bad.ID)
			if got.State != machine.Quarantined || got.OrderID != "" || got.Public || !strings.Contains(got.Reason, c.blocked) {
				t.Errorf("machine is %s: %s", got.State, got.Reason)
			}
			y.Facts = nil
			y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActPlace, OrderID: o.ID}))
			y.validated(good.ID, found(serial(8), serial(9)))
			if got := y.order(o.ID); got.State != machine.OrderActive || got.MachineID != good.ID {
				t.Errorf("order is %s on %s: %s", got.State, got.MachineID, got.Reason)
			}
		})
	}
}

// TestSilentValidation: a machine that falls silent while it is validated is tried once more; the second time it is quarantined, with a report.
func TestSilentValidation(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	for attempt := 1; attempt <= 2; attempt++ {
		y.walk(m.ID, machine.StepValidate)
		y.silence(m.ID)
		y.must(y.Expire(t.Context(), m.ID))
		k := y.newest(provisioner.ReportFilter{MachineID: m.ID})
		if c := check(t, k.Report, "plan.answer"); !k.Blocks || c.Outcome != accelerator.Error || len(c.Evidence) != 1 {
			t.Errorf("attempt %d left %+v", attempt, k.Report.Checks)
		}
	}
	if got := y.machine(m.ID); got.State != machine.Quarantined {
		t.Errorf("machine is %s", got.State)
	}
}

// TestH09SerialOfAnotherMachine: a card that another machine's record has blocks, and the record stays; so does one that took another's place. The
// report says since when.
func TestH09SerialOfAnotherMachine(t *testing.T) {
	y := newYard(t)
	a := y.addMachine(1)
	first, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.validated(a.ID, found("165000001", "165000002"))
	_, err = y.Release(t.Context(), first.ID)
	y.must(err)

	b := y.addMachine(2)
	_, err = y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.validated(b.ID, found("165000003", "165000002"))
	c := check(t, y.newest(provisioner.ReportFilter{MachineID: b.ID}).Report, "card.record")
	if want := "0000:02:00.0: serial 165000002 is on another machine's record, where it was seen on "; c.Outcome != accelerator.Fail || !strings.HasPrefix(c.Evidence[0], want) {
		t.Errorf("the moved card: %+v", c)
	}
	if got := y.machine(b.ID); got.State != machine.Quarantined {
		t.Errorf("machine with another's card is %s", got.State)
	}

	// The first machine comes back with a card that nobody knows where 165000002 was.
	y.turn(a.ID)
	y.bootAgent(a.ID).until()
	y.turn(a.ID)
	_, err = y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.validated(a.ID, found("165000001", "165000777"))
	c = check(t, y.newest(provisioner.ReportFilter{MachineID: a.ID}).Report, "card.record")
	if c.Outcome != accelerator.Fail || !strings.Contains(c.Evidence[0], "165000777 is where 165000002 was on ") {
		t.Errorf("the exchanged card: %+v", c)
	}
	back, err := y.db.Background(t.Context(), a.ID, nil)
	y.must(err)
	if len(back.Here) != 2 || back.Here[1].Serial != "165000002" {
		t.Errorf("the record is %+v", back.Here)
	}
	// Customers read these reports: they name no other machine and no other's order, which the record of the card does.
	for _, m := range []machine.Machine{a, b} {
		k := y.newest(provisioner.ReportFilter{MachineID: m.ID})
		for _, other := range []string{a.ID, b.ID, "machine n", first.ID} {
			if text := fmt.Sprint(check(t, k.Report, "card.record")); strings.Contains(text, other) {
				t.Errorf("the report of %s tells of %s: %s", m.Name, other, text)
			}
		}
	}
	card, err := y.db.Card(t.Context(), "165000002")
	if err != nil || card.Now == nil || card.Now.Machine != "n1" || !slices.ContainsFunc(card.Seen, func(s provisioner.CardSighting) bool { return s.OrderID == first.ID }) {
		t.Errorf("the record of the card is %+v, %v", card, err)
	}
}
