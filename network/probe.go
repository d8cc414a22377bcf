package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Answer is somebody who answers at an address that nobody should have.
type Answer struct {
	Addr netip.Addr `json:"addr"`
	By   string     `json:"by"` // MAC address, or "" when it answered from behind a router
	On   string     `json:"on"` // where, in words: on up0, from the Internet …
}

// Prober is an Edge that can find out whether somebody uses an address already.
type Prober interface {
	// Probe looks for users of addresses that nobody should have: of an IPv4 address itself, of an IPv6 prefix at its first one.
	// It takes less than a second for all of them, and changes nothing.
	Probe(ctx context.Context, addrs []netip.Prefix) ([]Answer, error)
}

// ErrCannotProbe is what an edge says that has no way to look. Any other failure of a probe may be over the next time.
var ErrCannotProbe = errors.New("cannot look whether somebody uses an address")

// Probe has the edge of a site look for users of addresses. One that cannot is ErrCannotProbe.
func Probe(ctx context.Context, edge Edge, site string, addrs []netip.Prefix) ([]Answer, error) {
	if sites, ok := edge.(*Sites); ok {
		name, err := sites.at(site)
		if err != nil {
			return nil, err
		}
		edge = sites.Edges[name]
	}
	if p, ok := edge.(Prober); ok {
		return p.Probe(ctx, addrs)
	}
	driver := "of this kind"
	if caps, err := edge.Caps(ctx); err == nil {
		driver = caps.Driver
	}
	return nil, fmt.Errorf("an edge with driver %s %w", driver, ErrCannotProbe)
}
