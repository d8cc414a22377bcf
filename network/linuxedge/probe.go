package linuxedge

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/namespace"
)

// A probe asks twice, and has ended before a second is over.
const (
	askAgain  = 250 * time.Millisecond
	askedLong = 600 * time.Millisecond
)

const (
	etherLen     = 14
	ipv6Len      = 40
	echoReply    = 0
	echoRequest6 = 128
	echoReply6   = 129
)

// Probe implements network.Prober. On both devices it asks as somebody does who looks whether an address is free: by ARP (RFC
// 5227) and neighbour discovery (RFC 4862), which touch nobody's neighbour table; and by an echo request wherever the box's
// routes lead. It takes no lock: it changes nothing, and whoever changes the edge does not wait for it.
func (e *Edge) Probe(ctx context.Context, addrs []netip.Prefix) ([]network.Answer, error) {
	p := &probe{want: map[netip.Addr]bool{}, found: map[netip.Addr]network.Answer{}}
	_, _ = rand.Read(p.token[:])
	for _, a := range addrs {
		p.want[network.FirstOf(a).Addr()] = true
	}
	if len(p.want) == 0 {
		return nil, nil
	}
	ns, err := namespace.Open(ctx, e.cfg.Netns, namespace.None)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	defer p.close()
	if err := ns.Do(func() error { return p.open(e.cfg) }); err != nil {
		return nil, fmt.Errorf("probe addresses: %w", err)
	}
	p.listen(time.Now().Add(askedLong))
	p.ask()
	again := time.NewTimer(askAgain)
	defer again.Stop()
	select {
	case <-ctx.Done():
	case <-again.C:
		p.ask()
	}
	if ctx.Err() != nil {
		p.close()
	}
	p.readers.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("probe addresses: %w", ctx.Err())
	}
	return slices.SortedFunc(maps.Values(p.found), func(a, b network.Answer) int { return a.Addr.Compare(b.Addr) }), nil
}

// probe is one look for users of addresses.
type probe struct {
	want    map[netip.Addr]bool
	token   [10]byte // id and payload of its echo requests: a reply without it comes from somebody who was not asked
	segs    []*segment
	echo4   net.PacketConn
	echo6   net.PacketConn
	readers sync.WaitGroup

	mu    sync.Mutex
	found map[netip.Addr]network.Answer
}

// segment is the network at one device.
type segment struct {
	name     string
	mac      net.HardwareAddr
	own      netip.Addr // the device's own link-local address, if it has one
	arp, ndp *packet.Conn
	ports    *packet.Conn // of a bridge; nil for another device
}

func (s *segment) send(c *packet.Conn, frame []byte) {
	_, _ = c.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]})
}

// linkLocal returns the link-local address of a device.
func linkLocal(ifi *net.Interface) (own netip.Addr) {
	list, _ := ifi.Addrs()
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return own
}

// open makes the sockets; they stay in the namespace.
func (p *probe) open(cfg Config) (err error) {
	adverts := []bpf.Instruction{ // nothing but neighbour advertisements: an uplink carries much else
		bpf.LoadAbsolute{Off: etherLen + 6, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: etherLen + ipv6Len, Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: neighborAdvert, SkipTrue: 1},
		bpf.RetConstant{Val: 1500}, bpf.RetConstant{},
	}
	neighbours := func(index, protocol int, filter ...bpf.Instruction) (*packet.Conn, error) {
		f, err := bpf.Assemble(append(filter, adverts...))
		if err != nil {
			return nil, err
		}
		return packet.Listen(&net.Interface{Index: index}, packet.Raw, protocol, &packet.Config{Filter: f})
	}
	others := []bpf.Instruction{ // IPv6 on other devices than the uplink
		bpf.LoadAbsolute{Off: 12, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 1}, bpf.RetConstant{},
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
	}
	for _, name := range []string{cfg.Uplink, cfg.Downlink} {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("find device %s: %w", name, err)
		}
		if len(ifi.HardwareAddr) != 6 {
			continue // no segment: somebody at the other end answers the echo request
		}
		s := &segment{name: name, mac: ifi.HardwareAddr, own: linkLocal(ifi)}
		p.segs = append(p.segs, s)
		if s.arp, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, nil); err != nil {
			return fmt.Errorf("listen for ARP on %s: %w", name, err)
		}
		if s.ndp, err = neighbours(ifi.Index, unix.ETH_P_IPV6); err != nil {
			return fmt.Errorf("listen for neighbours on %s: %w", name, err)
		}
		if name == cfg.Uplink {
			others = append(others, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(ifi.Index), SkipTrue: 1}, bpf.RetConstant{})
			continue
		}
		// With bridge-nf-call-ip6tables, as Docker sets it, the guard drops a stranger's answer before it leaves the port that it comes
		// in by, and the bridge never has it. So it is heard where it comes in, which is before a bridge only for who listens to all protocols.
		if link, err := netlink.LinkByName(name); err == nil && link.Type() == "bridge" {
			if s.ports, err = neighbours(0, unix.ETH_P_ALL, others...); err != nil {
				return fmt.Errorf("listen for neighbours on the ports of %s: %w", name, err)
			}
		}
	}
	if p.echo4, err = net.ListenPacket("ip4:icmp", "0.0.0.0"); err != nil {
		return fmt.Errorf("listen for echo replies: %w", err)
	}
	if p.echo6, err = net.ListenPacket("ip6:ipv6-icmp", "::"); err != nil {
		p.echo6 = nil // a kernel without IPv6
	}
	return nil
}

func (p *probe) close() {
	for _, s := range p.segs {
		for _, c := range []*packet.Conn{s.arp, s.ndp, s.ports} {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	for _, c := range []net.PacketConn{p.echo4, p.echo6} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// listen reads answers until a time.
func (p *probe) listen(until time.Time) {
	hear := func(c net.PacketConn, read func(frame []byte, from net.Addr) (network.Answer, bool)) {
		_ = c.SetReadDeadline(until)
		p.readers.Go(func() {
			buf := make([]byte, 2000)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return // its time is over, or the device is down: nobody answers there
				}
				if a, ok := read(buf[:n], from); ok {
					p.heard(a)
				}
			}
		})
	}
	for _, s := range p.segs {
		hear(s.arp, func(f []byte, _ net.Addr) (network.Answer, bool) { return s.answerARP(f) })
		hear(s.ndp, func(f []byte, _ net.Addr) (network.Answer, bool) { return s.answerNDP(f) })
		if s.ports != nil {
			hear(s.ports, func(f []byte, _ net.Addr) (network.Answer, bool) { return s.answerNDP(f) })
		}
	}
	for c, reply := range map[net.PacketConn]byte{p.echo4: echoReply, p.echo6: echoReply6} {
		if c == nil {
			continue
		}
		hear(c, func(f []byte, from net.Addr) (network.Answer, bool) {
			ip, isIP := from.(*net.IPAddr)
			if !isIP || len(f) < 16 || f[0] != reply || !bytes.Equal(f[4:6], p.token[:2]) || !bytes.Equal(f[8:], p.token[2:]) {
				return network.Answer{}, false
			}
			a, ok := netip.AddrFromSlice(ip.IP)
			return network.Answer{Addr: a.Unmap(), On: "by echo reply"}, ok
		})
	}
}

// heard notes an answer. One with a MAC address says more than an echo.
func (p *probe) heard(a network.Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, known := p.found[a.Addr]; p.want[a.Addr] && (!known || before.By == "") {
		p.found[a.Addr] = a
	}
}

// ask sends every question. What cannot be sent is not answered.
func (p *probe) ask() {
	for a := range p.want {
		for _, s := range p.segs {
			if a.Is4() {
				s.send(s.arp, s.askARP(a))
				continue
			}
			s.send(s.ndp, s.askNDP(a, netip.IPv6Unspecified()))
			if s.own.IsValid() { // whose answer comes to us alone: a bridge may keep one to everybody from us
				s.send(s.ndp, s.askNDP(a, s.own))
			}
		}
		to := &net.IPAddr{IP: a.AsSlice()}
		if a.Is4() {
			_, _ = p.echo4.WriteTo(p.echo(echoRequest), to)
		} else if p.echo6 != nil {
			_, _ = p.echo6.WriteTo(p.echo(echoRequest6), to) // the kernel writes the checksum
		}
	}
}

// echo is an echo request; its checksum is right for IPv4.
func (p *probe) echo(kind byte) []byte {
	m := append([]byte{kind, 0, 0, 0, p.token[0], p.token[1], 0, 1}, p.token[2:]...)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return m
}

// askARP is the question for an IPv4 address by somebody who has none.
func (s *segment) askARP(a netip.Addr) []byte {
	f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, s.mac...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1) // Ethernet, IPv4, request
	f = append(append(f, s.mac...), 0, 0, 0, 0)
	return append(append(f, make([]byte, 6)...), a.AsSlice()...)
}

// answerARP reads a reply. Whoever names another sender than the frame's own may put the blame on a third, or be a router with a virtual
// MAC address (VRRP): somebody answers, and nobody knows who.
func (s *segment) answerARP(f []byte) (network.Answer, bool) {
	if len(f) < 42 || binary.BigEndian.Uint16(f[20:]) != 2 {
		return network.Answer{}, false
	}
	a, _ := netip.AddrFromSlice(f[28:32])
	answer := network.Answer{Addr: a, On: "on " + s.name}
	if bytes.Equal(f[6:12], f[22:28]) {
		answer.By = net.HardwareAddr(f[22:28]).String()
	}
	return answer, true
}

// askNDP is the question to those whose IPv6 address ends alike: from no address, that of duplicate address detection.
func (s *segment) askNDP(a, from netip.Addr) []byte {
	target, source := a.As16(), from.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], target[13:])
	m := append([]byte{neighborSolicit, 0, 0, 0, 0, 0, 0, 0}, target[:]...)
	if !from.IsUnspecified() {
		m = append(append(m, 1, 1), s.mac...) // where to answer
	}
	pseudo := append(append(source[:], group[:]...), 0, 0, 0, byte(len(m)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(m[2:], checksum(append(pseudo, m...)))
	f := append([]byte{0x33, 0x33, group[12], group[13], group[14], group[15]}, s.mac...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(m)), unix.IPPROTO_ICMPV6, 255)
	source = from.As16()
	return append(append(append(f, source[:]...), group[:]...), m...)
}

func (s *segment) answerNDP(f []byte) (network.Answer, bool) {
	const at = etherLen + ipv6Len
	if len(f) < at+24 || f[etherLen+6] != unix.IPPROTO_ICMPV6 || f[etherLen+7] != 255 || f[at] != neighborAdvert {
		return network.Answer{}, false
	}
	a, _ := netip.AddrFromSlice(f[at+8 : at+24])
	return network.Answer{Addr: a, By: net.HardwareAddr(f[6:12]).String(), On: "on " + s.name}, true
}

// checksum is that of the Internet (RFC 1071) over an even number of bytes.
func checksum(b []byte) uint16 {
	var acc uint32
	for i := 0; i+1 < len(b); i += 2 {
		acc += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return ^uint16(acc)
}
