package accelerator

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// ownBurn reports whether the program can put a load on the class's cards itself. Cards of other vendors are loaded by the vendor's tool, or not.
func (j *judge) ownBurn() bool { return j.vendor() == nvidiaVendor }

// slots returns the class's cards on the bus.
func (j *judge) slots() []string {
	var out []string
	for _, p := range j.facts.PCI.Cards {
		if p.Vendor == j.vendor() {
			out = append(out, p.Slot)
		}
	}
	return out
}

// load judges what the load tests did to each card.
func (j *judge) load() []Check {
	checks := []Check{
		j.loaded("load.burn", TestBurn, "compute, and all the same"),
		j.loaded("load.memory", TestPattern, "read back what was written to their memory"),
		j.loadLink(), j.loadThermal(), j.loadEvents(), j.diagnosis(),
	}
	return checks
}

// loaded judges one test whose results are right or wrong.
func (j *judge) loaded(id, test, good string) Check {
	c := Check{ID: id, Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(id)
	}
	if !j.ownBurn() {
		return j.vendorLoad(c)
	}
	slots := j.slots()
	usual, sure := j.usualResult(test)
	passed := 0
	for _, slot := range slots {
		f := j.loadOf(slot, test, usual, sure)
		if f.outcome == Pass {
			passed++
			continue
		}
		c.add(slot, f)
		j.blame(slot, id, f.outcome, f.text)
	}
	c.Summary = fmt.Sprintf("%d of %s %s", passed, plural(len(slots), "card"), good)
	switch {
	case len(slots) == 0:
		c.Outcome, c.Summary = Skip, "no card to load"
	case c.Outcome == Skip && passed == 0:
		c.Summary = "not run"
	case c.Action == ActReplace:
		c.Advice = "take the card out: it computes or keeps wrong values without telling"
	case c.Outcome != Pass:
		c.Advice = Reboot.Advice()
	}
	return c
}

// vendorLoad stands for a load test of our own on cards that have none: what the vendor's stress tool found, or that it was not run.
func (j *judge) vendorLoad(c Check) Check {
	c.Required = j.strict() && j.vendor() == "19e5" // T-Head has no stress tool that is known here: nobody could ever accept such a card
	for _, d := range j.facts.Diagnoses {
		if d.Fault == nil && d.Tool == "ascend-dmi" && j.vendor() == "19e5" && len(d.Tests) > 0 {
			c.Outcome = Pass
			for _, t := range d.Tests {
				if t.Outcome != Pass {
					c.add(t.Name+" "+t.Card, finding{t.Outcome, ActReplace, string(t.Outcome) + " " + t.Detail})
				}
			}
			c.Summary = fmt.Sprintf("%s of %s, the worst: %s", plural(len(d.Tests), "test"), d.Tool, c.Outcome)
			return c
		}
	}
	c.Outcome, c.Summary = Skip, "not run: there is no load test of our own for these cards, and the vendor's tool was not there"
	c.Advice = "run the vendor's stress tool"
	return c
}

// usualResult returns the result that most cards computed. It is sure when more than half of at least two agree.
func (j *judge) usualResult(test string) (string, bool) {
	seen := map[string]int{}
	n := 0
	for _, l := range j.facts.Loads {
		if l.Test == test && l.Result != "" {
			seen[l.Tool+" "+l.Version+" "+l.Result]++
			n++
		}
	}
	for r, count := range seen {
		if 2*count > n {
			return r, n > 1
		}
	}
	return "", false
}

// workedEnough is the share of the time asked for that a test must have run.
const workedEnough = 0.9

func (j *judge) loadOf(slot, test, usual string, sure bool) finding {
	i := slices.IndexFunc(j.facts.Loads, func(l Load) bool { return l.Test == test && l.Slot == slot && l.Peer == "" })
	if i < 0 {
		return finding{Skip, ActNone, "not run"}
	}
	l := j.facts.Loads[i]
	switch {
	case l.Errors > 0: // also when it ended early
		return failed(ActReplace, fmt.Sprintf("%d wrong results%s", l.Errors, after(": ", l.Detail)))
	case l.Fault != nil:
		return loadFault(l.Fault)
	case l.Result != "" && usual == "":
		return failed(ActReplace, "cards computed different results, and no two of three agree: "+l.Result)
	case l.Result != "" && sure && l.Tool+" "+l.Version+" "+l.Result != usual:
		return failed(ActReplace, "computed another result than the other cards")
	case test == TestBurn && j.facts.Asked > 0 && l.Seconds < workedEnough*j.facts.Asked:
		return unread(fmt.Sprintf("ran %.0f of %.0f seconds", l.Seconds, j.facts.Asked))
	case test == TestPattern && l.Bytes <= 0:
		return unread("no memory was tested")
	}
	return fine()
}

func after(sep, s string) string {
	if s == "" {
		return ""
	}
	return sep + s
}

// loadFault says what a load test that did not come to its end speaks for.
func loadFault(f *Fault) finding {
	switch f.Kind {
	case FaultAbsent:
		return finding{Skip, ActNone, f.String()}
	case FaultSymbol, FaultProbe:
		return unread(f.String())
	case FaultHang, FaultCrash:
		return failed(ActReboot, f.String())
	case FaultLost:
		return failed(ActPowerCycle, f.String())
	}
	return failed(ActReset, f.String())
}

// fewSamples is how many samples under load a link is judged by at least: one may catch it just waking up.
const fewSamples = 3

func (j *judge) loadLink() Check {
	c := Check{ID: "load.link", Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	if !j.ownBurn() {
		c.Outcome, c.Required, c.Summary = Skip, false, "no load of our own on these cards"
		return c
	}
	slots, good := j.slots(), 0
	for _, slot := range slots {
		f := j.linkOf(slot)
		if f.outcome == Pass {
			good++
			continue
		}
		c.add(slot, f)
		j.blame(slot, c.ID, f.outcome, f.text)
	}
	c.Summary = fmt.Sprintf("%d of %s have their PCIe link under load", good, plural(len(slots), "card"))
	if len(slots) == 0 {
		c.Outcome, c.Summary = Skip, "no card to load"
	}
	if c.Action == ActReseat {
		c.Advice = "reseat the card, check riser and slot, and the generation set in the firmware; a host that gives less on purpose has it in its profile"
	}
	return c
}

// linkOf judges a link by several samples under traffic and on both ends: at rest every card trains down.
func (j *judge) linkOf(slot string) finding {
	i := slices.IndexFunc(j.facts.Series, func(s Series) bool { return s.Slot == slot })
	if i < 0 {
		return finding{Skip, ActNone, "was not watched under load"}
	}
	s, p := j.facts.Series[i], j.profile(slot)
	var card Card
	for _, k := range j.answering() {
		if k.Slot == slot {
			card = k
		}
	}
	if max(s.Gen.Samples, s.PortGen.Samples) < fewSamples || max(s.Width.Samples, s.PortWidth.Samples) < fewSamples {
		return finding{Skip, ActNone, fmt.Sprintf("%d samples of its link under load, %d are needed", min(max(s.Gen.Samples, s.PortGen.Samples), max(s.Width.Samples, s.PortWidth.Samples)), fewSamples)}
	}
	for _, end := range []struct {
		name        string
		gen, width  Spread
		hint        Value[int64]
		hintedWidth Value[int64]
	}{{"card", s.Gen, s.Width, card.MaxGen, card.MaxWidth}, {"port", s.PortGen, s.PortWidth, Value[int64]{}, Value[int64]{}}} {
		for _, v := range []struct {
			what string
			seen Spread
			want Known[int64]
			most Value[int64]
		}{{"generation", end.gen, p.LinkGen, end.hint}, {"lanes", end.width, p.LinkWidth, end.hintedWidth}} {
			want := float64(v.want.Value)
			if !v.want.Judges() {
				if want = float64(v.most.Value); !v.most.Known() {
					continue
				}
			}
			switch {
			case v.seen.Samples == 0:
			case v.seen.Median < want && v.most.Known() && float64(v.most.Value) < want:
				return failed(ActReseat, fmt.Sprintf("%s %g under load at the %s's end, %s has %g: board and slot allow %d", v.what, v.seen.Median, end.name, p.Name, want, v.most.Value))
			case v.seen.Median < want:
				return failed(ActReseat, fmt.Sprintf("%s %g under load at the %s's end, should be %g", v.what, v.seen.Median, end.name, want))
			case v.seen.Least < want:
				return warned(ActReseat, fmt.Sprintf("%s falls to %g at times under load at the %s's end, should be %g", v.what, v.seen.Least, end.name, want))
			}
		}
	}
	return fine()
}

// Bounds of heat and throttling.
const (
	throttleSecond = 1.0  // a hardware throttle is one when it lasts for a whole sample: tools that fail on "0.0 s" are wrong
	softThrottle   = 10.0 // seconds of software thermal throttling before it is worth a word
	hotter         = 15.0 // °C above the middle of the machine's cards
)

func (j *judge) loadThermal() Check {
	c := Check{ID: "load.thermal", Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	if !j.ownBurn() {
		c.Outcome, c.Required, c.Summary = Skip, false, "no load of our own on these cards"
		return c
	}
	var heats []float64
	for _, s := range j.facts.Series {
		if s.Hottest.Known() {
			heats = append(heats, float64(s.Hottest))
		}
	}
	slots, good := j.slots(), 0
	for _, slot := range slots {
		i := slices.IndexFunc(j.facts.Series, func(s Series) bool { return s.Slot == slot })
		f := finding{Skip, ActNone, "was not watched under load"}
		if i >= 0 {
			f = j.heat(j.facts.Series[i], median(heats))
		}
		if f.outcome == Pass {
			good++
			continue
		}
		c.add(slot, f)
		j.blame(slot, c.ID, f.outcome, f.text)
	}
	for _, s := range j.facts.Series {
		if t := s.Throttled[ThrottlePower]; t > 0 {
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s: at its power cap for %.0f s, as a full load does", s.Slot, t))
		}
	}
	c.Summary = fmt.Sprintf("%d of %s stay cool enough and are not held back", good, plural(len(slots), "card"))
	if len(slots) == 0 {
		c.Outcome, c.Summary = Skip, "no card to load"
	}
	if c.Outcome == Fail || c.Outcome == Warn {
		c.Advice = "check fans, airflow, heat sink and power cables of the cards named"
	}
	return c
}

func (j *judge) heat(s Series, middle float64) finding {
	p := j.profile(s.Slot)
	slowdown := p.Slowdown
	for _, k := range j.answering() {
		if k.Slot == s.Slot && k.Slowdown.Known() && k.Slowdown.Value > 0 { // the card's own word goes before a list
			slowdown = Known[int64]{k.Slowdown.Value, Published, "the card"}
		}
	}
	for _, reason := range []Throttle{ThrottleBrake, ThrottleHeat, ThrottleHardware} {
		if t := s.Throttled[reason]; t >= throttleSecond {
			return failed(ActReseat, fmt.Sprintf("%s for %.0f s", reason, t))
		}
	}
	switch {
	case s.Hottest.Known() && slowdown.Judges() && float64(s.Hottest) >= float64(slowdown.Value):
		return failed(ActReseat, fmt.Sprintf("reached %.0f °C, it throttles at %d", float64(s.Hottest), slowdown.Value))
	case s.Margin.Known() && p.Margin.Judges() && float64(s.Margin) <= float64(p.Margin.Value):
		return failed(ActReseat, fmt.Sprintf("came within %.0f °C of its limit, it throttles at %d", float64(s.Margin), p.Margin.Value))
	case s.Fault != nil:
		return unread("the watch ended early: " + s.Fault.String())
	case s.Samples == 0:
		return finding{Skip, ActNone, "was not watched under load"}
	case s.Throttled[ThrottleSoftHeat] > softThrottle:
		return warned(ActReseat, fmt.Sprintf("%s for %.0f s", ThrottleSoftHeat, s.Throttled[ThrottleSoftHeat]))
	case s.Hottest.Known() && middle > 0 && float64(s.Hottest) > middle+hotter:
		return warned(ActReseat, fmt.Sprintf("reached %.0f °C, the middle of the machine's cards is %.0f", float64(s.Hottest), middle))
	}
	return fine()
}

// eventsPerQuarter is the time over which corrected PCIe errors are counted.
const eventsPerQuarter = 15 * time.Minute

// loadEvents judges what the kernel log and the error counters gained during the load.
func (j *judge) loadEvents() Check {
	c := Check{ID: "load.events", Required: true, Outcome: Pass, Summary: "no fault came up during the load"}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	b := j.facts.Before
	if b == nil {
		c.Outcome, c.Summary = Skip, "no load was put on"
		c.Required = j.ownBurn() || j.strict()
		return c
	}
	if b.Log.Error != "" || j.facts.Log.Error != "" {
		c.Outcome, c.Summary = Error, "the kernel log could not be read"
		return c
	}
	for _, e := range j.facts.Log.Events {
		e.Count = delta(b.Log.count(e), e.Count)
		if e.Count <= 0 {
			continue
		}
		v := j.rules.Event(e)
		if v.Class == Ignore && e.Kind == EventXID && v.Outcome == Warn && !(e.Code == 45 && j.ended(e.Slot)) {
			v.Outcome, v.Class = Fail, Reset // nobody but our own tests ran, and they make no such mistake
		}
		if v.Outcome != Pass {
			c.add(e.Slot, finding{v.Outcome, v.Action(), fmt.Sprintf("%s ×%d: %s", e.Name(), e.Count, v.Text)})
			j.blame(e.Slot, c.ID, v.Outcome, e.Name()+" during the load: "+v.Text)
		}
	}
	for _, p := range j.facts.PCI.Cards {
		i := slices.IndexFunc(b.PCI.Cards, func(o PCICard) bool { return o.Slot == p.Slot })
		if i < 0 || !p.AERCorrected.Known() || !b.PCI.Cards[i].AERCorrected.Known() {
			continue
		}
		n := delta(b.PCI.Cards[i].AERCorrected.Value, p.AERCorrected.Value)
		quarters := max(1, j.facts.Taken.Sub(b.Taken).Seconds()/eventsPerQuarter.Seconds())
		if float64(n) > correctedFlood*quarters {
			c.add(p.Slot, failed(ActReseat, fmt.Sprintf("%d corrected PCIe errors during the load", n)))
			j.blame(p.Slot, c.ID, Fail, "corrected PCIe errors by the hundred during the load")
		}
	}
	if c.Outcome != Pass {
		c.Summary = plural(len(c.Evidence), "fault") + " came up during the load"
		c.Advice = "validate again; a fault that comes back with the load is the card's"
	}
	return c
}

// ended reports whether we ended a test on a card ourselves, which leaves an XID 45 behind.
func (j *judge) ended(slot string) bool {
	return slices.ContainsFunc(j.facts.Loads, func(l Load) bool { return l.Slot == slot && l.Fault != nil })
}

// count returns how often a log has an event.
func (l KernelLog) count(e Event) int64 {
	for _, o := range l.Events {
		if o.key() == e.key() {
			return o.Count
		}
	}
	return 0
}

// diagnosis judges what vendors' own tools found. Their "skip" is incomplete, never a pass.
func (j *judge) diagnosis() Check {
	c := Check{ID: "tool.diagnosis", Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	ran := 0
	var words []string
	for _, d := range j.facts.Diagnoses {
		tool := printable(strings.TrimSpace(d.Tool + " " + d.Version))
		if d.Fault != nil {
			if d.Fault.Kind == FaultAbsent {
				words = append(words, tool+" is not installed")
				continue
			}
			c.add(tool, unread(d.Fault.String()))
			continue
		}
		ran++
		incomplete := 0
		for _, t := range d.Tests {
			switch t.Outcome {
			case Pass:
				continue
			case Skip:
				incomplete++
			}
			action := ActNone
			if t.Outcome == Fail {
				action = ActReplace
			}
			c.add(strings.TrimSpace(tool+" "+printable(t.Name+" "+t.Card)), finding{t.Outcome, action, string(t.Outcome) + after(": ", t.Detail)})
		}
		if len(d.Tests) == 0 {
			c.add(tool, finding{Skip, ActNone, "made no test"})
		}
		words = append(words, fmt.Sprintf("%s: %s, %d incomplete", tool, plural(len(d.Tests), "test"), incomplete))
	}
	c.Summary = strings.Join(words, "; ")
	if ran == 0 && c.Outcome == Pass {
		c.Outcome = Skip
		if c.Summary == "" {
			c.Summary = "no vendor's tool was run"
		}
	}
	if c.Outcome == Fail {
		c.Advice = "see what the tool says of the card named"
	}
	return c
}

// stages judges whether an acceptance was gone through to its end.
func (j *judge) stages() Check {
	c := Check{ID: "plan.stages", Required: true, Outcome: Pass}
	for _, s := range Stages() {
		if !slices.Contains(j.facts.Stages, s) {
			c.Outcome = Skip
			c.Evidence = append(c.Evidence, string(s)+" was not reached")
		}
	}
	c.Summary = fmt.Sprintf("%d of %d stages, %s under load", len(j.facts.Stages), len(Stages()), (time.Duration(j.facts.Seconds) * time.Second).String())
	if j.facts.Asked > 0 && j.facts.Seconds < workedEnough*j.facts.Asked {
		c.add("", finding{Skip, ActNone, fmt.Sprintf("%.0f of %.0f seconds of load", j.facts.Seconds, j.facts.Asked)})
	}
	if o := j.facts.Overrun; o != "" {
		c.add("", failed(ActReboot, fmt.Sprintf("%s did not end in its time", o)))
	}
	if c.Outcome != Pass {
		c.Advice = "mend what blocks and run the acceptance again"
	}
	return c
}
