package accelerator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

// ChangeKind says what a difference between hand-over and return is.
type ChangeKind string

// Kinds of change.
const (
	ChangeDamage    ChangeKind = "damage"    // something is broken or gone that was there and whole
	ChangeExchanged ChangeKind = "exchanged" // another part is where one was
	ChangeWear      ChangeKind = "wear"      // use leaves its traces
	ChangeSetting   ChangeKind = "setting"   // somebody set it otherwise; nothing is broken
)

// Change is one difference between the report at hand-over and that at return.
type Change struct {
	Kind   ChangeKind `json:"kind"`
	Part   string     `json:"part"` // a slot, a disk's serial number, a port
	Text   string     `json:"text"`
	Before string     `json:"before"`
	After  string     `json:"after"`
}

// Compare finds what changed on a machine between two reports, for telling what a tenant did from what was there before. It is pure. What one of
// the two does not know is no change: a tenant answers for nothing that was not measured at hand-over.
func Compare(handover, back Report) []Change {
	var out []Change
	say := func(kind ChangeKind, part, text string, before, after any) {
		out = append(out, Change{kind, printable(part), text, printable(fmt.Sprint(before)), printable(fmt.Sprint(after))})
	}
	for _, b := range handover.Cards {
		if b.Slot == "" || b.PCI == nil {
			continue
		}
		i := slices.IndexFunc(back.Cards, func(a CardResult) bool { return a.Slot == b.Slot && a.PCI != nil })
		if i < 0 {
			say(ChangeDamage, b.Slot, "the card is gone from the bus", b.PCI.ID(), "nothing")
			continue
		}
		a := back.Cards[i]
		if a.PCI.ID() != b.PCI.ID() || a.PCI.Subsystem != b.PCI.Subsystem {
			say(ChangeExchanged, b.Slot, "another card is in the slot", b.PCI.ID()+" "+b.PCI.Subsystem, a.PCI.ID()+" "+a.PCI.Subsystem)
			continue
		}
		if b.PCI.Number.Known() && a.PCI.Number.Known() && b.PCI.Number.Value != a.PCI.Number.Value {
			say(ChangeExchanged, b.Slot, "another card of the same kind: the serial number in its configuration space differs", b.PCI.Number.Value, a.PCI.Number.Value)
			continue
		}
		if b.PCI.MaxWidth.Known() && a.PCI.MaxWidth.Known() && a.PCI.MaxWidth.Value < b.PCI.MaxWidth.Value {
			say(ChangeDamage, b.Slot, "fewer PCIe lanes on the bus", b.PCI.MaxWidth, a.PCI.MaxWidth)
		}
		if b.Card == nil || b.Card.Fault != nil || back.RAMDisk {
			continue // it did not answer then, or nobody asked it now: nothing to hold against it
		}
		if a.Card == nil || a.Card.Fault != nil {
			now := "unknown to the driver"
			if a.Card != nil {
				now = a.Card.Fault.String()
			}
			say(ChangeDamage, b.Slot, "the card no longer answers", "answered", now)
			continue
		}
		compareCards(b.Slot, *b.Card, *a.Card, say)
		if was, is := b.Outcome, a.Outcome; was == Pass && is == Fail && !slices.ContainsFunc(out, func(c Change) bool { return c.Part == b.Slot }) {
			say(ChangeDamage, b.Slot, "the card fails now: "+strings.Join(a.Problems, "; "), was, is)
		}
	}
	known := slices.ContainsFunc(handover.Cards, func(b CardResult) bool { return b.PCI != nil })
	for _, a := range back.Cards {
		if known && a.PCI != nil && !slices.ContainsFunc(handover.Cards, func(b CardResult) bool { return b.Slot == a.Slot && b.PCI != nil }) {
			say(ChangeExchanged, a.Slot, "a card that was not there", "nothing", a.PCI.ID())
		}
	}
	compareRates(handover, back, say)
	compareHosts(handover.Host, back.Host, back.RAMDisk, say)
	return out
}

type sayChange func(kind ChangeKind, part, text string, before, after any)

func compareCards(slot string, b, a Card, say sayChange) {
	text := func(kind ChangeKind, what string, before, after Value[string]) bool {
		if before.Known() && after.Known() && before.Value != after.Value {
			say(kind, slot, what, before.Value, after.Value)
			return true
		}
		return false
	}
	more := func(kind ChangeKind, what string, before, after Value[int64]) {
		if before.Known() && after.Known() && after.Value > before.Value {
			say(kind, slot, what, before.Value, after.Value)
		}
	}
	// A card without a serial number has a UUID of its own.
	if text(ChangeExchanged, "another card of the same kind: its serial number differs", b.Serial, a.Serial) || !b.Serial.Known() && text(ChangeExchanged, "another card of the same kind: its UUID differs", b.UUID, a.UUID) {
		return
	}
	text(ChangeSetting, "the card's firmware was changed", b.VBIOS, a.VBIOS)
	if b.Memory.Known() && a.Memory.Known() && a.Memory.Value < b.Memory.Value-b.Memory.Value/memorySlack {
		say(ChangeDamage, slot, "the card has less memory", b.Memory, a.Memory)
	}
	more(ChangeDamage, "uncorrected memory errors in its life", b.UncorrectedEver, a.UncorrectedEver)
	more(ChangeWear, "remapped memory rows", b.RemappedRows, a.RemappedRows)
	flip := func(kind ChangeKind, what string, before, after Value[bool]) {
		if before.Known() && after.Known() && before.Value != after.Value {
			say(kind, slot, what, before.Value, after.Value)
		}
	}
	if !b.RemapFailed.Value {
		flip(ChangeDamage, "a memory row could not be remapped", b.RemapFailed, a.RemapFailed)
	}
	if b.InfoROM.Value {
		flip(ChangeDamage, "its InfoROM is corrupt", b.InfoROM, a.InfoROM)
	}
	flip(ChangeSetting, "error correction", b.ECC, a.ECC)
	flip(ChangeSetting, "split into instances (MIG)", b.MIG, a.MIG)
	if b.MaxWidth.Known() && a.MaxWidth.Known() && a.MaxWidth.Value < b.MaxWidth.Value {
		say(ChangeDamage, slot, "fewer PCIe lanes", b.MaxWidth, a.MaxWidth)
	}
	if b.PowerDefault.Known() && a.PowerDefault.Known() && a.PowerDefault.Value != b.PowerDefault.Value {
		say(ChangeSetting, slot, "factory power limit", b.PowerDefault, a.PowerDefault)
	}
}

// compareRates tells of cards that became slower than a straggler may be, by the same test, tool and version.
func compareRates(handover, back Report, say sayChange) {
	for _, b := range handover.Loads {
		if b.Slot == "" || b.Peer != "" || !b.Rate.Known() || b.Rate.Value <= 0 {
			continue
		}
		for _, a := range back.Loads {
			if a.Test == b.Test && a.Tool == b.Tool && a.Version == b.Version && a.Slot == b.Slot && a.Peer == "" && a.Rate.Known() && a.Rate.Value < straggler*b.Rate.Value {
				say(ChangeDamage, b.Slot, b.Test+" became slower", fmt.Sprintf("%.4g %s", b.Rate.Value, b.Rate.Unit), fmt.Sprintf("%.4g %s", a.Rate.Value, a.Rate.Unit))
			}
		}
	}
}

// compareHosts compares what is around the cards. The RAM disk has drivers for fewer disks and ports than the customer's system: which of those on
// record are there, host.disks and host.nics say.
func compareHosts(b, a Host, ramDisk bool, say sayChange) {
	if b.Memory.Known() && a.Memory.Known() && a.Memory.Value < b.Memory.Value-b.Memory.Value/memorySlack {
		say(ChangeDamage, "memory", "the machine has less memory", b.Memory, a.Memory)
	}
	if b.Cores.Known() && a.Cores.Known() && a.Cores.Value < b.Cores.Value {
		say(ChangeDamage, "processors", "the machine has fewer processors", b.Cores, a.Cores)
	}
	if b.CPU.Known() && a.CPU.Known() && b.CPU.Value != a.CPU.Value {
		say(ChangeExchanged, "processors", "another processor", b.CPU, a.CPU)
	}
	for _, d := range b.Disks {
		if !d.Serial.Known() || d.Serial.Value == "" {
			continue
		}
		i := slices.IndexFunc(a.Disks, func(o HostDisk) bool { return o.Serial.Known() && o.Serial.Value == d.Serial.Value })
		if i < 0 {
			if !ramDisk {
				say(ChangeDamage, d.Serial.Value, "the disk is gone", d.Name, "nothing")
			}
			continue
		}
		o := a.Disks[i]
		if d.SMART == nil || o.SMART == nil {
			continue
		}
		if d.SMART.MediaErrors.Known() && o.SMART.MediaErrors.Known() && o.SMART.MediaErrors.Value > d.SMART.MediaErrors.Value {
			say(ChangeDamage, d.Serial.Value, "media errors of the disk", d.SMART.MediaErrors, o.SMART.MediaErrors)
		}
		if d.SMART.Used.Known() && o.SMART.Used.Known() && o.SMART.Used.Value > d.SMART.Used.Value {
			say(ChangeWear, d.Serial.Value, "per cent of the disk's life used", d.SMART.Used, o.SMART.Used)
		}
	}
	if ramDisk {
		return
	}
	for _, d := range a.Disks {
		if d.Serial.Known() && d.Serial.Value != "" && !slices.ContainsFunc(b.Disks, func(o HostDisk) bool { return o.Serial.Known() && o.Serial.Value == d.Serial.Value }) {
			say(ChangeExchanged, d.Serial.Value, "a disk that was not there", "nothing", d.Name)
		}
	}
	for _, n := range b.NICs {
		if n.MAC.Known() && !slices.ContainsFunc(a.NICs, func(o HostNIC) bool { return o.MAC.Known() && o.MAC.Value == n.MAC.Value }) {
			say(ChangeDamage, n.MAC.Value, "the network port is gone", n.Name, "nothing")
		}
	}
}

// JudgeReturn draws the report of a machine that came back: that of its facts, and what changed since the report at hand-over. Damage and an
// exchanged part fail; wear and settings warn.
func JudgeReturn(f Facts, expect machine.Expect, rules Rules, handover Report) Report {
	f.Plan = PlanReturn
	r := Judge(f, expect, rules)
	c := Check{ID: "return.compare", Required: true, Outcome: Pass, Action: ActNone, Summary: "nothing changed since hand-over"}
	if len(handover.Checks) == 0 {
		c.Outcome, c.Summary = Error, "there is no report of the hand-over to compare with"
		c.Advice = "a person must tell damage from what was there before"
	} else {
		r.Changes = Compare(handover, r)
	}
	for _, ch := range r.Changes {
		o := finding{Warn, ActNone, ""}
		if ch.Kind == ChangeDamage || ch.Kind == ChangeExchanged {
			o = finding{Fail, ActReplace, ""}
		}
		o.text = fmt.Sprintf("%s: %s: %s → %s", ch.Kind, ch.Text, ch.Before, ch.After)
		c.add(ch.Part, o)
	}
	if len(r.Changes) > 0 {
		c.Summary = plural(len(r.Changes), "change") + " since hand-over"
		c.Advice = "keep both reports: they say what was there before"
	}
	r.Checks = append(r.Checks, c)
	r.Outcome = overall(r.Checks)
	return r
}
