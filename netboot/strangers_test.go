package netboot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// town is a network as a probe sees it: who answers at which address.
type town struct {
	owners map[netip.Addr]string
	asked  int
}

func (n *town) ask(_ context.Context, a netip.Addr) (string, bool, error) {
	n.asked++
	o, ok := n.owners[a]
	return o, ok, nil
}

func newTown(t testing.TB, rng string) (*town, func() *strangers) {
	t.Helper()
	n := &town{owners: map[netip.Addr]string{}}
	return n, func() *strangers {
		return newStrangers(mustRange(t, rng), n.ask, func(a netip.Addr) bool { return a.String() == "10.99.0.202" })
	}
}

func mustRange(t testing.TB, s string) Range {
	t.Helper()
	r, err := ParseRange(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func stranger(n int) string { return fmt.Sprintf("02:00:5e:99:%02x:%02x", n>>8, n&255) }

// settle runs a whole exchange.
func settle(t testing.TB, s *strangers, mac string) netip.Addr {
	t.Helper()
	a, err := s.offer(t.Context(), mac, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.take(t.Context(), mac, a, false); !ok || err != nil {
		t.Fatalf("%s cannot take %s: %v", mac, a, err)
	}
	return a
}

// TestStrangersRestart: no address is given twice, also across a restart that forgets everything, and a machine keeps
// its own; reserved addresses are never given.
func TestStrangersRestart(t *testing.T) {
	n, server := newTown(t, "10.99.0.200-10.99.0.220")
	s := server()
	for i := range 15 {
		mac := stranger(i)
		a := settle(t, s, mac)
		if o, used := n.owners[a]; used || a.String() == "10.99.0.202" {
			t.Fatalf("%s gets %s, which %s has", mac, a, o)
		}
		n.owners[a] = mac
	}
	s = server() // restarted
	for a, mac := range n.owners {
		switch mac {
		case stranger(0): // renews
			if ok, _ := s.take(t.Context(), mac, a, true); !ok {
				t.Errorf("%s cannot keep %s", mac, a)
			}
		case stranger(1): // boots again and wants its old address
			delete(n.owners, a) // it has not configured it
			if ok, _ := s.take(t.Context(), mac, a, false); !ok {
				t.Errorf("%s cannot take %s again", mac, a)
			}
			n.owners[a] = mac
		}
	}
	for i := 15; i < 20; i++ {
		mac := stranger(i)
		a := settle(t, s, mac)
		if o, used := n.owners[a]; used {
			t.Errorf("after a restart %s gets %s, which %s has", mac, a, o)
		}
		n.owners[a] = mac
	}
	for a, mac := range n.owners {
		if ok, _ := s.take(t.Context(), stranger(99), a, false); ok {
			t.Errorf("a stranger takes %s from %s", a, mac)
		}
	}
	if _, err := s.offer(t.Context(), stranger(50), netip.Addr{}); !errors.Is(err, errFull) {
		t.Errorf("full range: %v", err)
	}
}

// TestStrangersTime: a lease that is not renewed ends, an offer that is not taken sooner; a spoilt address is left alone.
func TestStrangersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, server := newTown(t, "10.99.0.200-10.99.0.201")
		s := server()
		a := settle(t, s, "a")
		b, err := s.offer(t.Context(), "b", a) // wants what a has
		if err != nil || b == a {
			t.Fatalf("b is offered %s, a has %s: %v", b, a, err)
		}
		if again, err := s.offer(t.Context(), "b", netip.Addr{}); again != b || err != nil {
			t.Errorf("b is offered %s, then %s: %v", b, again, err)
		}
		// Nobody has taken b's offer: a third machine gets it, and then it is the third's.
		c, err := s.offer(t.Context(), "c", netip.Addr{})
		if err != nil || c != b {
			t.Fatalf("c is offered %s: %v", c, err)
		}
		if ok, _ := s.take(t.Context(), "c", c, false); !ok {
			t.Error("c cannot take its offer")
		}
		if ok, _ := s.take(t.Context(), "b", b, false); ok {
			t.Error("b takes what c has taken")
		}
		time.Sleep(strangerFor - time.Second)
		if ok, _ := s.take(t.Context(), "a", a, true); !ok {
			t.Error("a cannot renew")
		}
		time.Sleep(2 * time.Second)
		if d := settle(t, s, "d"); d != c {
			t.Errorf("c's lease has ended, and d gets %s", d)
		}
		s.release("d")
		n.owners[c] = "" // somebody answers, beyond a router
		if _, err := s.offer(t.Context(), "e", netip.Addr{}); !errors.Is(err, errFull) {
			t.Errorf("an address that somebody uses is offered: %v", err)
		}
		delete(n.owners, c)
		if _, err := s.offer(t.Context(), "e", netip.Addr{}); !errors.Is(err, errFull) {
			t.Errorf("a spoilt address is offered: %v", err)
		}
		if s.holder(a) != "a" || s.holder(c) != "" {
			t.Errorf("holders %q %q", s.holder(a), s.holder(c))
		}
		time.Sleep(spoiltFor)
		if e := settle(t, s, "e"); e != a && e != c {
			t.Errorf("e gets %s", e)
		}
		s.learn("z", netip.MustParseAddr("10.99.0.3")) // not of the range
		if len(s.grants) > 2 {
			t.Errorf("%d grants", len(s.grants))
		}
	})
}

// TestStrangersProbe: the network is asked once for an offer and its REQUEST, and its silence about a failed question is
// an error, not a free address.
func TestStrangersProbe(t *testing.T) {
	n, server := newTown(t, "10.99.0.200-10.99.0.250")
	s := server()
	settle(t, s, "a")
	if n.asked != 1 {
		t.Errorf("asked %d times", n.asked)
	}
	s.probe = func(context.Context, netip.Addr) (string, bool, error) { return "", false, errors.New("link down") }
	if _, err := s.offer(t.Context(), "b", netip.Addr{}); err == nil {
		t.Error("an address that could not be asked about is offered")
	}
	if ok, err := s.take(t.Context(), "b", netip.MustParseAddr("10.99.0.210"), false); ok || err == nil {
		t.Error("an address that could not be asked about is given")
	}
	if len(s.byMAC) != 1 {
		t.Errorf("left behind: %v", s.byMAC)
	}
}

// TestStrangersOnTheWire: an unknown machine gets an address that no host has, keeps it over a restart of the server,
// boots what the Booter discovers machines with, and nobody else is told what it boots.
func TestStrangersOnTheWire(t *testing.T) {
	h := newHub(t, stranger(1), stranger(2), "02:00:5e:00:00:77")
	booter := &rosterBooter{fakeBooter: fakeBooter{discover: true, boot: Boot{Kind: BootAgent}, archive: []byte("cpio")}}
	server := func() *Server {
		s := &Server{Booter: booter, Interface: "br0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080, Subnets: []Subnet{{
			Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "br0", Addr: netip.MustParseAddr("10.99.0.1"),
			Range: mustRange(t, "10.99.0.200-10.99.0.203"), Router: netip.MustParseAddr("10.99.0.254"), DNS: []netip.Addr{netip.MustParseAddr("10.99.0.253")},
		}}}
		files(t, s)
		return s
	}
	// A host that nobody told us of has half of the range.
	for _, a := range []string{"10.99.0.200/24", "10.99.0.201/24"} {
		ip(t, "-n", h.hosts[2], "addr", "add", a, "dev", "eth0")
	}
	given := map[string]string{}
	boot := func(t *testing.T, host int, taken ...string) {
		onStation(t, h.hosts[host], func(c *station) error {
			ack, err := c.address(ipxeClient()...)
			if err != nil {
				return err
			}
			got := ack.YourIPAddr.String()
			if was := given[h.hosts[host]]; was != "" && was != got {
				t.Errorf("had %s, gets %s", was, got)
			}
			for _, other := range append(taken, "10.99.0.200", "10.99.0.201") {
				if got == other {
					t.Errorf("gets %s, which another has", got)
				}
			}
			if len(ack.Router()) != 1 || ack.Router()[0].String() != "10.99.0.254" || len(ack.DNS()) != 1 || ack.IPAddressLeaseTime(0) != strangerFor {
				t.Errorf("terms: %s", ack.Summary())
			}
			given[h.hosts[host]] = got
			return nil
		})
		ip(t, "-n", h.hosts[host], "addr", "replace", given[h.hosts[host]]+"/24", "dev", "eth0")
	}
	t.Run("first", func(t *testing.T) {
		start(t, h.server, server())
		boot(t, 0)
		mine, theirs := "http://10.99.0.1:8080/boot/archive/"+stranger(1), "http://10.99.0.1:8080/boot/archive/"+stranger(2)
		if err := <-inNamespace(t, h.hosts[0], func() error {
			if err := fetch("http://10.99.0.1:8080/boot/ipxe/"+stranger(1)+".ipxe", "#!ipxe"); err != nil {
				return err
			}
			return fetch(mine, "cpio")
		}); err != nil {
			t.Error(err)
		}
		if err := <-inNamespace(t, h.hosts[0], func() error { return fetch(theirs, "cpio") }); err == nil {
			t.Error("a stranger got another's archive")
		}
	})
	t.Run("restarted", func(t *testing.T) {
		start(t, h.server, server())
		boot(t, 1, given[h.hosts[0]])
		boot(t, 0, given[h.hosts[1]])
		onStation(t, h.hosts[0], func(c *station) error {
			// INIT-REBOOT: its own address, another's, one of another network; and none that is ours to judge.
			for want, asks := range map[string]string{given[h.hosts[0]]: "ACK", given[h.hosts[1]]: "NAK", "10.98.0.5": "NAK", "10.99.0.64": ""} {
				a, _ := netip.ParseAddr(want)
				all, err := c.ask(time.Second, 1, message(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(a.AsSlice())))
				got := ""
				if len(all) > 0 {
					got = all[0].MessageType().String()
				}
				if err != nil || got != asks {
					t.Errorf("asks for %s: %q, want %q (%v)", want, got, asks, err)
				}
			}
			return nil
		})
	})
}
