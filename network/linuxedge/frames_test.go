package linuxedge_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Marks are payloads by which frames are recognised wherever they come out, also inside an ICMP error.
const (
	markBad  = "bareyard-must-not-pass"
	markGood = "bareyard-control-frame"
)

// sniffer counts frames that come into a device of a namespace.
type sniffer struct {
	c    *packet.Conn
	wg   sync.WaitGroup
	mu   sync.Mutex
	bad  [][]byte
	good chan struct{}
}

func (w *world) sniff(ns, dev string) *sniffer {
	w.t.Helper()
	s := &sniffer{good: make(chan struct{}, 100), c: w.raw(ns, dev)}
	s.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, _, err := s.c.ReadFrom(buf)
			if err != nil {
				return
			}
			switch f := buf[:n]; {
			case bytes.Contains(f, []byte(markBad)):
				s.mu.Lock()
				s.bad = append(s.bad, bytes.Clone(f))
				s.mu.Unlock()
			case bytes.Contains(f, []byte(markGood)):
				select {
				case s.good <- struct{}{}:
				default:
				}
			}
		}
	})
	w.t.Cleanup(func() {
		_ = s.c.Close()
		s.wg.Wait()
	})
	return s
}

// caught waits for the control frame, sent last, and returns the marked frames that came before it.
func (s *sniffer) caught(t *testing.T) [][]byte {
	t.Helper()
	select {
	case <-s.good:
	case <-time.After(5 * time.Second):
		t.Fatal("the control frame did not pass: the test proves nothing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.bad
	s.bad = nil
	return got
}

func (w *world) raw(ns, dev string) *packet.Conn {
	w.t.Helper()
	var c *packet.Conn
	inside(w.t, ns, func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		c, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	const ignoreOutgoing = 23 // PACKET_IGNORE_OUTGOING
	control(w.t, c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, ignoreOutgoing, 1) })
	return c
}

// datagram is a UDP frame.
type datagram struct {
	dstMAC, srcMAC string
	src, dst       string
	ttl            byte
	mark           string
}

func (d datagram) frame(t testing.TB) []byte {
	t.Helper()
	dm, err1 := net.ParseMAC(d.dstMAC)
	sm, err2 := net.ParseMAC(d.srcMAC)
	src, err3 := netip.ParseAddr(d.src)
	dst, err4 := netip.ParseAddr(d.dst)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	udp := make([]byte, 8, 8+len(d.mark))
	binary.BigEndian.PutUint16(udp[0:], 4000)
	binary.BigEndian.PutUint16(udp[2:], 4001)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(d.mark)))
	udp = append(udp, d.mark...)
	f := append(append([]byte{}, dm...), sm...)
	if src.Is4() {
		f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IP)
		ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, d.ttl, unix.IPPROTO_UDP, 0, 0}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)))
		ip = append(append(ip, src.AsSlice()...), dst.AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
		return append(append(f, ip...), udp...)
	}
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IPV6)
	ip := []byte{0x60, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, d.ttl}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
	pseudo := append(append([]byte{0, byte(len(udp)), 0, unix.IPPROTO_UDP}, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(udp[6:], ^sum(uint32(sum(0, pseudo)), udp))
	return append(append(append(append(f, ip...), src.AsSlice()...), dst.AsSlice()...), udp...)
}

// sum is the Internet checksum (RFC 1071), not complemented.
func sum(acc uint32, b []byte) uint16 {
	for i := 0; i < len(b); i += 2 {
		acc += uint32(b[i]) << 8
		if i+1 < len(b) {
			acc += uint32(b[i+1])
		}
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}

func (w *world) send(c *packet.Conn, d datagram) {
	w.t.Helper()
	f := d.frame(w.t)
	if _, err := c.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
		w.t.Fatal(err)
	}
}
