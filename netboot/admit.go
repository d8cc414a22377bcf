package netboot

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// Roster is a Booter that knows all ports by heart: it answers at once. A Server that has one tells known machines from
// others before it asks the Booter anything, so that a flood of strangers does not stand in their way, and gives no
// stranger an address that is reserved.
type Roster interface {
	Knows(mac string) bool
	Reserves(a netip.Addr) bool
}

const (
	strangerRate  = 200 // requests a second of all that nobody knows
	strangerBurst = 400
	eachRate      = 2 // of each of them
	eachBurst     = 20
	eachMax       = 4096 // of them remembered
)

// heard are the machines that were answered, for a Server whose Booter is no Roster.
type heard struct{ macs sync.Map }

func (c *conversation) knows(mac string) bool {
	if r, ok := c.Booter.(Roster); ok {
		return r.Knows(mac)
	}
	_, ok := c.heard.macs.Load(mac)
	return ok
}

func (c *conversation) reserves(a netip.Addr) bool {
	r, ok := c.Booter.(Roster)
	return ok && r.Reserves(a)
}

// limits bound what strangers may ask. Its zero value is not ready: see newLimits.
type limits struct {
	all *rate.Limiter

	mu    sync.Mutex
	each  map[string]*rate.Limiter
	swept time.Time
}

func newLimits() *limits {
	return &limits{all: rate.NewLimiter(strangerRate, strangerBurst), each: map[string]*rate.Limiter{}}
}

// allow reports whether one more request of a stranger may be answered.
func (l *limits) allow(mac string, now time.Time) bool {
	if l.all.TokensAt(now) < 1 {
		return false
	}
	l.mu.Lock()
	one := l.each[mac]
	if one == nil {
		if len(l.each) >= eachMax && now.Sub(l.swept) >= time.Second { // who was quiet has its full burst again: it may be forgotten
			l.swept = now
			for k, v := range l.each {
				if v.TokensAt(now) >= eachBurst {
					delete(l.each, k)
				}
			}
		}
		if len(l.each) < eachMax {
			one = rate.NewLimiter(eachRate, eachBurst)
			l.each[mac] = one
		}
	}
	l.mu.Unlock()
	if one != nil && !one.AllowN(now, 1) {
		return false
	}
	return l.all.AllowN(now, 1)
}

// Admit implements dhcp.Handler: machines first.
func (l *link) Admit(req *dhcp.Request) dhcp.Lane { return l.admit(req.MAC) }

func (l *link) admit(mac string) dhcp.Lane {
	if l.knows(mac) {
		return dhcp.Machines
	}
	if l.limits.allow(mac, time.Now()) {
		return dhcp.Strangers
	}
	l.Metrics.drop()
	if l.dropped.first(time.Now()) {
		l.log.Warn("more DHCP requests of unknown machines than are answered; the others are dropped", "interface", l.ifname, "mac", mac)
	}
	return dhcp.Drop
}

// seldom is true once in a while. Its zero value is ready.
type seldom struct{ last atomic.Int64 }

func (s *seldom) first(now time.Time) bool {
	last := s.last.Load()
	return now.UnixNano()-last >= int64(quietFor) && s.last.CompareAndSwap(last, now.UnixNano())
}
