// Package bridgeport opens and closes a machine's provisioning port where it is a port of a Linux bridge.
package bridgeport

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// Driver drives the bridge ports of one network namespace. It keeps no state: what is open is what the kernel says.
// Hardware switches need drivers of their own, which cannot be tested without them.
type Driver struct {
	Netns string // name as in `ip netns`; "" is the current one
}

// Set opens a port, or closes it as `shutdown` does on a switch: no frame passes either way. An open port is isolated:
// machines reach the controller, whose port is not, and never each other. Setting what is set already changes nothing.
func (d *Driver) Set(ctx context.Context, port string, open bool) error {
	verb := "close"
	if open {
		verb = "open"
	}
	if err := d.set(ctx, port, open); err != nil {
		return fmt.Errorf("%s port %s: %w", verb, port, err)
	}
	return nil
}

func (d *Driver) set(ctx context.Context, port string, open bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, link, err := d.find(port)
	if err != nil {
		return err
	}
	defer h.Close()
	if !open {
		return h.LinkSetDown(link)
	}
	// isolated first: it must not be open to its neighbours for a moment
	if err := h.LinkSetIsolated(link, true); err != nil {
		return fmt.Errorf("isolate from other machines: %w", err)
	}
	return h.LinkSetUp(link)
}

// Open reports whether a port is open.
func (d *Driver) Open(_ context.Context, port string) (bool, error) {
	h, link, err := d.find(port)
	if err != nil {
		return false, fmt.Errorf("read port %s: %w", port, err)
	}
	defer h.Close()
	return link.Attrs().Flags&net.FlagUp != 0, nil
}

// find returns a bridge port and the netlink handle that reaches it.
func (d *Driver) find(port string) (*netlink.Handle, netlink.Link, error) {
	at := netns.None()
	if d.Netns != "" {
		var err error
		if at, err = netns.GetFromName(d.Netns); err != nil {
			return nil, nil, &machine.Error{Code: machine.Unavailable, Field: "ports.netns", Message: fmt.Sprintf("no network namespace %s: %v", d.Netns, err),
				Hint: "see `ip netns`; is the configuration right?"}
		}
		defer at.Close()
	}
	h, err := handle(at)
	if err != nil {
		return nil, nil, fmt.Errorf("open netlink: %w", err)
	}
	link, err := h.LinkByName(port)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		err = &machine.Error{Code: machine.NotFound, Message: "no such device", Hint: "correct the port in the machine's record; see `ip link`"}
	case err == nil && link.Attrs().MasterIndex == 0:
		err = &machine.Error{Code: machine.Invalid, Message: "it is not a port of a bridge", Hint: "correct the port in the machine's record; see `bridge link`"}
	}
	if err != nil {
		h.Close()
		return nil, nil, err
	}
	return h, link, nil
}

func handle(at netns.NsHandle) (*netlink.Handle, error) {
	if at.IsOpen() {
		return netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	}
	return netlink.NewHandle(unix.NETLINK_ROUTE)
}
