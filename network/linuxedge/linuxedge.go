// Package linuxedge enforces public addresses, bandwidth and tenant isolation on a Linux box between machines and the Internet.
//
// For each port there is one HTB class with the same number on the uplink (what the machine sends) and on the downlink
// (what it receives). One nftables map per direction turns addresses into the class, in skb->priority, where HTB
// finds it without a filter, the first thousand, or behind one: the cost of a packet does not grow with the number of machines. The map of what machines
// send has the MAC address in its key, so it is the anti-spoof guard too: who is not in it, or not with this address, is
// dropped in prerouting, before routing could answer.
//
// The kernel is the only memory. A port exists when its record does: an element of the nftables set "ports", whose comment
// holds what no other kernel object can. Ports grow class, queue, neighbour, route and then, in one nftables transaction,
// record and map; they shrink the other way round. What a crash leaves behind has no record and is swept by the next Apply.
//
// The whole namespace is taken over as a router that forwards nothing but this.
package linuxedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unicode"

	"github.com/vishvananda/netlink"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/namespace"
)

// Config says where an edge is.
type Config struct {
	Netns    string         // name of the network namespace, as in `ip netns`; "" is the current one
	Uplink   string         // device towards the Internet
	Downlink string         // device towards the machines' public ports, on which nobody but the edge routes
	Deny     []netip.Prefix // what no machine may reach: management, provisioning and BMC networks
	Capacity int            // kbit/s that either device carries: what bursts share; 0 means more than all that is sold
	Shard    int            // machines per HTB; 0 means 1,000, which no reason is known to change
}

func (c Config) numbering() numbering { return numbering(cmp.Or(c.Shard, perShard)) }

// trunk is what a device carries.
func (c Config) trunk() network.Bandwidth { return network.Fixed(cmp.Or(c.Capacity, network.MaxKbit)) }

// Protocol marks the routes of this package (rtm_protocol), for routing daemons to pick up: routes to a device are to be
// announced, blackhole routes to be announced as such (RTBH).
const Protocol = 98

// Edge is a network.Edge. It holds no state and no descriptor between calls: any number of processes may have one for the
// same namespace; a lock on the namespace makes them take turns.
type Edge struct{ cfg Config }

// New returns the edge of a configuration; it touches nothing yet.
func New(cfg Config) (*Edge, error) {
	for field, name := range map[string]string{"uplink": cfg.Uplink, "downlink": cfg.Downlink} {
		if name == "" || len(name) > 15 {
			return nil, invalid(field, fmt.Sprintf("%q is not the name of a network device", name), "see `ip link`")
		}
	}
	if cfg.Uplink == cfg.Downlink {
		return nil, invalid("downlink", "uplink and downlink are the same device", "give the edge one device per side")
	}
	for _, p := range cfg.Deny {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			return nil, invalid("deny", fmt.Sprintf("%s is not a prefix without host bits", p), "write it as 10.99.0.0/24")
		}
	}
	if cfg.Capacity != 0 {
		if err := network.ValidateKbit("capacity", cfg.Capacity); err != nil {
			return nil, err
		}
	}
	if cfg.Shard < 0 || cfg.Shard > lastMinor {
		return nil, invalid("shard", fmt.Sprintf("%d machines per HTB is out of range", cfg.Shard), "leave it out")
	}
	return &Edge{cfg}, nil
}

// Read returns the ports as the kernel has them. A port of which anything is missing or different has Mode "".
func (e *Edge) Read(ctx context.Context) ([]network.Port, error) {
	s, err := open(ctx, e.cfg, namespace.Shared)
	if err != nil {
		return nil, err
	}
	defer s.close()
	st, err := s.read()
	if err != nil {
		return nil, err
	}
	ports := make([]network.Port, 0, len(st.records))
	for _, id := range slices.Sorted(maps.Keys(st.records)) {
		r := st.records[id]
		p := r.Port
		p.Addrs = slices.Clone(p.Addrs)
		if !st.holds(r, e.cfg.trunk()) {
			p.Mode = ""
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// Caps says what this driver can do.
func (e *Edge) Caps(context.Context) (network.Caps, error) {
	return network.Caps{Driver: "linux", Modes: network.Modes(), Burst: true, IPv6: true, Ports: int(e.cfg.numbering().last()) - firstMinor + 1, Counts: "delivered", Probes: true}, nil
}

// Counters returns what the classes have delivered. When the kernel was interrupted while it dumped them, they are in doubt.
func (e *Edge) Counters(ctx context.Context) ([]network.Counter, error) {
	s, err := open(ctx, e.cfg, namespace.Shared)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.count()
}

func (s *session) count() ([]network.Counter, error) {
	st := &state{numbering: s.cfg.numbering()}
	if err := s.readSets(st); err != nil {
		return nil, err
	}
	ids := slices.Sorted(maps.Keys(st.records))
	out := make([]network.Counter, 0, 2*len(ids))
	var at [2]time.Time
	var doubt [2]string
	for i := range s.links {
		t, err := s.readTree(side(i))
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			t, doubt[i], err = &tree{numbering: st.numbering}, "the kernel was interrupted whenever it listed the classes", nil
		}
		if err != nil {
			return nil, err
		}
		st.trees[i], at[i] = t, time.Now()
	}
	for _, id := range ids {
		r := st.records[id]
		for _, i := range []side{downlink, uplink} {
			c := network.Counter{Machine: id, Direction: i.direction(), Epoch: r.epoch, At: at[i], Doubt: doubt[i]}
			switch {
			case c.Doubt != "":
			case !st.trees[i].has(r.minor):
				c.Doubt = "its class is gone, and the count with it" // the next Apply starts a new epoch
			default:
				c.Bytes = st.trees[i].classes[st.classID(r.minor)].bytes
			}
			out = append(out, c)
		}
	}
	return out, nil
}

// Apply sets and removes ports. Without any, or with many, it repairs every other port that has a record as well, and sweeps what has
// none; with a few it leaves the others alone.
func (e *Edge) Apply(ctx context.Context, set []network.Port, remove []string) error {
	for _, p := range set {
		if err := validate(p); err != nil {
			return err
		}
	}
	s, err := open(ctx, e.cfg, namespace.Exclusive)
	if err != nil {
		return err
	}
	defer s.close()
	if n := len(set) + len(remove); n > 0 && n <= few {
		if done, err := s.change(ctx, set, remove); done || err != nil {
			return err
		}
	}
	st, err := s.read()
	if err != nil {
		return err
	}
	want, err := plan(st, set, remove)
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	return s.bring(ctx, st, want)
}

// bring makes the kernel hold the wanted records, and all that they ask for.
func (s *session) bring(ctx context.Context, st *state, want map[string]record) error {
	if keep := st.shrunk(want); !maps.EqualFunc(keep, st.records, record.equal) {
		if err := s.commit(st, keep); err != nil {
			return err
		}
	}
	for _, step := range []func() error{
		func() error { return s.sweep(st) },
		func() error { st.doubt(want); return nil },
		func() error { return s.grow(ctx, st, want) },
		func() error { return s.commit(st, want) },
		func() error { return s.sweep(st) },
		func() error { return s.forward(true) },
	} {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("apply to edge: %w", err)
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// plan returns the records after the change. Ports keep their class for life.
func plan(st *state, set []network.Port, remove []string) (map[string]record, error) {
	want := maps.Clone(st.records)
	for _, id := range remove {
		delete(want, id)
	}
	taken := make(map[uint16]bool, len(want))
	for _, r := range st.records {
		taken[r.minor] = true
	}
	next := uint16(firstMinor)
	for _, p := range set {
		p = p.At(time.Now())
		p.Until, p.Then = time.Time{}, "" // a record has no room for them: whoever reconciles keeps them
		p.Addrs = slices.SortedFunc(slices.Values(p.Addrs), netip.Prefix.Compare)
		r, ok := want[p.Machine]
		if !ok {
			for taken[next] && next < st.last() {
				next++
			}
			if taken[next] {
				return nil, &machine.Error{Code: machine.Exhausted, Message: "the edge has no class left", Hint: "add another edge"}
			}
			taken[next] = true
			r.minor = next
		}
		r.Port = p
		want[p.Machine] = r
	}
	ports := make([]network.Port, 0, len(want))
	for _, id := range slices.Sorted(maps.Keys(want)) {
		r := want[id]
		// A class that is gone took its count along: whoever reads the counters must see that they start again.
		if r.epoch == 0 || !st.classed(r.minor) {
			r.epoch = time.Now().UnixNano()
			want[id] = r
		}
		if len(r.Addrs) > 0 { // tampered with: it has a record but no address in the map, and holds nobody else's
			ports = append(ports, r.Port)
		}
	}
	return want, network.ValidatePorts(ports)
}

// validate adds to the rules of a port those that this driver needs.
func validate(p network.Port) error {
	if err := p.Validate(); err != nil {
		return err
	}
	bad := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	if len(p.Machine) > 128 || slices.ContainsFunc([]rune(p.Machine), bad) {
		return invalid("machine", fmt.Sprintf("the edge cannot keep the machine ID %q", p.Machine), "use up to 128 bytes without white space")
	}
	return nil
}

func invalid(field, message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Message: message, Field: field, Hint: hint}
}
