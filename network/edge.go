package network

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// Gateway4 and Gateway6 are the edge's address on every machine's public port, the same everywhere: on-link, routed by nobody.
func Gateway4() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 1}) }

// Gateway6 is the IPv6 counterpart of Gateway4.
func Gateway6() netip.Addr { return netip.MustParseAddr("fe80::1") }

// Mode says what passes at a port.
type Mode string

// Modes of a port.
const (
	On        Mode = "on"        // traffic passes at the bandwidth that was sold
	Limited   Mode = "limited"   // suspended: traffic passes at Limit each way, whatever was sold
	Blackhole Mode = "blackhole" // under attack: everything to and from the addresses is dropped, and the edge says so upstream where it can
	Off       Mode = "off"       // nothing passes; the addresses stay the machine's
)

// Modes lists every mode.
func Modes() []Mode { return []Mode{On, Limited, Blackhole, Off} }

// Direction says which way traffic flows, as the customer sees it.
type Direction string

// Directions of traffic.
const (
	Up   Direction = "up"   // from the machine to the world
	Down Direction = "down" // from the world to the machine
)

// Directions lists both directions.
func Directions() []Direction { return []Direction{Up, Down} }

// Bandwidth is what one direction of a port may use, in kbit/s (1,000 bit/s), counted with the Ethernet header.
type Bandwidth struct {
	Kbit  int `json:"kbit"`                 // committed: there at any time
	Burst int `json:"burst_kbit,omitempty"` // used up to this while the edge has room; 0 for a fixed bandwidth
}

// Fixed is a bandwidth that is committed whole: it never bursts.
func Fixed(kbit int) Bandwidth { return Bandwidth{Kbit: kbit} }

// Ceil is the most that ever passes, in kbit/s.
func (b Bandwidth) Ceil() int { return max(b.Kbit, b.Burst) }

// Validate returns an Invalid error; field is named in it.
func (b Bandwidth) Validate(field string) error {
	if err := ValidateKbit(field, b.Kbit); err != nil {
		return err
	}
	if b.Burst == 0 {
		return nil
	}
	if err := ValidateKbit(field, b.Burst); err != nil {
		return err
	}
	if b.Burst <= b.Kbit {
		return invalid(field, fmt.Sprintf("a burst of %d kbit/s is no more than the %d that are committed", b.Burst, b.Kbit), "give more, or 0 for a fixed bandwidth")
	}
	return nil
}

// LimitKbit is what passes each way in mode Limited unless the port says otherwise: enough to log in, to pay and to copy
// a file, too little to work with.
const LimitKbit = 1_000

// Port is the state of one machine's public port at an edge, desired and observed alike.
type Port struct {
	Machine string         `json:"machine"`        // its ID
	Site    string         `json:"site,omitempty"` // where the machine is: whose edge is to carry it. Nobody observes it
	MAC     string         `json:"mac"`            // of the public NIC, lower case, colons
	Addrs   []netip.Prefix `json:"addrs"`          // routed to the machine, and the only sources it may use: IPv4 /32, IPv6 /48 to /128
	Up      Bandwidth      `json:"up"`             // sold from the machine to the world
	Down    Bandwidth      `json:"down"`
	Mode    Mode           `json:"mode"`                 // "" only when observed: no mode holds completely
	Limit   int            `json:"limit_kbit,omitempty"` // each way in mode Limited; 0 means LimitKbit
	Until   time.Time      `json:"until,omitzero"`       // when mode Blackhole ends by itself; zero: when somebody ends it. Nobody observes it
	Then    Mode           `json:"then,omitempty"`       // the mode after Until; "" means On. Nobody observes it
}

// At returns the port as it is to be at a time: a blackhole that has run out is one no more.
func (p Port) At(now time.Time) Port {
	if p.Mode == Blackhole && !p.Until.IsZero() && !now.Before(p.Until) {
		p.Mode, p.Until, p.Then = cmp.Or(p.Then, On), time.Time{}, ""
	}
	return p
}

// Sold returns what was sold in a direction.
func (p Port) Sold(d Direction) Bandwidth {
	if d == Up {
		return p.Up
	}
	return p.Down
}

// Passes returns what may pass in a direction in the port's mode. A port through which nothing passes keeps what was sold.
func (p Port) Passes(d Direction) Bandwidth {
	sold := p.Sold(d)
	if p.Mode == Limited {
		return Fixed(min(cmp.Or(p.Limit, LimitKbit), sold.Ceil()))
	}
	return sold
}

// Caps says what a driver can do. What it cannot it refuses in Apply, with an Invalid error, before it changes anything.
type Caps struct {
	Driver    string   `json:"driver"` // its name in the configuration: linux, remote, manual …
	Modes     []Mode   `json:"modes"`  // those that it can bring about
	Burst     bool     `json:"burst"`  // more than the committed bandwidth, while there is room
	IPv6      bool     `json:"ipv6"`
	Ports     int      `json:"ports,omitempty"`     // so many at most; 0 when it knows no bound
	Counts    string   `json:"counts"`              // what its counters count: "delivered", after guards and shaping, or "offered"; "" when it counts nothing
	Probes    bool     `json:"probes,omitempty"`    // it can look whether somebody uses an address before it is given out
	Announces bool     `json:"announces,omitempty"` // routers are told of addresses and blackholes
	Trouble   []string `json:"trouble,omitempty"`   // what is wrong now that it cannot put right itself, in words
	Person    bool     `json:"person"`              // somebody does the work: Apply answers with ErrPending until that is confirmed
}

// Edge is where addresses, bandwidth and guards are enforced.
type Edge interface {
	// Read returns the ports as they are, sorted by machine. What was tampered with reads as different from what was applied.
	Read(ctx context.Context) ([]Port, error)
	// Apply sets and removes ports. Without any it repairs whatever is not as it was applied, and what all ports share. It is idempotent,
	// and after a crash at any moment the next such call converges. It refuses with Invalid or Conflict before it changes anything.
	Apply(ctx context.Context, set []Port, remove []string) error
	// Counters returns the counters of every port, sorted by machine and direction.
	Counters(ctx context.Context) ([]Counter, error)
	// Caps says what the driver can do.
	Caps(ctx context.Context) (Caps, error)
}

// Validate returns an Invalid error that names the field.
func (p Port) Validate() error {
	if p.Machine == "" {
		return invalid("machine", "a port needs its machine", "give the machine's ID")
	}
	if err := checkMAC("mac", p.MAC); err != nil {
		return err
	}
	if err := p.Up.Validate("up"); err != nil {
		return err
	}
	if err := p.Down.Validate("down"); err != nil {
		return err
	}
	if err := p.validateMode(); err != nil {
		return err
	}
	if len(p.Addrs) == 0 {
		return invalid("addrs", "a port needs an address", "give at least one prefix, or remove the port")
	}
	for i, a := range p.Addrs {
		if err := checkAssigned(a); err != nil {
			return err
		}
		for _, b := range p.Addrs[:i] {
			if a.Overlaps(b) {
				return invalid("addrs", fmt.Sprintf("%s overlaps %s", a, b), "leave one out")
			}
		}
	}
	return nil
}

func (p Port) validateMode() error {
	if !slices.Contains(Modes(), p.Mode) {
		return invalid("mode", fmt.Sprintf("%q is no mode", p.Mode), fmt.Sprintf("use one of %v", Modes()))
	}
	if p.Limit != 0 {
		if err := ValidateKbit("limit", p.Limit); err != nil {
			return err
		}
	}
	if p.Mode != Blackhole && !p.Until.IsZero() {
		return invalid("until", fmt.Sprintf("mode %s does not end by itself", p.Mode), "leave until out, or choose blackhole")
	}
	if p.Then != "" && (p.Then == Blackhole || !slices.Contains(Modes(), p.Then) || p.Until.IsZero()) {
		return invalid("then", fmt.Sprintf("no blackhole turns into %q by itself", p.Then), "use on, limited or off, together with until")
	}
	return nil
}

func checkAssigned(p netip.Prefix) error {
	if !p.IsValid() {
		return invalid("addrs", "an address is no prefix", "write it as 203.0.113.7/32")
	}
	if err := checkPublic("addrs", p); err != nil {
		return err
	}
	if p.Addr().Is4() && p.Bits() != 32 {
		return invalid("addrs", fmt.Sprintf("%s is not a single address", p), "give IPv4 as /32, one by one")
	}
	if p.Addr().Is6() && p.Bits() < 48 {
		return invalid("addrs", fmt.Sprintf("%s is too wide for one machine", p), "give /48 or longer")
	}
	return nil
}

// checkMAC wants the one form in which MAC addresses are kept: six octets, lower case, colons, a unicast address.
func checkMAC(field, mac string) error {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 || hw.String() != mac || hw[0]&1 == 1 || mac == "00:00:00:00:00:00" {
		return invalid(field, fmt.Sprintf("%q is not the MAC address of a port", mac), "write it as 52:54:00:12:34:56, lower case")
	}
	return nil
}

// ValidatePorts checks every port and that no two share a machine, a MAC address or a part of an address: those are
// Conflict errors.
func ValidatePorts(ports []Port) error {
	machines := make(map[string]bool, len(ports))
	macs := make(map[string]string, len(ports))
	type owned struct {
		prefix netip.Prefix
		by     string
	}
	var all []owned
	for _, p := range ports {
		if err := p.Validate(); err != nil {
			return err
		}
		if machines[p.Machine] {
			return conflict("machine", fmt.Sprintf("machine %s is there twice", p.Machine), "give each machine one port")
		}
		machines[p.Machine] = true
		if by, ok := macs[p.MAC]; ok {
			return conflict("mac", fmt.Sprintf("MAC address %s is that of %s and %s", p.MAC, by, p.Machine), "correct one machine's record")
		}
		macs[p.MAC] = p.Machine
		for _, a := range p.Addrs {
			all = append(all, owned{a, p.Machine})
		}
	}
	slices.SortFunc(all, func(a, b owned) int { return a.prefix.Compare(b.prefix) })
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.prefix.Overlaps(b.prefix) {
			return conflict("addrs", fmt.Sprintf("%s of %s overlaps %s of %s", b.prefix, b.by, a.prefix, a.by), "take the address from one of them first")
		}
	}
	return nil
}

func conflict(field, message, hint string) error {
	return &machine.Error{Code: machine.Conflict, Message: message, Field: field, Hint: hint}
}

// Equal reports whether two ports are the same to an edge; the order of addresses does not count, nor does what nobody
// observes.
func (p Port) Equal(q Port) bool {
	return p.Machine == q.Machine && p.MAC == q.MAC && p.Up == q.Up && p.Down == q.Down && p.Mode == q.Mode &&
		cmp.Or(p.Limit, LimitKbit) == cmp.Or(q.Limit, LimitKbit) && slices.Equal(sortPrefixes(p.Addrs), sortPrefixes(q.Addrs))
}

// Diff returns what must be applied to turn have into want: the ports that are missing or differ, sorted by machine, and the
// machines whose ports are not wanted, sorted.
func Diff(want, have []Port) (set []Port, remove []string) {
	left := make(map[string]Port, len(have))
	for _, p := range have {
		left[p.Machine] = p
	}
	for _, p := range want {
		if h, ok := left[p.Machine]; !ok || !h.Equal(p) {
			set = append(set, p)
		}
		delete(left, p.Machine)
	}
	slices.SortFunc(set, func(a, b Port) int { return cmp.Compare(a.Machine, b.Machine) })
	return set, slices.Sorted(maps.Keys(left))
}

// Reconcile makes the edge carry exactly the wanted ports. Run it at start, after every change and now and then: it repairs
// drift, and without any it changes nothing.
func Reconcile(ctx context.Context, edge Edge, want []Port) error {
	want = slices.Clone(want)
	for i, now := 0, time.Now(); i < len(want); i++ {
		want[i] = want[i].At(now)
	}
	if err := ValidatePorts(want); err != nil {
		return err
	}
	have, err := edge.Read(ctx)
	if err != nil {
		return fmt.Errorf("read edge: %w", err)
	}
	set, remove := Diff(want, have)
	if len(set)+len(remove) > 0 {
		if err := edge.Apply(ctx, set, remove); err != nil {
			return fmt.Errorf("apply to edge: %w", err)
		}
	}
	if err := edge.Apply(ctx, nil, nil); err != nil {
		return fmt.Errorf("repair edge: %w", err)
	}
	return nil
}
