package accelerator

import (
	"fmt"
	"strings"
)

// cardState judges what each answering card says of itself.
func (j *judge) cardState() []Check {
	return []Check{
		j.each("card.memory", true, "have the memory they should", Isolate.Action(), j.memory),
		j.each("card.ecc", true, "have error correction on and no uncorrected error", Isolate.Action(), j.ecc),
		j.each("card.remap", true, "have no remapped row pending or failed", Reset.Action(), remap),
		j.each("card.recovery", true, "ask for no recovery", "do what the driver asks for and validate again", recovery),
		j.each("card.mode", true, "are in their default mode", "set MIG off and the compute mode to default, then validate again", mode),
		j.each("card.power", false, "have their factory power limit", "set the default power limit, or tell the customer", power),
		j.uniform(),
	}
}

// each makes one check of a question asked of every answering card. A card that does not answer is card.answers' business; when none
// answers, the check is a skip. A question that no card can answer because it has no such thing is a skip that blocks nothing.
func (j *judge) each(id string, required bool, good, action string, ask func(Card) (Outcome, string)) Check {
	c := Check{ID: id, Required: required, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(id)
	}
	asked, passed, without := 0, 0, 0
	for _, k := range j.answering() {
		o, text := ask(k)
		asked++
		switch o {
		case Pass:
			passed++
			continue
		case Skip:
			without++
			continue
		}
		c.Outcome = Worse(c.Outcome, o)
		c.Evidence = append(c.Evidence, k.Slot+": "+text)
		j.blame(k.Slot, id, o, text)
	}
	switch {
	case asked == 0:
		c.Outcome, c.Summary = Skip, "no card answers"
		return c
	case without == asked:
		c.Outcome, c.Required = Skip, false
		c.Summary = fmt.Sprintf("not supported by %s", plural(asked, "card"))
		return c
	case without > 0:
		c.Evidence = append(c.Evidence, fmt.Sprintf("not supported by %s", plural(without, "card")))
	}
	c.Summary = fmt.Sprintf("%d of %s %s", passed, plural(asked, "card"), good)
	if c.Outcome != Pass {
		c.Action = action
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

// memorySlack is how much less than the profile a driver may report: releases reserve a few MiB more or less.
const memorySlack = 100 // one part in

func (j *judge) memory(k Card) (Outcome, string) {
	if !k.Memory.Known() {
		return Error, "memory: " + missing(k.Memory)
	}
	if k.Memory.Value <= 0 {
		return Fail, "reports no memory"
	}
	p, ok := j.rules.Profile(j.id)
	if !ok || p.MemoryMiB == 0 {
		return Pass, "" // measured, not judged
	}
	want := p.MemoryMiB << 20
	if k.Memory.Value < want-want/memorySlack {
		return Fail, fmt.Sprintf("has %d MiB, %s has %d", k.Memory.Value>>20, p.Name, p.MemoryMiB)
	}
	return Pass, ""
}

func (j *judge) ecc(k Card) (Outcome, string) {
	p, _ := j.rules.Profile(j.id)
	switch {
	case k.ECC.Error != "":
		return Error, "error correction: " + printable(k.ECC.Error)
	case !k.ECC.Supported && p.ECC == Yes:
		return Error, p.Name + " has error correction, the driver says it has none"
	case !k.ECC.Supported:
		return Skip, ""
	case p.ECC == No && !k.ECC.Value: // a GeForce that offers it as an option, off by default
		return Skip, ""
	case !k.ECC.Value:
		return Fail, "error correction is off"
	case k.ECCPending.Known() && !k.ECCPending.Value:
		return Fail, "error correction goes off at the next reset"
	case k.Uncorrected.Known() && k.Uncorrected.Value > 0:
		return Fail, fmt.Sprintf("%d uncorrected memory errors since the driver was loaded", k.Uncorrected.Value)
	case !k.Uncorrected.Known():
		return Error, "uncorrected errors: " + missing(k.Uncorrected)
	case k.UncorrectedEver.Known() && k.UncorrectedEver.Value > 0:
		return Warn, fmt.Sprintf("%d uncorrected memory errors in its life", k.UncorrectedEver.Value)
	}
	return Pass, ""
}

func remap(k Card) (Outcome, string) {
	switch {
	case k.RemapFailed.Error != "":
		return Error, "remapped rows: " + printable(k.RemapFailed.Error)
	case !k.RemapFailed.Supported:
		return Skip, ""
	case k.RemapFailed.Value:
		return Fail, "a memory row could not be remapped"
	case k.RemapPending.Known() && k.RemapPending.Value:
		return Fail, "a remapped memory row waits for a reset"
	}
	return Pass, ""
}

func recovery(k Card) (Outcome, string) {
	switch {
	case k.Recovery.Error != "":
		return Error, "recovery action: " + printable(k.Recovery.Error)
	case !k.Recovery.Supported:
		return Skip, ""
	case k.Recovery.Value != "none":
		return Fail, "the driver asks for " + printable(k.Recovery.Value)
	}
	return Pass, ""
}

func mode(k Card) (Outcome, string) {
	switch {
	case k.MIG.Known() && k.MIG.Value:
		return Fail, "is split into instances (MIG)"
	case k.ComputeMode.Known() && k.ComputeMode.Value != "default":
		return Fail, "compute mode is " + printable(k.ComputeMode.Value)
	case k.MIG.Error != "":
		return Error, "MIG mode: " + printable(k.MIG.Error)
	case k.ComputeMode.Error != "":
		return Error, "compute mode: " + printable(k.ComputeMode.Error)
	case !k.MIG.Supported && !k.ComputeMode.Supported:
		return Skip, ""
	}
	return Pass, ""
}

func power(k Card) (Outcome, string) {
	switch {
	case !k.PowerLimit.Known() || !k.PowerDefault.Known():
		return Skip, ""
	case k.PowerLimit.Value < k.PowerDefault.Value:
		return Warn, fmt.Sprintf("limited to %s, factory %s", k.PowerLimit, k.PowerDefault)
	}
	return Pass, ""
}

// uniform warns when cards of one machine differ in name or firmware: they still work, but they are not what was ordered together.
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
	kinds := map[string][]string{}
	var order []string
	for _, k := range cards {
		kind := printable(k.Name.String() + ", firmware " + k.VBIOS.String())
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], k.Slot)
	}
	if len(order) > 1 {
		c.Outcome, c.Summary = Warn, fmt.Sprintf("cards are of %d kinds", len(order))
		for _, kind := range order {
			c.Evidence = append(c.Evidence, kind+": "+strings.Join(kinds[kind], " "))
		}
	}
	return c
}

func missing[T any](v Value[T]) string {
	if v.Error != "" {
		return printable(v.Error)
	}
	return "not supported by this driver"
}
