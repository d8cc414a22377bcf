package ipmi

import (
	"context"
	"time"
)

// Severity is how bad an event or a reading is.
type Severity string

// Severities.
const (
	OK       Severity = "ok"
	Warning  Severity = "warning"
	Critical Severity = "critical"
	Unclear  Severity = "unknown" // the BMC does not say
)

// Event is an entry of a BMC's event log.
type Event struct {
	ID       string    // IPMI: the record ID; Redfish: the entry's Id
	At       time.Time // zero where the BMC's clock was not set
	Severity Severity
	Sensor   string // the sensor's name or number
	Kind     string // what sort of sensor: memory, power supply, temperature …
	Message  string // for people; at most 1,000 bytes
	Cleared  bool   // the condition went away
}

// EventPage is what is new in an event log.
type EventPage struct {
	Events []Event
	Cursor string // pass it to the next Events; keep it as long as the machine
	Reset  bool   // the log was cleared or overwritten since the cursor: events may be missing
	Full   bool   // the BMC says that the log overflowed or is nearly full
	More   bool   // there are more: call again with Cursor
}

// Events reads what the event log holds behind cursor, oldest first, at most 500 at a time; the empty cursor is the log's
// beginning. It clears nothing.
func (c *Controller) Events(ctx context.Context, t Target, cursor string) (EventPage, error) {
	return EventPage{}, t.on("read events", failf(ErrUnsupported, "not yet"))
}

// ClearEvents empties the event log. Read and keep it first.
func (c *Controller) ClearEvents(ctx context.Context, t Target) error {
	return t.on("clear events", failf(ErrUnsupported, "not yet"))
}
