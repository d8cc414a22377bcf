// Package accelerator judges a machine's accelerators and what is around them from facts that were read elsewhere.
package accelerator

import (
	"fmt"
	"time"
)

// Schema names the form of a Report. A change that an older reader would misread gets a new number. 2: a check's action is one of Action, what
// was its action became advice; plan, loads, series, diagnoses and the BMC came in.
const Schema = "bareyard.validation/2"

// schemaOne is the form of before.
const schemaOne = "bareyard.validation/1"

// Outcome is the result of a check.
type Outcome string

// Outcomes.
const (
	Pass  Outcome = "pass"
	Warn  Outcome = "warn"  // a person should know; the machine may be handed over
	Skip  Outcome = "skip"  // not done
	Error Outcome = "error" // could not be judged
	Fail  Outcome = "fail"
)

// rank orders outcomes from good to bad.
func (o Outcome) rank() int {
	switch o {
	case Pass:
		return 0
	case Warn:
		return 1
	case Skip:
		return 2
	case Error:
		return 3
	}
	return 4 // Fail, and whatever a newer or a lying writer invents
}

// Worse returns the worse of two outcomes: pass, warn, skip, error, fail.
func Worse(a, b Outcome) Outcome {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

// Check is one question and its answer.
type Check struct {
	ID       string   `json:"id"` // e.g. card.count
	Outcome  Outcome  `json:"outcome"`
	Required bool     `json:"required"` // a skip or an error blocks hand-over; a fail always does
	Summary  string   `json:"summary"`
	Evidence []string `json:"evidence,omitempty"` // one line each: which card, disk or log line
	Action   Action   `json:"action"`             // what to do to the hardware
	Advice   string   `json:"advice,omitempty"`   // what to do about it, in words
	Waived   string   `json:"waived,omitempty"`   // who lets it pass until when, and why; it then blocks nothing
}

// Blocks reports whether this check keeps the machine from being handed over.
func (c Check) Blocks() bool {
	if c.Waived != "" {
		return false
	}
	switch c.Outcome {
	case Pass, Warn:
		return false
	case Skip, Error:
		return c.Required
	}
	return true
}

// CardResult is the judgement of one card: the facts from both sides, and the checks that it did not pass.
type CardResult struct {
	Slot     string   `json:"slot"`
	Outcome  Outcome  `json:"outcome"`
	Problems []string `json:"problems,omitempty"` // check ids with what was found
	PCI      *PCICard `json:"pci,omitempty"`      // nil: not on the bus
	Card     *Card    `json:"card,omitempty"`     // nil: unknown to the driver
}

// Subject is which machine a report is of, as the server that kept it knows it. A report that a person made by hand has none.
type Subject struct {
	Report  string `json:"report,omitempty"`  // the report's own id
	Machine string `json:"machine,omitempty"` // id
	Name    string `json:"name,omitempty"`
	Serial  string `json:"serial,omitempty"` // SMBIOS serial number
	Class   string `json:"class,omitempty"`
	Order   string `json:"order,omitempty"`
	Job     string `json:"job,omitempty"`
}

// Report is the result of validation.
type Report struct {
	Schema  string       `json:"schema"`
	Subject Subject      `json:"subject,omitzero"`
	Taken   time.Time    `json:"taken"`
	Outcome Outcome      `json:"outcome"`
	Rules   string       `json:"rules"` // version of the fault tables that judged
	Plan    Plan         `json:"plan,omitempty"`
	Stages  []Stage      `json:"stages,omitempty"`   // of an acceptance, as far as it went
	Seconds float64      `json:"seconds,omitempty"`  // of load
	RAMDisk bool         `json:"ram_disk,omitempty"` // the RAM disk looked, which has no driver for the cards
	Checks  []Check      `json:"checks"`
	Cards   []CardResult `json:"cards"`
	Drivers []DriverNote `json:"drivers"`
	Host    Host         `json:"host"`

	Profiles  []ProfileNote `json:"profiles,omitempty"`
	Loads     []Load        `json:"loads,omitempty"`
	Series    []Series      `json:"series,omitempty"`
	Diagnoses []Diagnosis   `json:"diagnoses,omitempty"`
	BMC       *BMC          `json:"bmc,omitempty"`
	Changes   []Change      `json:"changes,omitempty"` // against the report at hand-over, of a machine that came back
}

// ProfileNote names a profile that judged.
type ProfileNote struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	File     string `json:"file"`
}

// DriverNote is a driver in a report.
type DriverNote struct {
	Vendor  string        `json:"vendor"`
	Version Value[string] `json:"version"`
	Fault   *Fault        `json:"fault,omitempty"`
}

// Blocks reports whether the machine must not be handed over. A report without checks proves nothing and blocks.
func (r Report) Blocks() bool {
	for _, c := range r.Checks {
		if c.Blocks() {
			return true
		}
	}
	return len(r.Checks) == 0
}

// Reason says in one line why the machine must not be handed over, "" when it may be.
func (r Report) Reason() string {
	if len(r.Checks) == 0 {
		return "the report has no checks"
	}
	first, more := "", 0
	for _, c := range r.Checks {
		switch {
		case !c.Blocks():
		case first == "":
			first = c.ID + ": " + c.Summary
		default:
			more++
		}
	}
	if more > 0 {
		return fmt.Sprintf("%s (and %d more)", first, more)
	}
	return first
}

// overall is the outcome of a report: the worst of its checks, where what does not block counts as a warning at most,
// and a skip that is not required counts for nothing.
func overall(checks []Check) Outcome {
	if len(checks) == 0 {
		return Error
	}
	worst := Pass
	for _, c := range checks {
		o := c.Outcome
		switch {
		case c.Blocks():
		case c.Waived != "":
			o = Warn
		case o == Skip:
			o = Pass
		case o == Error:
			o = Warn
		}
		worst = Worse(worst, o)
	}
	return worst
}
