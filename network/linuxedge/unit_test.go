package linuxedge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/network"
)

func TestRecordComment(t *testing.T) {
	r := record{Port: network.Port{Machine: "m-1", MAC: "02:00:00:00:00:01", Mode: network.Limited, Limit: 5000, Up: network.Bandwidth{Kbit: 1000, Burst: 2000}, Down: network.Fixed(100_000_000)}, minor: 0xfff0, epoch: 1796019615417457915}
	const want = "m-1 limited fff0 1000+2000/100000000 5000 1796019615417457915"
	if r.comment() != want {
		t.Errorf("comment is %q, want %q", r.comment(), want)
	}
	got, err := parseRecord(r.MAC, want)
	if err != nil || !got.equal(r) {
		t.Errorf("parsed %+v, %v, want %+v", got, err, r)
	}
	// The longest ID that is accepted must fit: a comment has 255 bytes.
	r.Machine = strings.Repeat("x", 128)
	r.Mode = network.Blackhole
	r.Up = network.Bandwidth{Kbit: network.MaxKbit - 1, Burst: network.MaxKbit}
	r.Down, r.Limit = r.Up, network.MaxKbit
	if n := len(r.comment()); n > 254 {
		t.Errorf("the longest comment has %d bytes", n)
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, s := range []string{
		"m-1 on 10 100000/100000 0 1796019615417457915", "m-1 on 10 100000+200000/100000 5000 1796019615417457915", "m-1 on", "", " on 10 1000/1000 0 1", "m on 0 1000/1000 0 1", "m on ffff 1000/1000 0 1",
		"m on 10 1000/1000 1", "m no 10 1000/1000 0 1", "m on 10 1/1 0 x", "m on 2:10 1000/1000 0 1", "m on +10 1000/1000 0 1", "m on 10 +1000/1000 0 1", "m on 0010 01000/1000 0 1",
		"m  10 1000/1000 0 1", "m on 10 1/1/1 0 1", "m on 1_0 1000/1000 0 1", "m on 10 1000+0/1000 0 1", "m on 10 1000+1000/1000 0 1", "m on 10 1000+/1000 0 1", "m on 10 1000/1000 1 1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRecord("02:00:00:00:00:01", s)
		if err == nil && r.comment() != s {
			t.Errorf("%q became %q", s, r.comment())
		}
	})
}

func TestSpan(t *testing.T) {
	all := []string{"2001:db8:1::/64", "2001:db8:1:1::/64", "2001:db8:2::/56", "2001:db8:2:100::1/128", "2001:db8:3::/48", "2001:db8:2:100::2/127"}
	var ends []string
	for _, s := range all {
		first, last := bounds(netip.MustParsePrefix(s))
		ends = append(ends, interval(first, last, "")[1].key)
	}
	slices.Sort(ends)
	for _, s := range all {
		p := netip.MustParsePrefix(s)
		first, _ := bounds(p)
		if got, ok := span(first, ends); !ok || got != p {
			t.Errorf("span at %s is %s, %v", p, got, ok)
		}
	}
	for _, s := range []string{"2001:db8:1::1", "2001:db8:ffff::", "203.0.113.1"} {
		if got, ok := span(string(netip.MustParseAddr(s).AsSlice()), ends); ok {
			t.Errorf("span at %s is %s, want none", s, got)
		}
	}
}

func TestDenied(t *testing.T) {
	var deny []netip.Prefix
	for _, s := range []string{"10.99.0.0/24", "10.0.0.0/8", "fd00::/8", "fd00:1::/32", "255.255.255.0/24", "169.254.1.0/24"} {
		deny = append(deny, netip.MustParsePrefix(s))
	}
	got := denied(deny)
	ip := func(s string, end bool) element {
		return element{key: string(netip.MustParseAddr(s).AsSlice()), intervalEnd: end}
	}
	want := map[string][]element{
		setDeny4: {ip("10.0.0.0", false), ip("11.0.0.0", true), ip("169.254.0.0", false), ip("169.255.0.0", true), ip("255.255.255.0", false)},
		setDeny6: {ip("fd00::", false), ip("fe00::", true), ip("fe80::", false), ip("fec0::", true)},
	}
	for name, elems := range want {
		if len(got[name]) != len(elems) {
			t.Errorf("%s has %d elements, want %d", name, len(got[name]), len(elems))
		}
		for _, e := range elems {
			if !got[name][e] {
				t.Errorf("%s lacks %x (end %v)", name, e.key, e.intervalEnd)
			}
		}
	}
}

func TestQueueAndBurst(t *testing.T) {
	for _, c := range []struct {
		kbit, queue int
		burst       uint32
	}{{1_000, 70_000, 4542}, {10_000, 70_000, 4542}, {20_000, 125_000, 5000}, {100_000, 625_000, 25_000}, {1_000_000, 6_250_000, 250_000}, {100_000_000, 625_000_000, 25_000_000}} {
		if q, b := queueBytes(c.kbit), burstBytes(c.kbit); q != c.queue || b != c.burst {
			t.Errorf("%d kbit/s: queue %d, burst %d, want %d and %d", c.kbit, q, b, c.queue, c.burst)
		}
	}
}
