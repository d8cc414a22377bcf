package linuxedge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/bareyard/bareyard/network"
)

// record is a port with what the kernel is to remember about it.
type record struct {
	network.Port
	minor uint16
	epoch int64 // Unix nanoseconds of the creation of its classes
}

func (r record) equal(o record) bool {
	return r.minor == o.minor && r.epoch == o.epoch && r.Port.Equal(o.Port)
}

// passes reports whether traffic flows at all.
func (r record) passes() bool { return r.Mode == network.On || r.Mode == network.Limited }

// direction returns which way the traffic flows that a device sends.
func (s side) direction() network.Direction {
	if s == uplink {
		return network.Up
	}
	return network.Down
}

func (r record) rate(s side) network.Bandwidth { return r.Passes(s.direction()) }

// comment is the record as the comment of an nftables element; parseRecord reads it. MAC and addresses are keys elsewhere.
func (r record) comment() string {
	return fmt.Sprintf("%s %s %x %s/%s %d %d", r.Machine, r.Mode, r.minor, speed(r.Up), speed(r.Down), r.Limit, r.epoch)
}

// speed writes a bandwidth: 100000, or 10000+100000 for one that bursts.
func speed(b network.Bandwidth) string {
	if b.Burst == 0 {
		return strconv.Itoa(b.Kbit)
	}
	return strconv.Itoa(b.Kbit) + "+" + strconv.Itoa(b.Burst)
}

func parseSpeed(s string) (b network.Bandwidth, err error) {
	kbit, burst, bursts := strings.Cut(s, "+")
	if bursts {
		if b.Burst, err = strconv.Atoi(burst); err != nil {
			return b, err
		}
	}
	b.Kbit, err = strconv.Atoi(kbit)
	return b, err
}

func parseRecord(mac, comment string) (record, error) {
	f := strings.Split(comment, " ")
	if len(f) != 6 {
		return record{}, fmt.Errorf("record of %s has %d fields: %q", mac, len(f), comment)
	}
	r := record{Port: network.Port{Machine: f[0], MAC: mac, Mode: network.Mode(f[1])}}
	m, err1 := strconv.ParseUint(f[2], 16, 16)
	up, down, ok := strings.Cut(f[3], "/")
	u, err2 := parseSpeed(up)
	d, err3 := parseSpeed(down)
	limit, err4 := strconv.Atoi(f[4])
	epoch, err5 := strconv.ParseInt(f[5], 10, 64)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil || !ok || r.Machine == "" {
		return record{}, fmt.Errorf("record of %s is damaged: %q", mac, comment)
	}
	if m < firstMinor || m > lastMinor {
		return record{}, fmt.Errorf("record of %s names class %s, which no machine has", mac, f[2])
	}
	r.minor, r.Up, r.Down, r.Limit, r.epoch = uint16(m), u, d, limit, epoch
	switch {
	case !slices.Contains(network.Modes(), r.Mode), r.comment() != comment:
		return record{}, fmt.Errorf("record of %s is not ours: %q", mac, comment)
	}
	one := r.Port
	one.Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 32)} // they are kept elsewhere
	if err := one.Validate(); err != nil {
		return record{}, fmt.Errorf("record of %s: %w", mac, err)
	}
	return r, nil
}

// hop is where a route leads: to the next hop of a minor number, or into a blackhole when that is 0.
type hop uint16

const blackhole hop = 0

// stray is a route that leads nowhere of ours.
const stray hop = 1

// state is what the kernel holds.
type state struct {
	numbering
	records map[string]record // by machine
	sets    map[string]elements
	trees   [2]*tree
	neighs  map[netip.Addr]string // permanent entries of the downlink: next hop to MAC
	routes  map[netip.Prefix]hop  // of our protocol
	named   map[string]bool       // the only machines of which more was read than the record; nil when all was read
}

func (st *state) classed(minor uint16) bool {
	if st.named != nil {
		return true // those of named ones were looked at, and the others are not touched
	}
	return st.trees[uplink].has(minor) && st.trees[downlink].has(minor)
}

// holds reports whether everything that a record asks for is in place.
func (st *state) holds(r record, trunk network.Bandwidth) bool {
	for _, s := range []side{uplink, downlink} {
		c := st.trees[s].classes[st.classID(r.minor)]
		if !st.trees[s].leads(r.minor, trunk) || c.rate != r.rate(s) || c.queue != queueBytes(r.rate(s).Ceil()) {
			return false
		}
	}
	for name, want := range st.layout(map[string]record{r.Machine: r}) {
		for e := range want {
			if !st.sets[name][e] {
				return false
			}
		}
	}
	for _, n := range r.hops() {
		if st.neighs[n] != r.MAC {
			return false
		}
	}
	routes := r.routes()
	for _, p := range r.Addrs {
		want, wanted := routes[p]
		if have, ok := st.routes[p]; ok != wanted || have != want {
			return false
		}
	}
	return len(r.Addrs) > 0
}

// shrunk returns what may stay before anything grows: no port that is to go, none whose class is gone (its count must
// start again, with a new record), and no address that its port is to lose.
func (st *state) shrunk(want map[string]record) map[string]record {
	keep := make(map[string]record, len(st.records))
	for id, r := range st.records {
		w, ok := want[id]
		if !ok || w.epoch != r.epoch {
			continue
		}
		r.Addrs = slices.DeleteFunc(slices.Clone(r.Addrs), func(p netip.Prefix) bool { return !slices.Contains(w.Addrs, p) })
		keep[id] = r
	}
	return keep
}

// nextHop4 and nextHop6 are the addresses by which the edge's routes name a port. No machine has them: permanent
// neighbour entries lead to its MAC address, so that neither ARP nor neighbour discovery has a say.
func nextHop4(minor uint16) netip.Addr {
	return netip.AddrFrom4([4]byte{169, 254, byte(minor >> 8), byte(minor)})
}

func nextHop6(minor uint16) netip.Addr {
	a := netip.MustParseAddr("fe80::a9fe:0").As16()
	a[14], a[15] = byte(minor>>8), byte(minor)
	return netip.AddrFrom16(a)
}

func nextHop(p netip.Prefix, minor uint16) netip.Addr {
	if p.Addr().Is4() {
		return nextHop4(minor)
	}
	return nextHop6(minor)
}

// hops returns the next hops that a record needs.
func (r record) hops() []netip.Addr {
	var out []netip.Addr
	for _, p := range r.Addrs {
		if n := nextHop(p, r.minor); !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// routes returns the routes that a record needs; a port that is off has none.
func (r record) routes() map[netip.Prefix]hop {
	out := make(map[netip.Prefix]hop, len(r.Addrs))
	for _, p := range r.Addrs {
		switch {
		case r.passes():
			out[p] = hop(r.minor)
		case r.Mode == network.Blackhole:
			out[p] = blackhole
		}
	}
	return out
}

// dumps bounds how often a dump is asked for again when the kernel was interrupted in it, by FRR's routes for instance.
const dumps = 10

func dump[T any](what string, f func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := f()
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumps {
			return v, fmt.Errorf("list %s: %w", what, err)
		}
	}
}

func (s *session) read() (*state, error) {
	st := &state{numbering: s.cfg.numbering(), neighs: map[netip.Addr]string{}, routes: map[netip.Prefix]hop{}}
	if err := s.readSets(st); err != nil {
		return nil, err
	}
	for i := range s.links {
		t, err := s.readTree(side(i))
		if err != nil {
			return nil, err
		}
		if err := s.readQueues(t, side(i)); err != nil {
			return nil, err
		}
		st.trees[i] = t
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if err := s.readRoutes(st, family); err != nil {
			return nil, err
		}
	}
	return st, nil
}

func (s *session) readRoutes(st *state, family int) error {
	index := s.links[downlink].Attrs().Index
	neighs, err := dump("neighbours", func() ([]netlink.Neigh, error) { return s.rt.NeighList(index, family) })
	if err != nil {
		return err
	}
	for _, n := range neighs {
		if a, ok := addrOf(n.IP); ok && n.State&netlink.NUD_PERMANENT != 0 && isHop(a) {
			st.neighs[a] = n.HardwareAddr.String()
		}
	}
	filter := &netlink.Route{Protocol: Protocol}
	routes, err := dump("routes", func() ([]netlink.Route, error) {
		return s.rt.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return err
	}
	for _, r := range routes {
		p, ok := prefixOf(r.Dst)
		if !ok {
			continue
		}
		st.routes[p] = hopOf(r, index, p)
	}
	return nil
}

// isHop reports whether an address has the form of nextHop.
func isHop(a netip.Addr) bool {
	b := a.AsSlice()
	m := uint16(b[len(b)-2])<<8 | uint16(b[len(b)-1])
	return (a == nextHop4(m) || a == nextHop6(m)) && m >= firstMinor
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := addrOf(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a, ones), ok
}

// prepare brings about what all ports share, except for the trees, which grow plants, and the nftables rules, which commit
// writes.
func (s *session) prepare() error {
	if err := s.ns.Do(func() error { return write(s.sysctls()) }); err != nil {
		return err
	}
	return s.gateways()
}

// grow makes trees, classes, neighbours and routes for the records that are to be.
func (s *session) grow(ctx context.Context, st *state, want map[string]record) error {
	for i := range s.links {
		sold := map[uint16]int{}
		for _, r := range want {
			sold[st.major(r.minor)] += r.rate(side(i)).Kbit
		}
		if err := s.plant(st.trees[i], side(i), sold); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("apply to edge: %w", err)
		}
		if st.named != nil && !st.named[id] {
			continue
		}
		r := want[id]
		for _, side := range []side{uplink, downlink} {
			if err := s.shape(st.trees[side], side, r.minor, r.rate(side)); err != nil {
				return fmt.Errorf("shape machine %s: %w", id, err)
			}
		}
		if err := s.lead(st, r); err != nil {
			return fmt.Errorf("route to machine %s: %w", id, err)
		}
	}
	return nil
}

// sweep removes whatever has no record, routes first.
func (s *session) sweep(st *state) error {
	minors := make(map[uint16]bool, len(st.records))
	routes := make(map[netip.Prefix]hop, len(st.routes))
	hops := make(map[netip.Addr]bool, len(st.neighs))
	for _, r := range st.records {
		minors[r.minor] = true
		maps.Copy(routes, r.routes())
		for _, n := range r.hops() {
			hops[n] = true
		}
	}
	if err := s.unlead(st, routes, hops); err != nil {
		return err
	}
	for i, t := range st.trees {
		if err := s.prune(t, side(i), minors); err != nil {
			return err
		}
	}
	return nil
}
