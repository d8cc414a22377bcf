package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
)

// hub joins namespaces by a bridge in the first, where the server is.
type hub struct {
	server string
	hosts  []string
}

// newHub makes a network of the server, 10.99.0.1 on br0, and hosts with eth0; a MAC address for each.
func newHub(t testing.TB, macs ...string) hub {
	t.Helper()
	h := hub{server: newNamespace(t)}
	ip(t, "-n", h.server, "link", "add", "br0", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
	ip(t, "-n", h.server, "addr", "add", "10.99.0.1/24", "dev", "br0")
	ip(t, "-n", h.server, "link", "set", "br0", "up")
	for i, mac := range macs {
		ns := newNamespace(t)
		port := fmt.Sprintf("p%d", i)
		ip(t, "-n", h.server, "link", "add", port, "type", "veth", "peer", "name", "eth0", "address", mac, "netns", ns)
		ip(t, "-n", h.server, "link", "set", port, "master", "br0", "up")
		ip(t, "-n", ns, "link", "set", "eth0", "up")
		h.hosts = append(h.hosts, ns)
	}
	return h
}

// dnsmasq runs it in a namespace until the test ends, and returns when it is ready.
func dnsmasq(t testing.TB, namespace string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("dnsmasq")
	if err != nil {
		t.Fatalf("%v: install dnsmasq-base", err)
	}
	dir := t.TempDir()
	cmd := exec.Command("ip", append([]string{"netns", "exec", namespace, path, "--keep-in-foreground", "--log-facility=-", "--port=0", "--conf-file=/dev/null",
		"--user=root", "--pid-file=", "--dhcp-leasefile=" + dir + "/leases"}, args...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := make(chan string, 1)
	ready := make(chan bool, 1)
	go func() { // ends with dnsmasq
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := out.Read(buf)
			all.Write(buf[:n])
			if strings.Contains(all.String(), "started") {
				select {
				case ready <- true:
				default:
				}
			}
			if err != nil {
				close(ready)
				text <- all.String()
				return
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		if s := <-text; t.Failed() {
			t.Logf("dnsmasq:\n%s", s)
		}
		cmd.Wait()
	})
	select {
	case ok := <-ready:
		if !ok {
			t.Fatal("dnsmasq ended")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("dnsmasq does not start")
	}
}

// station is a machine that speaks DHCP by hand, on a raw socket of its own.
type station struct {
	conn net.PacketConn
	mac  net.HardwareAddr
	xid  byte
}

// onStation runs f as the machine at eth0 of a namespace.
func onStation(t testing.TB, namespace string, f func(*station) error) {
	t.Helper()
	err := <-inNamespace(t, namespace, func() error {
		conn, err := nclient4.NewRawUDPConn("eth0", 68)
		if err != nil {
			return err
		}
		defer conn.Close()
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return f(&station{conn: conn, mac: ifi.HardwareAddr})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ask sends a request and returns the answers that come within wait; with none of them being enough it waits for all.
func (s *station) ask(wait time.Duration, enough int, options ...dhcpv4.Modifier) ([]*dhcpv4.DHCPv4, error) {
	s.xid++
	req, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(s.mac), dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, s.xid}), dhcpv4.WithBroadcast(true)}, options...)...)
	if err != nil {
		return nil, err
	}
	if _, err := s.conn.WriteTo(req.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
		return nil, err
	}
	s.conn.SetReadDeadline(time.Now().Add(wait))
	var all []*dhcpv4.DHCPv4
	buf := make([]byte, 2048)
	for {
		n, _, err := s.conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		p, err := dhcpv4.FromBytes(buf[:n])
		if err != nil || p.TransactionID != req.TransactionID || p.OpCode != dhcpv4.OpcodeBootReply {
			continue
		}
		if all = append(all, p); len(all) == enough {
			return all, nil
		}
	}
}

// one is ask for one answer, asked for again like a client does.
func (s *station) one(options ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	for range 5 {
		all, err := s.ask(2*time.Second, 1, options...)
		if err != nil {
			return nil, err
		}
		if len(all) == 1 {
			return all[0], nil
		}
	}
	return nil, errors.New("no answer")
}

// address runs DISCOVER and REQUEST, and returns the ACK.
func (s *station) address(options ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	offer, err := s.one(append(options, message(dhcpv4.MessageTypeDiscover))...)
	if err != nil {
		return nil, fmt.Errorf("DISCOVER: %w", err)
	}
	ack, err := s.one(append(options, message(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)))...)
	if err != nil {
		return nil, fmt.Errorf("REQUEST: %w", err)
	}
	if ack.MessageType() != dhcpv4.MessageTypeAck || !ack.YourIPAddr.Equal(offer.YourIPAddr) {
		return nil, fmt.Errorf("offered %s, then %s %s", offer.YourIPAddr, ack.MessageType(), ack.YourIPAddr)
	}
	return ack, nil
}

func message(t dhcpv4.MessageType) dhcpv4.Modifier { return dhcpv4.WithMessageType(t) }

// firmware are the options of a client that boots from the network.
func firmware(class string, arch uint16) []dhcpv4.Modifier {
	return []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)),
		dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(93), []byte{byte(arch >> 8), byte(arch)}),
	}
}

func ipxeClient() []dhcpv4.Modifier {
	return append(firmware("PXEClient:Arch:00000:UNDI:002001", 0), dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(77), []byte("iPXE")))
}

// roster is a fakeBooter that knows its machines by heart.
type rosterBooter struct {
	fakeBooter
	slow time.Duration // of a look-up
}

func (b *rosterBooter) Knows(mac string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.leases[mac]
	return ok
}

func (b *rosterBooter) Reserves(a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.leases {
		if l.Addr.Addr() == a {
			return true
		}
	}
	return false
}

func (b *rosterBooter) Lease(ctx context.Context, mac string) (Lease, error) {
	if b.slow > 0 && !b.Knows(mac) {
		select {
		case <-ctx.Done():
		case <-time.After(b.slow):
		}
	}
	return b.fakeBooter.Lease(ctx, mac)
}
