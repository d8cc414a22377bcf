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
	"golang.org/x/sys/unix"
)

// Conn is a server's sockets on one interface: it hears only that interface and answers on it.
type Conn struct {
	server port         // 67
	boot   port         // 4011
	raw    *packet.Conn // sends frames only
	mac    net.HardwareAddr
	addr   netip.Addr
}

// port is one UDP port of a Conn.
type port struct {
	udp *net.UDPConn
	out *ipv4.PacketConn // udp, with a say in the source address
}

// Listen opens ports 67 and 4011 on an interface that has the address addr. It needs CAP_NET_BIND_SERVICE and
// CAP_NET_RAW.
func Listen(ifname string, addr netip.Addr) (_ *Conn, err error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is not Ethernet", ifname)
	}
	c := &Conn{mac: ifi.HardwareAddr, addr: addr}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.server, err = listenPort(ifname, serverPort); err != nil {
		return nil, err
	}
	if c.boot, err = listenPort(ifname, bootPort); err != nil {
		return nil, err
	}
	if c.raw, err = packet.Listen(ifi, packet.Raw, 0, nil); err != nil { // protocol 0 receives nothing
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	return c, nil
}

// receiveBuffer holds what arrives while the reader is not scheduled: some thousand requests.
const receiveBuffer = 4 << 20

func listenPort(ifname string, number int) (port, error) {
	// Bound to the device and to no address: a broadcast is not delivered to a socket with an address.
	udp, err := server4.NewIPv4UDPConn(ifname, &net.UDPAddr{Port: number})
	if err != nil {
		return port{}, fmt.Errorf("listen on port %d of %s: %w", number, ifname, err)
	}
	if raw, err := udp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // without the right to it the usual size must do
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		})
	}
	return port{udp, ipv4.NewPacketConn(udp)}, nil
}

// Close releases the sockets.
func (c *Conn) Close() error {
	var errs []error
	for _, p := range []port{c.server, c.boot} {
		if p.udp != nil {
			errs = append(errs, p.udp.Close())
		}
	}
	if c.raw != nil {
		errs = append(errs, c.raw.Close())
	}
	return errors.Join(errs...)
}

// Lane is where a request waits for its answer. Lanes do not hold each other up.
type Lane int

// Lanes.
const (
	Drop      Lane = iota // not answered at all
	Machines              // those that somebody knows
	Strangers             // all others
)

// How many requests a lane answers at once, and how many more may wait in it; what comes then is dropped, and clients
// ask again.
var (
	width  = [...]int{Machines: 64, Strangers: 32}
	length = [...]int{Machines: 1024, Strangers: 32}
)

// Handler answers requests.
type Handler interface {
	// Admit is asked for each request in the order of arrival, and must not wait for anything.
	Admit(*Request) Lane

	// Answer returns the reply; nil means silence. Several run at once.
	Answer(context.Context, *Request) *Reply
}

// Serve asks the handler for each request and sends what it returns. It returns nil when ctx is cancelled, after the
// last answer. Nothing that arrives ends it.
func (c *Conn) Serve(ctx context.Context, log *slog.Logger, h Handler) error {
	var lanes [len(width)]chan *Request
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range width {
		lanes[i] = make(chan *Request, length[i])
		for range n {
			group.Go(func() error { c.work(ctx, log, h, lanes[i]); return nil })
		}
	}
	for _, p := range []port{c.server, c.boot} {
		group.Go(func() error {
			return p.read(ctx, log, func(req *Request) {
				if p == c.boot {
					req.ToBootServer()
				}
				lane := h.Admit(req)
				if lane == Drop {
					return
				}
				select {
				case lanes[lane] <- req:
				default:
					if lane == Machines {
						log.Warn("too many DHCP requests at once, one dropped", "mac", req.MAC)
					}
				}
			})
		})
	}
	return group.Wait()
}

// work answers the requests of a lane, one after the other, until ctx is cancelled.
func (c *Conn) work(ctx context.Context, log *slog.Logger, h Handler, lane <-chan *Request) {
	for {
		select {
		case <-ctx.Done():
			return
		case req := <-lane:
			rep := h.Answer(ctx, req)
			if rep == nil {
				continue
			}
			if err := c.Send(req, rep); err != nil {
				log.Warn("send DHCP reply", "mac", req.MAC, "err", err)
			}
		}
	}
}

// read passes each request on until ctx is cancelled.
func (p port) read(ctx context.Context, log *slog.Logger, pass func(*Request)) error {
	stop := context.AfterFunc(ctx, func() { p.udp.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		n, peer, err := p.udp.ReadFromUDPAddrPort(buf)
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
		req.Peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
		pass(req)
	}
}

// Send sends a reply to the client that asked, from the server's address even where the interface has several.
func (c *Conn) Send(req *Request, rep *Reply) error {
	b := rep.Bytes()
	from := netip.AddrPortFrom(c.addr, serverPort)
	if rep.From.IsValid() {
		from = netip.AddrPortFrom(rep.From, serverPort)
	}
	out := c.server.out
	if req.BootServer {
		from = netip.AddrPortFrom(from.Addr(), bootPort)
		out = c.boot.out
	}
	if rep.How == Routed {
		src := &ipv4.ControlMessage{Src: from.Addr().AsSlice()}
		if _, err := out.WriteTo(b, src, net.UDPAddrFromAddrPort(rep.To)); err != nil {
			return fmt.Errorf("send to %s: %w", rep.To, err)
		}
		return nil
	}
	mac := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if rep.How == Framed {
		mac = req.pkt.ClientHWAddr
	}
	f := frame(c.mac, mac, from, rep.To, b)
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
