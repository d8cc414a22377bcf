package netboot

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"sync"
	"time"
)

const (
	offerFor    = 30 * time.Second // an offer that is not taken is nobody's after this
	strangerFor = 10 * time.Minute // lease of a machine that nobody knows
	spoiltFor   = 10 * time.Minute // an address that somebody else uses is left alone
	maxProbes   = 8                // addresses tried for one offer
)

// strangers gives the addresses of one range to machines that the Booter does not know.
//
// Nothing is stored. The first address that is tried follows from the MAC address, and none is given before the
// network was asked whether somebody has it: so a server that was restarted, and another one beside it, give a machine
// the address that it had, and never one that another machine answers for. Only a machine that is silent on its
// address while the server restarts may lose it; its next request is then refused, and it asks anew.
type strangers struct {
	rng      Range
	probe    func(context.Context, netip.Addr) (owner string, used bool, err error)
	reserved func(netip.Addr) bool // addresses of known machines

	mu     sync.Mutex
	grants map[netip.Addr]*grant
	byMAC  map[string]netip.Addr
}

// grant is who has an address of the range, and until when.
type grant struct {
	mac    string // empty: spoilt
	taken  bool   // by a REQUEST; otherwise only offered
	until  time.Time
	probed time.Time // when nobody answered there
}

// errFull says that the range has no address left.
var errFull = errors.New("no address is left in the range for unknown machines")

func newStrangers(rng Range, probe func(context.Context, netip.Addr) (string, bool, error), reserved func(netip.Addr) bool) *strangers {
	return &strangers{rng: rng, probe: probe, reserved: reserved, grants: map[netip.Addr]*grant{}, byMAC: map[string]netip.Addr{}}
}

// offer returns an address for a machine: the one that it has, the one that it wants, or the first that nobody has.
func (s *strangers) offer(ctx context.Context, mac string, wants netip.Addr) (netip.Addr, error) {
	if a, ok := s.has(mac); ok {
		return a, nil
	}
	for range maxProbes {
		a, clean, err := s.hold(mac, wants)
		if err != nil {
			return netip.Addr{}, err
		}
		if clean {
			return a, nil
		}
		free, err := s.check(ctx, mac, a)
		if err != nil {
			return netip.Addr{}, err
		}
		if free {
			return a, nil
		}
		wants = netip.Addr{}
	}
	return netip.Addr{}, fmt.Errorf("%w that nobody uses", errFull)
}

// take gives a machine the address that it asks for by a REQUEST; false means that it cannot have it. holds says that
// it uses the address already, and only wants to keep it.
func (s *strangers) take(ctx context.Context, mac string, a netip.Addr, holds bool) (bool, error) {
	if !s.rng.Contains(a) || s.reserved(a) {
		return false, nil
	}
	now := time.Now()
	s.mu.Lock()
	g := s.live(a, now)
	switch {
	case g != nil && g.mac != mac && (g.taken || g.mac == ""):
		s.mu.Unlock()
		return false, nil
	case g != nil && g.mac == mac || holds:
		s.assign(a, mac, true, now)
		s.mu.Unlock()
		return true, nil
	}
	clean := s.assign(a, mac, false, now)
	s.mu.Unlock()
	if !clean { // it had it before a restart, or was offered it by another server
		if free, err := s.check(ctx, mac, a); err != nil || !free {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.grants[a]; g == nil || g.mac != mac {
		return false, nil // taken while the network was asked
	}
	s.assign(a, mac, true, time.Now())
	return true, nil
}

// learn notes that a machine chose an address of the range from another server beside us.
func (s *strangers) learn(mac string, a netip.Addr) {
	if !s.rng.Contains(a) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.live(a, time.Now()); g == nil || !g.taken {
		s.assign(a, mac, true, time.Now())
	}
}

// release takes back the address of a machine that has no more use for it, or has become known.
func (s *strangers) release(mac string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.byMAC[mac]; ok {
		delete(s.grants, a)
		delete(s.byMAC, mac)
	}
}

// spoil marks an address that somebody uses whom we have not given it.
func (s *strangers) spoil(a netip.Addr) {
	if !s.rng.Contains(a) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(a)
	s.grants[a] = &grant{until: time.Now().Add(spoiltFor)}
}

// has returns the address that a machine has or was offered, and keeps an offer alive.
func (s *strangers) has(mac string) (netip.Addr, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.byMAC[mac]
	if !ok {
		return netip.Addr{}, false
	}
	now := time.Now()
	g := s.live(a, now)
	if g == nil || s.reserved(a) {
		s.forget(a)
		return netip.Addr{}, false
	}
	if !g.taken {
		g.until = now.Add(offerFor)
	}
	return a, true
}

// hold chooses an address and keeps it for a machine while the network is asked. clean means that it need not be.
func (s *strangers) hold(mac string, wants netip.Addr) (a netip.Addr, clean bool, err error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rng.Contains(wants) && !s.reserved(wants) && s.live(wants, now) == nil {
		return wants, s.assign(wants, mac, false, now), nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(mac))
	size := s.rng.size()
	start := int(h.Sum32() % uint32(size))
	var oldest netip.Addr
	for i := range size {
		a := s.rng.at((start + i) % size)
		if s.reserved(a) {
			continue
		}
		g := s.live(a, now)
		if g == nil {
			return a, s.assign(a, mac, false, now), nil
		}
		if !g.taken && g.mac != "" && (!oldest.IsValid() || g.until.Before(s.grants[oldest].until)) {
			oldest = a
		}
	}
	if oldest.IsValid() { // offered and not taken: more machines ask than there are addresses
		return oldest, s.assign(oldest, mac, false, now), nil
	}
	return netip.Addr{}, false, errFull
}

// check asks the network, and spoils an address that somebody else has.
func (s *strangers) check(ctx context.Context, mac string, a netip.Addr) (free bool, err error) {
	owner, used, err := s.probe(ctx, a)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g := s.grants[a]; g != nil && g.mac == mac {
			s.forget(a)
		}
		return false, fmt.Errorf("ask whether %s is in use: %w", a, err)
	}
	if used && owner == "" {
		s.spoil(a)
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if used && owner != mac {
		// Whoever answers has it: maybe from us, before a restart. If it asks, it gets that address again.
		if _, other := s.byMAC[owner]; other {
			owner = ""
		}
		s.forget(a)
		s.assign(a, owner, true, time.Now())
		return false, nil
	}
	g := s.grants[a]
	if g == nil || g.mac != mac {
		return false, nil // somebody was faster
	}
	g.probed = time.Now()
	return true, nil
}

// live returns the grant of an address, nil when it is free. The caller holds the lock.
func (s *strangers) live(a netip.Addr, now time.Time) *grant {
	g := s.grants[a]
	if g == nil || !now.Before(g.until) {
		return nil
	}
	return g
}

// assign gives an address to a machine, and reports whether the network was asked about it a moment ago. The caller
// holds the lock.
func (s *strangers) assign(a netip.Addr, mac string, taken bool, now time.Time) (clean bool) {
	var probed time.Time
	if g := s.grants[a]; g != nil {
		probed = g.probed
		if g.mac != mac {
			s.forget(a)
		}
	}
	if old, ok := s.byMAC[mac]; ok && old != a && mac != "" {
		s.forget(old)
	}
	until := offerFor
	if taken {
		until = strangerFor
	}
	s.grants[a] = &grant{mac: mac, taken: taken, until: now.Add(until), probed: probed}
	if mac != "" {
		s.byMAC[mac] = a
	}
	return now.Sub(probed) < offerFor
}

// forget frees an address. The caller holds the lock.
func (s *strangers) forget(a netip.Addr) {
	if g := s.grants[a]; g != nil {
		if s.byMAC[g.mac] == a {
			delete(s.byMAC, g.mac)
		}
		delete(s.grants, a)
	}
}

// holder returns the machine that has an address; empty when nobody has.
func (s *strangers) holder(a netip.Addr) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.live(a, time.Now()); g != nil && g.taken {
		return g.mac
	}
	return ""
}
