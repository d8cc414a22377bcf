package linuxedge_test

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/linuxedge"
)

// volatile is what may differ between two equal edges: queue handles, epochs, counts, the age of a neighbour.
var volatile = regexp.MustCompile(`leaf [0-9a-f]{4}:|bfifo [0-9a-f]+:|id \d+ |\d{19}|direct_packets_stat \d+|refcnt \d+`)

var elementsRE = regexp.MustCompile(`(?s)elements = \{.*?\}`)

// snapshot is what the system's own tools say about an edge.
func (w *world) snapshot() string {
	w.t.Helper()
	const mark = "%%%"
	cmds := []string{
		"nft list ruleset", "tc qdisc show dev up0", "tc qdisc show dev down0", "tc filter show dev up0", "tc filter show dev down0", "tc class show dev up0", "tc class show dev down0",
		"ip -4 route show", "ip -6 route show proto 98", "ip neigh show nud permanent", "ip -o addr show dev down0",
		"sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.down0.rp_filter net.ipv4.conf.down0.arp_ignore",
	}
	parts := strings.Split(w.shell(strings.Join(cmds, "; echo "+mark+"; ")), mark+"\n")
	var b strings.Builder
	for i, out := range parts {
		out = elementsRE.ReplaceAllStringFunc(out, func(set string) string { // in no order
			return strings.Join(sorted(strings.FieldsFunc(set, func(r rune) bool { return strings.ContainsRune(",{}\n", r) })), "\n")
		})
		lines := strings.Split(volatile.ReplaceAllString(out, "…"), "\n")
		if i > 0 { // the order of rules means something
			lines = sorted(lines)
		}
		fmt.Fprintf(&b, "$ %s\n%s\n", cmds[i], strings.Join(lines, "\n"))
	}
	return b.String()
}

func sorted(lines []string) []string {
	var out []string
	for _, l := range lines {
		out = append(out, strings.TrimSpace(l))
	}
	slices.Sort(out)
	return out
}

func TestDriftIsRepaired(t *testing.T) {
	w := newWorld(t, 2)
	hole := network.Port{Machine: "m9", MAC: "02:00:00:00:02:09", Mode: network.Blackhole, Up: network.Fixed(5000), Down: network.Fixed(5000), Addrs: []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}}
	want := append(w.ports(), hole)
	w.reconcile(want...)
	w.repairs(want, 9, map[string]drift{ // addresses: two ports with IPv4 and IPv6 in each direction, one blackhole in one
		"TableGone":       {"nft delete table inet bareyard", true},
		"RulesetGone":     {"nft flush ruleset", true},
		"ChainEmpty":      {"nft flush chain inet bareyard forward", false},
		"ChainOpen":       {"nft insert rule inet bareyard forward accept", false},
		"PolicyAccept":    {"nft chain inet bareyard forward { policy accept ; }", false},
		"RecordGone":      {"nft delete element inet bareyard ports { 02:00:00:00:02:01 }", true},
		"RecordDamaged":   {"nft delete element inet bareyard ports { 02:00:00:00:02:01 }\nnft add element inet bareyard ports { 02:00:00:00:02:01 comment \"m1 on\" }", true},
		"RecordTwice":     {"nft add element inet bareyard ports { 02:00:00:00:02:77 comment \"m1 on 10 1000/1000 0 1\" }", false},
		"RecordAbsurd":    {"nft add element inet bareyard ports { 02:00:00:00:02:77 comment \"m7 on 77 1000/0 0 1\" }", false},
		"ReceiverAbsurd":  {"nft add element inet bareyard down4 { 224.0.0.1 : 1000:100 }", false},
		"ReceiverMore":    {"nft add element inet bareyard down4 { 203.0.113.99 : 1000:100 }", true},
		"SenderGone":      {"nft delete element inet bareyard up4 { 02:00:00:00:02:01 . 203.0.113.1 }", true},
		"SenderForeign":   {"nft add element inet bareyard up4 { 02:00:00:00:02:66 . 203.0.113.66 : 1000:100 }", false},
		"Senders6Gone":    {"nft flush map inet bareyard up6", true},
		"ReceiversGone":   {"nft flush map inet bareyard down4", true},
		"Receivers6Gone":  {"nft flush map inet bareyard down6", true},
		"DenyGone":        {"nft flush set inet bareyard deny4", false},
		"RootGone":        {"tc qdisc del dev up0 root", true},
		"RootOther":       {"tc qdisc del dev down0 root\ntc qdisc add dev down0 root handle 1: tbf rate 1mbit burst 10k latency 1s", true},
		"RootOtherHandle": {"tc qdisc replace dev down0 root handle 7: tbf rate 1mbit burst 10k latency 1s", true},
		"RootDefault":     {"tc qdisc del dev up0 root\ntc qdisc add dev up0 root handle 1: htb default 10", true},
		"ClassGone":       {"tc class del dev down0 classid 1:11", true},
		"ClassChanged":    {"tc class change dev up0 classid 1:10 htb rate 7mbit", true},
		"CeilChanged":     {"tc class change dev up0 classid 1:10 htb rate 100mbit ceil 900mbit", true},
		"ClassForeign":    {"tc class add dev up0 parent 1: classid 1:99 htb rate 1mbit", false},
		"QueueGone":       {"tc qdisc del dev up0 parent 1:10", true},
		"QueueChanged":    {"tc qdisc change dev up0 parent 1:10 bfifo limit 1234", true},
		"QueueOther":      {"tc qdisc replace dev up0 parent 1:10 pfifo limit 1000", true},
		"RouteGone":       {"ip route del 203.0.113.1/32", true},
		"Route6Gone":      {"ip -6 route del 2001:db8:1::/64", true},
		"RouteElsewhere":  {"ip route replace 203.0.113.1/32 via 192.0.2.1 dev up0 proto 98", true},
		"RouteNeighbours": {"ip route replace 203.0.113.1/32 via 169.254.0.17 dev down0 onlink proto 98", true},
		"RouteForeign":    {"ip route add 203.0.113.77/32 via 169.254.0.16 dev down0 onlink proto 98", false},
		"BlackholeGone":   {"ip route del blackhole 203.0.113.9/32", true},
		"NeighbourGone":   {"ip neigh del 169.254.0.16 dev down0", true},
		"NeighbourOther":  {"ip neigh replace 169.254.0.16 lladdr 02:00:00:00:02:02 dev down0 nud permanent", true},
		"NeighbourAges":   {"ip neigh replace 169.254.0.16 lladdr 02:00:00:00:02:01 dev down0 nud stale", true},
		"NeighbourMore":   {"ip neigh add 169.254.0.99 lladdr 02:00:00:00:02:02 dev down0 nud permanent", false},
		"GatewayGone":     {"ip addr del 169.254.0.1/32 dev down0", true},
		"Gateway6Gone":    {"ip addr del fe80::1/64 dev down0", false},
		"LinkBounced":     {"ip link set down0 down", true},
		"ForwardOff":      {"sysctl -qw net.ipv4.ip_forward=0", false},
		"Forward6Off":     {"sysctl -qw net.ipv6.conf.all.forwarding=0", false},
		"FilterOff":       {"sysctl -qw net.ipv4.conf.down0.rp_filter=0", false},
	})
}

// drift is what somebody does to an edge behind our back.
type drift struct {
	cmds string
	seen bool // Read tells, as a port is concerned
}

// repairs does each thing to the edge and checks that Read tells of it, if it concerns a port, and that reconciling repairs it.
func (w *world) repairs(want []network.Port, addresses int, cases map[string]drift) {
	fresh := w.snapshot()
	for name, c := range cases {
		w.t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.shell(strings.NewReplacer("{", "'{", "}", "}'").Replace(c.cmds))
			if w.snapshot() == fresh {
				t.Fatal("the tampering changed nothing")
			}
			have, err := w.driver().Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if set, remove := network.Diff(want, have); (len(set)+len(remove) > 0) != c.seen {
				t.Errorf("Read tells of drift: %v, want %v (to set %v, to remove %v)", !c.seen, c.seen, set, remove)
			}
			w.reconcile(want...)
			if got := w.snapshot(); got != fresh {
				t.Errorf("not repaired:\n%s", lineDiff(fresh, got))
			}
			if n := w.nobodyUnshaped(); n != addresses {
				t.Errorf("%d addresses in the maps, want %d", n, addresses)
			}
		})
	}
}

// TestShardDriftIsRepaired has one machine to a shard: the first is below the root's own trunk, the others are behind the
// filter.
func TestShardDriftIsRepaired(t *testing.T) {
	w := newWorld(t, 3)
	w.shard, w.capacity = 1, 1_000_000
	want := w.ports()
	want[2].Up.Burst, want[2].Down.Burst = 200_000, 500_000
	w.reconcile(want...)
	w.nothingLeft(want)
	w.exec(w.tenants[2].ns, "ping -c 1 -W 2 "+inet4)
	w.repairs(want, 12, map[string]drift{
		"RootGone":       {"tc qdisc del dev up0 root", true},
		"FilterGone":     {"tc filter del dev up0 parent 1:", true},
		"FilterMore":     {"tc filter add dev down0 parent 1: prio 7 u32 match u32 0 0 flowid 1:2", true},
		"FilterOther":    {"tc filter del dev down0 parent 1:\ntc filter add dev down0 parent 1: prio 1 u32 match u32 0 0 flowid 1:2", true},
		"ShardGone":      {"tc qdisc del dev up0 parent 1:3", true},
		"ShardOther":     {"tc qdisc del dev down0 parent 1:2\ntc qdisc add dev down0 parent 1:2 handle 2: tbf rate 1mbit burst 10k latency 1s", true},
		"ShardTaken":     {"tc qdisc del dev down0 parent 1:2\ntc qdisc replace dev down0 parent 1:10 handle 2: bfifo limit 9999", true},
		"ShardDefault":   {"tc qdisc del dev up0 parent 1:2\ntc qdisc add dev up0 parent 1:2 handle 2: htb default 11", true},
		"ShardClassGone": {"tc class del dev up0 classid 1:3", true},
		"ShardRate":      {"tc class change dev up0 classid 1:3 htb rate 7mbit", false},
		"ShardElsewhere": {"tc class del dev up0 classid 1:3\ntc class add dev up0 parent 1: classid 1:3 htb rate 7mbit", true},
		"TrunkRate":      {"tc class change dev up0 classid 1:1 htb rate 7mbit", true},
		"ShardTrunkRate": {"tc class change dev down0 classid 3:1 htb rate 7mbit", true},
		"ClassElsewhere": {"tc class del dev up0 classid 1:10\ntc class add dev up0 parent 1: classid 1:10 htb rate 100mbit quantum 20000", true},
		"ClassForeign":   {"tc class add dev up0 parent 2: classid 2:99 htb rate 1mbit", false},
		"BurstGone":      {"tc class change dev down0 classid 3:12 htb rate 100mbit quantum 20000", true},
		"QueueChanged":   {"tc qdisc change dev up0 parent 3:12 bfifo limit 1234", true},
		"QueueIsTree":    {"tc qdisc replace dev up0 parent 2:11 handle 77: htb\ntc class add dev up0 parent 77: classid 77:10 htb rate 1mbit", true},
	})
	w.reconcile(want[:1]...)
	w.nothingLeft(want[:1])
	if left := w.exec(w.edge, "tc filter show dev up0 parent 1:"); left != "" {
		t.Errorf("a filter is left though there is one shard: %s", left)
	}
	want[0].Addrs = want[0].Addrs[:1]
	w.reconcile(append(want[1:], want[0])...)
}

// shell runs a script in the edge's namespace.
func (w *world) shell(script string) string {
	w.t.Helper()
	return w.run("ip", "netns", "exec", w.edge, "sh", "-ec", script)
}

func lineDiff(want, got string) string {
	count := map[string]int{}
	for _, l := range strings.Split(want, "\n") {
		count[l]--
	}
	for _, l := range strings.Split(got, "\n") {
		count[l]++
	}
	var b strings.Builder
	for l, n := range count {
		if n != 0 {
			fmt.Fprintf(&b, "%+d %s\n", n, l)
		}
	}
	return b.String()
}

// TestMoves takes addresses and MAC addresses from one machine to another in one go.
func TestMoves(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.tenants[0].port, w.tenants[1].port
	w.reconcile(a, b)
	swap := func(name string, f func()) {
		t.Run(name, func(t *testing.T) {
			f()
			w := w.in(t)
			w.reconcile(a, b)
			w.nothingLeft([]network.Port{a, b})
			w.nobodyUnshaped()
		})
	}
	swap("Addresses", func() { a.Addrs, b.Addrs = b.Addrs, a.Addrs })
	swap("MACs", func() { a.MAC, b.MAC = b.MAC, a.MAC })
	swap("Both", func() { a.Addrs, b.Addrs, a.MAC, b.MAC = b.Addrs, a.Addrs, b.MAC, a.MAC })
	swap("Wider", func() { a.Addrs = []netip.Prefix{a.Addrs[0], netip.MustParsePrefix("2001:db8:1::/56")} })
	swap("Narrower", func() { a.Addrs = []netip.Prefix{a.Addrs[0], netip.MustParsePrefix("2001:db8:1:7::/64")} })
	swap("More", func() {
		a.Addrs = append(a.Addrs, netip.MustParsePrefix("203.0.113.200/32"), netip.MustParsePrefix("2001:db8:1:8::/64"))
	})
	swap("Adjacent", func() {
		b.Addrs = []netip.Prefix{netip.MustParsePrefix("2001:db8:1:6::/64"), netip.MustParsePrefix("2001:db8:1:9::/64")}
	})
	swap("AdjacentGone", func() { a.Addrs = a.Addrs[:1] })
	swap("Same", func() {})
}

func TestApplyRefuses(t *testing.T) {
	w := newWorld(t, 1)
	a := w.tenants[0].port
	w.reconcile(a)
	e := w.driver()
	b := a
	b.Machine, b.MAC = "b", "02:00:00:00:02:0b"
	c := a
	c.Machine, c.Addrs = "c", []netip.Prefix{netip.MustParsePrefix("203.0.113.77/32")}
	d := c
	d.Machine, d.MAC = "not a word", "02:00:00:00:02:0d"
	for name, tc := range map[string]struct {
		port  network.Port
		code  machine.Code
		field string
	}{"TakenAddress": {b, machine.Conflict, "addrs"}, "TakenMAC": {c, machine.Conflict, "mac"}, "MachineID": {d, machine.Invalid, "machine"}} {
		t.Run(name, func(t *testing.T) {
			err := e.Apply(t.Context(), []network.Port{tc.port}, nil)
			var me *machine.Error
			if !errors.As(err, &me) || me.Code != tc.code || me.Field != tc.field {
				t.Errorf("got %v, want %s about %s", err, tc.code, tc.field)
			}
			w.in(t).settled(a)
		})
	}
	if err := e.Apply(t.Context(), []network.Port{b}, []string{a.Machine}); err != nil {
		t.Errorf("address of a machine that goes in the same call: %v", err)
	}
	if err := e.Apply(t.Context(), nil, []string{"nobody"}); err != nil {
		t.Errorf("remove what is not there: %v", err)
	}
	w.settled(b)

	for field, cfg := range map[string]linuxedge.Config{
		"uplink":   {Downlink: "down0"},
		"downlink": {Uplink: "up0", Downlink: "up0"},
		"deny":     {Uplink: "up0", Downlink: "down0", Deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}},
	} {
		var me *machine.Error
		if _, err := linuxedge.New(cfg); !errors.As(err, &me) || me.Field != field {
			t.Errorf("New of %+v: %v", cfg, err)
		}
	}
	for _, cfg := range []linuxedge.Config{{Netns: w.edge, Uplink: "up0", Downlink: "nope"}, {Netns: "nope", Uplink: "up0", Downlink: "down0"}} {
		e, err := linuxedge.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Read(t.Context()); machine.CodeOf(err) != machine.Unavailable {
			t.Errorf("Read at %+v: %v, want unavailable", cfg, err)
		}
	}
}

// TestReplicas lets several servers apply to one edge at once: each port by its own.
func TestReplicas(t *testing.T) {
	w := newWorld(t, 8)
	var wg sync.WaitGroup
	errs := make(chan error, 2*len(w.tenants))
	for _, p := range w.ports() {
		wg.Go(func() {
			e, err := linuxedge.New(w.config())
			errs <- err
			errs <- e.Apply(t.Context(), []network.Port{p}, nil)
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	w.settled(w.ports()...)
	w.nothingLeft(w.ports())
}

// TestThousandMachines is the size that one edge is good for.
func TestThousandMachines(t *testing.T) {
	w := newWorld(t, 1)
	want := w.ports()
	for i := range 999 {
		want = append(want, network.Port{
			Machine: fmt.Sprintf("0192c3a4-5b6c-7d8e-9f00-%012d", i), MAC: fmt.Sprintf("02:00:00:01:%02x:%02x", i>>8, i&0xff), Mode: network.On, Up: network.Fixed(100_000), Down: network.Fixed(100_000),
			Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("100.64.%d.%d/32", i>>8, i&0xff)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:0:%x::/64", 0x1000+i))},
		})
	}
	timed := func(what string) {
		start := time.Now()
		w.reconcile(want...)
		t.Logf("%s: %s", what, time.Since(start).Round(time.Millisecond))
	}
	timed("1,000 machines from nothing")
	timed("no change")
	want[500].Up = network.Fixed(5000)
	timed("one rate")
	for i := range want {
		want[i].Down = network.Fixed(300_000)
	}
	timed("every rate")
	w.exec(w.tenants[0].ns, "ping -c 1 -W 2 "+inet4)
	want = want[:1]
	timed("999 gone")
	w.nothingLeft(want)
}
