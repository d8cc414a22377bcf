package frr_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/frr"
)

// A carrier adds no-export to a blackhole by itself (RFC 7999).
const hole = "65000:666 blackhole no-export"

// TestAnnounce watches what two carriers know while a machine goes through its modes.
func TestAnnounce(t *testing.T) {
	w := newWorld(t)
	w.peers()
	w.apply(w.config())
	w.carry(port(1, network.On), port(2, network.Limited), port(3, network.Off))
	w.edge.shell(t, "ip route add 198.51.100.1/32 via 169.254.0.16 dev down0 onlink; ip route add 203.0.113.77/32 via 192.0.2.1 dev up0; ip route add blackhole 198.51.100.9/32")
	w.upstream.learns(map[string]string{"203.0.113.1/32": "", "203.0.113.2/32": "", "2001:db8:1::/64": "", "2001:db8:2::/64": ""})
	w.carrier.learns(map[string]string{"203.0.113.0/24": "", "2001:db8::/40": ""})

	w.carry(port(1, network.Blackhole), port(3, network.On))
	w.upstream.learns(map[string]string{"203.0.113.1/32": hole, "203.0.113.3/32": "", "2001:db8:1::/64": hole, "2001:db8:3::/64": ""})
	w.carrier.learns(map[string]string{"203.0.113.0/24": "", "203.0.113.1/32": hole, "2001:db8::/40": "", "2001:db8:1::/64": hole})
	if trouble, err := speaker(t, w.config()).Trouble(t.Context(), []network.Port{port(1, network.Blackhole), port(3, network.On)}); err != nil || len(trouble) > 0 {
		t.Errorf("trouble without cause: %v, %v", trouble, err)
	}

	w.carry(port(1, network.On))
	w.carrier.learns(map[string]string{"203.0.113.0/24": "", "2001:db8::/40": ""})
	w.upstream.learns(map[string]string{"203.0.113.1/32": "", "2001:db8:1::/64": ""})

	// FRR is away, meanwhile machines change, and it starts anew with nothing: what the kernel has is announced.
	w.edge.stop()
	w.carry(port(2, network.On), port(3, network.Blackhole))
	w.edge.start("")
	w.apply(w.config())
	w.upstream.learns(map[string]string{"203.0.113.2/32": "", "203.0.113.3/32": hole, "2001:db8:2::/64": "", "2001:db8:3::/64": hole})

	w.carry()
	w.upstream.learns(map[string]string{})
	w.carrier.learns(map[string]string{})
}

// TestWithdrawnAtOnce withdraws addresses as soon as a carrier that has come back knows them, where somebody has set a long coalesce-time.
func TestWithdrawnAtOnce(t *testing.T) {
	w := newWorld(t)
	w.apply(w.config())
	w.edge.vtysh("configure terminal", "router bgp 65001", "coalesce-time 5000")
	w.apply(w.config())
	w.peers()
	for range 3 {
		w.carry(port(1, network.On), port(2, network.Blackhole))
		w.upstream.learns(map[string]string{"203.0.113.1/32": "", "203.0.113.2/32": hole, "2001:db8:1::/64": "", "2001:db8:2::/64": hole})
		w.carry()
		w.upstream.learns(map[string]string{})
		w.edge.vtysh("clear bgp *")
	}
}

func (r *router) shell(t *testing.T, script string) {
	t.Helper()
	run(t, "ip", "netns", "exec", r.ns, "sh", "-ec", script)
}

// TestOthersAreLeftAlone changes every part of the configuration beside that of an operator.
func TestOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	const theirs = "ip prefix-list theirs seq 5 permit 10.0.0.0/8\nroute-map theirs permit 10\n match ip address prefix-list theirs\nexit\nrouter bgp 65001\n no bgp default ipv4-unicast\n neighbor 10.0.0.1 remote-as 64512\n neighbor 10.0.0.1 description theirs\n neighbor 10.0.0.1 password theirs\n" +
		" address-family ipv4 unicast\n  network 10.0.0.0/8\n  aggregate-address 10.0.0.0/8\n  neighbor 10.0.0.1 activate\n  neighbor 10.0.0.1 route-map theirs out\n"
	file := filepath.Join(t.TempDir(), "theirs")
	if err := os.WriteFile(file, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "vtysh", "--vty_socket", w.edge.dir, "-f", file)
	before := w.edge.vtysh("show running-config")

	c := w.config()
	w.apply(c)
	c.Ranges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/25"), netip.MustParsePrefix("198.51.100.200/32"), netip.MustParsePrefix("2001:db8:8000::/33")}
	c.Blackhole = []string{"65002:666"}
	c.Neighbors[0].Hosts = false
	c.Neighbors[1].ASN = 65009
	c.Neighbors = c.Neighbors[:2]
	c.Neighbors[0].PasswordFile = filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(c.Neighbors[0].PasswordFile, []byte("Zq9!canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.apply(c)
	now := w.edge.vtysh("show running-config")
	for _, gone := range []string{"203.0.113.0", "2001:db8::/40", "198.18.0.1", "65000:666", "remote-as 65000\n neighbor 2001"} {
		if strings.Contains(now, gone) {
			t.Errorf("%s is left in\n%s", gone, now)
		}
	}
	if !strings.Contains(now, "neighbor 192.0.2.1 password Zq9!canary") {
		t.Errorf("the password is not set in\n%s", now)
	}
	c.Neighbors[0].PasswordFile = ""
	w.apply(c)
	if now := w.edge.vtysh("show running-config"); strings.Contains(now, "canary") {
		t.Errorf("the password is left in\n%s", now)
	}
	now = w.edge.vtysh("show running-config")
	for line := range strings.Lines(before) {
		if !strings.Contains(now, line) {
			t.Errorf("%q is gone from\n%s", line, now)
		}
	}

	c.ASN = 65003
	if _, err := speaker(t, c).Apply(t.Context()); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("another AS: %v", err)
	}
}

// TestTrouble tells what the neighbors do not know.
func TestTrouble(t *testing.T) {
	w := newWorld(t)
	w.peers()
	w.apply(w.config())
	w.carry(port(1, network.On), port(2, network.Blackhole))
	w.upstream.learns(map[string]string{"203.0.113.1/32": "", "203.0.113.2/32": hole, "2001:db8:1::/64": "", "2001:db8:2::/64": hole})
	w.carrier.stop()
	elsewhere := port(4, network.On)
	elsewhere.Addrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.77/32")}
	s := speaker(t, w.config())
	want := "the session with 198.18.0.1 is down\nthe session with 2001:db8:fffe::1 is down\n" +
		"192.0.2.1 is still told of 203.0.113.1/32 of machine m1, which is off\n2001:db8:ffff::1 is still told of 2001:db8:1::/64 of machine m1, which is off\n" +
		"192.0.2.1 has not been told of 203.0.113.3/32 of machine m3, which is on\n2001:db8:ffff::1 has not been told of 2001:db8:3::/64 of machine m3, which is on\n" +
		"192.0.2.77/32 of machine m4 is in none of the ranges: nobody is told of it\n" +
		"192.0.2.1 is told of 203.0.113.2/32, which no machine has\n2001:db8:ffff::1 is told of 2001:db8:2::/64, which no machine has"
	var got string
	for end := time.Now().Add(30 * time.Second); got != want; {
		if time.Now().After(end) {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		trouble, err := s.Trouble(t.Context(), []network.Port{port(1, network.Off), port(3, network.On), elsewhere})
		if err != nil {
			t.Fatal(err)
		}
		got = strings.Join(trouble, "\n")
	}

	// The edge says so, and does its work all the same.
	var log strings.Builder
	e := frr.Announce(w.linux, s, slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx, 50*time.Millisecond) }()
	for end := time.Now().Add(30 * time.Second); ; {
		caps, err := e.Caps(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if caps.Announces && len(caps.Trouble) == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the edge tells of %v", caps.Trouble)
		}
		<-time.After(50 * time.Millisecond)
	}
	w.edge.stop()
	if err := e.Apply(t.Context(), nil, []string{"m1"}); err != nil {
		t.Errorf("without FRR the edge does not do its work: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "198.18.0.1 is down"); n < 1 || n > 3 {
		t.Errorf("what does not change is told %d times:\n%s", n, log.String())
	}
	if _, err := s.Apply(t.Context()); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("without FRR: %v", err)
	}
}

func TestConfigRefuses(t *testing.T) {
	good := frr.Config{
		ASN: 65001, RouterID: netip.MustParseAddr("192.0.2.2"), Downlink: "down0", Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
		Neighbors: []frr.Neighbor{{Address: netip.MustParseAddr("192.0.2.1"), ASN: 65000}},
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit  func(*frr.Config)
		field string
	}{
		"NoASN":      {func(c *frr.Config) { c.ASN = 0 }, "asn"},
		"RouterID":   {func(c *frr.Config) { c.RouterID = netip.MustParseAddr("2001:db8::1") }, "router_id"},
		"NoDownlink": {func(c *frr.Config) { c.Downlink = "" }, "downlink"},
		"NoRanges":   {func(c *frr.Config) { c.Ranges = nil }, "ranges"},
		"HostBits":   {func(c *frr.Config) { c.Ranges = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/24")} }, "ranges"},
		"Overlap":    {func(c *frr.Config) { c.Ranges = append(c.Ranges, netip.MustParsePrefix("203.0.113.0/25")) }, "ranges"},
		"Nobody":     {func(c *frr.Config) { c.Neighbors = nil }, "neighbors"},
		"Twice":      {func(c *frr.Config) { c.Neighbors = append(c.Neighbors, c.Neighbors[0]) }, "neighbors"},
		"NoExport":   {func(c *frr.Config) { c.Blackhole = []string{"65535:65281"} }, "blackhole"},
		"Community":  {func(c *frr.Config) { c.Blackhole = []string{"blackhole"} }, "blackhole"},
		"TooLarge":   {func(c *frr.Config) { c.Blackhole = []string{"65536:1"} }, "blackhole"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			c.edit(&bad)
			_, err := frr.NewSpeaker(bad)
			var me *machine.Error
			if !errors.As(err, &me) || me.Code != machine.Invalid || me.Field != c.field {
				t.Errorf("got %v, want Invalid about %s", err, c.field)
			}
		})
	}
}
