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
	"time"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/httpboot"
	"github.com/bareyard/bareyard/netboot/ra"
	"github.com/bareyard/bareyard/netboot/tftp"
	"golang.org/x/sync/errgroup"
)

// Server carries the boot conversation on one network interface. Set the fields, then call Run once.
type Server struct {
	Booter      Booter
	Interface   string     // name of the interface on the provisioning network
	Addr        netip.Addr // our IPv4 address on it: DHCP server identifier, TFTP and HTTP listener
	HTTPPort    uint16     // of the boot listener; zero means 80
	LoaderDir   string     // where undionly.kpxe and snponly.efi are; empty means /usr/lib/ipxe (Debian's package ipxe)
	KernelPath  string     // served as /boot/vmlinuz
	RAMDiskPath string     // served as /boot/ramdisk

	// Handlers are served by the boot listener beside /boot/, by path prefix, e.g. "/images/". A handler sees the
	// path as it was asked for, except that repeated slashes are gone. What it writes is under the same deadline as
	// our own files: a client that stops reading for a minute is cut off.
	Handlers map[string]http.Handler

	Log   *slog.Logger   // nil means silence
	Trace func(Exchange) // called for each exchange, from several goroutines; nil means none
}

// Run serves until ctx is cancelled, then returns nil, or until one of its listeners fails. It needs the right to
// bind ports 67, 69 and HTTPPort and to open packet sockets (CAP_NET_BIND_SERVICE, CAP_NET_RAW). All sockets are
// opened before the first goroutine starts, in the network namespace of the caller's thread.
func (s *Server) Run(ctx context.Context) error {
	c, err := newConversation(s)
	if err != nil {
		return fmt.Errorf("configure network boot: %w", err)
	}
	l, err := s.listen()
	if err != nil {
		return fmt.Errorf("start network boot: %w", err)
	}
	defer l.Close()

	web := httpboot.NewServer(c)
	g, ctx := errgroup.WithContext(ctx)
	web.BaseContext = func(net.Listener) context.Context { return ctx }
	loaders := &tftp.Server{Open: tftp.Dir(c.LoaderDir), Log: c.log, Done: c.transferred}
	l.ra.Log = c.log
	g.Go(func() error { return l.dhcp.Serve(ctx, c.log, c.answer) })
	g.Go(func() error { return loaders.Serve(ctx, l.tftp) })
	g.Go(func() error { return l.ra.Run(ctx) })
	g.Go(func() error {
		if err := web.Serve(l.http); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if web.Shutdown(grace) != nil { // somebody is in the middle of a download
			_ = web.Close()
		}
		return nil
	})
	c.log.Info("network boot is up", "interface", s.Interface, "addr", s.Addr, "http", c.base)
	return g.Wait()
}

// listeners are the sockets of a Server.
type listeners struct {
	dhcp *dhcp.Conn
	tftp *net.UDPConn
	http net.Listener
	ra   *ra.Sender
	all  []io.Closer
}

// Close closes them all. The HTTP server may have closed its own before.
func (l *listeners) Close() {
	for _, c := range l.all {
		_ = c.Close()
	}
}

func (s *Server) listen() (_ *listeners, err error) {
	l := &listeners{}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.dhcp, err = dhcp.Listen(s.Interface, s.Addr); err != nil {
		return nil, err
	}
	l.all = append(l.all, l.dhcp)
	if l.tftp, err = tftp.Listen(s.Addr); err != nil {
		return nil, err
	}
	l.all = append(l.all, l.tftp)
	addr := netip.AddrPortFrom(s.Addr, cmp.Or(s.HTTPPort, 80))
	if l.http, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(addr)); err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	l.all = append(l.all, l.http)
	if l.ra, err = ra.Listen(s.Interface); err != nil {
		return nil, err
	}
	l.all = append(l.all, l.ra)
	return l, nil
}

// check reports what is wrong with the configuration: better now than when the first machine boots.
func (s *Server) check() error {
	if s.Booter == nil {
		return errors.New("no Booter")
	}
	if !s.Addr.Is4() {
		return fmt.Errorf("address %v is not IPv4", s.Addr)
	}
	for _, f := range []struct{ path, hint string }{
		{filepath.Join(s.LoaderDir, dhcp.BIOS.Loader()), "install Debian's package ipxe"},
		{filepath.Join(s.LoaderDir, dhcp.X64.Loader()), "install Debian's package ipxe"},
		{s.KernelPath, "the kernel that boots the agent"},
		{s.RAMDiskPath, "the RAM disk with the agent"},
	} {
		if st, err := os.Stat(f.path); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("there is no file %q (%s)", f.path, f.hint)
		}
	}
	for prefix := range s.Handlers {
		if len(prefix) < 3 || prefix[0] != '/' || prefix[len(prefix)-1] != '/' || prefix == bootPrefix {
			return fmt.Errorf("%q cannot be the prefix of a handler", prefix)
		}
	}
	return nil
}
