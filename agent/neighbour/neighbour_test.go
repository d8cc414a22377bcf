package neighbour_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/lldp"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/agent/neighbour"
	"github.com/bareyard/bareyard/machine"
)

// frame is what a switch sends, behind the Ethernet header, padded as the wire wants it.
func frame(t testing.TB, change func(*lldp.Frame)) []byte {
	t.Helper()
	text := func(typ lldp.TLVType, v string) *lldp.TLV {
		return &lldp.TLV{Type: typ, Length: uint16(len(v)), Value: []byte(v)}
	}
	f := &lldp.Frame{
		ChassisID: &lldp.ChassisID{Subtype: lldp.ChassisIDSubtypeMACAddress, ID: []byte{0x44, 0x38, 0x39, 0, 0, 1}},
		PortID:    &lldp.PortID{Subtype: lldp.PortIDSubtypeInterfaceName, ID: []byte("swp7")},
		TTL:       120 * time.Second,
		Optional:  []*lldp.TLV{text(4, "to rack 1"), text(5, "leaf1"), text(127, "\x00\x80\xc2\x01\x00\x0a")},
	}
	if change != nil {
		change(f)
	}
	b, err := f.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, max(0, 47-len(b)))...)
}

// TestParse: what switches say of themselves, and what is not for us.
func TestParse(t *testing.T) {
	whole := machine.Neighbour{System: "leaf1", Chassis: "44:38:39:00:00:01", Port: "swp7", Text: "to rack 1", VLAN: 10}
	for name, tt := range map[string]struct {
		b    []byte
		want machine.Neighbour
		ok   bool
	}{
		"a switch":                {frame(t, nil), whole, true},
		"padded to an odd length": {append(frame(t, nil), 0), whole, true},
		"a port by its MAC address, a chassis by its IP address": {frame(t, func(f *lldp.Frame) {
			f.PortID = &lldp.PortID{Subtype: lldp.PortIDSubtypeMACAddress, ID: []byte{2, 0, 0, 0, 0, 9}}
			f.ChassisID = &lldp.ChassisID{Subtype: lldp.ChassisIDSubtypeNetworkAddress, ID: []byte{1, 10, 0, 0, 1}}
			f.Optional = nil
		}), machine.Neighbour{Chassis: "10.0.0.1", Port: "02:00:00:00:00:09"}, true},
		"text that draws": {frame(t, func(f *lldp.Frame) {
			f.PortID.ID = []byte("\x1b[2Jswp1\r\n")
			f.Optional = []*lldp.TLV{{Type: 5, Length: 300, Value: []byte(strings.Repeat("A", 299) + "\x00")}}
		}), machine.Neighbour{Chassis: "44:38:39:00:00:01", Port: "[2Jswp1", System: strings.Repeat("A", 128)}, true},
		"goodbye":        {frame(t, func(f *lldp.Frame) { f.TTL = 0 }), machine.Neighbour{}, false},
		"cut short":      {frame(t, nil)[:9], machine.Neighbour{}, false},
		"nothing":        {nil, machine.Neighbour{}, false},
		"another packet": {[]byte("hello, world, this is no LLDP"), machine.Neighbour{}, false},
	} {
		got, ok := neighbour.Parse(tt.b)
		if diff := cmp.Diff(tt.want, got); ok != tt.ok || diff != "" {
			t.Errorf("%s: %v\n%s", name, ok, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(frame(f, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, _ := neighbour.Parse(b)
		for _, s := range []string{n.System, n.Chassis, n.Port, n.Text} {
			for _, r := range s {
				if r < ' ' || r > '~' {
					t.Errorf("%q is shown", s)
				}
			}
		}
	})
}

// TestListen: real frames on real ports, of which one has no neighbour and one does not exist.
func TestListen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes a network namespace: run as root")
	}
	runtime.LockOSThread() // and never unlocked: the thread stays in the namespace and ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"a0", "b0"} {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: port})
		veth.PeerName = port + "-peer"
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{port, port + "-peer"} {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	ifi, err := net.InterfaceByName("a0-peer")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	speaking, lldpdu := make(chan struct{}), frame(t, nil)
	go func() { // the switch; ends with ctx
		defer close(speaking)
		group := net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}
		b := append(append(append([]byte{}, group...), ifi.HardwareAddr...), 0x88, 0xcc)
		for ctx.Err() == nil {
			_, _ = conn.WriteTo([]byte("\x01\x80\xc2\x00\x00\x0e\x02\x00\x00\x00\x00\x01\x88\xccgarbage"), &packet.Addr{HardwareAddr: group})
			_, _ = conn.WriteTo(append(b, lldpdu...), &packet.Addr{HardwareAddr: group})
			wait := time.NewTimer(50 * time.Millisecond)
			select {
			case <-ctx.Done():
			case <-wait.C:
			}
		}
	}()
	found, err := neighbour.Listen(ctx, []string{"a0", "none"})
	if err == nil || !strings.Contains(err.Error(), "none") || len(found) != 1 || found["a0"].Port != "swp7" {
		t.Errorf("found %+v, %v", found, err)
	}
	if ctx.Err() != nil {
		t.Error("it went on listening though every port has its neighbour")
	}
	short, done := context.WithTimeout(ctx, 200*time.Millisecond)
	defer done()
	if found, err := neighbour.Listen(short, []string{"a0", "b0"}); err != nil || len(found) != 1 {
		t.Errorf("one without a neighbour: %+v, %v", found, err)
	}
	cancel()
	<-speaking
}
