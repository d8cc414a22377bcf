package main

import (
	"context"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/bareyard/bareyard/agent/inband"
	"github.com/bareyard/bareyard/agent/inventory"
	"github.com/bareyard/bareyard/agent/neighbour"
	"github.com/bareyard/bareyard/machine"
)

const (
	lldpTime = 32 * time.Second // switches speak every 30 seconds
	bmcTime  = 20 * time.Second // for all that a BMC is asked
	ipmiTime = 3 * time.Second  // from its driver's load to /dev/ipmi0
)

// discover says all that an operator wants to know of this machine. It writes to no disk.
func (h *hands) discover(ctx context.Context) (machine.Inventory, error) {
	disks, err := h.disks.List()
	if err != nil {
		return machine.Inventory{}, err
	}
	names := map[string]string{}
	for _, d := range disks {
		names[d.Serial] = d.Name
	}
	return h.inventory.Discover(ctx, inventory.Beside{Disks: names, Booted: h.booted, Neighbours: h.neighbours, BMC: h.bmc})
}

// neighbours listens on all ports, which it brings up.
func (h *hands) neighbours(ctx context.Context, ports []string) map[string]machine.Neighbour {
	ctx, cancel := context.WithTimeout(ctx, lldpTime)
	defer cancel()
	for _, name := range ports {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			h.log.Warn("port does not come up", "port", name, "error", err)
		}
	}
	found, err := neighbour.Listen(ctx, ports)
	if err != nil {
		h.log.Warn("not every port can be listened on", "error", err)
	}
	h.log.Info("neighbours", "ports", len(ports), "heard", len(found))
	return found
}

// bmc asks this machine's BMC what it is; nil when no driver reaches one.
func (h *hands) bmc(ctx context.Context) *machine.BMCFacts {
	ctx, cancel := context.WithTimeout(ctx, bmcTime)
	defer cancel()
	if !h.reachBMC(ctx) {
		return nil
	}
	f, err := inband.Read(ctx)
	if err != nil {
		h.log.Warn("the BMC does not answer", "error", err)
		return nil
	}
	return &f
}

// tryBMC tries to change this machine's BMC, as the root of a system on it could.
func (h *hands) tryBMC(ctx context.Context) machine.InBand {
	ctx, cancel := context.WithTimeout(ctx, bmcTime)
	defer cancel()
	if !h.reachBMC(ctx) {
		return machine.InBand{State: machine.InBandAbsent, Why: "no driver finds one"}
	}
	b, err := inband.Try(ctx)
	if err != nil {
		return machine.InBand{Why: err.Error()}
	}
	h.log.Info("in-band access to the BMC", "state", b.State, "why", b.Why)
	return b
}

// reachBMC loads the drivers of the machine's own interface to its BMC, and reports whether there is one.
func (h *hands) reachBMC(ctx context.Context) bool {
	for _, modules := range [][]string{{"ipmi_si", "ipmi_devintf"}, {"ipmi_ssif"}} { // few boards have theirs on SMBus alone
		for _, module := range modules {
			if err := h.drivers.probe(module); err != nil {
				h.log.Info("no driver for a BMC", "module", module, "error", err) // most often: there is none
			}
		}
		if appears(ctx, "/dev/ipmi0", ipmiTime) {
			return true
		}
	}
	h.log.Info("there is no BMC that this machine reaches")
	return false
}

// appears waits for a file.
func appears(ctx context.Context, path string, patience time.Duration) bool {
	for began := time.Now(); ; {
		if _, err := os.Stat(path); err == nil {
			return true
		}
		if time.Since(began) > patience || pause(ctx, 50*time.Millisecond) != nil {
			return false
		}
	}
}
