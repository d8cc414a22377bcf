package network_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

func TestLineValidate(t *testing.T) {
	good := network.Line{Name: "bgp", Site: "hk-1", MinBandwidth: 10, MaxBandwidth: 1000}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := good.WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*network.Line){
		"carrier":       func(l *network.Line) { l.Carrier = "China Telecom" },
		"min_bandwidth": func(l *network.Line) { l.MinBandwidth = -1 },
		"max_bandwidth": func(l *network.Line) { l.MaxBandwidth = 5 },
		"min_down":      func(l *network.Line) { l.MinDown = 200_000 },
		"max_down":      func(l *network.Line) { l.MinDown, l.MaxDown = 20, 10 },
		"step":          func(l *network.Line) { l.Step = -10 },
		"models":        func(l *network.Line) { l.Models = []network.Model{"by-traffic"} },
		"percentile":    func(l *network.Line) { l.Percentile = "sum" },
		"max_addresses": func(l *network.Line) { l.MaxAddresses = 1000 },
	} {
		l := good
		spoil(&l)
		refused(t, l.Validate(), machine.Invalid, field)
	}
}

func TestCheckBandwidth(t *testing.T) {
	l := network.Line{Name: "bgp", Site: "hk-1", MinBandwidth: 10, MaxBandwidth: 1000, Step: 10, MaxDown: 100}.WithDefaults()
	for _, ok := range []network.Rates{{Up: 10, Down: 10}, {Up: 1000, Down: 100}, {Up: 50, Down: 20}} {
		if err := l.CheckBandwidth(ok); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	for _, bad := range []int{-10, 0, 9, 15, 1001, 1010} {
		refused(t, l.CheckBandwidth(network.Rates{Up: bad, Down: 10}), machine.Invalid, "bandwidth")
	}
	refused(t, l.CheckBandwidth(network.Rates{Up: 10, Down: 110}), machine.Invalid, "bandwidth_down")
	// the hint names what is sold nearby
	var e *machine.Error
	if err := l.CheckBandwidth(network.Rates{Up: 15, Down: 10}); !errors.As(err, &e) || !strings.Contains(e.Hint, "e.g. 10 or 20") {
		t.Errorf("hint is %+v", e)
	}
}

func TestCheckModel(t *testing.T) {
	fixed := network.Line{Name: "bgp"}.WithDefaults()
	both := network.Line{Name: "bgp", Models: []network.Model{network.ModelBurst, network.ModelFixed}}.WithDefaults()
	r := network.Rates{Up: 100, Down: 50}
	for _, c := range []struct {
		line      network.Line
		model     network.Model
		committed int
		field     string
	}{
		{fixed, network.ModelFixed, 0, ""}, {both, network.ModelBurst, 0, ""}, {both, network.ModelBurst, 100, ""},
		{fixed, network.ModelBurst, 0, "model"}, {both, "traffic", 0, "model"},
		{both, network.ModelFixed, 10, "committed"}, {both, network.ModelBurst, 101, "committed"}, {both, network.ModelBurst, -1, "committed"},
	} {
		err := c.line.CheckModel(c.model, c.committed, r)
		if c.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		refused(t, err, machine.Invalid, c.field)
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.7": "203.0.113.7/32", " 203.0.113.7/32 ": "203.0.113.7/32", "2001:db8:7::/64": "2001:db8:7::/64", "2001:DB8:7::5": "2001:db8:7::5/128",
	} {
		if p, err := network.ParseAddress("address", text); err != nil || p.String() != want {
			t.Errorf("%q: %s, %v", text, p, err)
		}
	}
	for _, text := range []string{"", "x", "203.0.113.300", "203.0.113.7/24", "127.0.0.1", "::ffff:203.0.113.7", "fe80::1%eth0", "203.0.113.7 8"} {
		_, err := network.ParseAddress("address", text)
		refused(t, err, machine.Invalid, "address")
	}
}

func TestParseInstant(t *testing.T) {
	want := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	for _, text := range []string{"2026-11-03T10:00Z", "2026-11-03T10:00:00Z", "2026-11-03T18:00+08:00", "2026-11-03 10:00:00Z", "2026-11-03 10:00 UTC", "2026-11-03 18:00:00 +08:00"} {
		if got, err := network.ParseInstant("at", text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "2026-11-03", "2026-11-03T10:00", "2026-11-03 10:00", "10:00Z", "2026-11-03 10:00 CST", "yesterday"} {
		_, err := network.ParseInstant("at", text)
		refused(t, err, machine.Invalid, "at")
	}
}
