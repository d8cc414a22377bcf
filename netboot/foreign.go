package netboot

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// OtherServer is a DHCP server that is not ours, as seen on a network of ours.
type OtherServer struct {
	Addr      netip.Addr // its server identifier
	MAC       string     // where its answer came from: itself, or the last relay; empty when only a client named it
	Interface string     // of ours
	Client    string     // MAC address of a machine that chose it or was answered by it
	Seen      time.Time
}

// foreign remembers which other servers were reported lately. Its zero value is ready.
type foreign struct {
	mu   sync.Mutex
	last map[sighting]time.Time
}

// sighting is how a server was seen: itself, or named by a client. The first tells more, and is reported in its own right.
type sighting struct {
	addr   netip.Addr
	itself bool
}

// foreignMax bounds the addresses remembered: a client may name any.
const foreignMax = 256

// first reports whether a server was not reported for quietFor, or only by the word of a client, and now seen itself.
func (f *foreign) first(a netip.Addr, itself bool, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	recent := func(s sighting) bool { t, ok := f.last[s]; return ok && now.Sub(t) < quietFor }
	if recent(sighting{a, true}) || !itself && recent(sighting{a, false}) {
		return false
	}
	if f.last == nil || len(f.last) >= foreignMax {
		f.last = map[sighting]time.Time{}
	}
	f.last[sighting{a, itself}] = now
	return true
}

// notice raises the alarm for a server that does not belong here. In proxy mode there must be another one: the alarm
// is raised only when the configuration says which.
func (c *conversation) notice(o OtherServer) {
	if !o.Addr.IsValid() || c.ours(o.Addr) || c.sibling(o.Addr) || c.Mode == Proxy && len(c.OtherServers) == 0 {
		return
	}
	o.Seen = time.Now()
	if !c.foreign.first(o.Addr, o.MAC != "", o.Seen) {
		return
	}
	c.log.Warn("another DHCP server answers on this network: machines may boot what it says", "server", o.Addr, "server-mac", o.MAC,
		"interface", o.Interface, "client", o.Client)
	c.Metrics.alien(o.Interface)
	if c.Alarm != nil {
		c.Alarm(o)
	}
}

// ours reports whether an address is one of our own.
func (c *conversation) ours(a netip.Addr) bool {
	return slices.ContainsFunc(c.nets, func(s Subnet) bool { return s.Addr == a })
}

// sibling reports whether a DHCP server belongs here: another replica, or in proxy mode the network's own.
func (c *conversation) sibling(a netip.Addr) bool { return slices.Contains(c.OtherServers, a) }
