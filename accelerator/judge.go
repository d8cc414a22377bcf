package accelerator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

const nvidiaVendor = "10de"

// Judge draws a report from facts. It is pure: the same facts, expectation and rules give the same report.
//
// Every check is in every report. A check that does not apply passes and says so; one that could not be made is a skip or an error, never a
// pass.
func Judge(f Facts, expect machine.Expect, rules Rules) Report {
	j := &judge{facts: f, expect: expect, rules: rules, id: strings.ToLower(expect.CardID), bad: map[string][]problem{}}
	for _, d := range f.Driver {
		if d.Vendor == j.vendor() {
			j.driver = &Driver{Vendor: d.Vendor, Fault: d.Fault, Version: d.Version, Count: d.Count, Cards: placed(d.Cards)}
		}
	}
	checks := []Check{j.cardCount(), j.cardIdentity(), j.cardBus(), j.cardDriver(), j.cardAnswers()}
	checks = append(checks, j.cardState()...)
	j.withoutDriver(checks)
	checks = append(checks, j.kernelLog(), j.nouveau())
	checks = append(checks, j.host()...)
	r := Report{
		Schema: Schema, Taken: f.Taken, Rules: RulesVersion,
		Outcome: overall(checks), Checks: checks, Cards: j.cards(), Host: f.Host, Drivers: []DriverNote{},
	}
	for _, d := range f.Driver {
		r.Drivers = append(r.Drivers, DriverNote{Vendor: d.Vendor, Version: d.Version, Fault: d.Fault})
	}
	return r
}

// withoutDriver makes what only a driver can answer optional when the image brings none: its customer installs one later,
// and the machine must not be held for it. What the bus says is judged all the same.
func (j *judge) withoutDriver(checks []Check) {
	if !j.expect.NoDriver || j.driver == nil || j.driver.Fault == nil || j.driver.Fault.Kind != FaultAbsent {
		return
	}
	for i := range checks {
		if checks[i].Outcome == Skip {
			checks[i].Required = false
		}
	}
}

// placed returns the cards with a fault on each that answers without saying where it is: it could not be told from another.
func placed(cards []Card) []Card {
	out := slices.Clone(cards)
	for i, k := range out {
		if k.Fault == nil && k.Slot == "" {
			out[i].Fault = &Fault{Kind: FaultProbe, Detail: "answers without a PCI address"}
		}
	}
	return out
}

// judge collects what one judgement needs.
type judge struct {
	facts  Facts
	expect machine.Expect
	rules  Rules
	id     string  // PCI vendor:device that the class promises, lower case
	driver *Driver // of the class's vendor, nil when nobody asked one
	bad    map[string][]problem
}

// problem is what a check found on one card.
type problem struct {
	outcome Outcome
	text    string
}

func (j *judge) vendor() string {
	vendor, _, _ := strings.Cut(j.id, ":")
	return vendor
}

// blame notes a card's part in a check that it did not pass.
func (j *judge) blame(slot, check string, o Outcome, text string) {
	if slot != "" {
		j.bad[slot] = append(j.bad[slot], problem{o, check + ": " + text})
	}
}

// none is the answer of a card check where the class has no cards.
func none(id string) Check {
	return Check{ID: id, Outcome: Pass, Required: true, Summary: "none expected"}
}

func (j *judge) cardCount() Check {
	c := Check{ID: "card.count", Required: true}
	want := j.expect.Count
	found := len(j.facts.PCI.Cards)
	switch {
	case j.facts.PCI.Error != "":
		c.Outcome, c.Summary = Error, "the PCI bus could not be read"
		c.Evidence = []string{j.facts.PCI.Error}
		return c
	case want == 0 && found == 0:
		return none(c.ID)
	case want == 0:
		c.Outcome, c.Summary = Warn, fmt.Sprintf("%s on the PCI bus where none is expected", plural(found, "card"))
		c.Action = "correct the machine's class or record"
		for _, p := range j.facts.PCI.Cards {
			c.Evidence = append(c.Evidence, p.Slot+" "+p.ID())
		}
		return c
	}
	c.Summary = fmt.Sprintf("%d of %s on the PCI bus", found, plural(want, "card"))
	c.Outcome = Pass
	if found != want {
		c.Outcome = Fail
		c.Action = "power-cycle the machine; if the count stays wrong, check seating, power and risers of the slots named"
	}
	for _, a := range j.expect.Accelerators {
		if !slices.ContainsFunc(j.facts.PCI.Cards, func(p PCICard) bool { return p.Slot == Slot(a.Slot) }) {
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s: recorded %s:%s, nothing there", Slot(a.Slot), a.Vendor, a.Device))
			j.blame(Slot(a.Slot), c.ID, Fail, "not on the PCI bus")
		}
	}
	return c
}

func (j *judge) cardIdentity() Check {
	c := Check{ID: "card.identity", Required: true, Outcome: Pass}
	switch {
	case j.facts.PCI.Error != "":
		c.Outcome, c.Summary = Error, "the PCI bus could not be read"
		return c
	case j.expect.Count == 0:
		return none(c.ID)
	case j.vendor() == "" || j.vendor() == j.id:
		c.Outcome, c.Summary = Error, fmt.Sprintf("the class names no card: %q is not vendor:device", j.expect.CardID)
		c.Action = "correct the class"
		return c
	}
	wrong := func(slot, text string) {
		c.Outcome = Fail
		c.Evidence = append(c.Evidence, slot+": "+text)
		j.blame(slot, c.ID, Fail, text)
	}
	right := 0
	for _, p := range j.facts.PCI.Cards {
		i := slices.IndexFunc(j.expect.Accelerators, func(a machine.Accelerator) bool { return Slot(a.Slot) == p.Slot })
		switch {
		case p.ID() != j.id:
			wrong(p.Slot, fmt.Sprintf("is %s, the class has %s", p.ID(), j.id))
		case i < 0 && len(j.expect.Accelerators) > 0:
			wrong(p.Slot, "no card is recorded in this slot")
		case i >= 0 && !strings.EqualFold(j.expect.Accelerators[i].Vendor+":"+j.expect.Accelerators[i].Device, p.ID()):
			wrong(p.Slot, fmt.Sprintf("is %s, recorded %s:%s", p.ID(), j.expect.Accelerators[i].Vendor, j.expect.Accelerators[i].Device))
		default:
			right++
		}
	}
	c.Summary = fmt.Sprintf("%d of %s are %s, where recorded", right, plural(len(j.facts.PCI.Cards), "card"), j.id)
	if c.Outcome == Fail {
		c.Action = "a card was moved or exchanged: bring machine and record into line"
	}
	if len(j.facts.PCI.Cards) == 0 {
		c.Outcome, c.Summary = Skip, "no card to look at"
	}
	return c
}

// cardBus judges what the bus itself says of each card: alive, in the hands of its driver, no fatal bus errors.
func (j *judge) cardBus() Check {
	c := Check{ID: "card.bus", Required: true, Outcome: Pass}
	switch {
	case j.facts.PCI.Error != "":
		c.Outcome, c.Summary = Error, "the PCI bus could not be read"
		return c
	case j.expect.Count == 0:
		return none(c.ID)
	case len(j.facts.PCI.Cards) == 0:
		c.Outcome, c.Summary = Skip, "no card to look at"
		return c
	}
	good := 0
	for _, p := range j.facts.PCI.Cards {
		o, text := Pass, ""
		switch {
		case p.Answers.Known() && !p.Answers.Value:
			o, text = Fail, "its configuration space reads all ones: it is gone from the bus"
		case p.AERFatal.Known() && p.AERFatal.Value > 0:
			o, text = Fail, fmt.Sprintf("%d fatal PCIe errors since boot", p.AERFatal.Value)
		case p.Driver == "vfio-pci" || p.Driver == "pci-stub" || p.Driver == "nouveau":
			o, text = Fail, "is in the hands of "+p.Driver
		case p.Answers.Error != "":
			o, text = Error, "configuration space: "+p.Answers.Error
		}
		if o == Pass {
			good++
			continue
		}
		c.Outcome = Worse(c.Outcome, o)
		c.Evidence = append(c.Evidence, p.Slot+": "+text)
		j.blame(p.Slot, c.ID, o, text)
	}
	c.Summary = fmt.Sprintf("%d of %s are alive on the bus; link speed and width are recorded, not judged without load",
		good, plural(len(j.facts.PCI.Cards), "card"))
	if c.Outcome != Pass {
		c.Action = Reboot.Action()
	}
	return c
}

// cardDriver judges whether the driver is there and counts the same cards as the bus.
func (j *judge) cardDriver() Check {
	c := Check{ID: "card.driver", Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	switch {
	case j.driver == nil:
		c.Outcome, c.Summary = Skip, fmt.Sprintf("no reader for cards of vendor %q", j.vendor())
		c.Action = "run the vendor's own tool and let a person decide"
		return c
	case j.driver.Fault != nil:
		c.Outcome, c.Summary = faultOutcome(j.driver.Fault), "the driver does not answer"
		if j.driver.Fault.Kind == FaultAbsent && j.expect.NoDriver {
			c.Outcome, c.Required = Warn, false
		}
		if j.driver.Fault.Kind == FaultAbsent {
			c.Summary = "no driver: its library is not installed"
			c.Action = "choose an image that brings the driver for these cards"
		}
		c.Evidence = []string{printable(j.driver.Fault.String())}
		return c
	case !j.driver.Count.Known():
		c.Outcome, c.Summary = Error, "the driver does not say how many cards there are"
		c.Evidence = []string{printable(j.driver.Count.Error)}
		return c
	}
	n := int(j.driver.Count.Value)
	c.Summary = fmt.Sprintf("driver %s counts %s, expected %d", printable(j.driver.Version.String()), plural(n, "card"), j.expect.Count)
	if n != j.expect.Count || n != len(j.facts.PCI.Cards) {
		c.Outcome = Fail
		c.Action = Reboot.Action()
	}
	return c
}

// cardAnswers judges whether the driver gets an answer from each card on the bus.
func (j *judge) cardAnswers() Check {
	c := Check{ID: "card.answers", Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	if j.driver == nil || j.driver.Fault != nil {
		c.Outcome, c.Summary = Skip, "no driver to ask"
		return c
	}
	answered := 0
	note := func(slot string, o Outcome, text string) {
		c.Outcome = Worse(c.Outcome, o)
		c.Evidence = append(c.Evidence, strings.TrimPrefix(slot+": "+text, ": "))
		j.blame(slot, c.ID, o, text)
	}
	for _, k := range j.driver.Cards {
		if k.Fault != nil {
			note(k.Slot, faultOutcome(k.Fault), fmt.Sprintf("card %d: %s", k.Index, printable(k.Fault.String())))
			continue
		}
		answered++
		if k.ID.Known() && !strings.EqualFold(k.ID.Value, j.id) {
			note(k.Slot, Fail, fmt.Sprintf("the driver calls it %s, the class has %s", printable(k.ID.Value), j.id))
		}
	}
	for _, p := range j.facts.PCI.Cards {
		if p.Vendor == j.vendor() && !slices.ContainsFunc(j.driver.Cards, func(k Card) bool { return k.Slot == p.Slot }) {
			note(p.Slot, Fail, "is on the bus, the driver does not list it")
		}
	}
	c.Summary = fmt.Sprintf("%d of %s answer", answered, plural(j.expect.Count, "card"))
	if answered < j.expect.Count {
		c.Outcome = Worse(c.Outcome, Fail)
	}
	if c.Outcome != Pass {
		c.Action = Reboot.Action()
	}
	return c
}

// faultOutcome says whether a fault speaks against the machine or only against our asking.
func faultOutcome(f *Fault) Outcome {
	if f.Kind == FaultSymbol || f.Kind == FaultProbe {
		return Error
	}
	return Fail
}

// cards joins both sides of each card with what the checks found on it.
func (j *judge) cards() []CardResult {
	bySlot := map[string]*CardResult{}
	at := func(slot string) *CardResult {
		if bySlot[slot] == nil {
			bySlot[slot] = &CardResult{Slot: slot, Outcome: Pass}
		}
		return bySlot[slot]
	}
	for _, p := range j.facts.PCI.Cards {
		at(p.Slot).PCI = &p
	}
	var nowhere []CardResult
	for _, d := range j.facts.Driver {
		for _, k := range placed(d.Cards) {
			if k.Slot == "" { // its fault came before it could say where it is
				nowhere = append(nowhere, CardResult{Outcome: faultOutcome(k.Fault), Problems: []string{"card.answers: " + printable(k.Fault.String())}, Card: &k})
				continue
			}
			at(k.Slot).Card = &k
			if k.Fault != nil && len(j.bad[k.Slot]) == 0 { // of a card that no check asks about, since none is expected
				at(k.Slot).Outcome = Warn
				at(k.Slot).Problems = []string{"driver: " + printable(k.Fault.String())}
			}
		}
	}
	for slot, list := range j.bad {
		r := at(slot)
		for _, b := range list {
			r.Outcome = Worse(r.Outcome, b.outcome)
			r.Problems = append(r.Problems, b.text)
		}
	}
	out := make([]CardResult, 0, len(bySlot)+len(nowhere))
	for _, r := range bySlot {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b CardResult) int { return strings.Compare(a.Slot, b.Slot) })
	return append(out, nowhere...)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
