package linuxedge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

type lock int

const (
	shared    lock = unix.LOCK_SH
	exclusive lock = unix.LOCK_EX
)

// side indexes the two devices.
type side int

const (
	uplink side = iota
	downlink
)

// session is one call's hold on the namespace: its lock, its sockets and its devices.
type session struct {
	cfg   Config
	ns    *os.File
	rt    *netlink.Handle
	tc    *nl.SocketHandle // for messages that the netlink package does not know
	nft   *nftables.Conn
	links [2]netlink.Link
}

// batchBuffer holds an nftables transaction of some 10,000 machines; the default fails with EMSGSIZE at a few thousand.
const batchBuffer = 32 << 20

func open(ctx context.Context, cfg Config, how lock) (_ *session, err error) {
	path := "/proc/thread-self/ns/net"
	if cfg.Netns != "" {
		path = filepath.Join("/run/netns", cfg.Netns)
	}
	s := &session{cfg: cfg}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.ns, err = os.Open(path); err != nil {
		return nil, unavailable(fmt.Sprintf("open network namespace %q: %v", cfg.Netns, err), "create it, or correct the edge's configuration")
	}
	if err := flock(ctx, s.ns, how); err != nil {
		return nil, fmt.Errorf("lock network namespace %q: %w", cfg.Netns, err)
	}
	fd := int(s.ns.Fd())
	if s.rt, err = netlink.NewHandleAt(netns.NsHandle(fd), unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open route socket: %w", err)
	}
	sock, err := nl.GetNetlinkSocketAt(netns.NsHandle(fd), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open traffic control socket: %w", err)
	}
	s.tc = &nl.SocketHandle{Socket: sock}
	buffers := func(c *mdnetlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(batchBuffer), c.SetReadBuffer(batchBuffer))
	}
	if s.nft, err = nftables.New(nftables.WithNetNSFd(fd), nftables.AsLasting(), nftables.WithSockOptions(buffers)); err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	for i, name := range []string{cfg.Uplink, cfg.Downlink} {
		if s.links[i], err = s.rt.LinkByName(name); err != nil {
			return nil, unavailable(fmt.Sprintf("find device %s: %v", name, err), "bring the device up, or correct the edge's configuration")
		}
	}
	return s, nil
}

func (s *session) close() {
	if s.nft != nil {
		_ = s.nft.CloseLasting()
	}
	if s.tc != nil {
		s.tc.Close()
	}
	if s.rt != nil {
		s.rt.Close()
	}
	if s.ns != nil {
		_ = s.ns.Close() // gives the lock back
	}
}

// flock locks the namespace's own inode: the lock reaches as far as the state it guards, and the kernel drops it with the
// process.
func flock(ctx context.Context, f *os.File, how lock) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), int(how)|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// inside runs f on a thread of its own in the namespace; /proc/sys/net shows that of the thread that opens it. The thread
// ends with the goroutine, so none comes back to the pool in the wrong namespace.
func (s *session) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(netns.NsHandle(s.ns.Fd())); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// sysctl is a file below /proc/sys/net and what it must hold.
type sysctl struct{ path, value string }

// sysctls are what the guards rely on; the files are read back, as "all" and the device's own value are combined.
func (s *session) sysctls() []sysctl {
	d := "ipv4/conf/" + s.cfg.Downlink + "/"
	d6 := "ipv6/conf/" + s.cfg.Downlink + "/"
	return []sysctl{
		{d + "rp_filter", "1"},                // ARP from a foreign source is not learned, so nobody can fill the neighbour table
		{d + "arp_ignore", "1"},               // ARP answers for the gateway address only
		{d + "proxy_arp", "0"},                //
		{d + "send_redirects", "0"},           // from machine to machine, in and out are the same device
		{"ipv4/conf/all/send_redirects", "0"}, // either switches it on
		{d + "accept_redirects", "0"},
		{d + "accept_source_route", "0"},
		{d6 + "disable_ipv6", "0"},
		{d6 + "accept_ra", "0"}, // a machine must not become the edge's router
		{d6 + "accept_redirects", "0"},
	}
}

// forward switches forwarding for the whole namespace.
func (s *session) forward(on bool) error {
	v := "0"
	if on {
		v = "1"
	}
	return s.inside(func() error {
		return write([]sysctl{{"ipv4/ip_forward", v}, {"ipv6/conf/all/forwarding", v}})
	})
}

// write writes what differs. A kernel without IPv6 has no files for it.
func write(set []sysctl) error {
	for _, c := range set {
		path := "/proc/sys/net/" + c.path
		have, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(c.path, "ipv6/") {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sysctl: %w", err)
		}
		if strings.TrimSpace(string(have)) == c.value {
			continue
		}
		if err := os.WriteFile(path, []byte(c.value), 0o644); err != nil {
			return fmt.Errorf("write sysctl: %w", err)
		}
	}
	return nil
}

func unavailable(message, hint string) error {
	return &machine.Error{Code: machine.Unavailable, Message: message, Hint: hint}
}
