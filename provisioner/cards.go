package provisioner

import (
	"fmt"
	"slices"
	"time"

	"github.com/bareyard/bareyard/accelerator"
)

// checkRecord holds the cards of a report against the record of where each card is (H09): a card of another machine's, one that is there twice,
// and one that took another's place block. It returns, too, the serial numbers whose place is in dispute. Customers read it: whose the other machine is,
// and for whom the card was seen, the record of the card tells operators.
func checkRecord(r accelerator.Report, back Background) (accelerator.Check, []string) {
	c := accelerator.Check{ID: "card.record", Required: true, Outcome: accelerator.Pass, Action: accelerator.ActNone}
	serials := map[string]string{} // by slot
	var strays []string
	exchanged := accelerator.Fail
	if r.Plan == accelerator.PlanAcceptance { // which begins the record: parts are exchanged until it passes
		exchanged = accelerator.Warn
	}
	say := func(o accelerator.Outcome, format string, a ...any) {
		c.Outcome = accelerator.Worse(c.Outcome, o)
		c.Evidence = append(c.Evidence, fmt.Sprintf(format, a...))
	}
	for _, k := range r.Cards {
		serial := CardSerial(k)
		if serial == "" {
			continue
		}
		for slot, other := range serials {
			if other == serial {
				say(accelerator.Fail, "%s: serial %s is also in slot %s", k.Slot, serial, slot)
				strays = append(strays, serial)
			}
		}
		serials[k.Slot] = serial
	}
	if len(serials) == 0 {
		c.Outcome, c.Required, c.Summary = accelerator.Skip, false, "no serial number was read"
		if r.RAMDisk {
			c.Summary = "the RAM disk reads no serial numbers of cards: judged after an installation"
		}
		return c, nil
	}
	at := func(serial string) (slot string, ok bool) {
		for slot, s := range serials {
			if s == serial {
				return slot, true
			}
		}
		return "", false
	}
	for _, p := range back.Elsewhere {
		if slot, ok := at(p.Serial); ok {
			say(accelerator.Fail, "%s: serial %s is on another machine's record, where it was seen on %s", slot, p.Serial, day(p.LastSeen))
			strays = append(strays, p.Serial)
		}
	}
	for _, p := range back.Here {
		if slot, ok := at(p.Serial); ok {
			if slot != p.Slot {
				say(accelerator.Warn, "%s: serial %s was in slot %s until now", slot, p.Serial, p.Slot)
			}
			continue
		}
		now, taken := serials[p.Slot]
		if !taken || slices.ContainsFunc(back.Here, func(o Place) bool { return o.Serial == now }) {
			continue // nothing there, which card.count tells; or a card of this machine that moved
		}
		say(exchanged, "%s: serial %s is where %s was on %s: exchanged since", p.Slot, now, p.Serial, day(p.LastSeen))
		if exchanged == accelerator.Fail {
			strays = append(strays, now)
		}
	}
	slices.Sort(c.Evidence)
	switch c.Outcome {
	case accelerator.Fail:
		c.Summary = "the cards are not those on record"
		c.Advice = "find out who moved or exchanged the card, with bareyard card show SERIAL; when it is right so: bareyard card forget OLD-SERIAL --reason …"
	case accelerator.Warn:
		c.Summary = "cards have changed since the last report"
	default:
		c.Summary = fmt.Sprintf("%d serial numbers are this machine's, or new", len(serials))
	}
	return c, strays
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02") }
