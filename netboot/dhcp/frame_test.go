package dhcp

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
)

// TestFrame checks the headers by their own checksums: over a correct header the sum is all ones.
func TestFrame(t *testing.T) {
	src, dst := netip.MustParseAddrPort("10.99.0.1:67"), netip.MustParseAddrPort("10.99.0.64:68")
	srcMAC, dstMAC := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0x5e, 0x10, 0x20, 0x30}
	for _, payload := range [][]byte{nil, []byte("odd"), bytes.Repeat([]byte{0xff}, 301), make([]byte, 548)} {
		f := frame(srcMAC, dstMAC, src, dst, payload)
		if !bytes.Equal(f[:6], dstMAC) || !bytes.Equal(f[6:12], srcMAC) || !bytes.Equal(f[12:14], []byte{8, 0}) {
			t.Errorf("Ethernet header % x", f[:14])
		}
		ip, udp := f[14:34], f[34:]
		if got := sum(0, ip); got != 0xffff {
			t.Errorf("IPv4 checksum: sum %#x", got)
		}
		pseudo := sum(sum(0, ip[12:20]), []byte{0, 17, udp[4], udp[5]})
		if got := sum(pseudo, udp); got != 0xffff {
			t.Errorf("UDP checksum over %d bytes: sum %#x", len(payload), got)
		}
		if !bytes.Equal(udp[8:], payload) || int(udp[4])<<8|int(udp[5]) != 8+len(payload) {
			t.Errorf("payload of %d bytes is damaged", len(payload))
		}
	}
}
