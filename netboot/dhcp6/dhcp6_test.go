package dhcp6

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

const (
	m1      = "02:00:5e:10:20:30"
	fromEUI = "[fe80::5eff:fe10:2030%eth0]:546"
	private = "[fe80::1234:5678:9abc:def0%eth0]:546"
)

var (
	mac1    = net.HardwareAddr{2, 0, 0x5e, 0x10, 0x20, 0x30}
	server  = &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	another = &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	byUUID  = &dhcpv6.DUIDUUID{UUID: [16]byte{1, 2, 3}} // as EDK2 and iPXE name themselves
	byMAC   = &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac1}
)

func testTerms() Terms {
	return Terms{Server: server, Addr: netip.MustParseAddr("fd00:99::a63:40"), Net: netip.MustParsePrefix("fd00:99::/64"), Boot: "tftp://[fd00:99::1]/snponly.efi", For: time.Hour}
}

// message builds a request.
func message(typ dhcpv6.MessageType, options ...dhcpv6.Option) []byte {
	m := &dhcpv6.Message{MessageType: typ, TransactionID: dhcpv6.TransactionID{1, 2, 3}}
	for _, o := range options {
		m.AddOption(o)
	}
	return m.ToBytes()
}

func ia(id byte, addrs ...string) dhcpv6.Option {
	out := &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, id}}
	for _, a := range addrs {
		out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(a)})
	}
	return out
}

func firmware(class string, arch iana.Arch) []dhcpv6.Option {
	return []dhcpv6.Option{dhcpv6.OptClientID(byUUID), dhcpv6.OptClientArchType(arch),
		&dhcpv6.OptVendorClass{EnterpriseNumber: 343, Data: [][]byte{[]byte(class)}}}
}

func parse(t testing.TB, b []byte, peer string) *Request {
	t.Helper()
	r, err := Parse(b, netip.MustParseAddrPort(peer))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// answer returns the reply as a client reads it.
func answer(t testing.TB, r *Request, terms Terms) (*Reply, *dhcpv6.Message) {
	t.Helper()
	rep, err := r.Answer(terms)
	if err != nil {
		t.Fatal(err)
	}
	d, err := dhcpv6.FromBytes(rep.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.GetInnerMessage()
	if err != nil {
		t.Fatal(err)
	}
	return rep, m
}

// TestWhose: a machine is known by its MAC address, wherever that is to be found.
func TestWhose(t *testing.T) {
	solicit := func(id dhcpv6.DUID) []byte { return message(dhcpv6.MessageTypeSolicit, dhcpv6.OptClientID(id), ia(1)) }
	relayed := func(b []byte, peer string, options ...dhcpv6.Option) []byte {
		d, err := dhcpv6.FromBytes(b)
		if err != nil {
			t.Fatal(err)
		}
		r, err := dhcpv6.EncapsulateRelay(d, dhcpv6.MessageTypeRelayForward, net.ParseIP("fd00:98::1"), net.ParseIP(peer))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range options {
			r.AddOption(o)
		}
		return r.ToBytes()
	}
	seen := &dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionClientLinkLayerAddr, OptionData: append([]byte{0, 1}, mac1...)}
	const relay = "[fd00:99::2]:547"
	for name, test := range map[string]struct {
		b    []byte
		peer string
	}{
		"link-local address":           {solicit(byUUID), fromEUI},
		"link-local address over DUID": {solicit(another), fromEUI},
		"DUID-LL":                      {solicit(byMAC), private},
		"DUID-LLT":                     {solicit(&dhcpv6.DUIDLLT{HWType: iana.HWTypeEthernet, Time: 7, LinkLayerAddr: mac1}), private},
		"relay: peer address":          {relayed(solicit(byUUID), "fe80::5eff:fe10:2030"), relay},
		"relay: what it saw":           {relayed(solicit(another), "fe80::ff:fe00:99", seen), relay},
		"two relays":                   {relayed(relayed(solicit(byUUID), "fe80::5eff:fe10:2030"), "fd00:98::1"), relay},
	} {
		if r := parse(t, test.b, test.peer); r.MAC != m1 {
			t.Errorf("%s: %s", name, r.MAC)
		}
	}
	deep := solicit(byMAC)
	for range maxHops + 1 {
		deep = relayed(deep, "fe80::5eff:fe10:2030")
	}
	for name, b := range map[string][]byte{
		"nobody":             solicit(byUUID),
		"group":              solicit(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{1, 0, 0, 0, 0, 1}}),
		"Infiniband":         solicit(&dhcpv6.DUIDLL{HWType: iana.HWTypeInfiniband, LinkLayerAddr: mac1}),
		"no client":          message(dhcpv6.MessageTypeSolicit, ia(1)),
		"a server's message": message(dhcpv6.MessageTypeReply, dhcpv6.OptClientID(byMAC)),
		"reconfigure":        message(dhcpv6.MessageTypeReconfigure, dhcpv6.OptClientID(byMAC)),
		"too many relays":    deep,
		"empty":              nil,
		"short":              solicit(byMAC)[:5],
	} {
		if r, err := Parse(b, netip.MustParseAddrPort(private)); err == nil {
			t.Errorf("%s: parsed as %s of %s", name, r, r.MAC)
		}
	}
}

// TestBoot: each stage gets the URL that it can load; EDK2's HTTP client finds its class in the answer, its PXE does not.
func TestBoot(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []dhcpv6.Option
		stage   dhcp.Stage
		boots   bool
		class   string
	}{
		{"UEFI PXE", firmware("PXEClient:Arch:00007:UNDI:003001", 7), dhcp.PXE, true, ""},
		{"UEFI HTTP", firmware("HTTPClient:Arch:00016:UNDI:003001", 16), dhcp.HTTPBoot, true, "HTTPClient"},
		{"iPXE", append(firmware("PXEClient:Arch:00007:UNDI:003010", 7), &dhcpv6.OptUserClass{UserClasses: [][]byte{[]byte("iPXE")}}), dhcp.IPXE, true, ""},
		{"system", []dhcpv6.Option{dhcpv6.OptClientID(byMAC)}, dhcp.System, false, ""},
	} {
		for typ, want := range map[dhcpv6.MessageType]dhcpv6.MessageType{
			dhcpv6.MessageTypeSolicit: dhcpv6.MessageTypeAdvertise, dhcpv6.MessageTypeRequest: dhcpv6.MessageTypeReply, dhcpv6.MessageTypeInformationRequest: dhcpv6.MessageTypeReply,
		} {
			options := append([]dhcpv6.Option{ia(9)}, test.options...)
			if typ == dhcpv6.MessageTypeRequest {
				options = append(options, dhcpv6.OptServerID(server))
			}
			r := parse(t, message(typ, options...), fromEUI)
			rep, m := answer(t, r, testTerms())
			if r.Stage != test.stage || rep.Type != want || (m.Options.BootFileURL() != "") != test.boots || test.boots && rep.Boot != testTerms().Boot {
				t.Errorf("%s: %s gets %s, URL %q", test.name, r, rep, m.Options.BootFileURL())
			}
			class := ""
			for _, c := range m.Options.VendorClasses() {
				class = string(c.Data[0])
				if c.EnterpriseNumber != 343 {
					t.Errorf("%s: enterprise %d", test.name, c.EnterpriseNumber)
				}
			}
			if class != test.class {
				t.Errorf("%s: vendor class %q", test.name, class)
			}
			if rep.To.String() != fromEUI || !m.Options.ServerID().Equal(server) || m.TransactionID != (dhcpv6.TransactionID{1, 2, 3}) {
				t.Errorf("%s: to %s by %s", test.name, rep.To, m.Options.ServerID())
			}
			one := m.Options.OneIANA()
			if typ == dhcpv6.MessageTypeInformationRequest {
				if one != nil {
					t.Errorf("%s: an address for who did not ask", test.name)
				}
				continue
			}
			if one == nil || one.IaId != [4]byte{0, 0, 0, 9} || !one.Options.OneAddress().IPv6Addr.Equal(net.ParseIP("fd00:99::a63:40")) || one.T1 != 30*time.Minute {
				t.Errorf("%s: %v", test.name, one)
			}
		}
	}
}

// TestKeeping: RENEW and REBIND keep the address and end others; CONFIRM tells whether the network is the same; what is
// given back stays the machine's; other servers' messages are nobody's business.
func TestKeeping(t *testing.T) {
	client, ours, theirs := dhcpv6.OptClientID(byMAC), dhcpv6.OptServerID(server), dhcpv6.OptServerID(another)
	for name, b := range map[string][]byte{
		"renew":  message(dhcpv6.MessageTypeRenew, client, ours, ia(1, "fd00:99::a63:40", "fd00:99::bad")),
		"rebind": message(dhcpv6.MessageTypeRebind, client, ia(1, "fd00:99::a63:40", "fd00:99::bad")),
	} {
		_, m := answer(t, parse(t, b, fromEUI), testTerms())
		lives := map[string]time.Duration{}
		for _, a := range m.Options.OneIANA().Options.Addresses() {
			lives[a.IPv6Addr.String()] = a.ValidLifetime
		}
		if len(lives) != 2 || lives["fd00:99::a63:40"] != time.Hour || lives["fd00:99::bad"] != 0 {
			t.Errorf("%s: %v", name, lives)
		}
	}
	for status, b := range map[iana.StatusCode][]byte{
		iana.StatusNotOnLink: message(dhcpv6.MessageTypeConfirm, client, ia(1, "fd00:98::5")),
		iana.StatusSuccess:   message(dhcpv6.MessageTypeConfirm, client, ia(1, "fd00:99::5")),
	} {
		if _, m := answer(t, parse(t, b, fromEUI), testTerms()); m.Options.Status().StatusCode != status {
			t.Errorf("%s: %s", status, m.Options.Status())
		}
	}
	for _, typ := range []dhcpv6.MessageType{dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline} {
		if _, m := answer(t, parse(t, message(typ, client, ours, ia(1, "fd00:99::a63:40")), fromEUI), testTerms()); m.Options.Status().StatusCode != iana.StatusSuccess {
			t.Errorf("%s: %s", typ, m.Options.Status())
		}
	}
	_, m := answer(t, parse(t, message(dhcpv6.MessageTypeRequest, client, ours, ia(1), ia(2)), fromEUI), testTerms())
	if all := m.Options.IANA(); len(all) != 2 || all[0].Options.OneAddress() == nil || all[1].Options.Status().StatusCode != iana.StatusNoAddrsAvail {
		t.Errorf("two IAs: %v", all)
	}
	for name, b := range map[string][]byte{
		"request to another": message(dhcpv6.MessageTypeRequest, client, theirs, ia(1)),
		"request to nobody":  message(dhcpv6.MessageTypeRequest, client, ia(1)),
		"renew with another": message(dhcpv6.MessageTypeRenew, client, theirs, ia(1)),
		"solicit to one":     message(dhcpv6.MessageTypeSolicit, client, ours, ia(1)),
		"confirm of nothing": message(dhcpv6.MessageTypeConfirm, client, ia(1)),
		"inform to another":  message(dhcpv6.MessageTypeInformationRequest, client, theirs),
	} {
		if rep, err := parse(t, b, fromEUI).Answer(testTerms()); !dhcp.IsSilence(err) {
			t.Errorf("%s: %v, %v", name, rep, err)
		}
	}
	terms := testTerms()
	terms.Boot = "http://[fd00:99::1]/" + strings.Repeat("x", 300)
	if _, err := parse(t, message(dhcpv6.MessageTypeSolicit, client, ia(1)), fromEUI).Answer(terms); err == nil || dhcp.IsSilence(err) {
		t.Errorf("long URL: %v", err)
	}
}

// TestRelays: the answer goes back through the relays in order, each with its interface-id; the link nearest to the
// client counts.
func TestRelays(t *testing.T) {
	inner, err := dhcpv6.FromBytes(message(dhcpv6.MessageTypeSolicit, append(firmware("PXEClient:Arch:00007", 7), ia(1))...))
	if err != nil {
		t.Fatal(err)
	}
	first, err := dhcpv6.EncapsulateRelay(inner, dhcpv6.MessageTypeRelayForward, net.ParseIP("fd00:99::2"), net.ParseIP("fe80::5eff:fe10:2030"))
	if err != nil {
		t.Fatal(err)
	}
	first.AddOption(dhcpv6.OptInterfaceID([]byte("sw1/7")))
	second, err := dhcpv6.EncapsulateRelay(first, dhcpv6.MessageTypeRelayForward, net.IPv6unspecified, net.ParseIP("fd00:99::2"))
	if err != nil {
		t.Fatal(err)
	}
	second.AddOption(dhcpv6.OptInterfaceID([]byte{0, 9}))
	r := parse(t, second.ToBytes(), "[fd00:1::2]:547")
	if f := r.Facts(); r.Link().String() != "fd00:99::2" || f.Circuit != "sw1/7" || f.Relay.String() != "fd00:1::2" || f.Arch != 7 {
		t.Errorf("link %s, facts %+v", r.Link(), f)
	}
	rep, m := answer(t, r, testTerms())
	if rep.To.String() != "[fd00:1::2]:547" || m.MessageType != dhcpv6.MessageTypeAdvertise {
		t.Errorf("%s to %s", m.MessageType, rep.To)
	}
	d, err := dhcpv6.FromBytes(rep.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	outer := d.(*dhcpv6.RelayMessage)
	next := outer.Options.RelayMessage().(*dhcpv6.RelayMessage)
	if outer.MessageType != dhcpv6.MessageTypeRelayReply || !bytes.Equal(outer.Options.InterfaceID(), []byte{0, 9}) || !outer.PeerAddr.Equal(net.ParseIP("fd00:99::2")) ||
		!bytes.Equal(next.Options.InterfaceID(), []byte("sw1/7")) || !next.PeerAddr.Equal(net.ParseIP("fe80::5eff:fe10:2030")) {
		t.Errorf("wrapped as %s", outer.Summary())
	}
	terms := testTerms()
	terms.Net = netip.MustParsePrefix("fd00:98::/64")
	if _, err := r.Answer(terms); !dhcp.IsSilence(err) {
		t.Errorf("seen on another network: %v", err)
	}
}

// FuzzParse: whatever arrives, Parse and Answer do not panic, and a reply parses and goes to who asked.
func FuzzParse(f *testing.F) {
	f.Add(message(dhcpv6.MessageTypeSolicit, append(firmware("PXEClient:Arch:00007:UNDI:003001", 7), ia(1))...))
	f.Add(message(dhcpv6.MessageTypeSolicit, append(firmware("HTTPClient:Arch:00016:UNDI:003001", 16), ia(1))...))
	f.Add(message(dhcpv6.MessageTypeRequest, dhcpv6.OptClientID(byMAC), dhcpv6.OptServerID(server), ia(1, "fd00:99::1"), ia(2)))
	f.Add(message(dhcpv6.MessageTypeConfirm, dhcpv6.OptClientID(byMAC), ia(1, "fd00:99::1")))
	f.Add(append([]byte{12, 0}, append(make([]byte, 32), append([]byte{0, 9, 0, 8}, message(dhcpv6.MessageTypeSolicit, dhcpv6.OptClientID(byMAC))...)...)...))
	for _, capture := range []string{"ovmf-pxe-over-ipv6", "ovmf-http-over-ipv6"} {
		payloads, _ := requests(f, "testdata/"+capture+".pcap")
		for _, b := range payloads {
			f.Add(b)
		}
	}
	peer := netip.MustParseAddrPort(fromEUI)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b, peer)
		if err != nil {
			return
		}
		_ = r.Facts()
		rep, err := r.Answer(testTerms())
		if err != nil {
			return
		}
		if rep.To.Addr() != peer.Addr() {
			t.Fatalf("goes to %s", rep.To)
		}
		d, err := dhcpv6.FromBytes(rep.Bytes())
		if err != nil {
			t.Fatalf("reply does not parse: %v", err)
		}
		if m, err := d.GetInnerMessage(); err != nil || m.TransactionID != r.msg.TransactionID {
			t.Fatalf("reply to another request: %v", err)
		}
	})
}
