package inuse

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ARP asks on one link.
type ARP struct {
	conn *packet.Conn
	mac  net.HardwareAddr
	waiters
}

// ListenARP opens a packet socket on an Ethernet interface. It needs CAP_NET_RAW.
func ListenARP(ifname string) (*ARP, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is not Ethernet", ifname)
	}
	filter, err := bpf.Assemble(replies)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	return &ARP{conn: conn, mac: ifi.HardwareAddr}, nil
}

const (
	arpFrame   = 14 + 28
	arpRequest = 1
	arpReply   = 2
)

// replies lets ARP replies pass.
var replies = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipFalse: 3},
	bpf.LoadAbsolute{Off: 14 + 6, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: arpReply, SkipFalse: 1},
	bpf.RetConstant{Val: 128},
	bpf.RetConstant{Val: 0},
}

// Close releases the socket.
func (p *ARP) Close() error { return p.conn.Close() }

// Run reads the answers until ctx is cancelled, then returns nil.
func (p *ARP) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 128)
	for {
		n, _, err := p.conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read ARP: %w", err)
		case err != nil: // the link went down
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		case n >= arpFrame:
			if owner, mac, ok := parseReply(buf[:n]); ok && !bytes.Equal(mac, p.mac) {
				p.answered(owner, mac.String())
			}
		}
	}
}

// parseReply returns who says that it has which address.
func parseReply(f []byte) (netip.Addr, net.HardwareAddr, bool) {
	if len(f) < arpFrame || binary.BigEndian.Uint16(f[12:]) != unix.ETH_P_ARP {
		return netip.Addr{}, nil, false
	}
	a := f[14:]
	if !bytes.Equal(a[:8], []byte{0, 1, 8, 0, 6, 4, 0, arpReply}) {
		return netip.Addr{}, nil, false
	}
	return netip.AddrFrom4([4]byte(a[14:18])), net.HardwareAddr(bytes.Clone(a[8:14])), true
}

// Ask reports whether somebody on the link has the address, and who. It asks as one who has no address yet (RFC 5227
// section 2.1.1), so that nobody's cache changes.
func (p *ARP) Ask(ctx context.Context, a netip.Addr) (owner string, used bool, err error) {
	f := probe(p.mac, a)
	return p.ask(ctx, a, patienceARP, func() error {
		if _, err := p.conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
			return fmt.Errorf("ask who has %s: %w", a, err)
		}
		return nil
	})
}

func probe(mac net.HardwareAddr, a netip.Addr) []byte {
	f := make([]byte, 0, 60)
	f = append(f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	f = append(f, mac...)
	f = append(f, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, arpRequest)
	f = append(append(f, mac...), 0, 0, 0, 0) // sender: no address
	f = append(append(f, 0, 0, 0, 0, 0, 0), a.AsSlice()...)
	return f[:60]
}
