package netboot

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// Roster is a Booter that can name all the ports that it knows. A Server that has one tells known machines from others
// before it asks the Booter anything, so that a flood of strangers does not stand in their way, and gives no stranger
// an address that is reserved.
type Roster interface {
	// Reservations returns the reserved address of each port by its MAC address.
	Reservations(ctx context.Context) (map[string]netip.Addr, error)
}

const (
	rosterEvery = 5 * time.Second

	strangerRate  = 200 // requests a second of all that nobody knows
	strangerBurst = 400
	eachRate      = 2 // of each of them
	eachBurst     = 20
	eachMax       = 4096 // of them remembered
)

// roster is the last word of a Roster. Without one nobody is known in advance but who was answered as a machine lately.
type roster struct {
	list  atomic.Pointer[reservations]
	heard sync.Map // MAC addresses of machines that were answered
}

type reservations struct {
	byMAC map[string]netip.Addr
	taken map[netip.Addr]bool
}

// read asks the Booter until ctx is cancelled, then returns nil.
func (r *roster) read(ctx context.Context, from Roster, log *slog.Logger) error {
	tick := time.NewTicker(rosterEvery)
	defer tick.Stop()
	for {
		all, err := from.Reservations(ctx)
		switch {
		case err == nil:
			r.set(all)
		case !errors.Is(err, context.Canceled):
			log.Warn("list known machines", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (r *roster) set(all map[string]netip.Addr) {
	taken := map[netip.Addr]bool{}
	for _, a := range all {
		taken[a] = true
	}
	r.list.Store(&reservations{maps.Clone(all), taken})
}

// knows reports whether a port belongs to a machine.
func (r *roster) knows(mac string) bool {
	if l := r.list.Load(); l != nil {
		_, ok := l.byMAC[mac]
		return ok
	}
	_, ok := r.heard.Load(mac)
	return ok
}

// reserved reports whether an address belongs to a machine.
func (r *roster) reserved(a netip.Addr) bool {
	l := r.list.Load()
	return l != nil && l.taken[a]
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
func (l *link) Admit(req *dhcp.Request) dhcp.Lane {
	if l.roster.knows(req.MAC) {
		return dhcp.Machines
	}
	if l.limits.allow(req.MAC, time.Now()) {
		return dhcp.Strangers
	}
	if l.dropped.first(time.Now()) {
		l.log.Warn("more DHCP requests of unknown machines than are answered; the others are dropped", "interface", l.ifname, "mac", req.MAC)
	}
	return dhcp.Drop
}

// seldom is true once in a while. Its zero value is ready.
type seldom struct{ last atomic.Int64 }

func (s *seldom) first(now time.Time) bool {
	last := s.last.Load()
	return now.UnixNano()-last >= int64(quietFor) && s.last.CompareAndSwap(last, now.UnixNano())
}
