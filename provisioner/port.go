package provisioner

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// PublicPort is what the edge must carry for a machine in an order's hands. Until the machine is handed over nothing passes:
// nobody may be in it while it can reach the provisioning network, and that its port is to be shut does not mean that it is.
func PublicPort(m machine.Machine, o machine.Order) network.Port {
	nic, _ := m.Hardware.NICByRole(machine.PublicNIC)
	rates := Acting(o)
	p := network.Port{
		Machine: m.ID, Site: m.Site, MAC: nic.MAC, Addrs: addressesOf(o), Mode: network.On,
		Up:   sold(o, rates.Up, o.Network.ExtraUp),
		Down: sold(o, rates.Down, o.Network.ExtraDown),
	}
	if o.Network.Limit > 0 {
		p.Mode, p.Limit = network.Limited, o.Network.Limit*1000
	}
	if !o.Network.BlackholeUntil.IsZero() {
		p.Mode, p.Until, p.Then = network.Blackhole, o.Network.BlackholeUntil, p.Mode
	}
	// An address that somebody else may use is not routed before the edge has looked. With no other one there is nothing to pass.
	known := slices.DeleteFunc(slices.Clone(p.Addrs), func(a netip.Prefix) bool { return slices.Contains(o.Unproven, a) })
	if len(known) > 0 {
		p.Addrs = known
	}
	if len(known) == 0 || m.PortOpen || m.State == machine.Provisioning {
		p.Mode, p.Until, p.Then = network.Off, time.Time{}, ""
	}
	return p
}

// addressesOf returns what an order holds. One that was read without its addresses has the one by which it is known.
func addressesOf(o machine.Order) []netip.Prefix {
	if len(o.Addresses) == 0 && o.Address.IsValid() {
		return []netip.Prefix{netip.PrefixFrom(o.Address, o.Address.BitLen())}
	}
	return slices.Clone(o.Addresses)
}

// sold is one direction of an order's bandwidth, of which extra Mbit/s are a pack's.
func sold(o machine.Order, mbit, extra int) network.Bandwidth {
	committed := max(o.Committed+extra, 1)
	if network.Model(o.Model) != network.ModelBurst || committed >= mbit {
		return network.Fixed(mbit * 1000)
	}
	return network.Bandwidth{Kbit: committed * 1000, Burst: mbit * 1000}
}

// applyPort makes the edge carry the machine in w as its order says now.
func (e *Engine) applyPort(ctx context.Context, w *Work) error {
	return e.Edge.Apply(ctx, []network.Port{PublicPort(*w.Machine, *w.Order)}, nil)
}
