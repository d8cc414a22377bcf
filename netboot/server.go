package netboot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/dhcp6"
	"github.com/bareyard/bareyard/netboot/httpboot"
	"github.com/bareyard/bareyard/netboot/inuse"
	"github.com/bareyard/bareyard/netboot/ra"
	"github.com/bareyard/bareyard/netboot/tftp"
	"golang.org/x/sync/errgroup"
)

// Mode says who gives the machines their addresses.
type Mode string

// Modes.
const (
	Authoritative Mode = ""      // we do
	Proxy         Mode = "proxy" // another DHCP server does; we only say what to boot
)

// Server carries the boot conversation on one or several networks. Set the fields, then call Run once.
type Server struct {
	Booter    Booter
	Mode      Mode
	Interface string     // name of the interface on the provisioning network
	Addr      netip.Addr // our IPv4 address on it: DHCP server identifier, TFTP and HTTP listener
	Subnets   []Subnet   // what is known of that network, and further ones
	HTTPPort  uint16     // of the boot listener; zero means 80

	LoaderDir   string                   // where undionly.kpxe and snponly.efi are; empty means /usr/lib/ipxe (Debian's package ipxe)
	Loaders     map[dhcp.Platform]string // others than the usual: a name in LoaderDir or an absolute path
	KernelPath  string                   // served as /boot/vmlinuz
	RAMDiskPath string                   // served as /boot/ramdisk
	ShimPath    string                   // the signed chain for UEFI with Secure Boot; empty: there is none
	GRUBPath    string                   // a GRUB with network support that shim accepts
	SecureBoot  bool                     // unknown machines get the signed chain

	// OtherServers are DHCP servers that belong on our networks: other replicas, and in proxy mode the network's own.
	// Any other raises the alarm. Empty in proxy mode: no alarm.
	OtherServers []netip.Addr
	Alarm        func(OtherServer) // called once in a while for each, from several goroutines; nil means none

	// Handlers are served by the boot listener beside /boot/, by path prefix, e.g. "/images/". A handler sees the
	// path as it was asked for, except that repeated slashes are gone. What it writes is under the same deadline as
	// our own files: a client that stops reading for a minute is cut off.
	Handlers map[string]http.Handler

	Log     *slog.Logger   // nil means silence
	Metrics *Metrics       // nil means none
	Trace   func(Exchange) // called for each exchange, from several goroutines; nil means none
}

// Run serves until ctx is cancelled, then returns nil, or until one of its listeners fails. It needs the right to
// bind ports 67, 69, 4011 and HTTPPort and to open packet sockets (CAP_NET_BIND_SERVICE, CAP_NET_RAW). All sockets are
// opened before the first goroutine starts, in the network namespace of the caller's thread.
func (s *Server) Run(ctx context.Context) error {
	c, err := newConversation(s)
	if err != nil {
		return fmt.Errorf("configure network boot: %w", err)
	}
	l, err := c.listen()
	if err != nil {
		return fmt.Errorf("start network boot: %w", err)
	}
	defer l.Close()

	web := httpboot.NewServer(c)
	g, ctx := errgroup.WithContext(ctx)
	web.BaseContext = func(net.Listener) context.Context { return ctx }
	loaders := &tftp.Server{Open: c.open, Log: c.log, Done: c.transferred, OpenTime: askTime}
	for _, run := range l.run {
		g.Go(func() error { return run(ctx) })
	}
	for _, conn := range l.tftp {
		g.Go(func() error { return loaders.Serve(ctx, conn) })
	}
	for _, listener := range l.http {
		g.Go(func() error {
			if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve HTTP: %w", err)
			}
			return nil
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if web.Shutdown(grace) != nil { // somebody is in the middle of a download
			_ = web.Close()
		}
		return nil
	})
	for _, l := range c.links {
		c.log.Info("network boot is up", "interface", l.ifname, "addr", l.addr, "http", c.base(l.addr), "mode", cmp.Or(string(c.Mode), "authoritative"))
	}
	return g.Wait()
}

// listeners are the sockets of a Server.
type listeners struct {
	tftp []*net.UDPConn
	http []net.Listener
	run  []func(context.Context) error // everything else that waits for packets
	all  []io.Closer
}

// Close closes them all. The HTTP server may have closed its own before.
func (l *listeners) Close() {
	for _, c := range l.all {
		_ = c.Close()
	}
}

func (c *conversation) listen() (_ *listeners, err error) {
	l := &listeners{}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	for _, k := range c.links {
		if err := l.link(k); err != nil {
			return nil, err
		}
	}
	for _, n := range c.nets {
		if n.Interface == "" {
			if err := l.echo(c, n); err != nil {
				return nil, err
			}
			continue
		}
		for _, ours := range []netip.Addr{n.Addr, n.Addr6.Addr()} {
			if !ours.IsValid() {
				continue
			}
			if err := l.files(ours, c.HTTPPort); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

// link opens what listens on an interface.
func (l *listeners) link(k *link) error {
	conn, err := dhcp.Listen(k.ifname, k.addr)
	if err != nil {
		return err
	}
	l.all = append(l.all, conn)
	l.run = append(l.run, func(ctx context.Context) error { return conn.Serve(ctx, k.log, k) })

	ear, err := dhcp.ListenReplies(k.ifname)
	if err != nil {
		return err
	}
	l.all = append(l.all, ear)
	l.run = append(l.run, func(ctx context.Context) error {
		return ear.Run(ctx, func(o dhcp.Overheard) {
			k.notice(OtherServer{Addr: o.Server, MAC: o.MAC, Interface: k.ifname, Client: o.Client})
		})
	})

	needsARP := func(n Subnet) bool { return n.Interface == k.ifname && n.Range.size() > 0 }
	if k.Mode == Proxy || slices.ContainsFunc(k.nets, needsARP) {
		arp, err := inuse.ListenARP(k.ifname)
		if err != nil {
			return err
		}
		k.arp = arp
		l.all = append(l.all, arp)
		l.run = append(l.run, arp.Run)
	}

	if k.six.IsValid() {
		conn, err := dhcp6.Listen(k.ifname)
		if err != nil {
			return err
		}
		l.all = append(l.all, conn)
		l.run = append(l.run, func(ctx context.Context) error { return conn.Serve(ctx, k.log, k) })
	}

	adv, err := ra.Listen(k.ifname)
	if err != nil {
		return err
	}
	adv.Log, adv.Prefix = k.log, k.six.Masked()
	l.all = append(l.all, adv)
	l.run = append(l.run, adv.Run)
	return nil
}

// echo opens what asks for addresses beyond routers, once, if anybody needs it.
func (l *listeners) echo(c *conversation, n Subnet) error {
	if n.Range.size() == 0 || c.echo != nil {
		return nil
	}
	echo, err := inuse.ListenEcho()
	if err != nil {
		return err
	}
	c.echo = echo
	l.all = append(l.all, echo)
	l.run = append(l.run, echo.Run)
	return nil
}

// files opens what serves files by one of our addresses.
func (l *listeners) files(ours netip.Addr, port uint16) error {
	loaders, err := tftp.Listen(ours)
	if err != nil {
		return err
	}
	for _, c := range loaders {
		l.tftp, l.all = append(l.tftp, c), append(l.all, c)
	}
	web, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ours, port)))
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	l.http, l.all = append(l.http, web), append(l.all, web)
	return nil
}

// check reports what is wrong with the configuration: better now than when the first machine boots.
func (c *conversation) check() error {
	if c.Booter == nil {
		return errors.New("no Booter")
	}
	if !c.Addr.Is4() {
		return fmt.Errorf("address %v is not IPv4", c.Addr)
	}
	if c.Mode != Authoritative && c.Mode != Proxy {
		return fmt.Errorf("no mode %q", c.Mode)
	}
	if i, err := CheckSubnets(c.nets); err != nil {
		return fmt.Errorf("network %s: %w", c.nets[i].Prefix, err)
	}
	for _, n := range c.nets {
		if c.Mode == Proxy && (n.Range.size() > 0 || n.net6().IsValid()) {
			return fmt.Errorf("network %s: a proxy gives no addresses", n.Prefix)
		}
	}
	files := []struct{ path, hint string }{
		{c.loaderPath(dhcp.PlatformBIOS), "install Debian's package ipxe"},
		{c.loaderPath(dhcp.PlatformX64), "install Debian's package ipxe"},
		{c.KernelPath, "the kernel that boots the agent"},
		{c.RAMDiskPath, "the RAM disk with the agent"},
	}
	for p := range c.Loaders {
		files = append(files, struct{ path, hint string }{c.loaderPath(p), "the loader for " + string(p)})
	}
	for name, path := range c.signedFiles() {
		files = append(files, struct{ path, hint string }{path, "served as " + name + "; install Debian's packages shim-signed and grub-efi-amd64-signed"})
	}
	for _, f := range files {
		if st, err := os.Stat(f.path); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("there is no file %q (%s)", f.path, f.hint)
		}
	}
	for _, n := range c.nets {
		for p, name := range c.loaders {
			longest := dhcp.Terms{Server: c.Addr, Addr: netip.PrefixFrom(c.Addr, 32), LoaderBase: c.base(n.Addr) + bootPrefix, Loader: name}
			if err := longest.Validate(); n.Interface != "" && err != nil {
				return fmt.Errorf("loader for %s: %w", p, err)
			}
		}
	}
	for prefix := range c.Handlers {
		if len(prefix) < 3 || prefix[0] != '/' || prefix[len(prefix)-1] != '/' || prefix == bootPrefix {
			return fmt.Errorf("%q cannot be the prefix of a handler", prefix)
		}
	}
	return nil
}

// loaderPath returns where the loader of a platform is.
func (c *conversation) loaderPath(p dhcp.Platform) string {
	if path, ok := c.files[c.loaders[p]]; ok {
		return path
	}
	return filepath.Join(c.LoaderDir, c.loaders[p])
}
