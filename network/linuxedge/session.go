package linuxedge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/namespace"
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
	ns    *namespace.Namespace
	rt    *netlink.Handle
	tc    *nl.SocketHandle // for messages that the netlink package does not know
	nft   *nftables.Conn
	links [2]netlink.Link
	prog  *ebpf.Program // see program

	dumpClasses func(netlink.Link) ([]netlink.Class, error) // listClasses
}

func open(ctx context.Context, cfg Config, how namespace.Lock) (_ *session, err error) {
	s := &session{cfg: cfg}
	s.dumpClasses = s.listClasses
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.ns, err = namespace.Open(ctx, cfg.Netns, how); err != nil {
		return nil, err
	}
	if s.rt, err = netlink.NewHandleAt(s.ns.Handle(), unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open route socket: %w", err)
	}
	sock, err := nl.GetNetlinkSocketAt(s.ns.Handle(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open traffic control socket: %w", err)
	}
	s.tc = &nl.SocketHandle{Socket: sock}
	if s.nft, err = s.ns.Nftables(); err != nil {
		return nil, err
	}
	if how == namespace.Exclusive {
		if err := s.shut(); err != nil { // even if a device is missing
			return nil, err
		}
	}
	for i, name := range []string{cfg.Uplink, cfg.Downlink} {
		if s.links[i], err = s.rt.LinkByName(name); err != nil {
			return nil, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("find device %s: %v", name, err), Hint: "create the device, or correct the edge's configuration"}
		}
	}
	return s, nil
}

func (s *session) close() {
	if s.prog != nil {
		_ = s.prog.Close() // a filter keeps it
	}
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
		_ = s.ns.Close() // last, as it gives the lock back
	}
}

// shut stops forwarding as long as there is no guard: the box must not be an open router.
func (s *session) shut() error {
	guarded, err := s.guarded()
	if err != nil || guarded {
		return err
	}
	return s.forward(false)
}

// sysctl is a file below /proc/sys/net and what it must hold.
type sysctl struct{ path, value string }

// sysctls are what the guards rely on.
func (s *session) sysctls() []sysctl {
	d := "ipv4/conf/" + s.cfg.Downlink + "/"
	d6 := "ipv6/conf/" + s.cfg.Downlink + "/"
	return []sysctl{
		{d + "rp_filter", "1"},  // ARP from a foreign source is not learned, so nobody can fill the neighbour table
		{d + "arp_ignore", "1"}, // ARP answers for the gateway address only
		{d + "proxy_arp", "0"},
		{d + "accept_redirects", "0"},
		{d + "accept_source_route", "0"},
		// From machine to machine, and for addresses of nobody, in and out are the same device. Either of all and the
		// device's own switches redirects on.
		{"ipv4/conf/all/send_redirects", "0"},
		{d + "send_redirects", "0"},
		{"ipv4/conf/" + s.cfg.Uplink + "/send_redirects", "0"},
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
	return s.ns.Do(func() error {
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
