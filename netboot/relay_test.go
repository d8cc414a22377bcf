package netboot

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// relayed is a network behind a router with dnsmasq as its relay: the machine at 10.98.0.0/24, the server at 10.99.0.1.
func relayed(t testing.TB, mac string) (server, client string) {
	t.Helper()
	server, router, client := newNamespace(t), newNamespace(t), newNamespace(t)
	ip(t, "-n", server, "link", "add", "nb0", "type", "veth", "peer", "name", "up0", "netns", router)
	ip(t, "-n", router, "link", "add", "down0", "type", "veth", "peer", "name", "eth0", "address", mac, "netns", client)
	ip(t, "-n", server, "addr", "add", "10.99.0.1/24", "dev", "nb0")
	ip(t, "-n", router, "addr", "add", "10.99.0.2/24", "dev", "up0")
	ip(t, "-n", router, "addr", "add", "10.98.0.1/24", "dev", "down0")
	for ns, dev := range map[string]string{server: "nb0", client: "eth0"} {
		ip(t, "-n", ns, "link", "set", dev, "up")
	}
	ip(t, "-n", router, "link", "set", "up0", "up")
	ip(t, "-n", router, "link", "set", "down0", "up")
	ip(t, "-n", server, "route", "add", "10.98.0.0/24", "via", "10.99.0.2")
	if err := <-inNamespace(t, router, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) }); err != nil {
		t.Fatal(err)
	}
	dnsmasq(t, router, "--dhcp-relay=10.98.0.1,10.99.0.1", "--interface=down0", "--interface=up0")
	return server, client
}

func behindRelay(booter Booter) *Server {
	return &Server{
		Booter: booter, Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
		Subnets: []Subnet{
			{Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1")},
			{Prefix: netip.MustParsePrefix("10.98.0.0/24"), Range: Range{netip.MustParseAddr("10.98.0.200"), netip.MustParseAddr("10.98.0.210")}},
		},
	}
}

// TestRelay: a machine behind a real relay gets its reserved address, its own network's mask and router, and its
// script; one that is reserved elsewhere gets nothing; one that nobody knows gets an address of that network's range.
func TestRelay(t *testing.T) {
	server, client := relayed(t, testMAC)
	booter := &rosterBooter{fakeBooter: fakeBooter{leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.98.0.64/32")}}, boot: Boot{Kind: BootAgent}, discover: true}}
	s := behindRelay(booter)
	var seen exchanges
	s.Trace = seen.add
	files(t, s)
	start(t, server, s)

	onStation(t, client, func(c *station) error {
		for _, kind := range [][]dhcpv4.Modifier{firmware("PXEClient:Arch:00007:UNDI:003000", 7), ipxeClient(), nil} {
			ack, err := c.address(kind...)
			if err != nil {
				return err
			}
			if ack.YourIPAddr.String() != "10.98.0.64" || net.IP(ack.SubnetMask()).String() != "255.255.255.0" || len(ack.Router()) != 1 || ack.Router()[0].String() != "10.98.0.1" {
				t.Errorf("relayed: %s", ack.Summary())
			}
		}
		return nil
	})
	ip(t, "-n", client, "addr", "add", "10.98.0.64/24", "dev", "eth0")
	ip(t, "-n", client, "route", "add", "default", "via", "10.98.0.1")
	if err := <-inNamespace(t, client, func() error {
		return fetch("http://10.99.0.1:8080/boot/ipxe/"+testMAC+".ipxe", "#!ipxe")
	}); err != nil {
		t.Error(err)
	}
	x := seen.list()[0]
	if x.DHCP.Relay.String() != "10.98.0.1" || x.DHCP.Link.String() != "10.98.0.1" || x.DHCP.Basis != Reserved {
		t.Errorf("traced as %+v", x)
	}

	booter.mu.Lock()
	booter.leases[testMAC] = Lease{Addr: netip.MustParsePrefix("10.99.0.64/24")}
	booter.mu.Unlock()
	onStation(t, client, func(c *station) error {
		if all, err := c.ask(1e9, 1, message(dhcpv4.MessageTypeDiscover)); err != nil || len(all) > 0 {
			return fmt.Errorf("plugged in elsewhere: %v, %v", all, err)
		}
		return nil
	})
	seen.expect(t, "seen on the network of 10.98.0.1, its reserved address is 10.99.0.64/24")

	booter.mu.Lock()
	delete(booter.leases, testMAC)
	booter.mu.Unlock()
	onStation(t, client, func(c *station) error {
		ack, err := c.address(ipxeClient()...)
		if err != nil {
			return err
		}
		a, _ := netip.AddrFromSlice(ack.YourIPAddr)
		if !s.Subnets[1].Range.Contains(a.Unmap()) || ack.BootFileName == "" {
			t.Errorf("unknown machine: %s boots %q", ack.YourIPAddr, ack.BootFileName)
		}
		return nil
	})
}
