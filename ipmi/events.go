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

// Worse is the worse of two severities. Unclear is no news: it is not worse than OK.
func Worse(a, b Severity) Severity {
	rank := map[Severity]int{OK: 1, Warning: 2, Critical: 3}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

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
	Full   bool   // the BMC says that the log overflowed
	More   bool   // there are more: call again with Cursor
}

// eventPage is how many events are read at a time.
const eventPage = 500

// Events reads what the event log holds behind cursor, oldest first, at most 500 at a time; the empty cursor is the log's
// beginning. It clears nothing.
func (c *Controller) Events(ctx context.Context, t Target, cursor string) (EventPage, error) {
	var page EventPage
	err := c.read(ctx, t, "read events", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() (err error) {
			page, err = l.events(ctx, cursor)
			return err
		})
	})
	if err != nil {
		return EventPage{Cursor: cursor}, err
	}
	return page, nil
}

func (l *link) events(ctx context.Context, cursor string) (EventPage, error) {
	if l.t.Protocol == IPMI {
		return l.rmcpEvents(ctx, cursor, eventPage)
	}
	return l.rfEvents(ctx, cursor, eventPage)
}

// ClearEvents empties the event log. Read and keep it first.
func (c *Controller) ClearEvents(ctx context.Context, t Target) error {
	return c.operate(ctx, t, "clear events", func(ctx context.Context, l *link) error {
		if l.t.Protocol == IPMI {
			return l.rmcpClear(ctx)
		}
		return l.rfClear(ctx)
	})
}
