// Package ra sends the IPv6 router advertisements that keep iPXE from waiting for one.
//
// iPXE configures IPv6 and IPv4 together and is not done before a router has answered or thirteen seconds are over.
// What is sent here says: there is no router, no prefix and no DHCPv6 on this link. Hosts that already have IPv6
// from somebody else keep it.
package ra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Sender advertises on one interface. It reads and writes whole frames, so that it works where the host itself has
// IPv6 turned off or has no link-local address yet.
type Sender struct {
	Interval time.Duration // between unasked advertisements; zero means ten seconds
	Log      *slog.Logger  // nil means silence

	// Prefix is the network on the link whose addresses DHCPv6 gives (flags M and O); not valid: there is none.
	Prefix netip.Prefix

	conn *packet.Conn
	mac  net.HardwareAddr
}

// Multicast MAC addresses of all nodes (ff02::1) and all routers (ff02::2).
var (
	allNodesMAC   = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	allRoutersMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 2}
)

// Listen opens a packet socket on an Ethernet interface. It needs CAP_NET_RAW. The interface need not be up yet.
func Listen(ifname string) (*Sender, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is not Ethernet", ifname)
	}
	filter, err := bpf.Assemble(solicitations)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_IPV6, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	if err := join(conn, ifi.Index, allRoutersMAC); err != nil {
		return nil, errors.Join(fmt.Errorf("join all-routers group on %s: %w", ifname, err), conn.Close())
	}
	return &Sender{conn: conn, mac: ifi.HardwareAddr}, nil
}

// solicitations lets router solicitations pass: IPv6, next header 58, ICMP type 133.
var solicitations = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipFalse: 5},
	bpf.LoadAbsolute{Off: 14 + 6, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 58, SkipFalse: 3},
	bpf.LoadAbsolute{Off: 14 + 40, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 133, SkipFalse: 1},
	bpf.RetConstant{Val: 1500},
	bpf.RetConstant{Val: 0},
}

func join(c *packet.Conn, index int, mac net.HardwareAddr) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	m := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(mac))}
	copy(m.Address[:], mac)
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, m)
	})
	return errors.Join(err, set)
}

// Close releases the socket.
func (s *Sender) Close() error { return s.conn.Close() }

// Run advertises at once, at every interval and whenever somebody asks, until ctx is cancelled; then it returns nil.
// An interface that is down is no error.
func (s *Sender) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.conn.SetReadDeadline(time.Now()) })
	defer stop()
	log, every := s.Log, s.Interval
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if every <= 0 {
		every = 10 * time.Second
	}
	msg := advertisement(s.mac, s.Prefix)
	buf := make([]byte, 1500)
	var last, due time.Time
	for {
		if now := time.Now(); !now.Before(due) {
			last, due = now, now.Add(every)
			if _, err := s.conn.WriteTo(msg, &packet.Addr{HardwareAddr: allNodesMAC}); err != nil {
				log.Debug("send router advertisement", "err", err)
				due = now.Add(min(every, time.Second))
			}
		}
		s.conn.SetReadDeadline(due)
		if ctx.Err() != nil { // after the deadline, which the cancellation may have set before us
			return nil
		}
		_, _, err := s.conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read router solicitation: %w", err)
		case err != nil: // the link went down
			log.Debug("read router solicitation", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		default:
			// The answer goes to all nodes. Asking costs nothing, so there is at most one answer each 100 ms.
			if soon := last.Add(100 * time.Millisecond); soon.Before(due) {
				due = soon
			}
		}
	}
}

// advertisement is the frame of a router advertisement (RFC 4861 section 4.2) of somebody who is no router: lifetime
// zero. Without a prefix it says nothing more, so that nobody waits for IPv6. With one it says that the prefix is on
// the link, that nobody makes an address of it himself, and that DHCPv6 gives addresses and all else.
func advertisement(mac net.HardwareAddr, prefix netip.Prefix) []byte {
	const typeRA, hopLimit, managed, other, onLink = 134, 64, 0x80, 0x40, 0x80
	icmp := []byte{typeRA, 0, 0, 0, hopLimit, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	icmp = append(append(icmp, 1, 1), mac...) // source link-layer address
	if prefix.IsValid() {
		icmp[5] = managed | other
		const forever = "\xff\xff\xff\xff"
		icmp = append(icmp, 3, 4, byte(prefix.Bits()), onLink)
		icmp = append(icmp, forever+forever+"\x00\x00\x00\x00"...)
		icmp = append(icmp, prefix.Masked().Addr().AsSlice()...)
	}

	// The source must be link-local: the one that the kernel would make of the MAC address (RFC 4291 appendix A).
	ip := make([]byte, 40)
	ip[0], ip[5], ip[6] = 0x60, byte(len(icmp)), 58
	ip[7] = 255 // receivers drop anything less: it may have come through a router
	copy(ip[8:], []byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	copy(ip[24:], net.IPv6linklocalallnodes)

	check := checksum(ip[8:], []byte{0, 0, 0, byte(len(icmp)), 0, 0, 0, 58}, icmp)
	icmp[2], icmp[3] = byte(check>>8), byte(check)

	frame := append(append([]byte{}, allNodesMAC...), mac...)
	frame = append(frame, unix.ETH_P_IPV6>>8, unix.ETH_P_IPV6&0xff)
	return append(append(frame, ip...), icmp...)
}

// checksum is the Internet checksum (RFC 1071) of parts of even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
