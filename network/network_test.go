package network_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

func prefixes(ss ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range ss {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// refused checks that err is one a user can act on: its code, its field and a hint.
func refused(t *testing.T, err error, code machine.Code, field string) {
	t.Helper()
	e, ok := err.(*machine.Error)
	if !ok {
		t.Fatalf("got %v, want a *machine.Error about %s", err, field)
	}
	if e.Code != code || e.Field != field || e.Hint == "" || e.Message == "" {
		t.Fatalf("got %+v, want code %s, field %s and a hint", *e, code, field)
	}
}

func TestLine(t *testing.T) {
	if err := (network.Line{Name: "bgp", Site: "hk-1"}).Validate(); err != nil {
		t.Fatal(err)
	}
	refused(t, network.Line{Name: "China Telecom", Site: "hk-1"}.Validate(), machine.Invalid, "name")
	refused(t, network.Line{Name: "bgp"}.Validate(), machine.Invalid, "site")
}

func TestAddressPool(t *testing.T) {
	good := network.AddressPool{Name: "bgp4", Site: "hk-1", Line: "bgp", Ranges: prefixes("203.0.113.0/24", "198.51.100.7/32"), Bits: 32, CoolDown: 24 * time.Hour}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit  func(*network.AddressPool)
		field string
	}{
		"NoRange":        {func(p *network.AddressPool) { p.Ranges = nil }, "ranges"},
		"ZeroRange":      {func(p *network.AddressPool) { p.Ranges = []netip.Prefix{{}} }, "ranges"},
		"HostBits":       {func(p *network.AddressPool) { p.Ranges = prefixes("203.0.113.9/24") }, "ranges"},
		"Overlap":        {func(p *network.AddressPool) { p.Ranges = prefixes("203.0.113.0/24", "203.0.113.128/25") }, "ranges"},
		"MixedFamilies":  {func(p *network.AddressPool) { p.Ranges = prefixes("2001:db8::/48", "203.0.113.0/24"); p.Bits = 64 }, "ranges"},
		"LinkLocal":      {func(p *network.AddressPool) { p.Ranges = prefixes("169.254.0.0/24") }, "ranges"},
		"Everything":     {func(p *network.AddressPool) { p.Ranges = prefixes("0.0.0.0/0") }, "ranges"},
		"Multicast":      {func(p *network.AddressPool) { p.Ranges = prefixes("239.1.0.0/24") }, "ranges"},
		"FourInSix":      {func(p *network.AddressPool) { p.Ranges = prefixes("::ffff:203.0.113.0/120") }, "ranges"},
		"TooWide":        {func(p *network.AddressPool) { p.Ranges = prefixes("10.0.0.0/8") }, "ranges"},
		"WrongBits4":     {func(p *network.AddressPool) { p.Bits = 29 }, "bits"},
		"WrongBits6":     {func(p *network.AddressPool) { p.Ranges = prefixes("2001:db8::/48"); p.Bits = 128 }, "bits"},
		"RangeTooNarrow": {func(p *network.AddressPool) { p.Ranges = prefixes("2001:db8::/64"); p.Bits = 56 }, "bits"},
		"CoolDown":       {func(p *network.AddressPool) { p.CoolDown = -1 }, "cool_down"},
		"Line":           {func(p *network.AddressPool) { p.Line = "" }, "line"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			c.edit(&p)
			refused(t, p.Validate(), machine.Invalid, c.field)
		})
	}
}

func TestAssignments(t *testing.T) {
	for _, c := range []struct {
		r     string
		bits  int
		want  []string // the first ones
		last  string
		count int
	}{
		{"203.0.113.252/30", 32, []string{"203.0.113.252/32", "203.0.113.253/32"}, "203.0.113.255/32", 4},
		{"198.51.0.0/16", 32, []string{"198.51.0.0/32"}, "198.51.255.255/32", 65536},
		{"2001:db8:0:ff00::/56", 64, []string{"2001:db8:0:ff00::/64", "2001:db8:0:ff01::/64"}, "2001:db8:0:ffff::/64", 256},
		{"2001:db8::/48", 56, []string{"2001:db8::/56", "2001:db8:0:100::/56"}, "2001:db8:0:ff00::/56", 256},
		{"2001:db8::/64", 56, nil, "", 0},
	} {
		got := slices.Collect(network.Assignments(netip.MustParsePrefix(c.r), c.bits))
		if len(got) != c.count {
			t.Fatalf("%s holds %d, want %d", c.r, len(got), c.count)
		}
		if c.count == 0 {
			continue
		}
		if w := prefixes(c.want...); !slices.Equal(got[:len(w)], w) {
			t.Errorf("%s begins with %v, want %v", c.r, got[:len(w)], w)
		}
		if got[len(got)-1].String() != c.last {
			t.Errorf("%s ends with %v, want %v", c.r, got[len(got)-1], c.last)
		}
		for range network.Assignments(netip.MustParsePrefix(c.r), c.bits) {
			break // an iterator that ignores this panics
		}
	}
}

func TestValidateKbit(t *testing.T) {
	for _, ok := range []int{network.MinKbit, 100_000, network.MaxKbit} {
		if err := network.ValidateKbit("up_kbit", ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []int{-1, 0, network.MinKbit - 1, network.MaxKbit + 1} {
		refused(t, network.ValidateKbit("up_kbit", bad), machine.Invalid, "up_kbit")
	}
}
