package linuxedge

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/namespace"
)

// CountInterrupted reads counters from a kernel that is interrupted whenever it lists the classes of one device.
func CountInterrupted(ctx context.Context, cfg Config, device string) ([]network.Counter, error) {
	s, err := open(ctx, cfg, namespace.Shared)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.dumpClasses = func(link netlink.Link) ([]netlink.Class, error) {
		if link.Attrs().Name != device {
			return s.listClasses(link)
		}
		return dump("classes", func() ([]netlink.Class, error) { return nil, netlink.ErrDumpInterrupted })
	}
	return s.count()
}
