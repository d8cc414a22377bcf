package netboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	pin "github.com/pin/tftp/v3"
)

// overIPv6 is how firmware names itself: by the UUID of the machine, which says nothing of its MAC address.
func overIPv6(class string, arch uint16, user string) []dhcpv6.Modifier {
	m := []dhcpv6.Modifier{
		dhcpv6.WithClientID(&dhcpv6.DUIDUUID{UUID: [16]byte{1, 2, 3}}),
		dhcpv6.WithOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionClientArchType, OptionData: []byte{byte(arch >> 8), byte(arch)}}),
		dhcpv6.WithOption(&dhcpv6.OptVendorClass{EnterpriseNumber: 343, Data: [][]byte{[]byte(class)}}),
	}
	if user != "" {
		m = append(m, dhcpv6.WithUserClass([]byte(user)))
	}
	return m
}

// lease6 runs SOLICIT to REPLY on eth0.
func lease6(modifiers ...dhcpv6.Modifier) (addr, url string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// The interface by its number: what its name means is remembered for the whole process, whatever the namespace.
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return "", "", err
	}
	conn, err := server6.NewIPv6UDPConn("eth0", &net.UDPAddr{IP: net.IPv6unspecified, Port: 546})
	if err != nil {
		return "", "", err
	}
	cl, err := nclient6.NewWithConn(conn, ifi.HardwareAddr, nclient6.WithTimeout(2*time.Second), nclient6.WithRetry(4),
		nclient6.WithBroadcastAddr(&net.UDPAddr{IP: net.ParseIP("ff02::1:2"), Port: 547, Zone: strconv.Itoa(ifi.Index)}))
	if err != nil {
		return "", "", err
	}
	defer cl.Close()
	var advertise *dhcpv6.Message
	for {
		if advertise, err = cl.Solicit(ctx, modifiers...); err == nil {
			break
		}
		if ctx.Err() != nil { // the address was tentative, and nothing went out
			return "", "", fmt.Errorf("SOLICIT: %w", err)
		}
	}
	reply, err := cl.Request(ctx, advertise, modifiers...)
	if err != nil {
		return "", "", fmt.Errorf("REQUEST: %w", err)
	}
	if ia := reply.Options.OneIANA(); ia != nil && ia.Options.OneAddress() != nil {
		addr = ia.Options.OneAddress().IPv6Addr.String()
	}
	return addr, reply.Options.BootFileURL(), nil
}

// TestIPv6 is a boot over IPv6 on a real wire without firmware: DHCPv6 for each stage, TFTP and HTTP, a neighbour, a
// stranger.
func TestIPv6(t *testing.T) {
	h := newHub(t, testMAC, stranger(1))
	ip(t, "-n", h.server, "addr", "add", "fd00:99::1/64", "dev", "br0", "nodad")
	booter := &rosterBooter{fakeBooter: fakeBooter{leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24")}}, boot: Boot{Kind: BootAgent, Cmdline: "x"}, archive: []byte("cpio"), discover: true}}
	var seen exchanges
	s := &Server{Booter: booter, Interface: "br0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080, Trace: seen.add, Subnets: []Subnet{{
		Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "br0", Addr: netip.MustParseAddr("10.99.0.1"), Addr6: netip.MustParsePrefix("fd00:99::1/64"), Range: mustRange(t, "10.99.0.200-10.99.0.210"),
	}}}
	files(t, s)
	start(t, h.server, s)

	const script = "http://[fd00:99::1]:8080/boot/ipxe/" + testMAC + ".ipxe"
	if err := <-inNamespace(t, h.hosts[0], func() error {
		for _, test := range []struct {
			class, user, url string
			arch             uint16
		}{
			{"PXEClient:Arch:00007:UNDI:003001", "", "tftp://[fd00:99::1]/snponly.efi", 7},
			{"HTTPClient:Arch:00016:UNDI:003001", "", "http://[fd00:99::1]:8080/boot/snponly.efi", 16},
			{"PXEClient:Arch:00007:UNDI:003010", "iPXE", script, 7},
		} {
			addr, url, err := lease6(overIPv6(test.class, test.arch, test.user)...)
			if err != nil {
				return err
			}
			if addr != "fd00:99::a63:40" || url != test.url {
				t.Errorf("%s: %s boots %s", test.class, addr, url)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ip(t, "-n", h.hosts[0], "addr", "add", "fd00:99::a63:40/64", "dev", "eth0", "nodad")
	ip(t, "-n", h.hosts[1], "addr", "add", "fd00:99::bad/64", "dev", "eth0", "nodad")
	if err := <-inNamespace(t, h.hosts[0], func() error {
		cl, err := pin.NewClient("[fd00:99::1]:69")
		if err != nil {
			return err
		}
		wt, err := cl.Receive("snponly.efi", "octet")
		if err != nil {
			return fmt.Errorf("TFTP: %w", err)
		}
		var loader bytes.Buffer
		if _, err := wt.WriteTo(&loader); err != nil || loader.Len() != 3*1468 {
			t.Errorf("TFTP: %d bytes, %v", loader.Len(), err)
		}
		return errors.Join(fetch("http://[fd00:99::1]:8080/boot/vmlinuz", "kernel"), fetch(script, "#!ipxe"),
			fetch("http://[fd00:99::1]:8080/boot/archive/"+testMAC, "cpio"))
	}); err != nil {
		t.Error(err)
	}
	for _, x := range seen.list() {
		if x.MAC != testMAC {
			t.Errorf("%s %s is not known to be the machine's", x.Proto, x.Asked)
		}
	}
	if err := <-inNamespace(t, h.hosts[1], func() error { return fetch(script, "#!ipxe") }); err == nil {
		t.Error("a neighbour got the script")
	}
	if err := <-inNamespace(t, h.hosts[1], func() error {
		addr, url, err := lease6(overIPv6("PXEClient:Arch:00007:UNDI:003010", 7, "iPXE")...)
		a, perr := netip.ParseAddr(addr)
		if four := networks(s.Subnets).four(a); err == nil && (perr != nil || !s.Subnets[0].Range.Contains(four) || url == "") {
			t.Errorf("stranger: %s boots %q", addr, url)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestRelay6: a machine behind a real DHCPv6 relay gets the address of its own network.
func TestRelay6(t *testing.T) {
	server, router, client := newNamespace(t), newNamespace(t), newNamespace(t)
	ip(t, "-n", server, "link", "add", "nb0", "type", "veth", "peer", "name", "up0", "netns", router)
	ip(t, "-n", router, "link", "add", "down0", "type", "veth", "peer", "name", "eth0", "address", testMAC, "netns", client)
	for _, a := range [][3]string{{server, "nb0", "10.99.0.1/24"}, {server, "nb0", "fd00:99::1/64"}, {router, "up0", "fd00:99::2/64"}, {router, "down0", "fd00:98::1/64"}} {
		args := []string{"-n", a[0], "addr", "add", a[2], "dev", a[1]}
		if netip.MustParsePrefix(a[2]).Addr().Is6() {
			args = append(args, "nodad")
		}
		ip(t, args...)
		ip(t, "-n", a[0], "link", "set", a[1], "up")
	}
	ip(t, "-n", client, "link", "set", "eth0", "up")
	ip(t, "-n", server, "route", "add", "fd00:98::/64", "via", "fd00:99::2")
	if err := <-inNamespace(t, router, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644) }); err != nil {
		t.Fatal(err)
	}
	dnsmasq(t, router, "--dhcp-relay=fd00:98::1,fd00:99::1", "--interface=down0", "--interface=up0")
	var seen exchanges
	s := &Server{Booter: &fakeBooter{leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.98.0.64/24")}}, boot: Boot{Kind: BootAgent}},
		Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), Trace: seen.add, Subnets: []Subnet{
			{Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), Addr6: netip.MustParsePrefix("fd00:99::1/64")},
			{Prefix: netip.MustParsePrefix("10.98.0.0/24"), Prefix6: netip.MustParsePrefix("fd00:98::/64")},
		}}
	files(t, s)
	start(t, server, s)
	if err := <-inNamespace(t, client, func() error {
		addr, url, err := lease6(overIPv6("PXEClient:Arch:00007:UNDI:003001", 7, "")...)
		if err == nil && (addr != "fd00:98::a62:40" || url != "tftp://[fd00:99::1]/snponly.efi") {
			t.Errorf("%s boots %s", addr, url)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	for _, x := range seen.list() {
		if x.DHCP.Link != netip.MustParseAddr("fd00:98::1") || !x.DHCP.Relay.IsValid() {
			t.Errorf("traced as %+v", x)
		}
	}
}

// TestFourAndSix: an IPv6 address of ours tells the IPv4 address, and no other does.
func TestFourAndSix(t *testing.T) {
	n := networks{{Prefix: netip.MustParsePrefix("10.99.0.0/24"), Addr6: netip.MustParsePrefix("fd00:99::1/64")}, {Prefix: netip.MustParsePrefix("10.98.0.0/24"), Prefix6: netip.MustParsePrefix("fd00:98::/96")}}
	for six, four := range map[string]string{
		"fd00:99::a63:40": "10.99.0.64", "fd00:98::a62:40": "10.98.0.64", "::ffff:10.99.0.64": "10.99.0.64", "10.99.0.64": "10.99.0.64",
		"fd00:99::1:a63:40": "fd00:99::1:a63:40", "fd00:97::a63:40": "fd00:97::a63:40", "fe80::1%eth0": "fe80::1",
	} {
		if got := n.four(netip.MustParseAddr(six)); got.String() != four {
			t.Errorf("%s: %s, want %s", six, got, four)
		}
	}
	if got := n.four(netip.Addr{}); got.IsValid() {
		t.Errorf("nothing: %s", got)
	}
}
