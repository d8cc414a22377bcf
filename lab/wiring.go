package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addresses of the lab. All networks are private to it or set aside for documentation.
var (
	ProvisionNet = netip.MustParsePrefix("10.77.0.0/24")    // machines boot here
	Controller   = netip.MustParseAddr("10.77.0.1")         // bareyard serve, on ProvisionNet
	BMCNet       = netip.MustParsePrefix("10.78.0.0/24")    // BMCs
	EdgeUplink   = netip.MustParsePrefix("198.51.100.1/30") // the edge's side of the transit
	InternetEnd  = netip.MustParsePrefix("198.51.100.2/30") // the internet's side
	BGPLine      = netip.MustParsePrefix("203.0.113.0/24")  // public addresses, line bgp
	TelecomLine  = netip.MustParsePrefix("192.0.2.0/24")    // public addresses, line telecom
	bmcUplink    = netip.MustParsePrefix("10.78.0.1/24")    // the controller, on BMCNet
	provUplink   = netip.PrefixFrom(Controller, ProvisionNet.Bits())
)

const (
	bridgeProvision = "br-prov"
	bridgePublic    = "br-pub"
	bmcLink         = "lan0"
)

// wire makes the namespaces and everything between them. Each interface is born where it belongs, so that its name never
// shows, or clashes, in the box's own namespace.
func (n Network) wire(machines []plan) error {
	for _, ns := range namespaces() {
		if err := createNamespace(n.path(ns), sysctls(ns)); err != nil {
			return err
		}
	}
	at := make(map[string]*site)
	for _, ns := range namespaces() {
		s, err := openSite(n.path(ns))
		if err != nil {
			return err
		}
		defer s.close()
		at[ns] = s
	}
	w := &wirer{at: at}
	w.do("lo", func() error {
		for _, s := range at {
			if err := s.up("lo"); err != nil {
				return err
			}
		}
		return nil
	})
	w.bridge(bridgeProvision)
	w.bridge(bridgePublic)

	w.cable(Fabric, "mgmt", Mgmt, "prov0")
	w.master("mgmt", bridgeProvision)
	w.address(Mgmt, "prov0", provUplink)
	w.do("prov0 checksums", func() error { return n.Enter(Mgmt, func() error { return fillChecksums("prov0") }) })

	w.cable(Fabric, "edge", Edge, "down0")
	w.master("edge", bridgePublic)

	w.cable(Mgmt, "bmc0", BMCs, bmcLink)
	w.address(Mgmt, "bmc0", bmcUplink)
	for _, m := range machines {
		w.address(BMCs, bmcLink, netip.PrefixFrom(m.bmcAddr, BMCNet.Bits()))
	}

	w.cable(Fabric, "racks", Racks, "rack0")
	w.master("racks", bridgeProvision)
	for _, m := range machines {
		if m.Simulated {
			w.address(Racks, "rack0", netip.PrefixFrom(m.bootAddr, ProvisionNet.Bits()))
		}
	}

	w.cable(Edge, "up0", Internet, "up0")
	w.address(Edge, "up0", EdgeUplink)
	w.address(Internet, "up0", InternetEnd)
	w.route(Internet, BGPLine, EdgeUplink.Addr())
	w.route(Internet, TelecomLine, EdgeUplink.Addr())

	for _, m := range machines {
		w.tap(m.provTap, bridgeProvision)
		w.tap(m.pubTap, bridgePublic)
	}
	return w.err
}

// sysctls are a namespace's kernel settings. The switches must not speak for themselves, and no interface wants an address
// that it was not given.
func sysctls(ns string) map[string]string {
	if ns == Fabric {
		return map[string]string{"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"}
	}
	return map[string]string{"net/ipv6/conf/all/accept_ra": "0", "net/ipv6/conf/default/accept_ra": "0"}
}

// site is a namespace with a netlink socket in it.
type site struct {
	*netlink.Handle
	file *os.File
}

func openSite(path string) (*site, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open netlink in namespace: %w", err)
	}
	return &site{Handle: h, file: f}, nil
}

func (s *site) close() {
	s.Handle.Close()
	s.file.Close()
}

func (s *site) up(name string) error {
	link, err := s.LinkByName(name)
	if err != nil {
		return err
	}
	return s.LinkSetUp(link)
}

// wirer does one thing after the other and keeps the first error.
type wirer struct {
	at  map[string]*site
	err error
}

func (w *wirer) do(what string, fn func() error) {
	if w.err != nil {
		return
	}
	if err := fn(); err != nil {
		w.err = fmt.Errorf("wire %s: %w", what, err)
	}
}

// cable lays a veth pair between two namespaces.
func (w *wirer) cable(nsA, a, nsB, b string) {
	w.do(a+" to "+b, func() error {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: a})
		veth.PeerName = b
		veth.PeerNamespace = netlink.NsFd(int(w.at[nsB].file.Fd()))
		if err := w.at[nsA].LinkAdd(veth); err != nil {
			return err
		}
		if err := w.at[nsA].up(a); err != nil {
			return err
		}
		return w.at[nsB].up(b)
	})
}

// bridge makes a switch: no spanning tree, no wait before a port forwards, no guess about who wants a multicast. iPXE loses
// 13 seconds to a router advertisement that a snooping bridge keeps back.
func (w *wirer) bridge(name string) {
	w.do(name, func() error {
		no := false
		if err := w.at[Fabric].LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}, MulticastSnooping: &no}); err != nil {
			return err
		}
		return w.at[Fabric].up(name)
	})
}

func (w *wirer) tap(name, bridge string) {
	w.do(name, func() error {
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: name},
			Mode:      netlink.TUNTAP_MODE_TAP,
			Flags:     netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_NO_PI,
		}
		// A tap is made by an ioctl on /dev/net/tun and so in the namespace of the thread.
		return onThread(func() error {
			if err := unix.Setns(int(w.at[Fabric].file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := netlink.LinkAdd(tap); err != nil {
				return err
			}
			return w.at[Fabric].up(name)
		})
	})
	w.master(name, bridge)
}

func (w *wirer) master(name, bridge string) {
	w.do(name+" on "+bridge, func() error {
		br, err := w.at[Fabric].LinkByName(bridge)
		if err != nil {
			return err
		}
		port, err := w.at[Fabric].LinkByName(name)
		if err != nil {
			return err
		}
		return w.at[Fabric].LinkSetMaster(port, br)
	})
}

func (w *wirer) address(ns, name string, p netip.Prefix) {
	w.do(p.String()+" on "+name, func() error {
		link, err := w.at[ns].LinkByName(name)
		if err != nil {
			return err
		}
		return w.at[ns].AddrAdd(link, &netlink.Addr{IPNet: ipNet(p)})
	})
}

func (w *wirer) route(ns string, to netip.Prefix, via netip.Addr) {
	w.do("route to "+to.String(), func() error {
		return w.at[ns].RouteAdd(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()})
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// fillChecksums makes an interface of this thread's namespace fill in UDP and TCP checksums itself. A veth otherwise leaves
// that to hardware that is not there, and boot firmware that looks at raw frames sees bad checksums.
func fillChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// struct ethtool_value, and struct ifreq with a pointer to it: linux/ethtool.h, linux/if.h.
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_STXCSUM}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	req.data = unsafe.Pointer(&value)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return os.NewSyscallError("ethtool", errno)
	}
	return nil
}
