package netboot

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
)

// besideDnsmasq is a network whose addresses dnsmasq gives, and a machine on it.
func besideDnsmasq(t testing.TB, s *Server, macs ...string) hub {
	t.Helper()
	h := newHub(t, append([]string{"02:00:5e:00:00:02"}, macs...)...)
	ip(t, "-n", h.hosts[0], "addr", "add", "10.99.0.2/24", "dev", "eth0")
	dnsmasq(t, h.hosts[0], "--interface=eth0", "--dhcp-range=10.99.0.100,10.99.0.150,1h", "--dhcp-authoritative", "--no-ping", "--dhcp-option=3,10.99.0.2")
	s.Mode, s.Interface, s.Addr, s.HTTPPort = Proxy, "br0", netip.MustParseAddr("10.99.0.1"), 8080
	s.Subnets = []Subnet{{Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "br0", Addr: s.Addr}}
	return h
}

// TestProxy: beside a real DHCP server every stage of a boot gets one offer with an address, dnsmasq's, and one of ours
// that says what to boot; port 4011 answers requests that leave out what they can; a script is for who took the address.
func TestProxy(t *testing.T) {
	var seen exchanges
	var alarms []OtherServer
	booter := &fakeBooter{
		leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24")}},
		boot:   Boot{Kind: BootAgent}, archive: []byte("cpio"), anywhere: true,
	}
	s := &Server{Booter: booter, Trace: seen.add, Alarm: func(o OtherServer) { alarms = append(alarms, o) }}
	h := besideDnsmasq(t, s, testMAC, "02:00:5e:00:00:99")
	files(t, s)
	start(t, h.server, s)

	var address string
	onStation(t, h.hosts[1], func(c *station) error {
		for _, test := range []struct {
			name, file, class string
			vendor            []byte
			options           []dhcpv4.Modifier
		}{
			{"BIOS", "undionly.kpxe", "PXEClient", []byte{6, 1, 8}, firmware("PXEClient:Arch:00000:UNDI:002001", 0)},
			{"UEFI", "snponly.efi", "PXEClient", []byte{6, 1, 8}, firmware("PXEClient:Arch:00007:UNDI:003000", 7)},
			{"UEFI HTTP", "http://10.99.0.1:8080/boot/snponly.efi", "HTTPClient", nil, firmware("HTTPClient:Arch:00016:UNDI:003001", 16)},
			{"iPXE", "http://10.99.0.1:8080/boot/ipxe/" + testMAC + ".ipxe", "PXEClient", []byte{6, 1, 8}, ipxeClient()},
		} {
			offers, err := c.ask(3*time.Second, 2, append(test.options, message(dhcpv4.MessageTypeDiscover))...)
			if err != nil || len(offers) != 2 {
				return fmt.Errorf("%s: %d offers, %v", test.name, len(offers), err)
			}
			theirs, ours := offers[0], offers[1]
			if theirs.YourIPAddr.IsUnspecified() {
				theirs, ours = ours, theirs
			}
			if !ours.YourIPAddr.IsUnspecified() || ours.IPAddressLeaseTime(0) != 0 || len(ours.Router()) != 0 || ours.SubnetMask() != nil {
				t.Errorf("%s: ours gives an address: %s", test.name, ours.Summary())
			}
			if ours.BootFileName != test.file || ours.ClassIdentifier() != test.class || !bytes.Equal(ours.Options.Get(dhcpv4.OptionVendorSpecificInformation), test.vendor) ||
				ours.ServerIPAddr.String() != "10.99.0.1" || ours.ServerIdentifier().String() != "10.99.0.1" {
				t.Errorf("%s: %s", test.name, ours.Summary())
			}
			ack, err := c.one(append(test.options, message(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(theirs.ServerIdentifier())),
				dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(theirs.YourIPAddr)))...)
			if err != nil {
				return err
			}
			if ack.ServerIdentifier().String() != "10.99.0.2" || ack.MessageType() != dhcpv4.MessageTypeAck {
				t.Errorf("%s: acknowledged by %s", test.name, ack.Summary())
			}
			address = ack.YourIPAddr.String()
		}
		// An operating system gets nothing from us.
		if all, err := c.ask(time.Second, 2, message(dhcpv4.MessageTypeDiscover)); err != nil || len(all) != 1 || all[0].ServerIdentifier().String() != "10.99.0.2" {
			t.Errorf("operating system: %d answers, %v", len(all), err)
		}
		return nil
	})

	ip(t, "-n", h.hosts[1], "addr", "add", address+"/24", "dev", "eth0")
	ip(t, "-n", h.hosts[2], "addr", "add", "10.99.0.77/24", "dev", "eth0")
	script, archive := "http://10.99.0.1:8080/boot/ipxe/"+testMAC+".ipxe", "http://10.99.0.1:8080/boot/archive/"+testMAC
	if err := <-inNamespace(t, h.hosts[1], func() error {
		if err := fetch(script, "#!ipxe"); err != nil {
			return err
		}
		return fetch(archive, "cpio")
	}); err != nil {
		t.Error(err)
	}
	if err := <-inNamespace(t, h.hosts[2], func() error { return fetch(archive, "cpio") }); err == nil {
		t.Error("a neighbour got the archive")
	}
	// A neighbour that claims the machine's MAC address for its own IP address is found out by ARP.
	onStation(t, h.hosts[2], func(c *station) error {
		c.mac[0], c.mac[1], c.mac[2], c.mac[3], c.mac[4], c.mac[5] = 0x02, 0x00, 0x5e, 0x10, 0x20, 0x30
		_, err := c.ask(300*time.Millisecond, 1, message(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress([]byte{10, 99, 0, 77})))
		return err
	})
	if err := <-inNamespace(t, h.hosts[2], func() error { return fetch(archive, "cpio") }); err == nil {
		t.Error("a neighbour that lied about its MAC address got the archive")
	}
	seen.expect(t, "which 02:00:5e:00:00:99 has")
	if len(alarms) > 0 {
		t.Errorf("alarm in proxy mode: %+v", alarms)
	}
}

// TestA03A11BootServer: port 4011 answers a request without options 93 and 97, by what the machine said before.
func TestA03A11BootServer(t *testing.T) {
	c, _, seen := talk(t)
	l := c.links[0]
	ask := func(options ...string) *exchanges {
		req := request(t, testMAC, options...)
		req.ToBootServer()
		req.Peer = netip.MustParseAddrPort("10.99.0.64:4011")
		if rep := l.Answer(t.Context(), req); rep != nil {
			return &exchanges{all: []Exchange{{Got: rep.String(), Asked: rep.To.String()}}}
		}
		return &exchanges{}
	}
	l.Answer(t.Context(), request(t, testMAC, discover, "3C 20 505845436C69656E743A417263683A30303030373A554E44493A303033303030", "5D 02 00 07"))
	for _, options := range [][]string{
		{"35 01 03", "2B 06 47 04 80 00 00 00"},
		{"35 01 03", "3C 09 505845436C69656E74", "2B 07 47 04 80 00 00 00 FF"},
		{"35 01 08"},
	} {
		ask(options...).expect(t, "10.99.0.64:4011 ACK snponly.efi")
	}
	ask("35 01 01").none(t)
	ask("35 01 07").none(t)
	seen.expect(t, "ACK snponly.efi")
	if x := seen.all[1]; x.DHCP.Basis != Proxied || x.DHCP.Addr.IsValid() {
		t.Errorf("%+v", x)
	}
}

// TestRogue: another DHCP server on our network raises the alarm, once for each way it was seen: by its own answer and by who chooses it.
func TestRogue(t *testing.T) {
	var seen exchanges
	alarms := make(chan OtherServer, 10)
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Booter: &fakeBooter{}, Trace: seen.add, Alarm: func(o OtherServer) { alarms <- o }, Metrics: metrics}
	h := besideDnsmasq(t, s, testMAC)
	s.Mode = Authoritative
	files(t, s)
	start(t, h.server, s)
	onStation(t, h.hosts[1], func(c *station) error { _, err := c.address(); return err })
	for itself := false; !itself; {
		select {
		case o := <-alarms: // by the word of its client, and then itself, or only itself
			if o.Addr.String() != "10.99.0.2" || o.MAC != "" && o.MAC != "02:00:5e:00:00:02" || o.Client != testMAC || o.Interface != "br0" || o.Seen.IsZero() {
				t.Errorf("alarm %+v", o)
			}
			itself = o.MAC != ""
		case <-time.After(10 * time.Second):
			t.Fatal("no alarm")
		}
	}
	onStation(t, h.hosts[1], func(c *station) error { _, err := c.address(); return err })
	if len(alarms) > 0 {
		t.Errorf("again: %+v", <-alarms)
	}
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, f := range gathered {
		if f.GetName() == "bareyard_boot_foreign_servers_total" {
			counted = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted < 1 || counted > 2 {
		t.Errorf("counted %v times in %v", counted, gathered)
	}
	c, _, _ := talk(t)
	c.Alarm = func(o OtherServer) { alarms <- o }
	c.OtherServers = []netip.Addr{netip.MustParseAddr("10.99.0.3")}
	for _, chosen := range []string{"0A630003", "0A630001", "0A630004"} {
		c.links[0].Answer(t.Context(), request(t, testMAC, "35 01 03 36 04 "+chosen+" 32 04 0A630040"))
	}
	if o := <-alarms; o.Addr.String() != "10.99.0.4" || o.Client != testMAC || len(alarms) > 0 {
		t.Errorf("chosen: %+v and %d more", o, len(alarms))
	}
}
