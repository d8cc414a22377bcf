package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// frame wraps payload in UDP, IPv4 and Ethernet headers. A client that clears the broadcast flag takes a unicast to
// the address that it is being offered, but does not answer ARP for it yet, so the kernel could not send it.
func frame(srcMAC, dstMAC net.HardwareAddr, src, dst netip.AddrPort, payload []byte) []byte {
	const eth, ip, udp = 14, 20, 8
	b := make([]byte, eth+ip+udp, eth+ip+udp+len(payload))
	copy(b[0:6], dstMAC)
	copy(b[6:12], srcMAC)
	binary.BigEndian.PutUint16(b[12:], 0x0800)

	h := b[eth : eth+ip]
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(ip+udp+len(payload)))
	h[8] = 64 // time to live
	h[9] = 17 // UDP
	s, d := src.Addr().As4(), dst.Addr().As4()
	copy(h[12:], s[:])
	copy(h[16:], d[:])
	binary.BigEndian.PutUint16(h[10:], ^sum(0, h))

	u := b[eth+ip:]
	binary.BigEndian.PutUint16(u[0:], src.Port())
	binary.BigEndian.PutUint16(u[2:], dst.Port())
	binary.BigEndian.PutUint16(u[4:], uint16(udp+len(payload)))
	pseudo := sum(0, h[12:20])
	pseudo = sum(pseudo, []byte{0, 17, u[4], u[5]})
	pseudo = sum(pseudo, u[:udp])
	check := ^sum(pseudo, payload)
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(u[6:], check)
	return append(b, payload...)
}

// sum adds b to a ones' complement sum (RFC 1071).
func sum(start uint16, b []byte) uint16 {
	s := uint32(start)
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
