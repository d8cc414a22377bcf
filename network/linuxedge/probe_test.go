package linuxedge_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// TestI07ProbeFindsUsers: an old tenant's system that still has the address, somebody on the uplink's segment, somebody behind a
// router, the edge itself; and nobody on what is free. The machine whose port it is may be reached by nothing else.
func TestI07ProbeFindsUsers(t *testing.T) {
	w := newWorld(t, 2)
	w.reconcile(w.ports()...)
	w.ip(w.tenants[1].ns, "addr add 203.0.113.77/32 dev eth0", "addr add 2001:db8:79::1/128 dev eth0 nodad")
	w.ip(w.inet, "addr add 192.0.2.55/32 dev eth0", "addr add 198.51.100.5/32 dev lo", "addr add 2001:db8:77::1/128 dev eth0 nodad")
	w.sysctl(w.inet, "net.ipv4.conf.all.arp_ignore=1") // or it would answer by ARP for what it has on lo
	var asked []netip.Prefix
	for _, p := range []string{"203.0.113.77/32", "203.0.113.78/32", "192.0.2.55/32", "192.0.2.56/32", "198.51.100.5/32", "192.0.2.2/32", "2001:db8:77::/64", "2001:db8:78::/64", "2001:db8:79::/64"} {
		asked = append(asked, netip.MustParsePrefix(p))
	}
	began := time.Now()
	got, err := w.driver().Probe(t.Context(), asked)
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	inetMAC := w.exec(w.inet, "cat /sys/class/net/eth0/address")
	want := map[string]string{"203.0.113.77": w.tenants[1].port.MAC, "192.0.2.55": inetMAC[:17], "198.51.100.5": "", "192.0.2.2": "", "2001:db8:77::1": inetMAC[:17], "2001:db8:79::1": w.tenants[1].port.MAC}
	for _, a := range got {
		by, known := want[a.Addr.String()]
		if !known || a.By != by {
			t.Errorf("%+v", a)
		}
		delete(want, a.Addr.String())
	}
	if len(want) > 0 {
		t.Errorf("not found: %v; found %v", want, got)
	}
	if took > time.Second && !busy(t) {
		t.Errorf("a probe took %s", took)
	}
	w.settled(w.ports()...)

	// Whoever changes the edge does not wait for a probe, nor a probe for him.
	if caps, err := w.driver().Caps(t.Context()); err != nil || !caps.Probes {
		t.Errorf("%+v, %v", caps, err)
	}
	if got, err := network.Probe(t.Context(), &network.Sites{Edges: map[string]network.Edge{"sha1": w.driver()}}, "sha1", asked[1:2]); err != nil || len(got) != 0 {
		t.Errorf("at a site: %v, %v", got, err)
	}
}

// TestProbeIsNotLedAstray: an echo reply that nobody was asked for is no user of an address: anybody can send them for all that there
// are. An ARP reply that names another sender than its own, as a router's with a virtual MAC address does, is one on which nobody is blamed.
func TestProbeIsNotLedAstray(t *testing.T) {
	w := newWorld(t, 1)
	w.reconcile(w.ports()...)
	free := []netip.Prefix{netip.MustParsePrefix("198.51.100.9/32"), netip.MustParsePrefix("192.0.2.56/32")}
	c := w.raw(w.inet, "eth0")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		buf := make([]byte, 2000)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if n < 42 || binary.BigEndian.Uint16(buf[12:]) != unix.ETH_P_ARP || !bytes.Equal(buf[38:42], free[1].Addr().AsSlice()) {
				continue // the probe asks now
			}
			edge, stranger := bytes.Clone(buf[6:12]), []byte{2, 0, 0, 0, 0, 0x66}
			for _, f := range [][]byte{echoReply(edge, stranger, free[0].Addr()), falseARP(edge, stranger, free[1].Addr())} {
				_, _ = c.WriteTo(f, &packet.Addr{HardwareAddr: edge})
			}
		}
	}()
	got, err := w.driver().Probe(t.Context(), free)
	if want := []network.Answer{{Addr: free[1].Addr(), On: "on up0"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("found %+v, %v; want %+v", got, err, want)
	}
	_ = c.Close()
	<-sent
}

// echoReply is one with the id and number of a well-known asker.
func echoReply(to, by []byte, of netip.Addr) []byte {
	ip := []byte{0x45, 0, 0, 36, 0, 0, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0}
	ip = append(append(ip, of.AsSlice()...), 192, 0, 2, 2)
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	icmp := append([]byte{0, 0, 0, 0, 0xba, 0x4e, 0, 1}, make([]byte, 8)...)
	binary.BigEndian.PutUint16(icmp[2:], ^sum(0, icmp))
	return append(append(append(append(bytes.Clone(to), by...), 0x08, 0x00), ip...), icmp...)
}

// falseARP says that somebody else has an address.
func falseARP(to, by []byte, of netip.Addr) []byte {
	f := append(append(bytes.Clone(to), by...), 0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 2)
	f = append(append(f, 2, 0, 0, 0, 2, 1), of.AsSlice()...)
	return append(append(f, to...), 0, 0, 0, 0)
}
