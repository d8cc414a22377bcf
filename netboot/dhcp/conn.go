package dhcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/ipv4"
	"golang.org/x/sync/errgroup"
)

// Conn is a server's socket on one interface: it hears only that interface and answers on it.
type Conn struct {
	udp  *net.UDPConn
	out  *ipv4.PacketConn // udp, with a say in the source address
	raw  *packet.Conn     // sends frames only
	mac  net.HardwareAddr
	addr netip.Addr
}

// Listen opens port 67 on an interface that has the address addr. It needs CAP_NET_BIND_SERVICE and CAP_NET_RAW.
func Listen(ifname string, addr netip.Addr) (*Conn, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is not Ethernet", ifname)
	}
	// Bound to the device and to no address: a broadcast is not delivered to a socket with an address.
	udp, err := server4.NewIPv4UDPConn(ifname, &net.UDPAddr{Port: serverPort})
	if err != nil {
		return nil, fmt.Errorf("listen on port 67 of %s: %w", ifname, err)
	}
	raw, err := packet.Listen(ifi, packet.Raw, 0, nil) // protocol 0 receives nothing
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open packet socket on %s: %w", ifname, err), udp.Close())
	}
	return &Conn{udp: udp, out: ipv4.NewPacketConn(udp), raw: raw, mac: ifi.HardwareAddr, addr: addr}, nil
}

// Close releases the sockets.
func (c *Conn) Close() error { return errors.Join(c.udp.Close(), c.raw.Close()) }

// maxInFlight bounds the requests that are being answered at once; more are dropped, and clients ask again.
const maxInFlight = 64

// Serve calls answer for each request, several at once, and sends what it returns; nil means silence. It returns nil
// when ctx is cancelled, after the last answer. Nothing that arrives ends it.
func (c *Conn) Serve(ctx context.Context, log *slog.Logger, answer func(context.Context, *Request) *Reply) error {
	stop := context.AfterFunc(ctx, func() { c.udp.SetReadDeadline(time.Now()) })
	defer stop()
	var g errgroup.Group
	g.SetLimit(maxInFlight)
	defer g.Wait()
	buf := make([]byte, 4096)
	for {
		n, _, err := c.udp.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("read DHCP: %w", err)
		}
		if err != nil { // the interface went down and comes back
			log.Warn("read DHCP", "err", err)
			pause(ctx, time.Second)
			continue
		}
		req, err := Parse(buf[:n])
		if err != nil {
			log.Debug("DHCP packet ignored", "err", err)
			continue
		}
		started := g.TryGo(func() error {
			if rep := answer(ctx, req); rep != nil {
				if err := c.Send(req, rep); err != nil {
					log.Warn("send DHCP reply", "mac", req.MAC, "err", err)
				}
			}
			return nil
		})
		if !started {
			log.Warn("too many DHCP requests at once, one dropped", "mac", req.MAC)
		}
	}
}

// Send sends a reply to the client that asked, from the server's address even where the interface has several.
func (c *Conn) Send(req *Request, rep *Reply) error {
	b := rep.Bytes()
	if rep.How == Routed {
		from := &ipv4.ControlMessage{Src: c.addr.AsSlice()}
		if _, err := c.out.WriteTo(b, from, net.UDPAddrFromAddrPort(rep.To)); err != nil {
			return fmt.Errorf("send to %s: %w", rep.To, err)
		}
		return nil
	}
	mac := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if rep.How == Framed {
		mac = req.pkt.ClientHWAddr
	}
	f := frame(c.mac, mac, netip.AddrPortFrom(c.addr, serverPort), rep.To, b)
	if _, err := c.raw.WriteTo(f, &packet.Addr{HardwareAddr: mac}); err != nil {
		return fmt.Errorf("send frame to %s: %w", mac, err)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
