// Package bridgeport opens and closes the ports of Linux bridges, which are the switch ports of the lab's machines.
//
// It works by the port's name, in nftables, so that a port stays as it was set while QEMU comes and goes with its tap
// device: the bridge's own port state, its isolation flag and a link that is down end with the device, and the kernel opens
// a port by itself when its carrier returns. No VLAN is needed.
//
// Every port that was ever set is a machine's port. A closed one passes no frame either way, and an open one no frame to
// another machine's port. Ports that were never set, such as the controller's, are left alone. A driver for hardware
// switches is another package; nothing here was tried on one.
package bridgeport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/namespace"
)

// Driver sets the ports of all bridges in one network namespace. It keeps nothing in memory.
type Driver struct {
	Netns string // as in `ip netns`; "" is the current one
}

// Set opens or closes a port. A port that is not there is closed all the same, for when it comes; to open it is a NotFound
// error, as then no machine would ever be heard and somebody has written down another name.
func (d *Driver) Set(ctx context.Context, port string, open bool) error {
	return d.change(ctx, port, func(ns *namespace.Namespace, s *state) error {
		if open {
			if err := present(ns, port); err != nil {
				return err
			}
		}
		s.ports[port] = open
		return nil
	})
}

// present checks that a port is one of a bridge.
func present(ns *namespace.Namespace, port string) error {
	h, err := netlink.NewHandleAt(ns.Handle(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open route socket: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(port)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return &machine.Error{Code: machine.NotFound, Field: "port", Message: "there is no port " + port, Hint: "correct the port in the machine's record; see `bridge link`"}
	case err != nil:
		return fmt.Errorf("find port %s: %w", port, err)
	case link.Attrs().MasterIndex == 0:
		return &machine.Error{Code: machine.NotFound, Field: "port", Message: port + " is not a port of a bridge", Hint: "correct the port in the machine's record; see `bridge link`"}
	}
	return nil
}

// Pin lets only frames from this MAC address in at a port, or from any when mac is "". Between machines on one segment it is
// what keeps one from sending with the MAC and IP address of another, which no router behind the bridge can tell.
func (d *Driver) Pin(ctx context.Context, port, mac string) error {
	var hw net.HardwareAddr
	if mac != "" {
		var err error
		if hw, err = net.ParseMAC(mac); err != nil || len(hw) != 6 {
			return &machine.Error{Code: machine.Invalid, Field: "mac", Message: fmt.Sprintf("%q is not a MAC address", mac), Hint: "write it as 52:54:00:12:34:56"}
		}
	}
	return d.change(ctx, port, func(_ *namespace.Namespace, s *state) error {
		if hw == nil {
			delete(s.pins, port)
		} else {
			s.pins[port] = hw.String()
		}
		return nil
	})
}

// Read returns, for each port that was ever set, whether it is open.
func (d *Driver) Read(ctx context.Context) (map[string]bool, error) {
	var ports map[string]bool
	err := d.with(ctx, namespace.Shared, func(_ *namespace.Namespace, c *nftables.Conn) error {
		s, err := read(c)
		if err == nil {
			ports = s.ports
		}
		return err
	})
	return ports, err
}

func (d *Driver) change(ctx context.Context, port string, f func(*namespace.Namespace, *state) error) error {
	if port == "" || len(port) >= unix.IFNAMSIZ || strings.ContainsAny(port, "/ \t\n\x00") {
		return &machine.Error{Code: machine.Invalid, Field: "port", Message: fmt.Sprintf("%q is not the name of a port", port), Hint: "see `bridge link`"}
	}
	return d.with(ctx, namespace.Exclusive, func(ns *namespace.Namespace, c *nftables.Conn) error {
		s, err := read(c)
		if err != nil {
			return err
		}
		if err := f(ns, s); err != nil {
			return err
		}
		return s.write(c)
	})
}

func (d *Driver) with(ctx context.Context, how namespace.Lock, f func(*namespace.Namespace, *nftables.Conn) error) (err error) {
	ns, err := namespace.Open(ctx, d.Netns, how)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	c, err := ns.Nftables()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	return f(ns, c)
}
