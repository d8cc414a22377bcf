// Package network holds lines, address pools, bandwidth and the desired state of an edge, with the pure rules about them.
package network

import (
	"fmt"
	"iter"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// AddressPool is a stock of public addresses of one family on one line. Each is handed out as a fixed prefix:
// a /32 of IPv4, a /64 or /56 of IPv6.
type AddressPool struct {
	Name     string         `json:"name"`
	Site     string         `json:"site"`
	Line     string         `json:"line"`
	Ranges   []netip.Prefix `json:"ranges"`    // disjoint; that pools are disjoint too is enforced by the database
	Bits     int            `json:"bits"`      // prefix length handed out
	CoolDown time.Duration  `json:"cool_down"` // how long a released address rests before its next customer
	Reserved []netip.Prefix `json:"-"`         // within the ranges: not handed out
	Gateways []netip.Prefix `json:"-"`         // within the ranges: a router's
}

// Validate returns an Invalid error that names the field. Ranges must be public unicast of one family, written without
// host bits, and disjoint.
func (p AddressPool) Validate() error {
	for _, f := range []struct{ field, value string }{{"name", p.Name}, {"site", p.Site}, {"line", p.Line}} {
		if err := checkName(f.field, f.value); err != nil {
			return err
		}
	}
	if p.CoolDown < 0 {
		return invalid("cool_down", "cool-down is negative", "give a duration such as 24h, or 0")
	}
	if len(p.Ranges) == 0 {
		return invalid("ranges", "an address pool needs a range", "give at least one prefix, e.g. 203.0.113.0/24")
	}
	for i, r := range p.Ranges {
		if r.Addr().Is4() != p.Ranges[0].Addr().Is4() {
			return invalid("ranges", fmt.Sprintf("%s and %s are of different families", p.Ranges[0], r), "make one pool per family")
		}
		if err := ValidateRange(r, p.Bits); err != nil {
			return err
		}
		for _, q := range p.Ranges[:i] {
			if r.Overlaps(q) {
				return invalid("ranges", fmt.Sprintf("%s overlaps %s", r, q), "leave the smaller one out")
			}
		}
	}
	for field, kept := range map[string][]netip.Prefix{"reserved": p.Reserved, "gateways": p.Gateways} {
		for _, k := range kept {
			if !slices.ContainsFunc(p.Ranges, func(r netip.Prefix) bool { return k.IsValid() && r.Contains(k.Addr()) && k.Bits() >= r.Bits() }) {
				return invalid(field, fmt.Sprintf("%s is in no range of the pool", k), "give addresses of the ranges, e.g. 203.0.113.1/32")
			}
		}
	}
	return nil
}

// largestRange bounds how many prefixes one range may hold, as each becomes a row of the database.
const largestRange = 16 // bits

// ValidateRange checks one range of a pool that hands out prefixes of the given length.
func ValidateRange(r netip.Prefix, bits int) error {
	const field = "ranges"
	if !r.IsValid() {
		return invalid(field, "a range is no prefix", "write it as 203.0.113.0/24 or 2001:db8::/48")
	}
	if err := checkPublic(field, r); err != nil {
		return err
	}
	if r.Addr().Is4() && bits != 32 {
		return invalid("bits", fmt.Sprintf("IPv4 is handed out as /32, not /%d", bits), "set bits to 32")
	}
	if r.Addr().Is6() && bits != 64 && bits != 56 {
		return invalid("bits", fmt.Sprintf("IPv6 is handed out as /64 or /56, not /%d", bits), "set bits to 64 or 56")
	}
	if bits < r.Bits() {
		return invalid("bits", fmt.Sprintf("%s holds no /%d", r, bits), "give a wider range")
	}
	if bits-r.Bits() > largestRange {
		return invalid(field, fmt.Sprintf("%s holds more than %d prefixes of length %d", r, 1<<largestRange, bits), "give a narrower range; more can be added later")
	}
	return nil
}

// Assignments yields, in order, the prefixes of the given length that a valid range holds. IPv4 addresses are routed one by
// one, so the first and the last of a range are as good as any other.
func Assignments(r netip.Prefix, bits int) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		if ValidateRange(r, bits) != nil {
			return
		}
		for n := range 1 << (bits - r.Bits()) {
			if !yield(netip.PrefixFrom(offset(r.Addr(), uint64(n), bits), bits)) {
				return
			}
		}
	}
}

// offset returns the address n prefixes of the given length, a multiple of eight, after base.
func offset(base netip.Addr, n uint64, bits int) netip.Addr {
	b := base.AsSlice()
	for i := bits/8 - 1; i >= 0 && n > 0; i-- {
		n += uint64(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Limits of a bandwidth, in kbit/s. Below the least, one full frame takes longer than the queue holds.
const (
	MinKbit = 1_000       // 1 Mbit/s
	MaxKbit = 100_000_000 // 100 Gbit/s
)

// ValidateKbit checks a bandwidth in kbit/s; field is named in the error.
func ValidateKbit(field string, kbit int) error {
	if kbit < MinKbit || kbit > MaxKbit {
		return invalid(field, fmt.Sprintf("bandwidth of %d kbit/s is out of range", kbit),
			fmt.Sprintf("give %d to %d Mbit/s", MinKbit/1000, MaxKbit/1000))
	}
	return nil
}

// checkPublic checks that a prefix is canonical and can be somebody's public address. Private ranges pass: behind a
// carrier's NAT and in the lab they serve as public ones.
func checkPublic(field string, p netip.Prefix) error {
	a := p.Addr()
	switch {
	case a.Is4In6() || a.Zone() != "":
		return invalid(field, fmt.Sprintf("%s is not a plain prefix", p), "write IPv4 as IPv4, and no zone")
	case p != p.Masked():
		return invalid(field, fmt.Sprintf("%s has host bits", p), fmt.Sprintf("write %s", p.Masked()))
	}
	for _, s := range neverPublic() {
		if s.Overlaps(p) {
			return invalid(field, fmt.Sprintf("%s is in %s, which is never public", p, s), "give a unicast prefix that the carrier routes to you")
		}
	}
	return nil
}

// neverPublic returns the prefixes that no customer can have: this network, loopback, link-local, multicast, reserved
// (RFC 6890).
func neverPublic() [7]netip.Prefix {
	v4 := func(a, b byte, bits int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b}), bits) }
	v6 := func(a, b byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{a, b}), bits)
	}
	return [...]netip.Prefix{v4(0, 0, 8), v4(127, 0, 8), v4(169, 254, 16), v4(224, 0, 3), v6(0, 0, 8), v6(0xfe, 0x80, 10), v6(0xff, 0, 8)}
}

var nameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func checkName(field, value string) error {
	if !nameRE.MatchString(value) {
		return invalid(field, fmt.Sprintf("%s %q is not a name", field, value), "use up to 63 lower-case letters, digits and dashes")
	}
	return nil
}

func invalid(field, message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Message: message, Field: field, Hint: hint}
}

func sortPrefixes(ps []netip.Prefix) []netip.Prefix {
	out := slices.Clone(ps)
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
