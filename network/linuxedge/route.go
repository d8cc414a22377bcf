package linuxedge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// gateways puts the on-link gateways on the downlink.
func (s *session) gateways() error {
	link := s.links[downlink]
	if err := s.rt.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", link.Attrs().Name, err)
	}
	for _, g := range []struct {
		addr  netip.Addr
		bits  int
		flags int
	}{{network.Gateway4(), 32, 0}, {network.Gateway6(), 64, unix.IFA_F_NODAD}} {
		a := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(g.addr, g.bits)), Scope: unix.RT_SCOPE_LINK, Flags: g.flags}
		err := s.rt.AddrReplace(link, a)
		if g.addr.Is6() && errors.Is(err, unix.EOPNOTSUPP) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("put gateway %s on %s: %w", g.addr, link.Attrs().Name, err)
		}
	}
	return nil
}

// hopOf returns where a route of the kernel leads.
func hopOf(r netlink.Route, downlink int, p netip.Prefix) hop {
	if r.Type == unix.RTN_BLACKHOLE {
		return blackhole
	}
	gw, ok := addrOf(r.Gw)
	if !ok || r.LinkIndex != downlink || !isHop(gw) {
		return stray
	}
	b := gw.AsSlice()
	m := uint16(b[len(b)-2])<<8 | uint16(b[len(b)-1])
	if gw != nextHop(p, m) {
		return stray
	}
	return hop(m)
}

// lead makes a record's neighbour entries and routes.
func (s *session) lead(st *state, r record) error {
	index := s.links[downlink].Attrs().Index
	mac, err := net.ParseMAC(r.MAC)
	if err != nil {
		return err
	}
	for _, n := range r.hops() {
		if st.neighs[n] == r.MAC {
			continue
		}
		entry := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: n.AsSlice(), HardwareAddr: mac}
		if err := s.rt.NeighSet(entry); err != nil {
			return fmt.Errorf("set neighbour %s: %w", n, err)
		}
		st.neighs[n] = r.MAC
	}
	for p, to := range r.routes() {
		if have, ok := st.routes[p]; ok && have == to {
			continue
		}
		route := &netlink.Route{Dst: ipNet(p), Protocol: Protocol, Type: unix.RTN_BLACKHOLE}
		if to != blackhole {
			route.Type, route.LinkIndex, route.Gw, route.Flags = unix.RTN_UNICAST, index, nextHop(p, r.minor).AsSlice(), int(netlink.FLAG_ONLINK)
		}
		if err := s.rt.RouteReplace(route); err != nil {
			return fmt.Errorf("replace route to %s: %w", p, err)
		}
		st.routes[p] = to
	}
	return nil
}

// unlead removes the routes and neighbour entries that are not in use.
func (s *session) unlead(st *state, routes map[netip.Prefix]hop, hops map[netip.Addr]bool) error {
	for p, to := range st.routes {
		if want, ok := routes[p]; ok && want == to {
			continue
		}
		err := s.rt.RouteDel(&netlink.Route{Dst: ipNet(p), Protocol: Protocol, Type: routeType(to)})
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete route to %s: %w", p, err)
		}
		delete(st.routes, p)
	}
	for n := range st.neighs {
		if hops[n] {
			continue
		}
		err := s.rt.NeighDel(&netlink.Neigh{LinkIndex: s.links[downlink].Attrs().Index, IP: n.AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
			return fmt.Errorf("delete neighbour %s: %w", n, err)
		}
		delete(st.neighs, n)
	}
	return nil
}

func routeType(to hop) int {
	switch to {
	case blackhole:
		return unix.RTN_BLACKHOLE
	case stray:
		return unix.RTN_UNSPEC // whatever it is
	}
	return unix.RTN_UNICAST
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
