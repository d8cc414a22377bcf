package accelerator

// Action is what a finding asks a person or the engine to do to the machine.
type Action string

// Actions, from light to heavy.
const (
	ActNone       Action = "none"        // nothing to the hardware: a setting, a record, or only to know
	ActReset      Action = "reset"       // reset the card
	ActReboot     Action = "reboot"      // restart the machine
	ActPowerCycle Action = "power-cycle" // take the power away: a card that left the bus comes back only so
	ActReseat     Action = "reseat"      // power off, check seating, cables and risers
	ActReplace    Action = "replace"     // exchange the part
)

// rank orders actions from light to heavy; what is no action is lightest.
func (a Action) rank() int {
	for i, known := range []Action{ActNone, ActReset, ActReboot, ActPowerCycle, ActReseat, ActReplace} {
		if a == known {
			return i
		}
	}
	return 0
}

// advice says in words how to do it to a card.
func (a Action) advice() string {
	switch a {
	case ActReset:
		return Reset.Advice()
	case ActReboot, ActPowerCycle:
		return Reboot.Advice()
	case ActReseat:
		return "power off, check seating, cables and riser of the card, and validate again"
	case ActReplace:
		return Isolate.Advice()
	}
	return "a person must look at this before the machine is handed over"
}

// Heavier returns the heavier of two actions.
func Heavier(a, b Action) Action {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

// finding is what a check learned of one card or part.
type finding struct {
	outcome Outcome
	action  Action
	text    string
}

// fine is the finding of what is as it should be.
func fine() finding { return finding{outcome: Pass} }

// without is the finding where card or driver have no such thing, or nothing is known to judge it by; text may say so.
func without(text string) finding { return finding{outcome: Skip, text: text} }

func failed(a Action, text string) finding { return finding{Fail, a, text} }
func warned(a Action, text string) finding { return finding{Warn, a, text} }
func unread(text string) finding           { return finding{Error, ActNone, text} }

// add puts a finding into a check's outcome, evidence and action.
func (c *Check) add(where string, f finding) {
	c.Outcome = Worse(c.Outcome, f.outcome)
	c.Action = Heavier(c.Action, f.action)
	if where != "" {
		where += ": "
	}
	c.Evidence = append(c.Evidence, where+printable(f.text))
}
