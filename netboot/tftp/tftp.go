// Package tftp serves small files read-only over TFTP, all from one port.
//
// Everything leaves from the port that was asked (RFC 1350 has a fresh one for each transfer), so that a firewall, a
// NAT or a container that publishes port 69 is enough. One goroutine owns all transfers of a socket: a client that asks twice
// from one port has one transfer, and a cancelled context ends at once. github.com/pin/tftp has a single-port mode
// too, but its reader can send on a channel that a finished transfer has just closed, which ends the program; it
// refuses windowsize and does not stop before its clients do. It is the client in our tests.
package tftp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	// Open returns a file for a client; the Server closes it. fs.ErrNotExist and fs.ErrPermission become the errors 1
	// and 2. It may take its time: others are served meanwhile.
	Open func(ctx context.Context, name string, peer netip.AddrPort) (File, error)

	Log  *slog.Logger   // nil means silence
	Done func(Transfer) // called at the end of each transfer, from the goroutine of Serve; nil means none

	MaxBlock    int           // largest block granted, bytes; zero means 1468, which fits an Ethernet frame
	MaxWindow   int           // most blocks in flight; zero means 16
	Timeout     time.Duration // before a repeat; zero means one second, doubled for each repeat
	Tries       int           // of the same packet; zero means 6
	MaxSessions int           // of one socket; zero means 1024
	MaxPerHost  int           // of those, sessions of one address; zero means 8
	OpenTime    time.Duration // that Open may take; zero means five seconds
}

// Listen opens port 69 on addr, IPv4 or IPv6, with a socket for each processor: the kernel gives each port of a client
// to one of them, and always the same. It needs CAP_NET_BIND_SERVICE.
func Listen(addr netip.Addr) (all []*net.UDPConn, err error) {
	defer func() {
		if err != nil {
			for _, c := range all {
				c.Close()
			}
		}
	}()
	share := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return set(c, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}}
	for range runtime.GOMAXPROCS(0) {
		c, err := share.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(addr, 69).String())
		if err != nil {
			return all, fmt.Errorf("listen for TFTP: %w", err)
		}
		conn := c.(*net.UDPConn)
		all = append(all, conn)
		if err := watchErrors(conn); err != nil {
			return all, fmt.Errorf("watch for ICMP errors: %w", err)
		}
	}
	return all, nil
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
	openers, stopOpeners := context.WithCancel(ctx)
	var running sync.WaitGroup
	found := make(chan func(), cmp.Or(s.MaxSessions, 1024)) // one for each session that is being opened at most
	t.start = func(open func(context.Context) func()) {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(openers, cmp.Or(s.OpenTime, 5*time.Second))
			defer cancel()
			found <- open(ctx)
			c.SetReadDeadline(time.Now())
		})
	}
	defer func() {
		stopOpeners()
		running.Wait()
		for len(found) > 0 {
			(<-found)()
		}
		t.close()
	}()
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now()) })
	defer stop()
	var scanned, armed time.Time
	buf := make([]byte, 2048) // a request may be longer than the 512 bytes of the old days
	for {
		for len(found) > 0 {
			(<-found)()
		}
		if due := t.nextDue(time.Now(), scanned); due != armed {
			c.SetReadDeadline(due)
			armed = due
		}
		// After the deadline, which the cancellation and the openers may have set before us.
		if ctx.Err() != nil {
			return nil
		}
		if len(found) > 0 {
			continue
		}
		n, peer, err := c.ReadFromUDPAddrPort(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			armed = time.Time{} // maybe set before its time, to wake us
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read TFTP: %w", err)
		case err != nil: // an ICMP error of some peer
			t.drop(unreachable(c), time.Now())
		default:
			peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
			t.receive(c, peer, buf[:n], time.Now())
		}
		if now := time.Now(); now.Sub(scanned) >= scanEvery {
			scanned = now
			t.expire(c, now)
		}
	}
}
