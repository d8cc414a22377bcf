package netboot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/tftp"
	"github.com/google/go-cmp/cmp"
)

// request builds a DHCP request of the test machine from options in hex.
func request(t testing.TB, mac string, options ...string) *dhcp.Request {
	t.Helper()
	b := make([]byte, 240)
	b[0], b[1], b[2] = 1, 1, 6
	for _, x := range []struct {
		at  int
		hex string
	}{{28, strings.ReplaceAll(mac, ":", "")}, {236, "63825363"}} {
		v, err := hex.DecodeString(x.hex)
		if err != nil {
			t.Fatal(err)
		}
		copy(b[x.at:], v)
	}
	for _, o := range options {
		v, err := hex.DecodeString(strings.ReplaceAll(o, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, v...)
	}
	r, err := dhcp.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	discover = "35 01 01"
	accept   = "35 01 03 36 04 0A630001 32 04 0A630040"
	pxeBIOS  = "3C 09 505845436C69656E74 5D 02 00 00"
	userIPXE = "4D 04 69505845"
)

func talk(t testing.TB) (*conversation, *fakeBooter, *exchanges) {
	t.Helper()
	b := &fakeBooter{leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24")}}}
	var seen exchanges
	s := &Server{Booter: b, Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), Trace: seen.add}
	files(t, s)
	c, err := newConversation(s)
	if err != nil {
		t.Fatal(err)
	}
	return c, b, &seen
}

// TestA09FlexBootLoop: a card whose iPXE does not say so takes the loader for ever; after five times it gets the
// script. A machine that becomes iPXE in between is no loop.
func TestA09FlexBootLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := talk(t)
		ctx := t.Context()
		file := func() string {
			c.links[0].Answer(ctx, request(t, testMAC, discover, pxeBIOS))
			rep := c.links[0].Answer(ctx, request(t, testMAC, accept, pxeBIOS))
			time.Sleep(time.Minute) // of the bubble: one round of the loop
			return rep.Boot
		}
		for range 20 { // healthy: firmware, then iPXE
			if f := file(); f != "undionly.kpxe" {
				t.Fatalf("healthy machine gets %s", f)
			}
			c.links[0].Answer(ctx, request(t, testMAC, accept, pxeBIOS, userIPXE))
		}
		for range loopTimes {
			if f := file(); f != "undionly.kpxe" {
				t.Fatalf("too early: %s", f)
			}
		}
		if f := file(); f != "http://10.99.0.1/boot/ipxe/"+testMAC+".ipxe" {
			t.Errorf("in a loop it gets %s", f)
		}
		time.Sleep(loopTime)
		if f := file(); f != "undionly.kpxe" {
			t.Errorf("after the loop it gets %s", f)
		}
	})
}

// TestAnswer: the Booter's errors end in silence, and an unknown machine is traced once in a while.
func TestAnswer(t *testing.T) {
	c, b, seen := talk(t)
	ctx := context.Background()
	for range 3 {
		if rep := c.links[0].Answer(ctx, request(t, "02:00:5e:00:00:01", discover)); rep != nil || len(seen.lines()) != 1 || seen.all[0].Outcome != Silent {
			t.Errorf("unknown machine: %v, %q", rep, seen.lines())
		}
	}
	if rep := c.links[0].Answer(ctx, request(t, testMAC, discover)); rep == nil || rep.Boot != "" {
		t.Errorf("installed system: %v", rep)
	}
	if rep := c.links[0].Answer(ctx, request(t, testMAC, "35 01 03 36 04 0A630002 32 04 0A630040")); rep != nil {
		t.Errorf("request to another server: %v", rep)
	}
	b.err = errors.New("no database")
	if rep := c.links[0].Answer(ctx, request(t, testMAC, discover)); rep != nil {
		t.Errorf("failing Booter: %v", rep)
	}
	b.err, b.leases[testMAC] = nil, Lease{Addr: netip.MustParsePrefix("10.99.0.64/24"), Hostname: strings.Repeat("x", 64)}
	if rep := c.links[0].Answer(ctx, request(t, testMAC, discover)); rep != nil {
		t.Errorf("host name that is too long: %v", rep)
	}
	seen.expect(t, "dhcp DISCOVER system OFFER 10.99.0.64", "silent: it chose the server 10.99.0.2", "look-up failed", "host name is 64 bytes")
}

// TestFacts: what a DHCP request says of a machine is in its exchange, and so is what the answer gives.
func TestFacts(t *testing.T) {
	c, b, seen := talk(t)
	b.leases[testMAC] = Lease{Addr: netip.MustParsePrefix("10.15.64.20/24")}
	raw := request(t, testMAC, discover, "3C 20 505845436C69656E743A417263683A30303030373A554E44493A303033303030", "5D 02 00 07",
		"61 11 00 33221100554477668899AABBCCDDEEFF", "4D 04 69505845", "52 13 0105 7377312F37 0204 00FF0102 0504 0A0F4002")
	if c.links[0].Answer(context.Background(), raw) == nil { // no giaddr: option 82 is the client's own word
		t.Fatal("no answer")
	}
	x := seen.all[0]
	want := DHCPFacts{Message: "DISCOVER", Answer: "OFFER", Stage: "ipxe", Arch: 7, VendorClass: "PXEClient:Arch:00007:UNDI:003000",
		UserClass: "iPXE", UUID: "33221100554477668899aabbccddeeff", Addr: netip.MustParseAddr("10.15.64.20"), Basis: Reserved}
	if d := cmp.Diff(want, x.DHCP, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if x.Outcome != Answered || x.File != "http://10.99.0.1/boot/ipxe/"+testMAC+".ipxe" || x.Why != "" || x.At.IsZero() || x.Took <= 0 {
		t.Errorf("%+v", x)
	}
	c.links[0].Answer(context.Background(), request(t, testMAC, "35 01 03 36 04 0A630002 32 04 0A630040"))
	if x := seen.all[1]; x.Outcome != Silent || x.DHCP.Server.String() != "10.99.0.2" || x.DHCP.Answer != "" || x.Failed {
		t.Errorf("%+v", x)
	}
	c.links[0].Answer(context.Background(), request(t, testMAC, "35 01 03 32 04 C0A80009"))
	if x := seen.all[2]; x.Outcome != Refused || x.DHCP.Answer != "NAK" || x.DHCP.Basis != NoAddress || x.DHCP.Arch != -1 || !x.Failed {
		t.Errorf("%+v", x)
	}
}

// TestTransferred: the size probe of UEFI is not a failure; a transfer that broke off is, and says whose it was.
func TestTransferred(t *testing.T) {
	c, _, seen := talk(t)
	c.links[0].Answer(context.Background(), request(t, testMAC, accept, pxeBIOS))
	peer := netip.MustParseAddrPort("10.99.0.64:1538")
	c.transferred(tftp.Transfer{Peer: peer, Name: "snponly.efi", Size: 9, Probe: true})
	c.transferred(tftp.Transfer{Peer: peer, Name: "snponly.efi", Size: 9, Sent: 9})
	c.transferred(tftp.Transfer{Peer: peer, Name: "snponly.efi", Size: 9, Sent: 5, Err: errors.New("client stopped answering")})
	c.transferred(tftp.Transfer{Peer: peer, Name: "x", Err: fs.ErrNotExist})
	for i, outcome := range []Outcome{Answered, Probed, Answered, Broken, Refused} {
		if x := seen.all[i]; x.Outcome != outcome || x.MAC != testMAC || x.Failed != (i > 2) {
			t.Errorf("%+v, want %v", x, outcome)
		}
	}
}

func TestQuiet(t *testing.T) {
	var q quiet
	now := time.Unix(0, 0)
	if !q.first("a", now) || q.first("a", now.Add(time.Second)) || !q.first("a", now.Add(quietFor)) {
		t.Error("a machine is not logged once in a while")
	}
	for i := range 2 * quietMax { // a flood of made-up addresses
		q.first(fmt.Sprint(i), now.Add(quietFor))
	}
	if len(q.last) > quietMax {
		t.Errorf("remembers %d", len(q.last))
	}
	if q.first("b", now.Add(quietFor)) || !q.first("b", now.Add(2*quietFor)) {
		t.Error("a flood is not forgotten in time")
	}
}
