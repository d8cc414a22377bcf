package accelerator

import (
	"fmt"
	"slices"
	"strings"
)

// cardState judges what each answering card says of itself.
func (j *judge) cardState() []Check {
	return []Check{
		j.each("card.memory", true, "have the memory they should", "", j.memory),
		j.each("card.ecc", true, "have error correction on and no uncorrected error", "", j.ecc),
		j.each("card.remap", true, "have no remapped row pending or failed", "", j.remap),
		j.each("card.recovery", true, "ask for no recovery", "do what the driver asks for and validate again", recovery),
		j.each("card.health", true, "call themselves healthy", "", j.health),
		j.each("card.inforom", true, "have a valid InfoROM", "", inforom),
		j.each("card.mode", true, "are in their default mode", "set MIG off and the compute mode to default, end what still runs, then validate again", mode),
		j.each("card.persistence", false, "are kept started by the driver", "turn persistence on in the image: without it each program waits for the card to start", j.persistence),
		j.each("card.power", true, "have their factory power limit", "set the default power limit, check the power cables, or put the limit of this host into its profile", j.power),
		j.each("card.pcie", true, "send little again over PCIe", "", j.replays),
		j.each("card.links", true, "have all their links", "", j.links),
		j.fabric(),
		j.uniform(),
	}
}

// each makes one check of a question asked of every answering card. A card that does not answer is card.answers' business; when none
// answers, the check is a skip. A question that no card can answer because it has no such thing is a skip that blocks nothing.
func (j *judge) each(id string, required bool, good, advice string, ask func(Card) finding) Check {
	c := Check{ID: id, Required: required, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(id)
	}
	asked, passed, lacking := 0, 0, 0
	var said []string // of those that lack it
	for _, k := range j.answering() {
		f := ask(k)
		asked++
		switch f.outcome {
		case Pass:
			passed++
			continue
		case Skip:
			lacking++
			if f.text != "" {
				said = append(said, k.Slot+": "+printable(f.text))
			}
			continue
		}
		if o, ok := j.rules.Severity[id]; ok && o != Pass && f.outcome != Error {
			f.outcome = o
		}
		c.add(k.Slot, f)
		j.blame(k.Slot, id, f.outcome, f.text)
	}
	c.Evidence = append(c.Evidence, said...)
	switch {
	case asked == 0:
		c.Outcome, c.Summary = Skip, "no card answers"
		return c
	case lacking == asked && len(said) > 0:
		c.Outcome, c.Required = Skip, false
		c.Summary = "measured, not judged: nothing is known to judge it by"
		return c
	case lacking == asked:
		c.Outcome, c.Required = Skip, false
		c.Summary = fmt.Sprintf("not supported by %s", plural(asked, "card"))
		return c
	case lacking > len(said):
		c.Evidence = append(c.Evidence, fmt.Sprintf("not supported by %s", plural(lacking-len(said), "card")))
	}
	c.Summary = fmt.Sprintf("%d of %s %s", passed, plural(asked, "card"), good)
	if c.Outcome != Pass {
		if c.Advice = advice; advice == "" {
			c.Advice = c.Action.advice()
		}
	}
	return c
}

func (j *judge) answering() []Card {
	var out []Card
	if j.driver == nil || j.driver.Fault != nil {
		return nil
	}
	for _, k := range j.driver.Cards {
		if k.Fault == nil {
			out = append(out, k)
		}
	}
	return out
}

// before returns a card as it was before the load; nil when none was put on or it did not answer then.
func (j *judge) before(slot string) *Card {
	if j.facts.Before == nil {
		return nil
	}
	for _, d := range j.facts.Before.Driver {
		for i, k := range d.Cards {
			if d.Vendor == j.vendor() && k.Slot == slot && k.Fault == nil {
				return &d.Cards[i]
			}
		}
	}
	return nil
}

// memorySlack is how much less than the profile a driver may report: releases reserve a few MiB more or less.
const memorySlack = 100 // one part in

func (j *judge) memory(k Card) finding {
	if !k.Memory.Known() {
		return unread("memory: " + missing(k.Memory))
	}
	if k.Memory.Value <= 0 {
		return failed(ActReset, "reports no memory")
	}
	p := j.profile(k.Slot)
	if !p.Memory.Judges() {
		most := int64(0)
		for _, other := range j.answering() {
			if other.Memory.Known() {
				most = max(most, other.Memory.Value)
			}
		}
		if k.Memory.Value < most-most/memorySlack {
			return failed(ActReplace, fmt.Sprintf("has %d MiB, another card of the machine %d", k.Memory.Value>>20, most>>20))
		}
		return without(fmt.Sprintf("%d MiB", k.Memory.Value>>20))
	}
	want := p.Memory.Value << 20
	if k.Memory.Value < want-want/memorySlack {
		return failed(ActReplace, fmt.Sprintf("has %d MiB, %s has %d", k.Memory.Value>>20, p.Name, p.Memory.Value))
	}
	return fine()
}

func (j *judge) ecc(k Card) finding {
	p := j.profile(k.Slot)
	has := p.ECC.Judges() && p.ECC.Value == Yes
	hasNot := p.ECC.Judges() && p.ECC.Value == No
	switch {
	case k.ECC.Error != "":
		return unread("error correction: " + k.ECC.Error)
	case !k.ECC.Supported && has:
		return unread(p.Name + " has error correction, the driver says it has none")
	case !k.ECC.Supported:
		return without("")
	case hasNot && !k.ECC.Value: // a GeForce that offers it as an option, off by default
		return without("")
	case !k.ECC.Value:
		return failed(ActReset, "error correction is off")
	case k.ECCPending.Known() && !k.ECCPending.Value:
		return failed(ActNone, "error correction goes off at the next reset")
	case k.Uncorrected.Known() && k.Uncorrected.Value > 0:
		return failed(ActReset, fmt.Sprintf("%d uncorrected memory errors since the driver was loaded", k.Uncorrected.Value))
	case !k.Uncorrected.Known():
		return unread("uncorrected errors: " + missing(k.Uncorrected))
	case k.UncorrectedEver.Known() && k.UncorrectedEver.Value > 0 && j.strict():
		return failed(ActReplace, fmt.Sprintf("%d uncorrected memory errors in its life, and it is new", k.UncorrectedEver.Value))
	case k.UncorrectedEver.Known() && k.UncorrectedEver.Value > 0:
		return warned(ActNone, fmt.Sprintf("%d uncorrected memory errors in its life", k.UncorrectedEver.Value))
	}
	return fine()
}

func (j *judge) remap(k Card) finding {
	switch {
	case k.RemapFailed.Error != "":
		return unread("remapped rows: " + k.RemapFailed.Error)
	case !k.RemapFailed.Supported:
		return without("")
	case k.RemapFailed.Value:
		return failed(ActReplace, "a memory row could not be remapped")
	case k.RemapPending.Known() && k.RemapPending.Value:
		return failed(ActReset, "a remapped memory row waits for a reset")
	case k.Banks.Known() && k.Banks.Value > 0:
		return warned(ActNone, fmt.Sprintf("%d memory banks have no spare row left", k.Banks.Value))
	case k.RemappedRows.Known() && k.RemappedRows.Value > 0 && j.strict():
		return warned(ActNone, fmt.Sprintf("%d memory rows were remapped, and it is new", k.RemappedRows.Value))
	}
	return fine()
}

func recovery(k Card) finding {
	action := ActReset
	if strings.Contains(k.Recovery.Value, "reboot") {
		action = ActReboot
	}
	switch {
	case k.Recovery.Error != "":
		return unread("recovery action: " + k.Recovery.Error)
	case !k.Recovery.Supported:
		return without("")
	case k.Recovery.Value != "none":
		return failed(action, "the driver asks for "+k.Recovery.Value)
	}
	return fine()
}

// health judges the one word that Ascend and T-Head have for a card: OK, or how bad it is (1 minor, 2 major, 3 critical).
func (j *judge) health(k Card) finding {
	word := strings.ToLower(k.Health.Value)
	switch {
	case k.Health.Error != "":
		return unread("health: " + k.Health.Error)
	case !k.Health.Supported:
		return without("")
	case word == "ok":
	case word == "minor" || word == "warning" || word == "general warning":
		if j.strict() {
			return failed(ActReset, "calls its health "+k.Health.Value+", and it is new")
		}
		return warned(ActNone, "calls its health "+k.Health.Value)
	default:
		return failed(ActReset, "calls its health "+k.Health.Value)
	}
	switch {
	case k.NetHealth.Error != "":
		return unread("network health: " + k.NetHealth.Error)
	case k.NetLink.Known() && k.NetLink.Value == "DOWN":
		return warned(ActReseat, "its own network port is down")
	case k.NetHealth.Known() && strings.EqualFold(k.NetHealth.Value, "fault"):
		return warned(ActReseat, "its own network is at fault")
	}
	return fine()
}

func inforom(k Card) finding {
	switch {
	case k.InfoROM.Error != "":
		return unread("InfoROM: " + k.InfoROM.Error)
	case !k.InfoROM.Supported:
		return without("")
	case !k.InfoROM.Value:
		return failed(ActReplace, "its InfoROM is corrupt")
	}
	return fine()
}

func mode(k Card) finding {
	switch {
	case k.MIG.Known() && k.MIG.Value:
		return failed(ActReset, "is split into instances (MIG)")
	case k.ComputeMode.Known() && k.ComputeMode.Value != "default":
		return failed(ActNone, "compute mode is "+k.ComputeMode.Value)
	case k.Processes.Known() && k.Processes.Value > 0:
		return failed(ActReboot, plural(int(k.Processes.Value), "process")+" left over on the card")
	case k.MIG.Error != "":
		return unread("MIG mode: " + k.MIG.Error)
	case k.ComputeMode.Error != "":
		return unread("compute mode: " + k.ComputeMode.Error)
	case k.Processes.Error != "":
		return unread("processes: " + k.Processes.Error)
	case !k.MIG.Supported && !k.ComputeMode.Supported:
		return without("")
	}
	return fine()
}

// persistence fails an acceptance, whose image is the operator's own; in a customer's image it is the customer's business.
func (j *judge) persistence(k Card) finding {
	switch {
	case !k.Persistence.Known():
		return without("")
	case k.Persistence.Value:
		return fine()
	case j.strict():
		return failed(ActNone, "persistence is off")
	}
	return warned(ActNone, "persistence is off")
}

func (j *judge) power(k Card) finding {
	p := j.profile(k.Slot)
	switch {
	case k.PowerLimit.Error != "" || k.PowerDefault.Error != "":
		return unread("power limit: " + k.PowerLimit.Error + k.PowerDefault.Error)
	case k.PowerLimit.Known() && k.PowerDefault.Known() && k.PowerLimit.Value < k.PowerDefault.Value:
		return failed(ActNone, fmt.Sprintf("limited to %s, factory %s", k.PowerLimit, k.PowerDefault))
	case k.PowerLimit.Known() && p.Power.Judges() && k.PowerLimit.Value < p.Power.Value:
		return failed(ActNone, fmt.Sprintf("limited to %s, %s has %d W", k.PowerLimit, p.Name, p.Power.Value))
	case k.PowerLimit.Known() && (k.PowerDefault.Known() || p.Power.Judges()):
		return fine()
	case k.PowerLimit.Known():
		return without(k.PowerLimit.String())
	}
	return without("")
}

// replayLimit is how many packets a card may send again during a load; NVIDIA's DCGM fails beyond it.
const replayLimit = 80

// replays judges what the load did, where one was put on: a counter that a machine has gathered over months says nothing of today.
func (j *judge) replays(k Card) finding {
	if !k.Replays.Known() {
		if k.Replays.Error != "" {
			return unread("PCIe replays: " + k.Replays.Error)
		}
		return without("")
	}
	b := j.before(k.Slot)
	if b == nil || !b.Replays.Known() {
		return without(fmt.Sprintf("%d replays since the driver was loaded", k.Replays.Value))
	}
	if n := delta(b.Replays.Value, k.Replays.Value); n > replayLimit {
		return failed(ActReseat, fmt.Sprintf("%d packets sent again over PCIe during the load, %d at most", n, replayLimit))
	}
	return fine()
}

// delta is how far a counter went on; one that is lower than before was set to zero in between, and all of it is new.
func delta(before, after int64) int64 {
	if after < before {
		return after
	}
	return after - before
}

func (j *judge) links(k Card) finding {
	p := j.profile(k.Slot)
	if len(k.Links) == 0 {
		if p.Links.Judges() && p.Links.Value > 0 && j.vendor() == nvidiaVendor && k.Fabric.Supported {
			return failed(ActReset, fmt.Sprintf("reports no link, %s has %d", p.Name, p.Links.Value))
		}
		return without("")
	}
	active := int64(0)
	var down []string
	for _, l := range k.Links {
		switch {
		case l.Active.Error != "":
			return unread(fmt.Sprintf("link %d: %s", l.Index, l.Active.Error))
		case l.Active.Known() && l.Active.Value:
			active++
		case l.Active.Known():
			down = append(down, fmt.Sprint(l.Index))
		}
	}
	switch {
	case active == 0 && !p.Links.Judges(): // a PCIe card without a bridge on top
		return without("none of its links is connected")
	case len(down) > 0:
		return failed(ActReset, "links down: "+strings.Join(down, " "))
	case p.Links.Judges() && active < p.Links.Value:
		return failed(ActReset, fmt.Sprintf("%d links, %s has %d", active, p.Name, p.Links.Value))
	}
	if b := j.before(k.Slot); b != nil {
		for _, l := range k.Links {
			i := slices.IndexFunc(b.Links, func(o Link) bool { return o.Index == l.Index })
			if i >= 0 && l.Errors.Known() && b.Links[i].Errors.Known() {
				if n := delta(b.Links[i].Errors.Value, l.Errors.Value); n > 0 {
					return failed(ActReset, fmt.Sprintf("link %d: %d errors during the load", l.Index, n))
				}
			}
		}
	}
	return fine()
}

// fabric judges cards behind NVSwitches: without a fabric manager that went through to its end they compute nothing, whatever else they answer.
func (j *judge) fabric() Check {
	c := Check{ID: "card.fabric", Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	if len(j.facts.PCI.Switches) == 0 {
		c.Outcome, c.Required, c.Summary = Skip, false, "no NVSwitch in this machine: none is needed"
		return c
	}
	cards := j.answering()
	if len(cards) == 0 {
		c.Outcome, c.Summary = Skip, "no card answers"
		return c
	}
	good, unsure := 0, 0
	for _, k := range cards {
		f := fine()
		switch {
		case k.Fabric.Error != "":
			f = unread("fabric: " + k.Fabric.Error)
		case !k.Fabric.Supported: // a driver of before the question
			unsure++
		case k.Fabric.Value != "completed":
			f = failed(ActReboot, "fabric: "+k.Fabric.Value)
		default:
			good++
		}
		if f.outcome != Pass {
			c.add(k.Slot, f)
			j.blame(k.Slot, c.ID, f.outcome, f.text)
		}
	}
	m := j.facts.Host.FabricMgr
	switch {
	case m.Error != "":
		c.add("fabric manager", unread(m.Error))
	case m.Supported && m.Value != "running":
		c.add("", failed(ActNone, "the fabric manager is "+m.Value))
		c.Advice = "install and start nvidia-fabricmanager of the driver's own version"
	}
	for _, line := range j.facts.Host.FabricSays {
		if good < len(cards) { // its log keeps old lines: they explain, they do not judge
			c.Evidence = append(c.Evidence, "its log: "+printable(line))
		}
		if strings.Contains(line, "don't match") && good < len(cards) {
			c.Advice = "install the fabric manager of the driver's own version"
		}
	}
	c.Summary = fmt.Sprintf("the fabric of %d of %s is complete", good, plural(len(cards), "card"))
	if c.Outcome == Pass && unsure > 0 {
		c.Summary = "the fabric manager runs; this driver does not tell how far it is"
	}
	if c.Outcome != Pass && c.Advice == "" {
		c.Advice = "restart the fabric manager; if the fabric does not complete, look at its log and at the switches"
	}
	return c
}

// uniform warns when cards of one machine differ in name or firmware: they still work, but they are not what was ordered together. Two cards
// with one serial number are one card seen twice, or a record that lies.
func (j *judge) uniform() Check {
	c := Check{ID: "card.uniform", Outcome: Pass, Summary: "cards have one name and one firmware"}
	if j.expect.Count == 0 {
		c.Summary = "none expected"
		return c
	}
	cards := j.answering()
	if len(cards) == 0 {
		c.Outcome, c.Summary = Skip, "no card answers"
		return c
	}
	kinds, serials := map[string][]string{}, map[string]string{}
	var order []string
	for _, k := range cards {
		kind := k.Name.String() + ", firmware " + k.VBIOS.String()
		for _, more := range []Value[string]{k.Firmware, k.Board} {
			if more.Known() {
				kind += ", " + more.Value
			}
		}
		kind = printable(kind)
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], k.Slot)
		if s := k.Serial; s.Known() && s.Value != "" && strings.Trim(s.Value, "0") != "" {
			if other, twice := serials[s.Value]; twice {
				c.add(k.Slot, failed(ActNone, fmt.Sprintf("has the serial number %s of the card in %s", s.Value, other)))
				j.blame(k.Slot, c.ID, Fail, "has another card's serial number")
				c.Summary = "two cards have one serial number"
			}
			serials[s.Value] = k.Slot
		}
	}
	if len(order) > 1 {
		c.Outcome = Worse(c.Outcome, Warn)
		c.Summary = fmt.Sprintf("cards are of %d kinds", len(order))
		for _, kind := range order {
			c.Evidence = append(c.Evidence, kind+": "+strings.Join(kinds[kind], " "))
		}
	}
	if c.Outcome == Fail {
		c.Advice = "read the cards' labels and bring machine and record into line"
	}
	return c
}

func missing[T any](v Value[T]) string {
	if v.Error != "" {
		return printable(v.Error)
	}
	return "not supported by this driver"
}
