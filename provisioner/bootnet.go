package provisioner

import (
	"net/netip"
	"net/url"
)

// BootNet is a network that machines boot from.
type BootNet struct {
	Prefix netip.Prefix
	Router netip.Addr // the way from there to the server where that is on another network; may be zero
}

// bootNet returns the network of a reserved address; an address of no network stands alone.
func (e *Engine) bootNet(a netip.Addr) BootNet {
	for _, n := range e.BootNets {
		if n.Prefix.Contains(a) {
			return n
		}
	}
	return BootNet{Prefix: netip.PrefixFrom(a, a.BitLen())}
}

// hostOf returns the address in a URL; zero when there is a name.
func hostOf(base string) netip.Addr {
	u, err := url.Parse(base)
	if err != nil {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return netip.Addr{}
	}
	return a
}
