package ipmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Poller reads the health and the events of many BMCs, each once a period, spread evenly over the period and never more than
// Limit at a time. How long a BMC that fails is left alone is for Targets to say. Set the fields before Run.
type Poller struct {
	Controller *Controller
	Period     time.Duration // between two polls of one BMC; 0 is a minute
	Limit      int           // BMCs polled at one time; 0 is 32
	Timeout    time.Duration // for one BMC; 0 is half a period, at most 30 s. Models and firmware have time of their own beside it

	// Targets lists the BMCs that are due; it is asked at the beginning of each period.
	Targets func(ctx context.Context) ([]PollTarget, error)
	// Took is told of each poll, by at most Limit goroutines at a time, which wait for it.
	Took func(ctx context.Context, p Poll)
	// Reach calls poll with the BMC's address and password of this moment, again with others if need be; or does not, where the BMC is
	// to be left alone now. It is for those who do not want to hold all passwords for a period; nil is PollTarget.Target.
	Reach func(ctx context.Context, key string, poll func(Target) error) error

	mu      sync.Mutex
	stats   PollStats
	now     int
	running map[string]bool
}

// Bounds of what a poll reads beside the sensors: how long the models and the firmware may take, which need a request for each part, and how
// many pages of the event log are read; the next poll goes on where one ended.
const (
	inventoryWithin = 2 * time.Minute
	mostPages       = 20
)

// PollTarget is a BMC to poll.
type PollTarget struct {
	Target    Target // of no account where the Poller has Reach
	Key       string // the caller's, unique: the machine's ID
	Cursor    string // behind which events are read; see EventPage
	Events    bool   // read the event log too
	Inventory bool   // read models and firmware too
}

// Poll is what a poll brought. Err may stand beside a part of the result.
type Poll struct {
	Key    string
	Target Target
	At     time.Time
	Took   time.Duration
	Health Health
	From   string    // the cursor behind which events were read
	Events EventPage // Cursor is the one to keep; More: the log goes on
	Logged bool      // the event log was read
	Err    error

	Inventory *Inventory // where it was asked for and could be read
	Missing   error      // why it could not
}

// PollStats counts what a Poller did.
type PollStats struct {
	Polls, Failed int
	Late          int // polls that began more than a tenth of a period after their time
	Most          int // BMCs polled at one time, at most
	LeftOut       int // polls left out because the last poll of the BMC was not over
}

// Run polls until ctx ends and then returns nil.
func (p *Poller) Run(ctx context.Context) error {
	if p.Controller == nil || p.Targets == nil || p.Took == nil {
		return errors.New("run poller: Controller, Targets and Took must be set")
	}
	p.mu.Lock()
	p.running = map[string]bool{}
	p.mu.Unlock()
	work := make(chan due)
	g, ctx := errgroup.WithContext(ctx)
	for range cmp.Or(p.Limit, 32) {
		g.Go(func() error {
			for d := range work {
				p.poll(ctx, d)
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(work)
		for at := time.Now(); ; at = later(at.Add(p.period())) {
			if !sleepUntil(ctx, at) {
				return nil
			}
			targets, err := p.Targets(ctx)
			if err != nil {
				if ctx.Err() == nil {
					p.Controller.log().Error("BMCs to poll cannot be listed", "err", err)
				}
				continue
			}
			if !p.round(ctx, at, targets, work) {
				return nil
			}
		}
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("poll BMCs: %w", err)
	}
	return nil
}

func (p *Poller) period() time.Duration { return cmp.Or(p.Period, time.Minute) }

// later is at, or now where at is long over: a round that took longer than a period is not caught up with.
func later(at time.Time) time.Time {
	if now := time.Now(); at.Before(now) {
		return now
	}
	return at
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// due is a poll and its time.
type due struct {
	PollTarget
	at time.Time
}

// round hands out the polls of a period, each at its time.
func (p *Poller) round(ctx context.Context, begin time.Time, targets []PollTarget, work chan<- due) bool {
	for i, t := range targets {
		at := begin.Add(p.period() * time.Duration(i) / time.Duration(len(targets)))
		if !p.take(t.Key) {
			continue
		}
		if !sleepUntil(ctx, at) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case work <- due{t, at}:
		}
	}
	return true
}

// take reports whether a BMC is to be polled this period.
func (p *Poller) take(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[key] {
		p.stats.LeftOut++
		return false
	}
	p.running[key] = true
	return true
}

func (p *Poller) poll(ctx context.Context, d due) {
	begin := time.Now()
	p.mu.Lock()
	p.now++
	p.stats.Most = max(p.stats.Most, p.now)
	if begin.Sub(d.at) > p.period()/10 {
		p.stats.Late++
	}
	p.mu.Unlock()
	out, asked := p.Once(ctx, d.PollTarget)
	ended := ctx.Err() != nil
	if !ended && asked {
		p.Took(ctx, out)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	delete(p.running, d.Key)
	if ended || !asked {
		return
	}
	p.stats.Polls++
	if out.Err != nil {
		p.stats.Failed++
	}
}

// Once polls a BMC now, whatever its turn, and tells nobody else. asked is false where Reach left it alone.
func (p *Poller) Once(ctx context.Context, t PollTarget) (out Poll, asked bool) {
	within := cmp.Or(p.Timeout, min(p.period()/2, 30*time.Second))
	reach := within
	if t.Inventory {
		reach += inventoryWithin
	}
	bounded, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	begin := time.Now()
	one := func(at Target) error {
		asked, t.Target = true, at
		out = Poll{Key: t.Key, Target: at, At: begin, Health: Health{Power: Unknown, Overall: Unclear}, From: t.Cursor, Events: EventPage{Cursor: t.Cursor}}
		return p.Controller.pollOne(bounded, t, within, &out)
	}
	var err error
	if p.Reach == nil {
		err = one(t.Target)
	} else if err = p.Reach(bounded, t.Key, one); err != nil && !asked { // it could not even be asked
		asked, out = true, Poll{Key: t.Key, At: begin, Health: Health{Power: Unknown, Overall: Unclear}, From: t.Cursor, Events: EventPage{Cursor: t.Cursor}}
	}
	out.Err, out.Took = err, time.Since(begin)
	return out, asked
}

// pollOne reads a BMC in one session: what it must tell within a time, and then, in a time of its own, what can wait for the next poll.
func (c *Controller) pollOne(ctx context.Context, t PollTarget, within time.Duration, out *Poll) error {
	return c.read(ctx, t.Target, "poll", func(ctx context.Context, l *link) error {
		soon, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		err := l.again(soon, func() (err error) {
			if out.Health, err = l.health(soon); err != nil && !isAny(err, ErrUnsupported) {
				return err
			}
			unread := err
			if t.Events && !out.Logged {
				if err := l.readLog(soon, t.Cursor, out); err != nil {
					return err
				}
			}
			return unread
		})
		if err != nil && !isAny(err, ErrUnsupported) || !t.Inventory {
			return err
		}
		var inv Inventory
		switch missing := l.again(ctx, func() (err error) { inv, err = l.inventory(ctx); return err }); {
		case missing == nil, isAny(missing, ErrUnsupported):
			out.Inventory = &inv
		default:
			out.Missing = missing
		}
		return err
	})
}

// readLog reads the event log to its end, or as far as the time goes: what was read counts.
func (l *link) readLog(ctx context.Context, cursor string, out *Poll) error {
	all := EventPage{Cursor: cursor}
	for range mostPages {
		page, err := l.events(ctx, all.Cursor)
		if err != nil && len(page.Events)+len(all.Events) == 0 {
			return err
		}
		all.Events = append(all.Events, page.Events...)
		all.Reset, all.Full, all.More = all.Reset || page.Reset, all.Full || page.Full, page.More || err != nil
		all.Cursor = page.Cursor
		if err != nil || !page.More {
			break
		}
	}
	out.Events, out.Logged = all, true
	return nil
}

// Stats is what was done so far.
func (p *Poller) Stats() PollStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}
