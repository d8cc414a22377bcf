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
// Limit at a time. A BMC that fails is left alone for 1, 3, 7 and at most 15 periods. Set the fields before Run.
type Poller struct {
	Controller *Controller
	Period     time.Duration // between two polls of one BMC; 0 is a minute
	Limit      int           // BMCs polled at one time; 0 is 32
	Timeout    time.Duration // for one BMC; 0 is half a period, at most 30 s

	// Targets lists the BMCs; it is asked at the beginning of each period.
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
	failing map[string]*failing
}

// failing is a BMC that failed.
type failing struct{ inRow, leaveOut int }

// longestLeaveOut is for how many periods a failing BMC is left alone at most.
const longestLeaveOut = 15

// PollTarget is a BMC to poll.
type PollTarget struct {
	Target    Target // of no account where the Poller has Reach
	Key       string // the caller's, unique: the machine's ID
	Cursor    string // behind which events are read; see EventPage
	Events    bool   // read the event log too
	Inventory bool   // read models and firmware too
	PowerOnly bool   // read nothing but the power state
}

// Poll is what a poll brought. Err may stand beside a part of the result.
type Poll struct {
	Key    string
	Target Target
	At     time.Time
	Took   time.Duration
	Health Health
	From   string    // the cursor behind which events were read
	Events EventPage // Cursor is the one to keep
	Err    error

	Inventory *Inventory // where it was asked for and could be read
}

// PollStats counts what a Poller did.
type PollStats struct {
	Polls, Failed int
	Late          int // polls that began more than a tenth of a period after their time
	Most          int // BMCs polled at one time, at most
	LeftOut       int // polls left out because the BMC failed before, or its last poll was not over
}

// Run polls until ctx ends and then returns nil.
func (p *Poller) Run(ctx context.Context) error {
	if p.Controller == nil || p.Targets == nil || p.Took == nil {
		return errors.New("run poller: Controller, Targets and Took must be set")
	}
	p.mu.Lock()
	p.running, p.failing = map[string]bool{}, map[string]*failing{}
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
	p.forget(targets)
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

// forget drops what is known of BMCs that are not polled any more.
func (p *Poller) forget(targets []PollTarget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := map[string]*failing{}
	for _, t := range targets {
		if f := p.failing[t.Key]; f != nil {
			keep[t.Key] = f
		}
	}
	p.failing = keep
}

// take reports whether a BMC is to be polled this period.
func (p *Poller) take(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.failing[key]
	switch {
	case p.running[key]:
	case f != nil && f.leaveOut > 0:
		f.leaveOut--
	default:
		p.running[key] = true
		return true
	}
	p.stats.LeftOut++
	return false
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
	if out.Err == nil {
		delete(p.failing, d.Key)
		return
	}
	p.stats.Failed++
	f := p.failing[d.Key]
	if f == nil {
		f = &failing{}
		p.failing[d.Key] = f
	}
	f.inRow++
	f.leaveOut = min(1<<min(f.inRow, 10)-1, longestLeaveOut)
}

// Once polls a BMC now, whatever its turn, and tells nobody else. asked is false where Reach left it alone.
func (p *Poller) Once(ctx context.Context, t PollTarget) (out Poll, asked bool) {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(p.Timeout, min(p.period()/2, 30*time.Second)))
	defer cancel()
	begin := time.Now()
	one := func(at Target) error {
		asked, t.Target = true, at
		out = Poll{Key: t.Key, Target: at, At: begin, Health: Health{Power: Unknown, Overall: Unclear}, From: t.Cursor, Events: EventPage{Cursor: t.Cursor}}
		return p.Controller.pollOne(bounded, t, &out)
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

// pollOne reads a BMC in one session.
func (c *Controller) pollOne(ctx context.Context, t PollTarget, out *Poll) error {
	return c.read(ctx, t.Target, "poll", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() (err error) {
			if t.PowerOnly {
				out.Health.At = time.Now()
				out.Health.Power, err = l.power(ctx)
				return err
			}
			if out.Health, err = l.health(ctx); err != nil && !isAny(err, ErrUnsupported) {
				return err
			}
			unread := err
			if t.Events {
				page, err := l.events(ctx, t.Cursor)
				if err != nil {
					return err
				}
				out.Events = page
			}
			if t.Inventory {
				inv, err := l.inventory(ctx)
				if err != nil && !isAny(err, ErrUnsupported) {
					return err
				}
				out.Inventory = &inv
			}
			return unread
		})
	})
}

// Stats is what was done so far.
func (p *Poller) Stats() PollStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}
