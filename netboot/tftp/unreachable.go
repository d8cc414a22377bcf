package tftp

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// watchErrors asks the kernel to keep ICMP errors for us. Without it a client that was switched off in the middle of
// a transfer holds its place until the last try.
func watchErrors(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok && a.IP.To4() == nil {
		return set(raw, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	return set(raw, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
}

// set sets an option of a socket.
func set(c syscall.RawConn, level, option, value int) error {
	var failed error
	if err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) }); err != nil {
		return err
	}
	return failed
}

// unreachable returns the peers that ICMP errors have come back for since the last call.
func unreachable(c conn) []netip.AddrPort {
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	var gone []netip.AddrPort
	// Control, not Read: the error queue never blocks, and is empty most of the time.
	_ = raw.Control(func(fd uintptr) {
		buf, oob := make([]byte, 512), make([]byte, 512)
		for range 64 {
			_, _, _, to, err := unix.Recvmsg(int(fd), buf, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			switch sa := to.(type) { // where the datagram that failed was sent
			case *unix.SockaddrInet4:
				gone = append(gone, netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)))
			case *unix.SockaddrInet6:
				gone = append(gone, netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)))
			}
		}
	})
	return gone
}
