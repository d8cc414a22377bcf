// Package tftp serves small files read-only over TFTP, all from one port.
//
// Everything leaves from the port that was asked (RFC 1350 has a fresh one for each transfer), so that a firewall, a
// NAT or a container that publishes port 69 is enough. One goroutine owns all transfers: a client that asks twice
// from one port has one transfer, and a cancelled context ends at once. github.com/pin/tftp has a single-port mode
// too, but its reader can send on a channel that a finished transfer has just closed, which ends the program; it
// refuses windowsize and does not stop before its clients do. It is the client in our tests.
package tftp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"
)

// Transfer is how one read request went.
type Transfer struct {
	Peer   netip.AddrPort
	Name   string // as asked for
	Size   int    // of the file, bytes
	Sent   int64  // bytes that the client has acknowledged
	Probe  bool   // the client wanted the size only and broke off before the first block: UEFI does, always
	Err    error  // why it did not complete; nil for a probe
	Blocks int    // data packets sent, repeats included

	Began time.Time     // when the request came
	Took  time.Duration // until the end
}

// Server serves files. Its zero value but for Open is ready to use.
type Server struct {
	// Open returns the content of a file. fs.ErrNotExist and fs.ErrPermission become the errors 1 and 2.
	Open func(name string) ([]byte, error)

	Log  *slog.Logger   // nil means silence
	Done func(Transfer) // called at the end of each transfer, from the goroutine of Serve; nil means none

	MaxBlock    int           // largest block granted, bytes; zero means 1468, which fits an Ethernet frame
	MaxWindow   int           // most blocks in flight; zero means 16
	Timeout     time.Duration // before a repeat; zero means one second, doubled for each repeat
	Tries       int           // of the same packet; zero means 6
	MaxSessions int           // zero means 1024
	MaxPerHost  int           // sessions of one address; zero means 8
}

// Listen opens port 69 on addr. It needs CAP_NET_BIND_SERVICE.
func Listen(addr netip.Addr) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 69)))
	if err != nil {
		return nil, fmt.Errorf("listen for TFTP: %w", err)
	}
	if err := watchErrors(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("watch for ICMP errors: %w", err), conn.Close())
	}
	return conn, nil
}

// conn is what Serve needs of a socket.
type conn interface {
	ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort([]byte, netip.AddrPort) (int, error)
	SetReadDeadline(time.Time) error
}

// Serve answers until ctx is cancelled, then returns nil. It does not close c. Nothing that arrives ends it.
func (s *Server) Serve(ctx context.Context, c conn) error {
	t := newTable(s)
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 2048) // a request may be longer than the 512 bytes of the old days
	for {
		c.SetReadDeadline(t.nextDue(time.Now()))
		if ctx.Err() != nil { // after the deadline, which the cancellation may have set before us
			return nil
		}
		n, peer, err := c.ReadFromUDPAddrPort(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read TFTP: %w", err)
		case err != nil: // an ICMP error of some peer
			t.drop(unreachable(c), time.Now())
		default:
			peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
			t.receive(c, peer, buf[:n], time.Now())
		}
		t.expire(c, time.Now())
	}
}

// Dir returns an Open that serves the regular files directly in a folder and nothing else. A path of any kind is
// refused, on both kinds of slash, and links that lead out of the folder are not followed. Some ROMs put a slash
// before the name, and some add the 0xff that ends the DHCP options after it: both are taken off.
func Dir(folder string) func(name string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		name, err := Clean(name)
		if err != nil {
			return nil, err
		}
		root, err := os.OpenRoot(folder)
		if err != nil {
			return nil, fmt.Errorf("open loader folder: %w", err)
		}
		defer root.Close()
		// A named pipe in the folder must not hang the server: look before opening.
		st, err := root.Stat(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %v: %w", name, err, fs.ErrPermission)
		}
		if err != nil {
			return nil, fmt.Errorf("open loader: %w", err)
		}
		if !st.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a file: %w", name, fs.ErrPermission)
		}
		if st.Size() > maxFile {
			return nil, fmt.Errorf("%s is too large for TFTP: %w", name, fs.ErrPermission)
		}
		data, err := root.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read loader: %w", err)
		}
		return data, nil
	}
}

// maxFile bounds what is read into memory; loaders have at most a few megabytes.
const maxFile = 64 << 20

// Clean returns the bare file name that a request means, or an error that is fs.ErrPermission when it is a path.
func Clean(name string) (string, error) {
	asked := name
	if n := len(name); n > 1 && name[n-1] == 0xff {
		name = name[:n-1]
	}
	if len(name) > 1 && name[0] == '/' {
		name = name[1:]
	}
	if name == "" || name == "." || name == ".." {
		return "", fmt.Errorf("%q is not a file name: %w", asked, fs.ErrPermission)
	}
	for i := range len(name) {
		if c := name[i]; c == '/' || c == '\\' || c < ' ' || c > '~' {
			return "", fmt.Errorf("%q is not a file name: %w", asked, fs.ErrPermission)
		}
	}
	return name, nil
}
