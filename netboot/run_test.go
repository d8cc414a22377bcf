package netboot

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	pin "github.com/pin/tftp/v3"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// wire is two namespaces with a cable between them: the server's and the machine's.
type wire struct{ server, client string }

func newWire(t testing.TB, mac string) wire {
	t.Helper()
	w := wire{newNamespace(t), newNamespace(t)}
	ip(t, "-n", w.server, "link", "add", "nb0", "type", "veth", "peer", "name", "eth0", "address", mac, "netns", w.client)
	ip(t, "-n", w.server, "addr", "add", "10.99.0.1/24", "dev", "nb0")
	ip(t, "-n", w.server, "link", "set", "nb0", "up")
	ip(t, "-n", w.client, "link", "set", "eth0", "up")
	return w
}

// TestRun is a boot over a real wire without firmware: every listener of a running Server, and its end.
func TestRun(t *testing.T) {
	w := newWire(t, testMAC)
	var seen exchanges
	booter := &fakeBooter{
		leases:  map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24"), Hostname: "r1-n7"}},
		boot:    Boot{Kind: BootAgent, Cmdline: "console=ttyS0"},
		archive: []byte("cpio"),
	}
	s := &Server{
		Booter: booter, Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080, Trace: seen.add,
		Handlers: map[string]http.Handler{"/images/": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "chunk") })},
	}
	files(t, s)
	start(t, w.server, s)

	err := <-inNamespace(t, w.client, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := solicit(ctx); err != nil {
			return fmt.Errorf("router advertisement: %w", err)
		}
		if err := rubbish(); err != nil {
			return err
		}
		// Without the broadcast flag: the answer is a frame to a port that has no address and answers no ARP.
		for _, broadcast := range []bool{false, true} {
			lease, err := lease(ctx, broadcast)
			if err != nil {
				return fmt.Errorf("lease with broadcast flag %v: %w", broadcast, err)
			}
			if got := lease.ACK.YourIPAddr.String(); got != "10.99.0.64" {
				t.Errorf("leased %s", got)
			}
			if got := lease.ACK.BootFileName; got != "http://10.99.0.1:8080/boot/ipxe/"+testMAC+".ipxe" {
				t.Errorf("boots %q", got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	ip(t, "-n", w.client, "addr", "add", "10.99.0.64/24", "dev", "eth0")
	err = <-inNamespace(t, w.client, func() error {
		cl, err := pin.NewClient("10.99.0.1:69")
		if err != nil {
			return err
		}
		wt, err := cl.Receive("undionly.kpxe", "octet")
		if err != nil {
			return fmt.Errorf("TFTP: %w", err)
		}
		var loader bytes.Buffer
		if _, err := wt.WriteTo(&loader); err != nil || loader.Len() != 3*512 {
			t.Errorf("TFTP: %d bytes, %v", loader.Len(), err)
		}
		for path, want := range map[string]string{
			"boot/ipxe/" + testMAC + ".ipxe": "#!ipxe", "boot/vmlinuz": "kernel", "boot/ramdisk": "ramdisk",
			"boot/archive/" + testMAC: "cpio", "images/x": "chunk", "boot/snponly.efi": "s",
		} {
			if err := fetch("http://10.99.0.1:8080/"+path, want); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	seen.expect(t, "dhcp DISCOVER ipxe", "dhcp REQUEST ipxe", "tftp undionly.kpxe sent")
	for _, x := range seen.list() {
		if x.MAC != testMAC {
			t.Errorf("%s %s is not known to be of %s: %+v", x.Proto, x.Asked, testMAC, x)
		}
	}
}

// TestUnknownMachine: silence, which for a client is a time-out.
func TestUnknownMachine(t *testing.T) {
	w := newWire(t, "02:00:5e:00:00:99")
	var seen exchanges
	s := &Server{Booter: &fakeBooter{}, Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), Trace: seen.add}
	files(t, s)
	start(t, w.server, s)
	err := <-inNamespace(t, w.client, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if l, err := lease(ctx, true); err == nil {
			return fmt.Errorf("an unknown machine got %s", l.ACK.YourIPAddr)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if lines := seen.lines(); len(lines) != 1 || !strings.Contains(lines[0], "no machine with this MAC address") {
		t.Errorf("traced: %q", lines)
	}
}

// TestBusyPort: a port that is taken ends Run with an error that names it, and leaves nothing open.
func TestBusyPort(t *testing.T) {
	ns := newNamespace(t)
	ip(t, "-n", ns, "tuntap", "add", "nb0", "mode", "tap")
	ip(t, "-n", ns, "addr", "add", "10.99.0.1/24", "dev", "nb0")
	ip(t, "-n", ns, "link", "set", "nb0", "up")
	s := &Server{Booter: &fakeBooter{}, Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1")}
	files(t, s)
	err := <-inNamespace(t, ns, func() error {
		l, err := net.Listen("tcp4", "10.99.0.1:80")
		if err != nil {
			return err
		}
		defer l.Close()
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "HTTP") {
			return fmt.Errorf("Run with port 80 taken: %v", err)
		}
		s.Interface = "nothing"
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing") {
			return fmt.Errorf("Run on no interface: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// lease runs DISCOVER to ACK as iPXE does.
func lease(ctx context.Context, broadcast bool) (*nclient4.Lease, error) {
	cl, err := nclient4.New("eth0", nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(3))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return cl.Request(ctx,
		dhcpv4.WithBroadcast(broadcast),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00000:UNDI:002001")),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(77), []byte("iPXE"))),
	)
}

// rubbish sends what must not disturb the server.
func rubbish() error {
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) { // there is no route yet, the device must do
		set = unix.BindToDevice(int(fd), "eth0")
	}); err != nil || set != nil {
		return errors.Join(err, set)
	}
	full := make([]byte, 300)
	copy(full, []byte{1, 1, 6})
	copy(full[236:], "\x63\x82\x53\x63\x35\x01\x01\xff")
	for _, n := range []int{0, 1, 235, 236, 240, 300} {
		if _, err := c.WriteToUDPAddrPort(full[:n], netip.MustParseAddrPort("255.255.255.255:67")); err != nil {
			return fmt.Errorf("send rubbish: %w", err)
		}
	}
	return nil
}

// solicit asks for a router, as iPXE does, and checks the advertisement that the kernel lets through (checksum, hop
// limit): no router, no prefix.
func solicit(ctx context.Context) error {
	c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return err
	}
	defer c.Close()
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	p := ipv6.NewPacketConn(c)
	if err := p.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagSrc, true); err != nil {
		return err
	}
	all := &net.IPAddr{IP: net.IPv6linklocalallrouters, Zone: "eth0"}
	buf := make([]byte, 1500)
	for ctx.Err() == nil {
		_, _ = p.WriteTo([]byte{133, 0, 0, 0, 0, 0, 0, 0}, &ipv6.ControlMessage{HopLimit: 255, IfIndex: ifi.Index}, all) // fails until eth0 has its link-local address
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		n, cm, from, err := p.ReadFrom(buf)
		if err != nil || buf[0] != 134 {
			continue
		}
		src := from.(*net.IPAddr).IP
		if n != 24 || cm.HopLimit != 255 || !src.IsLinkLocalUnicast() {
			return fmt.Errorf("%d bytes from %s, hop limit %d", n, src, cm.HopLimit)
		}
		if !bytes.Equal(buf[4:16], []byte{64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) {
			return fmt.Errorf("it says more than that there is no router: % x", buf[:n])
		}
		return nil
	}
	return ctx.Err()
}

// fetch gets a URL from this thread: http.Transport would dial from a goroutine in another namespace.
func fetch(url, prefix string) error {
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return err
	}
	c, err := net.Dial("tcp", req.Host)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := req.Write(c); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !bytes.HasPrefix(body, []byte(prefix)) {
		return fmt.Errorf("GET %s: %s, %.20q, %v", url, res.Status, body, err)
	}
	return nil
}
