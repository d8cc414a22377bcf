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
	j := &judge{facts: f, expect: expect, rules: rules, id: strings.ToLower(expect.CardID), bad: map[string][]problem{}, known: map[string]Profile{}}
	for _, d := range f.Driver {
		if d.Vendor == j.vendor() {
			j.driver = &Driver{Vendor: d.Vendor, Fault: d.Fault, Version: d.Version, Count: d.Count, Cards: placed(d.Cards)}
		}
	}
	checks := []Check{j.cardCount(), j.cardIdentity(), j.cardBus(), j.cardDriver(), j.cardAnswers()}
	checks = append(checks, j.cardState()...)
	checks = append(checks, j.kernelLog(), j.nouveau())
	checks = append(checks, j.host()...)
	checks = append(checks, j.load()...)
	checks = append(checks, j.performance()...)
	checks = append(checks, j.bmc()...)
	if f.Plan == PlanAcceptance {
		checks = append(checks, j.stages())
	}
	checks = j.worth(checks)
	j.withoutDriver(checks)
	j.fromRAMDisk(checks)
	for i := range checks {
		if checks[i].Action == "" {
			checks[i].Action = ActNone
		}
	}
	r := Report{
		Schema: Schema, Taken: f.Taken, Rules: RulesVersion, Plan: f.Plan, Stages: f.Stages, Seconds: f.Seconds, RAMDisk: f.RAMDisk,
		Outcome: overall(checks), Checks: checks, Cards: j.cards(), Host: f.Host, Drivers: []DriverNote{},
		Loads: f.Loads, Series: f.Series, Diagnoses: f.Diagnoses, BMC: f.BMC, Profiles: j.profilesUsed(),
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
		if checks[i].Outcome == Skip && (strings.HasPrefix(checks[i].ID, "card.") || strings.HasPrefix(checks[i].ID, "load.") || strings.HasPrefix(checks[i].ID, "perf.")) {
			checks[i].Required = false
		}
	}
}

// beyondRAMDisk are the beginnings of the names of checks that need a driver or a tool of the installed system.
var beyondRAMDisk = []string{"card.", "load.", "perf.", "tool."}

// fromRAMDisk makes optional what the RAM disk cannot see, and says so. What the bus shows is judged as ever.
func (j *judge) fromRAMDisk(checks []Check) {
	if !j.facts.RAMDisk {
		return
	}
	for i := range checks {
		c := &checks[i]
		if c.ID == "card.driver" && j.expect.Count > 0 && j.driver == nil {
			c.Outcome, c.Advice, c.Action, c.Evidence = Skip, "", ActNone, nil
		}
		if c.ID == "host.clock" && c.Outcome == Warn { // it lives for minutes, without a time service
			c.Outcome, c.Required, c.Evidence, c.Advice, c.Summary = Skip, false, nil, "", "the RAM disk keeps no time"
		}
		if c.Outcome == Skip && slices.ContainsFunc(beyondRAMDisk, func(p string) bool { return strings.HasPrefix(c.ID, p) }) {
			c.Required, c.Advice, c.Summary = false, "", "the RAM disk has no driver for cards: judged after an installation"
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
	known  map[string]Profile // by subsystem, as looked up
}

// profile returns what is known of the class's card as it sits in a slot.
func (j *judge) profile(slot string) Profile {
	board := ""
	for _, p := range j.facts.PCI.Cards {
		if p.Slot == slot {
			board = p.Subsystem
		}
	}
	p, ok := j.known[board]
	if !ok {
		p, _ = j.rules.Profile(j.id, board)
		j.known[board] = p
	}
	return p
}

// profilesUsed names the profiles that judged, so that a report can be explained when they have changed.
func (j *judge) profilesUsed() []ProfileNote {
	var out []ProfileNote
	for _, p := range j.known {
		if p.Name != "" && !slices.Contains(out, ProfileNote{p.Name, p.Revision, p.File}) {
			out = append(out, ProfileNote{p.Name, p.Revision, p.File})
		}
	}
	slices.SortFunc(out, func(a, b ProfileNote) int { return strings.Compare(a.Name+a.File, b.Name+b.File) })
	return out
}

// worth leaves out the checks that the plan does not make and says of the others what they are worth in it.
func (j *judge) worth(checks []Check) []Check {
	out := checks[:0]
	for _, c := range checks {
		switch needs(c.ID, j.facts.Plan) {
		case left:
			continue
		case wanted:
			c.Required = false
		}
		if o, ok := j.rules.Severity[c.ID]; ok && o != Pass && (c.Outcome == Fail || c.Outcome == Warn) {
			c.Outcome = o
		}
		out = append(out, c)
	}
	return out
}

// strict reports whether new hardware is judged, where nothing has an excuse yet.
func (j *judge) strict() bool { return j.facts.Plan == PlanAcceptance }

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
	switch needs(check, j.facts.Plan) {
	case left:
		return
	case wanted:
		if o == Skip {
			return
		}
		if o == Error {
			o = Warn
		}
	}
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
		c.Advice = "correct the machine's class or record"
		for _, p := range j.facts.PCI.Cards {
			c.Evidence = append(c.Evidence, p.Slot+" "+p.ID())
		}
		return c
	}
	c.Summary = fmt.Sprintf("%d of %s on the PCI bus", found, plural(want, "card"))
	c.Outcome = Pass
	if found != want {
		c.Outcome = Fail
		c.Action, c.Advice = ActPowerCycle, "power-cycle the machine; if the count stays wrong, check seating, power and risers of the slots named"
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
		c.Advice = "correct the class"
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
		c.Advice = "a card was moved or exchanged: bring machine and record into line"
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
		f := j.onBus(p)
		if f.outcome == Pass {
			good++
			continue
		}
		c.add(p.Slot, f)
		j.blame(p.Slot, c.ID, f.outcome, f.text)
	}
	c.Summary = fmt.Sprintf("%d of %s are alive on the bus; link speed is recorded, not judged without load", good, plural(len(j.facts.PCI.Cards), "card"))
	switch c.Action {
	case ActPowerCycle:
		c.Advice = Reboot.Advice()
	case ActReboot:
		c.Advice = "give the cards to the vendor's driver and restart the machine"
	case ActReseat:
		c.Advice = "reseat the card and check its riser, or set link_width in the profile of a host that gives fewer lanes"
	}
	return c
}

// correctedFlood is how many corrected PCIe errors in a quarter of an hour are too many: the kernel's own default for a link in trouble.
const correctedFlood = 480

func (j *judge) onBus(p PCICard) finding {
	width := j.profile(p.Slot).LinkWidth
	switch {
	case p.Answers.Known() && !p.Answers.Value:
		return failed(ActPowerCycle, "its configuration space reads all ones: it is gone from the bus")
	case p.AERFatal.Known() && p.AERFatal.Value > 0:
		return failed(ActPowerCycle, fmt.Sprintf("%d fatal PCIe errors since boot", p.AERFatal.Value))
	case p.Driver == "vfio-pci" || p.Driver == "pci-stub" || p.Driver == "nouveau":
		return failed(ActReboot, "is in the hands of "+p.Driver)
	case p.Answers.Error != "":
		return unread("configuration space: " + p.Answers.Error)
	case p.AERCorrected.Known() && p.AERCorrected.Value > correctedFlood:
		return warned(ActReseat, fmt.Sprintf("%d corrected PCIe errors since boot", p.AERCorrected.Value))
	case p.LinkWidth.Known() && width.Judges() && p.LinkWidth.Value < width.Value:
		return warned(ActReseat, fmt.Sprintf("%d lanes at rest, the card has %d; judged under load", p.LinkWidth.Value, width.Value))
	}
	return fine()
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
		c.Advice = "run the vendor's own tool and let a person decide"
		return c
	case j.driver.Fault != nil:
		c.Outcome, c.Summary = faultOutcome(j.driver.Fault), "the driver does not answer"
		if j.driver.Fault.Kind == FaultHang || j.driver.Fault.Kind == FaultCrash || j.driver.Fault.Kind == FaultRefused {
			c.Action = ActReboot
		}
		if j.driver.Fault.Kind == FaultAbsent && j.expect.NoDriver {
			c.Outcome, c.Required = Warn, false
		}
		if j.driver.Fault.Kind == FaultAbsent {
			c.Summary = "no driver: its library is not installed"
			c.Advice = "choose an image that brings the driver for these cards"
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
		c.Action, c.Advice = ActReboot, Reboot.Advice()
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
			if k.Fault.Kind == FaultLost {
				c.Action = ActPowerCycle
			}
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
		c.Action, c.Advice = Heavier(c.Action, ActReboot), Reboot.Advice()
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
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	case strings.HasSuffix(noun, "ly"), strings.HasSuffix(noun, "ry"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(noun, "y"))
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
