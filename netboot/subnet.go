package netboot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// Subnet is one network whose machines boot from us.
type Subnet struct {
	Prefix    netip.Prefix // not valid: whatever the reservations of its machines say
	Interface string       // heard on it directly; empty: through relays only
	Addr      netip.Addr   // ours on the interface
	Range     Range        // for machines that the Booter does not know; the zero Range: they get no address
	Router    netip.Addr   // none when not valid
	DNS       []netip.Addr // of both kinds

	// With one of these, machines boot over IPv6 too. Theirs hold their IPv4 address in the last 32 bits.
	Addr6   netip.Prefix // ours on the interface, with the length of its network, at most /96
	Prefix6 netip.Prefix // of a network that is heard through relays only
}

// net6 returns the IPv6 network; not valid when there is none.
func (s Subnet) net6() netip.Prefix {
	if s.Addr6.IsValid() {
		return s.Addr6.Masked()
	}
	return s.Prefix6
}

// Range is the addresses from First to Last. Its zero value is empty.
type Range struct{ First, Last netip.Addr }

// ParseRange reads "10.99.0.200-10.99.0.250", or "" for none.
func ParseRange(s string) (Range, error) {
	if s == "" {
		return Range{}, nil
	}
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		return Range{}, fmt.Errorf("%q is not a range: write first-last", s)
	}
	first, err := netip.ParseAddr(strings.TrimSpace(a))
	if err != nil {
		return Range{}, err
	}
	last, err := netip.ParseAddr(strings.TrimSpace(b))
	if err != nil {
		return Range{}, err
	}
	r := Range{first, last}
	if !first.Is4() || !last.Is4() || last.Less(first) {
		return Range{}, fmt.Errorf("%q is not a range of IPv4 addresses, lowest first", s)
	}
	return r, nil
}

// UnmarshalText reads a range as ParseRange does.
func (r *Range) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRange(string(text))
	return err
}

// Contains reports whether a lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.IsValid() && a.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// size returns how many addresses the range has.
func (r Range) size() int {
	if !r.First.IsValid() {
		return 0
	}
	return int(number(r.Last)-number(r.First)) + 1
}

// at returns the i-th address.
func (r Range) at(i int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, number(r.First)+uint32(i))))
}

func (r Range) String() string {
	if !r.First.IsValid() {
		return "none"
	}
	return r.First.String() + "-" + r.Last.String()
}

func number(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }

// usable reports whether a host of the network may have the address.
func usable(p netip.Prefix, a netip.Addr) bool {
	if !p.Contains(a) || p.Bits() >= 31 {
		return p.Contains(a)
	}
	host := number(a) << p.Bits()
	return host != 0 && host != ^uint32(0)<<p.Bits()
}

// Check reports what cannot be right in a subnet. The error begins with the name of the field.
func (s Subnet) Check() error {
	switch {
	case s.Interface != "" && !s.Addr.Is4():
		return fmt.Errorf("address: %v is not our IPv4 address on %s", s.Addr, s.Interface)
	case s.Interface == "" && s.Addr.IsValid():
		return errors.New("address: a network that is heard through relays only has none of ours")
	case s.Interface == "" && !s.Prefix.IsValid():
		return errors.New("prefix: is missing")
	case s.Prefix.IsValid() && (!s.Prefix.Addr().Is4() || s.Prefix != s.Prefix.Masked()):
		return fmt.Errorf("prefix: %s is not an IPv4 network without host bits", s.Prefix)
	case s.Prefix.IsValid() && s.Addr.IsValid() && !usable(s.Prefix, s.Addr):
		return fmt.Errorf("address: %s is not a host's address in %s", s.Addr, s.Prefix)
	case s.Router.IsValid() && (!s.Router.Is4() || !usable(s.Prefix, s.Router)):
		return fmt.Errorf("router: %s is not a host's address in %s", s.Router, s.Prefix)
	case s.Addr6.IsValid() && (!s.Addr6.Addr().Is6() || s.Addr6.Addr().Is4In6() || s.Addr6.Bits() > 96):
		return fmt.Errorf("address6: %s is not an IPv6 address with the length of its network, 96 at most", s.Addr6)
	case s.Addr6.IsValid() && s.Addr6.Addr().IsLinkLocalUnicast():
		return fmt.Errorf("address6: %s is link-local: firmware needs one that it can put into a URL", s.Addr6)
	case s.Addr6.IsValid() && s.Interface == "":
		return errors.New("address6: a network that is heard through relays only has none of ours")
	case s.Prefix6.IsValid() && s.Interface != "":
		return errors.New("prefix6: is for networks that are heard through relays only")
	case s.Prefix6.IsValid() && (!s.Prefix6.Addr().Is6() || s.Prefix6.Addr().Is4In6() || s.Prefix6.Bits() > 96 || s.Prefix6 != s.Prefix6.Masked()):
		return fmt.Errorf("prefix6: %s is not an IPv6 network without host bits, /96 at most", s.Prefix6)
	case s.Addr6.IsValid() && s.Addr6.Addr() == s.Addr6.Masked().Addr():
		return fmt.Errorf("address6: %s is the address of the network", s.Addr6)
	}
	if s.Range.size() == 0 {
		return nil
	}
	switch r := s.Range; {
	case !usable(s.Prefix, r.First) || !usable(s.Prefix, r.Last):
		return fmt.Errorf("range: %s does not lie within %s", r, s.Prefix)
	case r.Contains(s.Addr):
		return fmt.Errorf("range: %s holds our own address %s", r, s.Addr)
	case r.Contains(s.Router):
		return fmt.Errorf("range: %s holds the router %s", r, s.Router)
	case r.size() > maxRange:
		return fmt.Errorf("range: %s has %d addresses, %d at most", r, r.size(), maxRange)
	}
	return nil
}

// maxRange bounds the memory that a range can need.
const maxRange = 1 << 16

// CheckSubnets checks each subnet and that they do not overlap. index is of the one that is wrong.
func CheckSubnets(all []Subnet) (index int, err error) {
	for i, s := range all {
		if err := s.Check(); err != nil {
			return i, err
		}
		for _, other := range all[:i] {
			switch {
			case s.Prefix.IsValid() && other.Prefix.IsValid() && s.Prefix.Overlaps(other.Prefix):
				return i, fmt.Errorf("prefix: %s overlaps %s", s.Prefix, other.Prefix)
			case s.Interface != "" && s.Interface == other.Interface && s.Addr == other.Addr:
				return i, fmt.Errorf("address: %s on %s is that of another network already", s.Addr, s.Interface)
			case s.Addr.IsValid() && s.Addr == other.Addr:
				return i, fmt.Errorf("address: %s is on %s already", s.Addr, other.Interface)
			case s.net6().IsValid() && other.net6().IsValid() && s.net6().Overlaps(other.net6()):
				field := "address6"
				if s.Prefix6.IsValid() {
					field = "prefix6"
				}
				return i, fmt.Errorf("%s: %s overlaps %s", field, s.net6(), other.net6())
			case s.Addr6.IsValid() && other.Addr6.IsValid() && s.Interface == other.Interface:
				return i, fmt.Errorf("address6: %s has one already", s.Interface)
			}
		}
	}
	return 0, nil
}

// networks are the subnets of a Server, ready for questions.
type networks []Subnet

// at returns the subnets that a request may come from: through a relay the one that holds the address that the relay
// tells of, otherwise those on the interface.
func (n networks) at(ifname string, req *dhcp.Request) []Subnet {
	link := req.Link()
	var out []Subnet
	for _, s := range n {
		if link.IsValid() && s.Prefix.Contains(link) || !link.IsValid() && s.Interface == ifname {
			out = append(out, s)
		}
	}
	return out
}

// of returns the subnet that holds an address.
func (n networks) of(a netip.Addr) (Subnet, bool) {
	i := slices.IndexFunc(n, func(s Subnet) bool { return s.Prefix.Contains(a) })
	if i < 0 {
		return Subnet{}, false
	}
	return n[i], true
}

// reaches reports whether a machine with the reserved address a can have it where the request comes from, and says
// why not. Several subnets may share one wire.
func (n networks) reaches(ifname string, req *dhcp.Request, a netip.Addr) error {
	if req.Link().IsValid() {
		return nil // the codec compares the link with the reservation
	}
	s, known := n.of(a)
	for _, local := range n {
		if local.Interface == ifname && (!local.Prefix.IsValid() || known && local.Prefix == s.Prefix) {
			return nil
		}
	}
	return fmt.Errorf("seen on %s, its reserved address %s is of another network: %w", ifname, a, errElsewhere)
}

// errElsewhere says that a machine is plugged in where its reservation is not good.
var errElsewhere = errors.New("no answer there")

// four returns the IPv4 address that an address of ours carries: IPv6 addresses that we lease hold the machine's
// IPv4 address in their last 32 bits. Others come back as they are.
func (n networks) four(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if !a.Is6() {
		return a
	}
	for _, s := range n {
		if s.net6().Contains(a) {
			b := a.As16()
			if four := netip.AddrFrom4([4]byte(b[12:])); six(s, four) == a {
				return four
			}
		}
	}
	return a
}

// six returns the IPv6 address of the machine that has an IPv4 address.
func six(s Subnet, four netip.Addr) netip.Addr {
	b, f := s.net6().Addr().As16(), four.As4()
	copy(b[12:], f[:])
	return netip.AddrFrom16(b)
}
