package api

import (
	"context"
	"net/netip"
	"regexp"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// A reason or an event is written once, for operators and customers alike. Customers do not read where BMCs, switches and edges
// are: every address but their own is left out.

var addressLike = regexp.MustCompile(`(?i)\b(?:https?|tcp|udp|ssh|unix)://[^\s"',;)]+|[0-9a-f:.]*[:.][0-9a-f:.]*(?:%[a-z0-9]+)?(?:/\d+)?`)

// withoutAddresses leaves out addresses that are not the reader's own.
func withoutAddresses(text string, own netip.Addr) string {
	return addressLike.ReplaceAllStringFunc(text, func(s string) string {
		if strings.Contains(s, "://") {
			return "(internal)"
		}
		for end := len(s); ; end-- {
			if addr, ok := readAddress(s[:end]); ok && (addr != own || !own.IsValid()) {
				return "(internal)" + s[end:]
			} else if ok || end == 0 || s[end-1] != ':' && s[end-1] != '.' { // these may be the sentence's
				return s
			}
		}
	})
}

// readAddress reads an address, an address with a port, or a network.
func readAddress(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a, true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr(), true
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Addr(), true
	}
	return netip.Addr{}, false
}

// shownOrder is an order as the caller may read it.
func shownOrder(c Caller, o machine.Order) machine.Order {
	if c.Role != Operator {
		o.Reason = withoutAddresses(o.Reason, o.Address)
	}
	return o
}

// shownTo is shownOrder for whoever asks.
func shownTo(ctx context.Context, o machine.Order) machine.Order {
	c, _ := caller(ctx) // nobody is no operator
	return shownOrder(c, o)
}

// shownJob is a job as the caller may read it: why a machine is kept out of stock after it is no business of who had it.
func shownJob(c Caller, j machine.Job, own netip.Addr) machine.Job {
	if c.Role != Operator {
		j.Reason, j.Finding = withoutAddresses(j.Reason, own), ""
	}
	return j
}

// shownEvent is an event as the caller may read it. What happened to an order's own addresses and bandwidth names no others.
func shownEvent(c Caller, ev provisioner.Event, own netip.Addr) provisioner.Event {
	about, _, _ := strings.Cut(ev.Kind, ".")
	if c.Role != Operator && about != "address" && about != "bandwidth" && about != "network" {
		ev.Text = withoutAddresses(ev.Text, own)
	}
	return ev
}
