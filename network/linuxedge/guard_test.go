package linuxedge_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"

	"github.com/bareyard/bareyard/network"
)

// bridgeMAC returns the address of the downlink, to which machines send what is to be routed.
func (w *world) bridgeMAC() string {
	return strings.TrimSpace(w.exec(w.edge, "cat /sys/class/net/down0/address"))
}

// good is a frame of the first tenant that must come out at the Internet.
func (w *world) good() datagram {
	return datagram{dstMAC: w.bridgeMAC(), srcMAC: w.tenants[0].port.MAC, src: "203.0.113.1", dst: inet4, ttl: 64, mark: markGood}
}

func TestSpoofedPassesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.reconcile(w.ports()...)
	sn := w.sniff(w.inet, "eth0")
	c := w.raw(w.tenants[0].ns, "eth0")
	t.Cleanup(func() { _ = c.Close() })
	good := w.good()
	six := good
	six.src, six.dst = "2001:db8:1::1", inet6
	edit := func(d datagram, f func(*datagram)) datagram {
		d.mark = markBad
		f(&d)
		return d
	}
	for name, d := range map[string]datagram{
		"WrongIP":         edit(good, func(d *datagram) { d.src = "198.51.100.66" }),
		"NeighboursIP":    edit(good, func(d *datagram) { d.src = "203.0.113.2" }),
		"WrongMAC":        edit(good, func(d *datagram) { d.srcMAC = "02:00:00:00:02:99" }),
		"NeighboursMAC":   edit(good, func(d *datagram) { d.srcMAC = "02:00:00:00:02:02" }),
		"NoIP":            edit(good, func(d *datagram) { d.src = "0.0.0.0" }),
		"GatewaysIP":      edit(good, func(d *datagram) { d.src = "169.254.0.1" }),
		"NextHopsIP":      edit(good, func(d *datagram) { d.src = "169.254.0.16" }),
		"UplinksIP":       edit(good, func(d *datagram) { d.src = "192.0.2.2" }),
		"ManagementIP":    edit(good, func(d *datagram) { d.src = "10.99.0.2" }),
		"TTLExpires":      edit(good, func(d *datagram) { d.src, d.ttl = inet4, 1 }), // the ICMP error would go to the Internet
		"ToClosedPort":    edit(good, func(d *datagram) { d.src, d.dst = inet4, "169.254.0.1" }),
		"ToEdge":          edit(good, func(d *datagram) { d.src, d.dst = inet4, "192.0.2.2" }),
		"WrongIP6":        edit(six, func(d *datagram) { d.src = "2001:db8:99::1" }),
		"NeighboursIP6":   edit(six, func(d *datagram) { d.src = "2001:db8:2::1" }),
		"OnePast64":       edit(six, func(d *datagram) { d.src = "2001:db8:1:1::" }),
		"OneBefore64":     edit(six, func(d *datagram) { d.src = "2001:db8:0:ffff:ffff:ffff:ffff:ffff" }),
		"WrongMAC6":       edit(six, func(d *datagram) { d.srcMAC = "02:00:00:00:02:99" }),
		"LinkLocal6":      edit(six, func(d *datagram) { d.src = "fe80::2ff:fe00:201" }),
		"HopLimitExpires": edit(six, func(d *datagram) { d.src, d.ttl = inet6, 1 }),
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			for range 3 {
				w.send(c, d)
			}
			w.send(c, good)
			if got := sn.caught(t); len(got) > 0 {
				t.Errorf("%d frames came out, the first: %x", len(got), got[0])
			}
		})
	}
	// The frames themselves are sound: with nothing spoofed they pass.
	for name, d := range map[string]datagram{
		"Own":        edit(good, func(d *datagram) {}),
		"Own6":       edit(six, func(d *datagram) {}),
		"LastOf64":   edit(six, func(d *datagram) { d.src = "2001:db8:1::ffff:ffff:ffff:ffff" }),
		"TTLExpires": edit(good, func(d *datagram) { d.ttl = 2 }),
	} {
		t.Run("Passes"+name, func(t *testing.T) {
			w := w.in(t)
			w.send(c, d)
			w.send(c, good)
			if got := sn.caught(t); len(got) != 1 {
				t.Errorf("%d frames came out, want 1", len(got))
			}
		})
	}
}

// TestARP checks that neither a forged sender nor a question about somebody else's address gets anything out of the edge.
func TestARP(t *testing.T) {
	w := newWorld(t, 2)
	w.reconcile(w.ports()...)
	c := w.raw(w.tenants[0].ns, "eth0")
	t.Cleanup(func() { _ = c.Close() })
	ask := func(sender, target string) {
		mac, _ := net.ParseMAC(w.tenants[0].port.MAC)
		f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...)
		f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
		f = append(append(f, mac...), netip.MustParseAddr(sender).AsSlice()...)
		f = append(append(f, 0, 0, 0, 0, 0, 0), netip.MustParseAddr(target).AsSlice()...)
		if _, err := c.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
			t.Fatal(err)
		}
	}
	const own, gateway = "203.0.113.1", "169.254.0.1"
	for _, q := range [][2]string{
		{"198.51.100.1", gateway}, {"169.254.0.17", gateway}, {inet4, gateway}, // forged sender
		{own, "192.0.2.2"}, {own, "10.99.0.1"}, {own, "203.0.113.2"}, {own, "169.254.0.17"}, // not the gateway
	} {
		ask(q[0], q[1])
	}
	ask(own, gateway)           // the control: answered last
	ask("203.0.113.2", gateway) // a neighbour's address is routed to the downlink: answered, but see below
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("no answer for the gateway: %v", err)
		}
		if f := buf[:n]; n >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 2 {
			from, _ := netip.AddrFromSlice(f[28:32])
			to, _ := netip.AddrFromSlice(f[38:42])
			if from.String() != gateway || to.String() != own {
				t.Errorf("edge answered for %s to %s", from, to)
				continue
			}
			break
		}
	}
	for _, l := range strings.Split(w.exec(w.edge, "ip -4 neigh show dev down0"), "\n") {
		if l != "" && !strings.Contains(l, "PERMANENT") && !strings.HasPrefix(l, "203.0.113.") {
			t.Errorf("edge learned %q", l)
		}
	}
	w.settled(w.ports()...)
	// What was learned under a neighbour's address changes nothing about where its packets go.
	in1, in2 := w.sniff(w.tenants[0].ns, "eth0"), w.sniff(w.tenants[1].ns, "eth0")
	fromInet := w.raw(w.inet, "eth0")
	t.Cleanup(func() { _ = fromInet.Close() })
	d := datagram{dstMAC: uplinkMAC, srcMAC: "02:00:00:00:01:01", src: inet4, dst: "203.0.113.2", ttl: 64, mark: markBad}
	w.send(fromInet, d)
	d.mark = markGood
	w.send(fromInet, d)
	if got := in2.caught(t); len(got) != 1 {
		t.Errorf("the neighbour got %d of its packets, want 1", len(got))
	}
	w.pushControl(w.tenants[0].port.MAC)
	forger, _ := net.ParseMAC(w.tenants[0].port.MAC)
	for _, f := range in1.caught(t) {
		if bytes.Equal(f[:6], forger) { // others may be flooded by a bridge that does not know the neighbour yet
			t.Errorf("the forger got its neighbour's packet: %x", f)
		}
	}
}

// TestTenantReachesOnlyTheInternet sends with a tenant's own addresses to everything that it must not reach.
func TestTenantReachesOnlyTheInternet(t *testing.T) {
	w := newWorld(t, 2)
	w.reconcile(w.ports()...)
	inet, mgmt := w.sniff(w.inet, "eth0"), w.sniff(w.mgmt, "eth0")
	c := w.raw(w.tenants[0].ns, "eth0")
	t.Cleanup(func() { _ = c.Close() })
	good := w.good()
	for _, dst := range []string{"10.99.0.2", "10.98.0.7", "10.98.255.255", "169.254.0.17", "169.254.77.1", "fe80::1234", "fd00:98::7", "fd00:98:ffff::1", "fd00:99::2"} {
		d := good
		d.dst, d.mark = dst, markBad
		if strings.Contains(dst, ":") {
			d.src = "2001:db8:1::1"
		}
		w.send(c, d)
	}
	w.send(c, good)
	if got := inet.caught(t); len(got) > 0 {
		t.Errorf("%d frames came out at the Internet, the first: %x", len(got), got[0])
	}
	// Management has a control of its own, from the edge.
	control := w.listenUDP(w.edge, "10.99.0.1:0")
	if _, err := control.WriteTo([]byte(markGood), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.99.0.2:9"))); err != nil {
		t.Fatal(err)
	}
	if got := mgmt.caught(t); len(got) > 0 {
		t.Errorf("%d frames came out at management, the first: %x", len(got), got[0])
	}

	// The edge's own services: listening on every address, answering nobody from the downlink.
	l := w.listenUDP(w.edge, ":5353")
	tcp := w.listen(w.edge, ":5354")
	src4, src6 := w.listenUDP(w.tenants[0].ns, "203.0.113.1:0"), w.listenUDP(w.tenants[0].ns, "[2001:db8:1::1]:0")
	for _, dst := range []string{"169.254.0.1", "192.0.2.2", "10.99.0.1", "203.0.113.255", "[2001:db8:ffff::2]", "[fd00:99::1]"} {
		src := src4
		if strings.HasPrefix(dst, "[") {
			src = src6
		}
		if _, err := src.WriteTo([]byte(markBad), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(dst+":5353"))); err != nil {
			t.Fatal(err)
		}
		inside(t, w.tenants[0].ns, func() error {
			conn, err := net.DialTimeout("tcp", dst+":5354", 300*time.Millisecond)
			if err == nil {
				_ = conn.Close()
				t.Errorf("connected to the edge's service at %s", dst)
			}
			return nil
		})
	}
	_ = tcp.Close()
	if err := l.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, from, err := l.ReadFrom(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("edge's service got %d bytes from %v, %v", n, from, err)
	}
	w.exec(w.tenants[0].ns, "ping -c 1 -W 2 169.254.0.1")
	w.exec(w.tenants[0].ns, "ping -c 1 -W 2 203.0.113.2") // another customer, by public address
	w.exec(w.tenants[0].ns, "ping -c 1 -W 2 "+inet6)
	w.exec(w.inet, "ping -c 1 -W 2 203.0.113.1")
	w.exec(w.inet, "ping -c 1 -W 2 2001:db8:1::1")
}

// TestModes checks what passes both ways in each mode, and after removal.
func TestModes(t *testing.T) {
	w := newWorld(t, 2)
	p, other := w.tenants[0].port, w.tenants[1].port
	w.reconcile(p, other)
	inet, in1 := w.sniff(w.inet, "eth0"), w.sniff(w.tenants[0].ns, "eth0")
	fromTenant, fromOther, fromInet := w.raw(w.tenants[0].ns, "eth0"), w.raw(w.tenants[1].ns, "eth0"), w.raw(w.inet, "eth0")
	t.Cleanup(func() { _, _, _ = fromTenant.Close(), fromOther.Close(), fromInet.Close() })

	passes := func(t *testing.T, want bool) {
		t.Helper()
		w := w.in(t)
		n := 0
		if want {
			n = 1
		}
		control := w.good()
		control.srcMAC, control.src = other.MAC, "203.0.113.2"
		d := w.good()
		d.mark = markBad
		w.send(fromTenant, d)
		w.send(fromOther, control)
		if got := inet.caught(t); len(got) != n {
			t.Errorf("%d frames out, want %d", len(got), n)
		}
		d = datagram{dstMAC: uplinkMAC, srcMAC: "02:00:00:00:01:01", src: inet4, dst: "203.0.113.1", ttl: 64, mark: markBad}
		w.send(fromInet, d)
		// The control goes in below the edge, by the bridge: it comes in after whatever the edge let through.
		w.send(fromInet, datagram{dstMAC: uplinkMAC, srcMAC: "02:00:00:00:01:01", src: inet4, dst: "203.0.113.2", ttl: 64, mark: markGood})
		w.pushControl(p.MAC)
		if got := in1.caught(t); len(got) != n {
			t.Errorf("%d frames in, want %d", len(got), n)
		}
	}
	for _, step := range []struct {
		mode   network.Mode
		passes bool
	}{{network.On, true}, {network.Off, false}, {network.Limited, true}, {network.Blackhole, false}, {network.Off, false}, {network.Blackhole, false}, {network.On, true}} {
		t.Run(string(step.mode), func(t *testing.T) {
			p.Mode = step.mode
			w.in(t).reconcile(p, other)
			passes(t, step.passes)
			routes := w.in(t).exec(w.edge, "ip route show proto 98") + w.in(t).exec(w.edge, "ip -6 route show proto 98")
			if got := strings.Count(routes, "blackhole"); (got == 2) != (step.mode == network.Blackhole) || got == 1 {
				t.Errorf("%d blackhole routes:\n%s", got, routes)
			}
		})
	}
	t.Run("Removed", func(t *testing.T) {
		w.in(t).reconcile(other)
		passes(t, false)
	})
}

// pushControl sends the control frame to a machine from the edge's own side of the bridge.
func (w *world) pushControl(mac string) {
	w.t.Helper()
	c := w.raw(w.edge, "down0")
	defer func() { _ = c.Close() }()
	w.send(c, datagram{dstMAC: mac, srcMAC: w.bridgeMAC(), src: "169.254.0.1", dst: "203.0.113.1", ttl: 64, mark: markGood})
}
