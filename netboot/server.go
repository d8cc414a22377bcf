package netboot

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
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
	// path as it was asked for, except that repeated slashes are gone.
	Handlers map[string]http.Handler

	Log   *slog.Logger   // nil means silence
	Trace func(Exchange) // called for each exchange, from several goroutines; nil means none
}

// Run serves until ctx is cancelled, then returns nil, or until one of its listeners fails. It needs the right to
// bind ports 67, 69 and HTTPPort and to open packet sockets (CAP_NET_BIND_SERVICE, CAP_NET_RAW).
func (s *Server) Run(ctx context.Context) error {
	return errors.New("not wired yet")
}
