package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Meter reads what the edges have delivered; answered by a network driver. What could not be read is missing, and then there
// is an error beside the rest.
type Meter interface {
	Counters(ctx context.Context) ([]network.Counter, error)
	// CountersAt reads those of the edge of one site.
	CountersAt(ctx context.Context, site string) ([]network.Counter, error)
}

// Books keeps the traffic of orders.
type Books interface {
	// Round has measure make the samples of a slot and writes them with the new readings, all in one transaction, unless some
	// server has done that slot before: then it answers false. measure gets the readings before, and by which order each machine
	// is held.
	Round(ctx context.Context, slot time.Time, now []network.Counter, measure func(before []network.Counter, holder map[string]string) []OrderSample) (bool, error)
	// Rest keeps, for the next round, what the counters of a machine that an order holds have counted since the last one: they are
	// about to be taken away.
	Rest(ctx context.Context, machineID, orderID string, now []network.Counter) error
	// Samples lists the samples of an order whose slots begin within a time, in their order.
	Samples(ctx context.Context, orderID string, from, to time.Time) ([]billing.Sample, error)
	// ClosePeriods writes the usage of every month of every order that is over by now.
	ClosePeriods(ctx context.Context, now time.Time) error
	// Condense sums samples up by the hour and deletes what is older than is kept.
	Condense(ctx context.Context, now time.Time, keep Retention) error
}

// OrderSample is a sample of the machine that an order holds.
type OrderSample struct {
	OrderID   string
	MachineID string
	billing.Sample
}

// Retention says for how long traffic is kept.
type Retention struct {
	Samples time.Duration // of five minutes; zero means 100 days
	Hours   time.Duration // zero means 800 days
}

// WithDefaults fills in what is zero. Samples are kept for at least the longest month and what a dispute about it takes.
func (r Retention) WithDefaults() Retention {
	const day = 24 * time.Hour
	return Retention{Samples: max(cmp.Or(r.Samples, 100*day), 40*day), Hours: max(cmp.Or(r.Hours, 800*day), r.Samples)}
}

// Account takes a round of all counters for every slot, until ctx ends. Every replica may run it: of those that take the round
// of one slot only the first to write counts.
func (e *Engine) Account(ctx context.Context, keep Retention) error {
	const again = 10 * time.Second
	for {
		wait := time.Until(billing.Slot(time.Now()).Add(billing.SampleLength))
		if _, err := e.TakeRound(ctx, time.Now()); err != nil && ctx.Err() == nil {
			e.log().Error("traffic was not counted", "err", err)
			wait = min(wait, again)
		} else if err == nil {
			e.upkeep(ctx, keep)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (e *Engine) upkeep(ctx context.Context, keep Retention) {
	now := time.Now()
	if err := e.Books.ClosePeriods(ctx, now); err != nil && ctx.Err() == nil {
		e.log().Error("traffic periods were not closed", "err", err)
	}
	if err := e.Books.Condense(ctx, now, keep.WithDefaults()); err != nil && ctx.Err() == nil {
		e.log().Error("traffic was not condensed", "err", err)
	}
}

// TakeRound reads all counters and writes the samples of the slot that was over last, unless that was done. A part of the
// edges that does not answer leaves out the machines behind it and nobody else.
func (e *Engine) TakeRound(ctx context.Context, now time.Time) (bool, error) {
	counters, failure := e.Meter.Counters(ctx)
	if failure != nil && len(counters) == 0 {
		return false, fmt.Errorf("read counters: %w", failure)
	}
	slot := billing.Slot(now).Add(-billing.SampleLength)
	done, err := e.Books.Round(ctx, slot, counters, func(before []network.Counter, holder map[string]string) []OrderSample {
		return measure(slot, before, counters, holder)
	})
	if err != nil {
		return false, err
	}
	if done && failure != nil {
		e.log().Warn("some counters could not be read", "slot", slot, "err", failure)
	}
	return done, nil
}

// readTime bounds a last reading: nobody waits for it longer. What was read is stored however long that took.
const readTime = 5 * time.Second

// lastReading counts what passed at a machine's port since the last round, before the port is taken away. That it cannot is no
// reason to leave the machine where it is.
func (e *Engine) lastReading(ctx context.Context, m machine.Machine, orderID string) {
	if e.Meter == nil || e.Books == nil || orderID == "" {
		return
	}
	reading, cancel := context.WithTimeout(ctx, readTime)
	counters, err := e.Meter.CountersAt(reading, m.Site)
	cancel()
	counters = slices.DeleteFunc(counters, func(c network.Counter) bool { return c.Machine != m.ID })
	if len(counters) > 0 {
		err = e.Books.Rest(ctx, m.ID, orderID, counters)
	}
	if err != nil {
		e.log().Warn("traffic since the last round is lost", "machine", m.ID, "order", orderID, "err", err)
	}
}

// RestOf says what a counter has counted since the reading before, which is nil where there was none. A count that began since then is
// all there is; when the reading before is the newer one, it has everything.
func RestOf(before *network.Counter, now network.Counter) (bytes uint64, doubt string) {
	began, took := time.Unix(0, now.Epoch), time.Duration(0)
	if before != nil && before.At.After(now.At) && !began.After(before.At) {
		return 0, ""
	}
	if before == nil || began.After(before.At) {
		bytes, took, doubt = now.Bytes, now.At.Sub(began), now.Doubt
	} else if took = now.At.Sub(before.At); now.Epoch == before.Epoch && now.Bytes == before.Bytes {
		return 0, now.Doubt // nothing passed, however long that took
	} else {
		bytes, doubt = now.Since(*before)
	}
	if took > billing.SampleLength {
		doubt = cmp.Or(doubt, billing.Untimely(took))
	}
	return bytes, doubt
}

// measure makes the samples of a slot from two readings of counters. A machine that was not read before, or that nobody holds,
// has none.
func measure(slot time.Time, before, now []network.Counter, holder map[string]string) []OrderSample {
	type pair struct{ up, down *network.Counter }
	pairs := func(list []network.Counter) map[string]pair {
		m := map[string]pair{}
		for i, c := range list {
			p := m[c.Machine]
			if c.Direction == network.Up {
				p.up = &list[i]
			} else {
				p.down = &list[i]
			}
			m[c.Machine] = p
		}
		return m
	}
	was := pairs(before)
	var samples []OrderSample
	for id, is := range pairs(now) {
		old := was[id]
		if holder[id] == "" || is.up == nil || is.down == nil || old.up == nil || old.down == nil {
			continue
		}
		s := OrderSample{OrderID: holder[id], MachineID: id}
		s.Slot, s.Took = slot, is.up.At.Sub(old.up.At)
		up, doubtUp := is.up.Since(*old.up)
		down, doubtDown := is.down.Since(*old.down)
		s.Doubt = cmp.Or(doubtUp, doubtDown, billing.Untimely(s.Took))
		if up > math.MaxInt64 || down > math.MaxInt64 {
			up, down, s.Doubt = 0, 0, cmp.Or(s.Doubt, "it is more than any line carries")
		}
		s.Up, s.Down = int64(up), int64(down)
		samples = append(samples, s)
	}
	return samples
}

// ClosedPeriod is a month of an order that is over.
type ClosedPeriod struct {
	N     int           `json:"n"` // from 0
	Usage billing.Usage `json:"usage"`
	Last  bool          `json:"last"` // the order ended with it
}

// PeriodUnderWay returns the month of an order that a moment lies in, counted from hand-over, or the last one when the order
// is over.
func PeriodUnderWay(o machine.Order, now time.Time) (from, to time.Time, n int) {
	if o.Started.IsZero() {
		return now, now, 0
	}
	for {
		from, to = billing.Period(o.Started, 1, n, time.UTC)
		if now.Before(to) {
			return from, to, n
		}
		n++
	}
}
