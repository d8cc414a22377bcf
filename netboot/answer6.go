package netboot

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/dhcp6"
)

// Admit6 implements dhcp6.Handler.
func (l *link) Admit6(req *dhcp6.Request) dhcp.Lane { return l.admit(req.MAC) }

// Answer6 implements dhcp6.Handler. A machine's IPv6 address follows from its IPv4 address, so one reservation is
// enough, and one check of whose an address is.
func (l *link) Answer6(ctx context.Context, duid dhcpv6.DUID, req *dhcp6.Request) *dhcp6.Reply {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ex := begin6(req)
	lease, err := l.Booter.Lease(ctx, req.MAC)
	four, basis := lease.Addr.Addr(), Reserved
	if errors.Is(err, ErrUnknown) {
		basis = Pooled
		var boots bool
		if four, boots, err = l.stranger6(ctx, req); err == nil && !boots {
			req.Stage = dhcp.System
		}
		lease = Lease{For: strangerFor, SecureBoot: l.SecureBoot}
	}
	switch {
	case errors.Is(err, ErrUnknown):
		if l.seen.first(req.MAC, time.Now()) {
			l.log.Info("DHCPv6 request of an unknown machine, not answered", "mac", req.MAC, "asked", ex.Asked)
			l.trace(ex, Silent, "", "no machine with this MAC address is known")
		}
		return nil
	case err != nil:
		l.silence(ex, err)
		return nil
	}
	if basis == Reserved {
		l.heard.macs.Store(req.MAC, true)
	}
	terms, err := l.terms6(req, four, lease)
	if err != nil {
		l.silence(ex, err)
		return nil
	}
	terms.Server = duid
	rep, err := req.Answer(terms)
	if err != nil {
		l.silence(ex, err)
		return nil
	}
	ex.Bytes, ex.File = int64(len(rep.Bytes())), rep.Boot
	ex.DHCP.Answer = words6[rep.Type]
	if rep.Addr.IsValid() {
		ex.From, ex.DHCP.Addr, ex.DHCP.Basis = rep.Addr, rep.Addr, basis
	}
	if rep.Type == dhcpv6.MessageTypeReply && rep.Addr.IsValid() {
		l.remember(four, req.MAC)
		if req.Stage != dhcp.System { // EDK2's own IPv6 set-up, beside its boot: no progress
			l.progress(req.Stage, req.Arch, req.MAC)
		}
	}
	l.trace(ex, Answered, rep.String(), "")
	l.log.Debug("DHCPv6", "mac", req.MAC, "asked", ex.Asked, "got", rep.String(), "to", rep.To)
	return rep
}

// stranger6 finds the IPv4 address of a machine that the Booter does not know, as DHCPv4 does, and whether it boots.
func (l *link) stranger6(ctx context.Context, req *dhcp6.Request) (netip.Addr, bool, error) {
	for _, n := range l.nets {
		link := req.Link()
		here := link.IsValid() && n.net6().Contains(link) || !link.IsValid() && n.Interface == l.ifname && n.Addr6.IsValid()
		if !here || n.Range.size() == 0 {
			continue
		}
		boots, err := l.discovers(ctx, req.MAC)
		if err != nil {
			return netip.Addr{}, false, err
		}
		pool := l.ranges[n.Prefix]
		a, err := pool.offer(ctx, req.MAC, netip.Addr{})
		if err != nil {
			return netip.Addr{}, false, err
		}
		if req.Type == dhcpv6.MessageTypeSolicit || req.Type == dhcpv6.MessageTypeInformationRequest {
			return a, boots, nil
		}
		if ok, err := pool.take(ctx, req.MAC, a, false); err != nil || !ok {
			return netip.Addr{}, false, errors.Join(err, errFull)
		}
		return a, boots, nil
	}
	return netip.Addr{}, false, ErrUnknown
}

// terms6 are what a machine is told over IPv6.
func (l *link) terms6(req *dhcp6.Request, four netip.Addr, lease Lease) (dhcp6.Terms, error) {
	s, ok := l.nets.of(four)
	switch link := req.Link(); {
	case !ok || !s.net6().IsValid():
		return dhcp6.Terms{}, dhcp.Silence("no IPv6 network belongs to its reserved address " + four.String())
	case !link.IsValid() && s.Interface != l.ifname:
		return dhcp6.Terms{}, dhcp.Silence("seen on " + l.ifname + ", its reserved address " + four.String() + " is of another network")
	}
	t := dhcp6.Terms{Addr: six(s, four), Net: s.net6(), For: lease.For}
	for _, a := range append(lease.DNS, s.DNS...) {
		if a.Is6() {
			t.DNS = append(t.DNS, a)
		}
	}
	ours := l.six.Addr()
	loader := l.loaders[req.Arch.Platform()]
	switch {
	case req.Stage == dhcp.System:
	case req.Stage == dhcp.IPXE || req.Stage == dhcp.PXE && l.loops.tripped(req.MAC, time.Now()):
		t.Boot = l.scriptURL(ours, req.MAC)
	case loader == "" || lease.SecureBoot && req.Arch.Platform() == dhcp.PlatformX64:
		// The signed chain is loaded over IPv4: it comes later in the firmware's list, or before this.
	case req.Stage == dhcp.HTTPBoot:
		t.Boot = l.base(ours) + bootPrefix + loader
	default:
		t.Boot = "tftp://[" + ours.String() + "]/" + loader
	}
	return t, nil
}

// words6 are DHCPv6 messages in the words of DHCPv4, so that a trace reads alike.
var words6 = map[dhcpv6.MessageType]string{
	dhcpv6.MessageTypeSolicit:            dhcpv4.MessageTypeDiscover.String(),
	dhcpv6.MessageTypeAdvertise:          dhcpv4.MessageTypeOffer.String(),
	dhcpv6.MessageTypeRequest:            dhcpv4.MessageTypeRequest.String(),
	dhcpv6.MessageTypeRenew:              dhcpv4.MessageTypeRequest.String(),
	dhcpv6.MessageTypeRebind:             dhcpv4.MessageTypeRequest.String(),
	dhcpv6.MessageTypeConfirm:            dhcpv4.MessageTypeRequest.String(),
	dhcpv6.MessageTypeReply:              dhcpv4.MessageTypeAck.String(),
	dhcpv6.MessageTypeRelease:            dhcpv4.MessageTypeRelease.String(),
	dhcpv6.MessageTypeDecline:            dhcpv4.MessageTypeDecline.String(),
	dhcpv6.MessageTypeInformationRequest: dhcpv4.MessageTypeInform.String(),
}

// begin6 starts the record of a DHCPv6 exchange.
func begin6(req *dhcp6.Request) Exchange {
	f := req.Facts()
	return Exchange{At: time.Now(), MAC: req.MAC, From: req.Peer.Addr().WithZone(""), Proto: "dhcp", Asked: req.String(), DHCP: DHCPFacts{
		Message: words6[req.Type], Stage: req.Stage.String(), Arch: f.Arch, VendorClass: f.VendorClass, UserClass: f.UserClass,
		UUID: f.UUID, Relay: f.Relay, Link: f.Link, Circuit: f.Circuit,
	}}
}
