package network_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

func port(id, mac string, addrs ...string) network.Port {
	return network.Port{Machine: id, MAC: mac, Addrs: prefixes(addrs...), Up: network.Fixed(100_000), Down: network.Fixed(200_000), Mode: network.On}
}

func TestPortValidate(t *testing.T) {
	good := port("m1", "52:54:00:12:34:56", "203.0.113.7/32", "2001:db8:7::/64")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit  func(*network.Port)
		field string
	}{
		"NoMachine":    {func(p *network.Port) { p.Machine = "" }, "machine"},
		"NoMAC":        {func(p *network.Port) { p.MAC = "" }, "mac"},
		"UpperMAC":     {func(p *network.Port) { p.MAC = "52:54:00:AB:34:56" }, "mac"},
		"MulticastMAC": {func(p *network.Port) { p.MAC = "01:00:5e:00:00:01" }, "mac"},
		"LongMAC":      {func(p *network.Port) { p.MAC = "52:54:00:12:34:56:78:9a" }, "mac"},
		"Up":           {func(p *network.Port) { p.Up.Kbit = 0 }, "up"},
		"Down":         {func(p *network.Port) { p.Down.Kbit = -1 }, "down"},
		"Burst":        {func(p *network.Port) { p.Up.Burst = p.Up.Kbit }, "up"},
		"WideBurst":    {func(p *network.Port) { p.Down.Burst = network.MaxKbit + 1 }, "down"},
		"Limit":        {func(p *network.Port) { p.Limit = 1 }, "limit"},
		"UntilOn":      {func(p *network.Port) { p.Until = time.Unix(1, 0) }, "until"},
		"ThenOnly":     {func(p *network.Port) { p.Mode, p.Then = network.Blackhole, network.On }, "then"},
		"ThenSame":     {func(p *network.Port) { p.Mode, p.Until, p.Then = network.Blackhole, time.Unix(1, 0), network.Blackhole }, "then"},
		"Mode":         {func(p *network.Port) { p.Mode = "" }, "mode"},
		"NoAddrs":      {func(p *network.Port) { p.Addrs = nil }, "addrs"},
		"Subnet":       {func(p *network.Port) { p.Addrs = prefixes("203.0.113.0/24") }, "addrs"},
		"WideSix":      {func(p *network.Port) { p.Addrs = prefixes("2001:db8::/32") }, "addrs"},
		"HostBits":     {func(p *network.Port) { p.Addrs = prefixes("2001:db8::1/64") }, "addrs"},
		"Twice":        {func(p *network.Port) { p.Addrs = prefixes("203.0.113.7/32", "203.0.113.7/32") }, "addrs"},
		"Gateway":      {func(p *network.Port) { p.Addrs = prefixes("169.254.0.1/32") }, "addrs"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			c.edit(&p)
			refused(t, p.Validate(), machine.Invalid, c.field)
		})
	}
}

func TestValidatePorts(t *testing.T) {
	a := port("a", "52:54:00:00:00:0a", "203.0.113.1/32", "2001:db8:1::/48")
	for name, c := range map[string]struct {
		with  network.Port
		field string
	}{
		"Machine": {port("a", "52:54:00:00:00:0b", "203.0.113.2/32"), "machine"},
		"MAC":     {port("b", "52:54:00:00:00:0a", "203.0.113.2/32"), "mac"},
		"Address": {port("b", "52:54:00:00:00:0b", "203.0.113.1/32"), "addrs"},
		"Within":  {port("b", "52:54:00:00:00:0b", "203.0.113.2/32", "2001:db8:1:9::/64"), "addrs"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, network.ValidatePorts([]network.Port{a, c.with}), machine.Conflict, c.field)
		})
	}
	if err := network.ValidatePorts([]network.Port{a, port("b", "52:54:00:00:00:0b", "203.0.113.2/32")}); err != nil {
		t.Fatal(err)
	}
}

func TestDiff(t *testing.T) {
	a, b, c := port("a", "52:54:00:00:00:0a", "203.0.113.1/32", "2001:db8:1::/64"), port("b", "52:54:00:00:00:0b", "203.0.113.2/32"), port("c", "52:54:00:00:00:0c", "203.0.113.3/32")
	otherOrder := a
	otherOrder.Addrs = prefixes("2001:db8:1::/64", "203.0.113.1/32")
	faster := b
	faster.Up.Kbit++
	drifted := b
	drifted.Mode = ""
	for name, tc := range map[string]struct {
		want, have []network.Port
		set        []network.Port
		remove     []string
	}{
		"Same":    {[]network.Port{a, b}, []network.Port{b, otherOrder}, nil, nil},
		"Missing": {[]network.Port{b, a}, nil, []network.Port{a, b}, nil},
		"Extra":   {nil, []network.Port{c, a}, nil, []string{"a", "c"}},
		"Changed": {[]network.Port{faster, a}, []network.Port{a, b}, []network.Port{faster}, nil},
		"Drifted": {[]network.Port{b}, []network.Port{drifted}, []network.Port{b}, nil},
		"Mixed":   {[]network.Port{c, faster}, []network.Port{a, b}, []network.Port{faster, c}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			set, remove := network.Diff(tc.want, tc.have)
			if !slices.EqualFunc(set, tc.set, network.Port.Equal) || !slices.Equal(remove, tc.remove) {
				t.Errorf("set %v remove %v, want %v and %v", set, remove, tc.set, tc.remove)
			}
		})
	}
}

// memory is an edge that remembers.
type memory struct {
	ports map[string]network.Port
	err   error
	calls int
}

func (m *memory) Read(context.Context) ([]network.Port, error) {
	var out []network.Port
	for _, p := range m.ports {
		out = append(out, p)
	}
	return out, m.err
}

func (m *memory) Apply(_ context.Context, set []network.Port, remove []string) error {
	m.calls++
	for _, id := range remove {
		delete(m.ports, id)
	}
	for _, p := range set {
		m.ports[p.Machine] = p
	}
	return nil
}

func (m *memory) Caps(context.Context) (network.Caps, error) { return network.Caps{}, nil }

func (m *memory) Counters(context.Context) ([]network.Counter, error) { return nil, nil }

func TestReconcile(t *testing.T) {
	a, b := port("a", "52:54:00:00:00:0a", "203.0.113.1/32"), port("b", "52:54:00:00:00:0b", "203.0.113.2/32")
	m := &memory{ports: map[string]network.Port{"old": port("old", "52:54:00:00:00:0b", "203.0.113.2/32")}}
	want := []network.Port{a, b}
	if err := network.Reconcile(t.Context(), m, want); err != nil {
		t.Fatal(err)
	}
	have, _ := m.Read(t.Context())
	if set, remove := network.Diff(want, have); set != nil || remove != nil {
		t.Fatalf("after reconcile still to set %v, to remove %v", set, remove)
	}
	if err := network.Reconcile(t.Context(), m, want); err != nil || m.calls != 3 {
		t.Fatalf("apply was called %d times, want 2 for a difference and 1 without: what all ports share is repaired even if no port differs (%v)", m.calls, err)
	}

	t.Run("RefusesConflict", func(t *testing.T) {
		refused(t, network.Reconcile(t.Context(), m, []network.Port{a, a}), machine.Conflict, "machine")
		if m.calls != 3 {
			t.Fatal("applied what conflicts")
		}
	})
	t.Run("ReadFails", func(t *testing.T) {
		m.err = errors.New("edge is down")
		if err := network.Reconcile(t.Context(), m, want); !errors.Is(err, m.err) || m.calls != 3 {
			t.Fatalf("got %v after %d calls, want the error of Read and no Apply", err, m.calls)
		}
	})
}

func TestPortAt(t *testing.T) {
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := port("a", "52:54:00:00:00:0a", "203.0.113.1/32")
	p.Mode, p.Until, p.Then = network.Blackhole, end, network.Limited
	if got := p.At(end.Add(-1)); got.Mode != network.Blackhole || got.Until != end {
		t.Errorf("before its end: %+v", got)
	}
	if got := p.At(end); got.Mode != network.Limited || !got.Until.IsZero() || got.Validate() != nil {
		t.Errorf("at its end: %+v", got)
	}
	p.Then = ""
	if got := p.At(end); got.Mode != network.On {
		t.Errorf("without more: %+v", got)
	}
	p.Until = time.Time{}
	if got := p.At(end); got.Mode != network.Blackhole {
		t.Errorf("without an end: %+v", got)
	}
}

func TestPortPasses(t *testing.T) {
	p := port("a", "52:54:00:00:00:0a", "203.0.113.1/32")
	p.Up.Burst = 500_000
	for _, c := range []struct {
		mode  network.Mode
		limit int
		want  network.Bandwidth
	}{
		{network.On, 0, network.Bandwidth{Kbit: 100_000, Burst: 500_000}},
		{network.Limited, 0, network.Fixed(network.LimitKbit)},
		{network.Limited, 10_000, network.Fixed(10_000)},
		{network.Limited, 900_000, network.Fixed(500_000)}, // never more than was sold
		{network.Off, 10_000, p.Up},
	} {
		p.Mode, p.Limit = c.mode, c.limit
		if got := p.Passes(network.Up); got != c.want {
			t.Errorf("%s, limit %d: %+v, want %+v", c.mode, c.limit, got, c.want)
		}
	}
}
