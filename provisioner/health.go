package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Health is what polling a machine's BMC has shown.
type Health struct {
	At       time.Time      `json:"at,omitzero"`        // of the last poll that was answered
	Overall  ipmi.Severity  `json:"overall"`            // the worst of the readings and of the open events
	Sensors  ipmi.Severity  `json:"sensors"`            // the worst of the readings alone
	Open     int            `json:"open"`               // critical entries of its event log that are not over and that nobody has acknowledged
	Power    ipmi.Power     `json:"power"`              //
	Silent   time.Time      `json:"silent,omitzero"`    // since when polls have failed; zero while they are answered
	Failed   int            `json:"failed,omitempty"`   // polls in a row that failed
	Error    string         `json:"error,omitempty"`    // why the last one did
	Readings []ipmi.Reading `json:"readings,omitempty"` //
	Unread   []string       `json:"unread,omitempty"`   // what could not be read and why
	Cursor   string         `json:"-"`                  // behind which the event log is read
	History  bool           `json:"-"`                  // what stands behind the cursor is older than our reading of it: the log was not yet read to its end
}

// LogEntry is an entry of a BMC's event log as it was read.
type LogEntry struct {
	ID           int64         `json:"id"`
	Entry        string        `json:"entry"`        // the BMC's own name for it
	At           time.Time     `json:"at,omitzero"`  // by the BMC's clock, where that was set
	ReadAt       time.Time     `json:"read_at"`      // by ours
	Severity     ipmi.Severity `json:"severity"`     //
	Sensor       string        `json:"sensor"`       //
	Kind         string        `json:"kind"`         //
	Message      string        `json:"message"`      //
	Cleared      bool          `json:"cleared"`      // the condition went away
	Acknowledged bool          `json:"acknowledged"` // an operator has looked at it, or it is older than the machine's record
}

// MachineHealth is the health of one of many machines.
type MachineHealth struct {
	Machine string        `json:"machine"` // its name
	State   machine.State `json:"state"`
	Health
}

// Polled is what a poll came to, and what is to be written of it.
type Polled struct {
	Health  Health
	Entries []ipmi.Event  // new in the event log
	First   bool          // the log was not read to its end before: what stands in it is history, and acknowledged
	Events  []Event       // of ours
	Pause   time.Duration // before the next poll, because this one failed; 0 is as usual

	Inventory *ipmi.Inventory // nil: not read
}

// Doctor keeps the health of machines.
type Doctor interface {
	// Polled writes what fn makes of the health and of the inventory that are on record, under the row's lock.
	Polled(ctx context.Context, machineID string, fn func(was Health, inventory *ipmi.Inventory) Polled) error
}

// How long a BMC that fails is left alone at most, in periods, by whichever server; and from which failure on it is told.
const (
	longestPause = 15
	silentAfter  = 3
)

// ReachBMC calls poll with how to reach a machine's BMC, unless a job is at work on it: the job has the BMC for itself.
func (e *Engine) ReachBMC(ctx context.Context, machineID string, poll func(ipmi.Target) error) error {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return err
	}
	if m.JobID != "" || m.State == machine.Retired {
		return nil
	}
	return e.bmc(ctx, m, poll)
}

// Polled keeps what a poll brought, and tells what changed.
func (e *Engine) Polled(ctx context.Context, period time.Duration, p ipmi.Poll) error {
	return e.Doctor.Polled(ctx, p.Key, func(was Health, inventory *ipmi.Inventory) Polled {
		return assess(was, inventory, p, period)
	})
}

// assess is what a poll makes of the health that is on record.
func assess(was Health, inventory *ipmi.Inventory, p ipmi.Poll, period time.Duration) Polled {
	out := Polled{Health: was}
	h := &out.Health
	tell := func(kind, format string, a ...any) {
		out.Events = append(out.Events, Event{Kind: kind, Text: fmt.Sprintf(format, a...)})
	}
	if p.Err != nil && !errors.Is(p.Err, ipmi.ErrUnsupported) {
		h.Failed++
		h.Error = p.Err.Error()
		if h.Silent.IsZero() {
			h.Silent = p.At
		}
		if h.Failed == silentAfter || h.Failed == 1 && lasting(p.Err) {
			tell("bmc.silent", "the BMC's health cannot be read: %s", h.Error)
		}
		out.Pause = period * time.Duration(min(1<<min(h.Failed, 10), longestPause+1))
		return out
	}
	if h.Failed >= silentAfter || h.Failed > 0 && !was.Silent.IsZero() && p.At.Sub(was.Silent) > silentAfter*period {
		tell("bmc.answers", "the BMC is read again, after %s", p.At.Sub(was.Silent).Round(time.Second))
	}
	h.At, h.Failed, h.Error, h.Silent = p.At, 0, "", time.Time{}
	h.Power, h.Readings, h.Unread = p.Health.Power, p.Health.Readings, p.Health.Unread
	h.Sensors = sensors(p.Health)
	if text := turned(was, *h); text != "" {
		tell("bmc.health", "%s", text)
	}
	if p.From == was.Cursor { // else another poll has read on meanwhile
		h.Cursor = p.Events.Cursor
		out.Entries, out.First = p.Events.Events, was.History
		h.History = was.History && (!p.Logged || p.Events.More)
		out.Events = append(out.Events, entriesTold(was, p.Events, out.First)...)
	}
	if p.Missing != nil {
		h.Unread = append(slices.Clone(h.Unread), "inventory: "+p.Missing.Error())
	}
	if p.Inventory != nil {
		out.Inventory = p.Inventory
		for _, text := range firmwareChanged(inventory, *p.Inventory) {
			tell("bmc.firmware", "%s", text)
		}
	}
	return out
}

// lasting reports whether a failure will not mend itself: it is told at once.
func lasting(err error) bool {
	return errors.Is(err, ipmi.ErrCredentials) || errors.Is(err, ipmi.ErrLocked) || untrusted(err)
}

// sensors is the worst of the readings. Of a host that is off, fans and voltages that stand still are as they should be, and so is a
// whole that is judged by them.
func sensors(h ipmi.Health) ipmi.Severity {
	if h.Power != ipmi.Off {
		return h.Overall
	}
	worst := ipmi.Unclear
	for _, r := range h.Readings {
		if !idle(r.Kind) {
			worst = ipmi.Worse(worst, r.State)
		}
	}
	return worst
}

func idle(k ipmi.SensorKind) bool {
	return k == ipmi.Fan || k == ipmi.Voltage || k == ipmi.Current
}

// Bad reports whether a reading is one that counts against the machine.
func (h Health) Bad(r ipmi.Reading) bool {
	return (r.State == ipmi.Warning || r.State == ipmi.Critical) && (h.Power != ipmi.Off || !idle(r.Kind))
}

// turned words what became of the sensors since the poll before; "" where nothing did.
func turned(was, now Health) string {
	before := map[string]ipmi.Severity{}
	for _, r := range was.Readings {
		if was.Bad(r) {
			before[r.ID] = r.State
		}
	}
	var list []string
	bad := 0
	for _, r := range now.Readings {
		if !now.Bad(r) {
			continue
		}
		bad++
		if before[r.ID] != r.State {
			list = append(list, Reading(r))
		}
	}
	switch {
	case len(list) > 0:
		return atMost(list, "; ")
	case bad == 0 && len(before) > 0:
		return "no sensor is out of its limits any more"
	case bad == 0 && now.Sensors != was.Sensors && (now.Sensors == ipmi.Warning || now.Sensors == ipmi.Critical):
		return fmt.Sprintf("the BMC calls the machine %s and does not say why", now.Sensors)
	}
	return ""
}

// Reading words a reading, such as "FAN1 is critical: 0 RPM".
func Reading(r ipmi.Reading) string {
	text := fmt.Sprintf("%s is %s", SensorName(r), r.State)
	switch {
	case r.Known:
		text += ": " + Value(r)
	case r.Text != "":
		text += ": " + short(r.Text, 60)
	}
	return text
}

// Value words what a reading shows.
func Value(r ipmi.Reading) string {
	if !r.Known {
		return cmp.Or(short(r.Text, 60), "-")
	}
	unit := r.Unit
	if unit == "Cel" {
		unit = "°C"
	}
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", r.Value), "0"), ".") + " " + short(unit, 10))
}

// entriesTold is our events about new entries of a BMC's log.
func entriesTold(was Health, page ipmi.EventPage, first bool) []Event {
	var out []Event
	if page.Reset && was.Cursor != "" {
		out = append(out, Event{Kind: "bmc.log", Text: "the BMC's event log was cleared or overwritten: entries may be missing"})
	}
	var list []string
	for _, e := range page.Events {
		if e.Severity == ipmi.Critical && !e.Cleared {
			list = append(list, entryText(e))
		}
	}
	switch {
	case first && len(page.Events) > 0:
		out = append(out, Event{Kind: "bmc.log", Text: fmt.Sprintf("the BMC's event log is read from now on; it holds entries from before (%d critical of the first %d), which count as acknowledged", len(list), len(page.Events))})
	case len(list) > 0 && !first:
		out = append(out, Event{Kind: "bmc.event", Text: "critical in the BMC's event log: " + atMost(list, "; ")})
	}
	return out
}

func entryText(e ipmi.Event) string {
	text := short(e.Message, 200)
	if e.Sensor != "" && !strings.Contains(text, e.Sensor) {
		text = short(e.Sensor, 60) + ": " + text
	}
	return text
}

// firmwareChanged names the firmware whose version is not the one on record.
func firmwareChanged(was *ipmi.Inventory, now ipmi.Inventory) []string {
	if was == nil {
		return nil
	}
	before := map[string]string{}
	for _, f := range was.Firmware {
		before[f.ID] = f.Version
	}
	var list []string
	for _, f := range now.Firmware {
		if v, ok := before[f.ID]; ok && v != f.Version && f.Version != "" {
			list = append(list, fmt.Sprintf("firmware of %s is now %s, was %s", short(cmp.Or(f.Name, f.ID), 60), short(f.Version, 60), short(v, 60)))
		}
	}
	return list
}

// mostNamed bounds how many things one event names.
const mostNamed = 8

func atMost(list []string, by string) string {
	if n := len(list) - mostNamed; n > 0 {
		return strings.Join(list[:mostNamed], by) + fmt.Sprintf("%sand %d more", by, n)
	}
	return strings.Join(list, by)
}

// short shortens what a BMC says, and takes out what is not for terminals.
func short(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > n {
		s = string(r[:n-1]) + "…"
	}
	return strings.TrimSpace(s)
}

// SensorName is a sensor's name as people and labels have it.
func SensorName(r ipmi.Reading) string { return short(cmp.Or(r.Name, r.ID), 60) }
