package netboot

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

const (
	bootPrefix = "/boot/"
	defaultDir = "/usr/lib/ipxe"
)

// conversation is a Server at work: the questions of machines go to the Booter, the answers back. What it remembers
// (who has which address, who loops) serves logs, the loop breaker and machines that nobody knows; another replica may
// know otherwise.
type conversation struct {
	Server  // a copy with the defaults filled in
	log     *slog.Logger
	nets    networks
	links   []*link
	loaders map[dhcp.Platform]string // names
	files   map[string]string        // paths of loaders that lie outside the loader folder, by name

	echo    asker // beyond routers; nil where nobody needs it
	heard   heard
	limits  *limits
	dropped seldom
	full    seldom
	foreign foreign
	seen    quiet
	loops   loops
	nosy    nosy

	mu     sync.Mutex
	macs   map[netip.Addr]string // by leased address
	arches map[string]dhcp.Arch  // of known machines, for requests that do not say it
}

// link is one interface.
type link struct {
	*conversation
	ifname string
	addr   netip.Addr                  // ours, the first
	six    netip.Prefix                // ours, the only one, with its network; not valid: no IPv6 here
	ranges map[netip.Prefix]*strangers // by subnet: all of the Server's, shared by its links
	arp    asker                       // nil where nobody needs it
}

// asker asks whether an address is in use, and by whom.
type asker interface {
	Ask(ctx context.Context, a netip.Addr) (owner string, used bool, err error)
}

func newConversation(s *Server) (*conversation, error) {
	c := &conversation{Server: *s, log: s.Log, limits: newLimits(), macs: map[netip.Addr]string{}, arches: map[string]dhcp.Arch{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.LoaderDir = cmp.Or(s.LoaderDir, defaultDir)
	c.HTTPPort = cmp.Or(s.HTTPPort, 80)
	c.nets = slices.Clone(s.Subnets)
	if !slices.ContainsFunc(c.nets, func(n Subnet) bool { return n.Interface == s.Interface && n.Addr == s.Addr }) {
		c.nets = append(networks{{Interface: s.Interface, Addr: s.Addr}}, c.nets...)
	}
	c.name()
	if err := c.check(); err != nil {
		return nil, err
	}
	ranges := map[netip.Prefix]*strangers{}
	for _, n := range c.nets {
		if n.Range.size() > 0 {
			ranges[n.Prefix] = newStrangers(n.Range, c.prober(n), c.reserves)
		}
		if n.Interface != "" && !slices.ContainsFunc(c.links, func(l *link) bool { return l.ifname == n.Interface }) {
			c.links = append(c.links, &link{conversation: c, ifname: n.Interface, addr: n.Addr, ranges: ranges})
		}
	}
	for _, l := range c.links {
		for _, n := range c.nets {
			if n.Interface == l.ifname && n.Addr6.IsValid() {
				l.six = n.Addr6
			}
		}
	}
	return c, nil
}

// name settles the names of the loaders. One that was given by its path is served by its last part.
func (c *conversation) name() {
	c.loaders, c.files = map[dhcp.Platform]string{}, map[string]string{}
	for _, p := range []dhcp.Platform{dhcp.PlatformBIOS, dhcp.PlatformIA32, dhcp.PlatformX64, dhcp.PlatformARM64} {
		c.loaders[p] = p.Loader()
	}
	for p, path := range c.Loaders {
		c.loaders[p] = filepath.Base(path)
		if filepath.IsAbs(path) {
			c.files[filepath.Base(path)] = path
		}
	}
	maps.Copy(c.files, c.signedFiles())
}

// prober returns how a subnet is asked whether an address is in use.
func (c *conversation) prober(n Subnet) func(context.Context, netip.Addr) (string, bool, error) {
	return func(ctx context.Context, a netip.Addr) (string, bool, error) {
		by := asker(c.echo)
		for _, l := range c.links {
			if l.ifname == n.Interface {
				by = l.arp
			}
		}
		if by == nil {
			return "", false, nil
		}
		return by.Ask(ctx, a)
	}
}

// base returns the URL of the boot listener by one of our addresses, without a slash at the end.
func (c *conversation) base(ours netip.Addr) string {
	host := ours.String()
	if ours.Is6() {
		host = "[" + host + "]"
	}
	if c.HTTPPort != 80 {
		host += fmt.Sprintf(":%d", c.HTTPPort)
	}
	return "http://" + host
}

func (c *conversation) scriptURL(ours netip.Addr, mac string) string {
	return c.base(ours) + bootPrefix + "ipxe/" + mac + ".ipxe"
}

// remember notes who has an address.
func (c *conversation) remember(a netip.Addr, mac string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.macs) >= macsMax {
		clear(c.macs) // they renew
	}
	c.macs[a] = mac
}

// macsMax bounds the addresses remembered. In proxy mode anybody may claim any address.
const macsMax = 1 << 16

func (c *conversation) macOf(a netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.macs[c.nets.four(a)]
}

// parseMAC returns a MAC address as a Booter wants it, from any of the usual spellings.
func parseMAC(s string) (string, bool) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return "", false
	}
	return strings.ToLower(mac.String()), true
}
