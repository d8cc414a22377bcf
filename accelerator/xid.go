package accelerator

import (
	"fmt"
	"regexp"
	"strings"
)

// Class says what a fault asks for.
type Class string

// Classes of fault.
const (
	Ignore  Class = "ignore"  // a program's own mistake: no fault of the card
	Reset   Class = "reset"   // reset the card, validate again
	Reboot  Class = "reboot"  // power-cycle the machine, validate again
	Isolate Class = "isolate" // take the card out of service, have it looked at
	Unknown Class = "unknown" // a person decides; never healthy
)

// RulesVersion names the fault tables below; a report carries it, so that an old judgement can be explained.
//
// Sources: NVIDIA "XID errors" catalogue; where lists disagree (k8s-device-plugin#1340, #1974, #945, #259, gpu-operator#1065) the
// stricter reading, because a machine is judged before it is sold: what a running fleet may let pass, a hand-over need not.
const RulesVersion = "2026-12"

// XID is one row of the fault table.
type XID struct {
	Code    int
	Class   Class
	Outcome Outcome // for a line or more in this boot's log
	Text    string
}

// xids returns the fault table, by code.
func xids() []XID {
	return []XID{
		{8, Ignore, Warn, "a program's kernel ran into its time limit"},
		{13, Ignore, Warn, "graphics engine exception, by a program"},
		{31, Ignore, Warn, "memory page fault, by a program"},
		{43, Ignore, Warn, "a program's channel stopped"},
		{45, Ignore, Warn, "preemptive clean-up after a program ended"},
		{48, Reset, Fail, "double-bit memory error"},
		{54, Isolate, Fail, textUnplugged},
		{61, Reset, Fail, "internal micro-controller breakpoint"},
		{62, Reset, Fail, "internal micro-controller halt"},
		{63, Reset, Warn, "a memory row was remapped and waits for a reset"},
		{64, Reset, Fail, "remapping a memory row failed"},
		{68, Unknown, Error, "video decoder exception, by a program or by the card"},
		{69, Ignore, Warn, "graphics engine class error, by a program"},
		{74, Isolate, Fail, "NVLink error"},
		{79, Reboot, Fail, textLost},
		{92, Unknown, Warn, "high rate of corrected memory errors"},
		{94, Reset, Fail, "contained memory error"},
		{95, Reset, Fail, "uncontained memory error"},
		{109, Reset, Fail, "context switch timed out"},
		{110, Reset, Fail, "security fault"},
		{119, Reset, Fail, "the card's system processor timed out"},
		{120, Reset, Fail, "the card's system processor failed"},
		{136, Reset, Fail, "NVLink training failed"},
		{140, Reset, Fail, "memory error that was not recovered"},
		{143, Reset, Fail, "the card could not be started"},
		{144, Isolate, Fail, "NVLink: SAW error"},
		{145, Isolate, Fail, "NVLink: RLW error"},
		{146, Isolate, Fail, "NVLink: TLW error"},
		{147, Isolate, Fail, "NVLink: TREX error"},
		{148, Isolate, Fail, "NVLink: NVLPW_CTRL error"},
		{149, Isolate, Fail, "NVLink: NETIR error"},
		{150, Isolate, Fail, "NVLink: MSE error"},
		{154, Unknown, Fail, "the recovery action changed"},
		{155, Reset, Fail, "NVLink: a link went down"},
		{156, Reset, Fail, "a bad resource was retired and waits for a reset"},
		{157, Isolate, Fail, "retiring a bad resource failed: no spare is left"},
		{158, Reset, Fail, "fatal time-out"},
		{167, Isolate, Fail, "PCIe fatal time-out"},
	}
}

// xidFailsAgain is how many lines of XID 92 turn the warning into a failure: once is a bad moment, again is a bad module.
const xidFailsAgain = 2

// Rules are what an operator may change about the judgement. The zero value is the built-in judgement.
type Rules struct {
	XIDs     map[int]Class // the operator's own class for an XID, instead of the table's
	Profiles []Profile     // of an operator's folder: cards that the built-in ones do not know, or know otherwise

	// Severity is the outcome that an operator gives to a check that warns or fails, e.g. Warn for card.persistence. Pass is not taken: what was
	// found stays to be seen.
	Severity map[string]Outcome
}

// Verdict is the judgement of one event.
type Verdict struct {
	Class   Class
	Outcome Outcome
	Text    string
}

// Action is what the verdict asks for: what its class does, but power for a card that left the bus and a look at the cable of one without.
func (v Verdict) Action() Action {
	switch v.Text {
	case textLost:
		return ActPowerCycle
	case textUnplugged:
		return ActReseat
	}
	return v.Class.Action()
}

const (
	textLost      = "the card has fallen off the bus"
	textUnplugged = "auxiliary power is not connected"
)

// Event judges one event of the kernel log.
func (r Rules) Event(e Event) Verdict {
	switch e.Kind {
	case EventXID:
		return r.xid(e)
	case EventSXID:
		switch sxidSeverity(e.Text) {
		case "fatal":
			return Verdict{Isolate, Fail, "NVSwitch fault, fatal"}
		case "non-fatal":
			return Verdict{Ignore, Warn, "NVSwitch fault, not fatal"}
		}
		return Verdict{Unknown, Error, "NVSwitch fault of unknown severity"}
	case EventLost:
		return Verdict{Reboot, Fail, textLost}
	case EventInit:
		return Verdict{Reset, Fail, "the driver could not start the card"}
	case EventPPU:
		return r.ppuXID(e)
	case EventHost:
		return hostVerdict(e.Code)
	}
	return Verdict{Unknown, Error, "unknown kind of event"}
}

func (r Rules) xid(e Event) Verdict {
	v := Verdict{Unknown, Error, fmt.Sprintf("XID %d is not in the fault table", e.Code)}
	for _, x := range xids() {
		if x.Code == e.Code {
			v = Verdict{x.Class, x.Outcome, x.Text}
		}
	}
	if lostLine.MatchString(e.Text) {
		v = Verdict{Reboot, Fail, textLost}
	}
	switch {
	case e.Code == 154 && recoveryAsked(e.Text) == "none":
		v = Verdict{Ignore, Pass, "the recovery action changed to none"}
	case e.Code == 154:
		v.Class = recoveryClass(recoveryAsked(e.Text))
	case e.Code == 92 && e.Count >= xidFailsAgain:
		v.Outcome, v.Class = Fail, Isolate
	}
	if c, ok := r.XIDs[e.Code]; ok {
		v.Class = c
		v.Outcome = classOutcome(c)
	}
	return v
}

// classOutcome is the outcome of a class that an operator set.
func classOutcome(c Class) Outcome {
	switch c {
	case Ignore:
		return Warn
	case Reset, Reboot, Isolate:
		return Fail
	}
	return Error
}

// Action is what a class asks for.
func (c Class) Action() Action {
	switch c {
	case Reset:
		return ActReset
	case Reboot:
		return ActReboot
	case Isolate:
		return ActReplace
	}
	return ActNone
}

// Advice says in words what a class asks for.
func (c Class) Advice() string {
	switch c {
	case Ignore:
		return "nothing: recorded"
	case Reset:
		return "reset the card and validate again; if it comes back, take the card out"
	case Reboot:
		return "power-cycle the machine and validate again; if it comes back, check the seating and take the card out"
	case Isolate:
		return "take the card out of service and check its power, links and seating"
	}
	return "a person must look at this before the machine is handed over"
}

var (
	recoveryTo    = regexp.MustCompile(`\bto 0x[0-9A-Fa-f]+ \(([^)]*)\)`)
	sxidFatal     = regexp.MustCompile(`(?i)\bfatal\b`)
	sxidNoneFatal = regexp.MustCompile(`(?i)\bnon-?\s?fatal\b`)
)

// recoveryAsked returns what an XID 154 line says is asked for now, lower case, "" when it does not say:
// "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)".
func recoveryAsked(line string) string {
	if m := recoveryTo.FindStringSubmatch(line); m != nil {
		return strings.ToLower(m[1])
	}
	return ""
}

func recoveryClass(asked string) Class {
	switch {
	case strings.Contains(asked, "reboot"):
		return Reboot
	case strings.Contains(asked, "reset"):
		return Reset
	}
	return Unknown
}

// sxidSeverity returns "fatal", "non-fatal" or "" of an SXid line.
func sxidSeverity(line string) string {
	switch {
	case sxidNoneFatal.MatchString(line):
		return "non-fatal"
	case sxidFatal.MatchString(line):
		return "fatal"
	}
	return ""
}

// ppuXID judges an XID of T-Head's driver. Its numbers are its own: NVIDIA's table says nothing about them. Source: the driver guide's repair table.
func (r Rules) ppuXID(e Event) Verdict {
	for _, row := range []struct {
		codes []int
		v     Verdict
	}{
		{[]int{16257}, Verdict{Reboot, Fail, textLost}},
		{[]int{384, 2699, 8576, 16256}, Verdict{Reset, Fail, "the card asks for a reset"}},
		{[]int{4480, 4481, 4224, 4225, 4226, 4227, 2711, 2702, 2703}, Verdict{Reboot, Fail, "the card asks for a restart of the machine"}},
		{[]int{642, 1154, 1665, 1922, 2706, 2700, 2696, 4997, 5005}, Verdict{Reset, Fail, "uncorrected memory error"}},
	} {
		for _, code := range row.codes {
			if code == e.Code {
				return row.v
			}
		}
	}
	return Verdict{Unknown, Error, fmt.Sprintf("PPU XID %d is not in the fault table", e.Code)}
}

// hostVerdict judges what the kernel says about the machine around the cards. What was corrected is a warning: every large machine has some.
func hostVerdict(code int) Verdict {
	switch code {
	case HostCheck:
		return Verdict{Ignore, Warn, "machine check, corrected"}
	case HostCheckFatal:
		return Verdict{Isolate, Fail, "machine check, not corrected"}
	case HostMemory:
		return Verdict{Ignore, Warn, "memory errors, corrected"}
	case HostMemoryFatal:
		return Verdict{Isolate, Fail, "memory error, not corrected"}
	case HostBus:
		return Verdict{Reset, Warn, "PCIe error, not corrected and not fatal"}
	case HostBusFatal:
		return Verdict{Isolate, Fail, "fatal PCIe error"}
	case HostDrive:
		return Verdict{Ignore, Warn, "a disk answered late"}
	case HostDriveFatal:
		return Verdict{Isolate, Fail, "a disk is gone or cannot be read"}
	case HostDriverUECC:
		return Verdict{Reset, Fail, "uncorrected memory error of a card"}
	}
	return Verdict{Unknown, Error, "unknown kind of event"}
}
