package inuse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// Echo asks through routers. It cannot tell who answers.
type Echo struct {
	conn *icmp.PacketConn
	waiters
}

// ListenEcho opens a raw socket. It needs CAP_NET_RAW.
func ListenEcho() (*Echo, error) {
	conn, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return nil, fmt.Errorf("open socket for ICMP: %w", err)
	}
	return &Echo{conn: conn}, nil
}

// Close releases the socket.
func (p *Echo) Close() error { return p.conn.Close() }

// Run reads the answers until ctx is cancelled, then returns nil.
func (p *Echo) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 1500)
	for {
		n, from, err := p.conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read ICMP: %w", err)
		case err != nil:
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if m, err := icmp.ParseMessage(1, buf[:n]); err == nil && m.Type == ipv4.ICMPTypeEchoReply {
			if ip, ok := from.(*net.IPAddr); ok {
				a, _ := netip.AddrFromSlice(ip.IP)
				p.answered(a.Unmap(), "")
			}
		}
	}
}

// Ask reports whether somebody answers at the address. No route there is no answer.
func (p *Echo) Ask(ctx context.Context, a netip.Addr) (owner string, used bool, err error) {
	b, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("in use?")}}).Marshal(nil)
	if err != nil {
		return "", false, fmt.Errorf("build ICMP echo: %w", err)
	}
	return p.ask(ctx, a, patienceEcho, func() error {
		_, _ = p.conn.WriteTo(b, &net.IPAddr{IP: a.AsSlice()})
		return nil
	})
}
