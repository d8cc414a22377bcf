package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Overheard is a reply of some DHCP server to some client.
type Overheard struct {
	Server netip.Addr // option 54, else the source of the packet
	MAC    string     // where the frame came from
	Client string     // MAC address
	Type   dhcpv4.MessageType
}

// Ear hears the replies that pass an interface: those that are broadcast, where a switch is between.
type Ear struct {
	conn *packet.Conn
	mac  net.HardwareAddr
}

// ListenReplies opens a packet socket. It needs CAP_NET_RAW.
func ListenReplies(ifname string) (*Ear, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	filter, err := bpf.Assemble(toClients)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_IP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	return &Ear{conn, ifi.HardwareAddr}, nil
}

// toClients lets first fragments of UDP over IPv4 to port 68 pass.
var toClients = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipFalse: 8},
	bpf.LoadAbsolute{Off: 14 + 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 17, SkipFalse: 6},
	bpf.LoadAbsolute{Off: 14 + 6, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4},
	bpf.LoadMemShift{Off: 14},
	bpf.LoadIndirect{Off: 14 + 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: clientPort, SkipFalse: 1},
	bpf.RetConstant{Val: 2048},
	bpf.RetConstant{Val: 0},
}

// Close releases the socket.
func (e *Ear) Close() error { return e.conn.Close() }

// Run tells of each reply that is not of this host until ctx is cancelled, then returns nil.
func (e *Ear) Run(ctx context.Context, tell func(Overheard)) error {
	stop := context.AfterFunc(ctx, func() { e.conn.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 2048)
	for {
		n, _, err := e.conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read DHCP replies: %w", err)
		case err != nil: // the link went down
			pause(ctx, time.Second)
		case n >= 14 && bytes.Equal(buf[6:12], e.mac): // ours, or another program's on this host
		default:
			if o, err := parseReply(buf[:n]); err == nil {
				tell(o)
			}
		}
	}
}

var errNoReply = errors.New("not a reply of a DHCP server")

// parseReply reads a frame with a reply in it.
func parseReply(f []byte) (Overheard, error) {
	if len(f) < 14+20+8 {
		return Overheard{}, errNoReply
	}
	ip := f[14:]
	head := 4 * int(ip[0]&15)
	if head < 20 || len(ip) < head+8 {
		return Overheard{}, errNoReply
	}
	udp := ip[head:]
	if n := int(binary.BigEndian.Uint16(udp[4:])); n >= 8 && n <= len(udp) {
		udp = udp[:n]
	}
	pkt, err := dhcpv4.FromBytes(append(bytes.Clone(udp[8:]), 0xff))
	if err != nil {
		return Overheard{}, fmt.Errorf("decode DHCP: %w", err)
	}
	if pkt.OpCode != dhcpv4.OpcodeBootReply {
		return Overheard{}, errNoReply
	}
	o := Overheard{Server: addr(pkt.ServerIdentifier()), MAC: net.HardwareAddr(f[6:12]).String(), Client: pkt.ClientHWAddr.String(), Type: pkt.MessageType()}
	if !o.Server.IsValid() {
		o.Server = netip.AddrFrom4([4]byte(ip[12:16]))
	}
	return o, nil
}
