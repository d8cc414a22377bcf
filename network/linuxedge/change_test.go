package linuxedge_test

import (
	"net/netip"
	"testing"

	"github.com/bareyard/bareyard/network"
)

// TestChangeOfOne: a change of one port brings it about completely, whatever is wrong with it, and does not look at the others: what is
// wrong with those, a whole Apply mends.
func TestChangeOfOne(t *testing.T) {
	w := newWorld(t, 3)
	w.shard = 2 // the third has its class in an HTB of its own
	a, b, c := w.tenants[0].port, w.tenants[1].port, w.tenants[2].port
	w.reconcile(a, b, c)
	spoil := func() { w.exec(w.edge, "tc class change dev up0 parent 2:1 classid 2:12 htb rate 5mbit") }
	spoil()
	apply := func(name string, set []network.Port, remove []string, want ...network.Port) {
		t.Helper()
		if err := w.driver().Apply(t.Context(), set, remove); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		have, err := w.driver().Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		differs, gone := network.Diff(append(want, c), have)
		if len(differs) != 1 || differs[0].Machine != c.Machine || len(gone) != 0 {
			t.Errorf("%s: %v and %v differ; the change was of one, and wrong is only %s", name, differs, gone, c.Machine)
		}
		w.nothingLeft(append(want, c))
		w.nobodyUnshaped()
	}
	for _, step := range []struct {
		name   string
		change func()
	}{
		{"Rate", func() { a.Up, a.Down = network.Fixed(7_000), network.Bandwidth{Kbit: 8_000, Burst: 9_000} }},
		{"Blackhole", func() { a.Mode = network.Blackhole }},
		{"Off", func() { a.Mode = network.Off }},
		{"Off again, with what a crash left", func() {
			w.ip(w.edge, "route add "+a.Addrs[0].String()+" via 169.254.0.16 dev down0 onlink proto 98", "route add blackhole "+a.Addrs[1].String()+" proto 98")
		}},
		{"On", func() { a.Mode = network.On }},
		{"MAC", func() { a.MAC = "02:00:00:00:02:77" }},
		{"MAC back", func() { a.MAC = w.tenants[0].port.MAC }},
		{"More", func() {
			a.Addrs = append(a.Addrs, netip.MustParsePrefix("203.0.113.200/32"), netip.MustParsePrefix("2001:db8:1:1::/64"))
		}},
		{"Fewer", func() { a.Addrs = a.Addrs[:2] }},
		{"Its route and queue are gone", func() {
			w.ip(w.edge, "route del 203.0.113.1/32 proto 98", "neigh del 169.254.0.16 dev down0")
			w.exec(w.edge, "tc qdisc del dev up0 parent 1:10")
			a.Mode = network.Limited
		}},
		{"On again", func() { a.Mode = network.On }},
	} {
		step.change()
		apply(step.name, []network.Port{a}, nil, a, b)
	}
	apply("Swap", []network.Port{swapped(a, b), swapped(b, a)}, nil, swapped(a, b), swapped(b, a))
	apply("Swap back", []network.Port{a, b}, nil, a, b)
	apply("Remove", nil, []string{a.Machine}, b)
	apply("New", []network.Port{a}, nil, a, b)
	w.exec(w.tenants[0].ns, "ping -c 1 -W 2 "+inet4)
	w.exec(w.tenants[0].ns, "ping -c 1 -W 2 "+inet6)

	// Without its class the count begins anew, as everywhere.
	w.exec(w.edge, "tc class del dev up0 classid 1:10")
	if err := w.driver().Apply(t.Context(), []network.Port{a}, nil); err != nil {
		t.Fatal(err)
	}
	w.settled(a, b, c)
	spoil()
	if err := w.driver().Apply(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	w.settled(a, b, c)
	w.nothingLeft([]network.Port{a, b, c})
}

// swapped is a port with the addresses of another.
func swapped(p, with network.Port) network.Port {
	p.Addrs = with.Addrs
	return p
}
