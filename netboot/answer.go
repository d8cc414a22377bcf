package netboot

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// askTime is how long a Booter may think about a DHCP request: after that the client has asked again.
const askTime = 5 * time.Second

// Answer implements dhcp.Handler: who is it, what is reserved for it, what does it boot next.
func (l *link) Answer(ctx context.Context, req *dhcp.Request) *dhcp.Reply {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ex := begin(req)
	if _, server := req.Chosen(); server.IsValid() {
		l.notice(OtherServer{Addr: server, Interface: l.ifname, Client: req.MAC})
	}
	lease, err := l.Booter.Lease(ctx, req.MAC)
	unknown := errors.Is(err, ErrUnknown)
	if err != nil && !unknown {
		l.log.Error("look up lease", "mac", req.MAC, "err", err)
		l.trace(ex, Failed, "", "look-up failed")
		return nil
	}
	if !unknown {
		l.heard.macs.Store(req.MAC, true)
		l.recall(req)
	}
	switch {
	case l.Mode == Proxy || req.BootServer:
		return l.propose(ctx, req, ex, lease, unknown)
	case unknown:
		return l.stranger(ctx, req, ex)
	}
	if err := l.nets.reaches(l.ifname, req, lease.Addr.Addr()); err != nil {
		return l.silence(ex, err)
	}
	rep, err := req.Answer(l.terms(req, lease))
	if err != nil {
		return l.silence(ex, err)
	}
	l.note(req, rep)
	if rep.Type == dhcpv4.MessageTypeNak {
		return l.answered(req, ex, rep, NoAddress, "asked for another address than its own, "+lease.Addr.Addr().String())
	}
	return l.answered(req, ex, rep, Reserved, "")
}

// terms are what a machine is told. What its subnet says of the network comes before what its lease says.
func (l *link) terms(req *dhcp.Request, lease Lease) dhcp.Terms {
	ours := l.addr
	if s, ok := l.nets.of(lease.Addr.Addr()); ok {
		lease.Addr = netip.PrefixFrom(lease.Addr.Addr(), s.Prefix.Bits())
		if !lease.Router.IsValid() {
			lease.Router = s.Router
		}
		if len(lease.DNS) == 0 {
			lease.DNS = s.DNS
		}
		if s.Interface == l.ifname {
			ours = s.Addr
		}
		// The relay is a router of that network in nearly all cases, and without one the machine could not reach us.
		if gi, relayed := req.Relayed(); relayed && !lease.Router.IsValid() && s.Prefix.Contains(gi) {
			lease.Router = gi
		}
	}
	loader, boots := l.loader(req, lease.SecureBoot)
	return dhcp.Terms{
		Server: ours, Addr: lease.Addr, Router: lease.Router, DNS: lease.DNS, Hostname: lease.Hostname, For: lease.For,
		Script: l.scriptURL(ours, req.MAC), LoaderBase: l.base(ours) + bootPrefix, Loader: loader, NoBoot: !boots,
		Looping: req.Stage == dhcp.PXE && l.loops.tripped(req.MAC, time.Now()),
	}
}

// stranger answers a machine that the Booter does not know: an address of the network's range, and what the Booter
// wants such machines to boot.
func (l *link) stranger(ctx context.Context, req *dhcp.Request, ex Exchange) *dhcp.Reply {
	var net Subnet
	for _, n := range l.nets.at(l.ifname, req) {
		if n.Range.size() > 0 {
			net = n
			break
		}
	}
	if net.Range.size() == 0 {
		if l.seen.first(req.MAC, time.Now()) {
			l.log.Info("DHCP request of an unknown machine, not answered", "mac", req.MAC, "asked", ex.Asked)
			l.trace(ex, Silent, "", "no machine with this MAC address is known")
		}
		return nil
	}
	boots, err := l.discovers(ctx, req.MAC)
	if err != nil {
		l.log.Error("look up boot of an unknown machine", "mac", req.MAC, "err", err)
		l.trace(ex, Failed, "", "look-up failed")
		return nil
	}
	pool := l.ranges[net.Prefix]
	asked, server := req.Chosen()
	terms := l.terms(req, Lease{Addr: netip.PrefixFrom(net.Range.First, net.Prefix.Bits()), For: strangerFor, SecureBoot: l.SecureBoot})
	terms.NoBoot = terms.NoBoot || !boots
	switch req.Type {
	case dhcpv4.MessageTypeDiscover:
		a, err := pool.offer(ctx, req.MAC, asked)
		if err != nil {
			if errors.Is(err, errFull) && l.full.first(time.Now()) {
				l.log.Warn("range for unknown machines", "range", net.Range.String(), "err", err)
			}
			return l.silence(ex, err)
		}
		terms.Addr = netip.PrefixFrom(a, net.Prefix.Bits())
	case dhcpv4.MessageTypeRequest:
		if server.IsValid() && !req.Chose(terms) {
			if l.sibling(server) {
				pool.learn(req.MAC, asked)
			}
			return l.silence(ex, dhcp.Silence("it chose the server "+server.String()))
		}
		switch given, err := pool.take(ctx, req.MAC, asked, req.Holds().IsValid()); {
		case err != nil:
			return l.silence(ex, err)
		case !given && !net.Range.Contains(asked) && net.Prefix.Contains(asked) && !req.Chose(terms):
			return l.silence(ex, dhcp.Silence("it asks for "+asked.String()+", which is not ours to give or to refuse"))
		case !given:
			return l.answered(req, ex, req.Refuse(terms), NoAddress, "it cannot have "+asked.String())
		}
		terms.Addr = netip.PrefixFrom(asked, net.Prefix.Bits())
	case dhcpv4.MessageTypeDecline:
		l.log.Warn("an address of the range for unknown machines is used by somebody else", "addr", asked, "mac", req.MAC)
		pool.release(req.MAC)
		pool.spoil(asked)
	case dhcpv4.MessageTypeRelease:
		pool.release(req.MAC)
	}
	rep, err := req.Answer(terms)
	if err != nil {
		return l.silence(ex, err)
	}
	l.note(req, rep)
	return l.answered(req, ex, rep, Pooled, "")
}

// discovers reports whether an unknown machine is to boot the agent.
func (l *link) discovers(ctx context.Context, mac string) (bool, error) {
	switch b, err := l.Booter.Boot(ctx, mac); {
	case errors.Is(err, ErrUnknown):
		return false, nil
	case err != nil:
		return false, err
	default:
		return b.Kind == BootAgent, nil
	}
}

// propose answers beside another DHCP server, and on port 4011: what to boot, and no address.
func (l *link) propose(ctx context.Context, req *dhcp.Request, ex Exchange, lease Lease, unknown bool) *dhcp.Reply {
	if unknown {
		boots, err := l.discovers(ctx, req.MAC)
		if err != nil {
			l.log.Error("look up boot of an unknown machine", "mac", req.MAC, "err", err)
			l.trace(ex, Failed, "", "look-up failed")
			return nil
		}
		if !boots {
			if l.seen.first(req.MAC, time.Now()) {
				l.log.Info("DHCP request of an unknown machine, not answered", "mac", req.MAC, "asked", ex.Asked)
				l.trace(ex, Silent, "", "no machine with this MAC address is known")
			}
			return nil
		}
		lease.SecureBoot = l.SecureBoot
	}
	if asked, _ := req.Chosen(); asked.IsValid() && req.Type == dhcpv4.MessageTypeRequest && l.Mode == Proxy {
		ex.From = asked
		l.remember(asked, req.MAC) // the other server's ACK would say it too, but need not pass by us
		l.progress(req.Stage, req.Arch, req.MAC)
	}
	if req.BootServer && !req.Said() {
		l.guess(req)
	}
	terms := l.terms(req, lease)
	var rep *dhcp.Reply
	var err error
	if req.BootServer {
		rep, err = req.Direct(terms)
	} else {
		rep, err = req.Propose(terms)
	}
	if err != nil {
		return l.silence(ex, err)
	}
	return l.answered(req, ex, rep, Proxied, "")
}

// recall notes what architecture a machine says that it is of, for its request to port 4011, where old ROMs do not.
func (l *link) recall(req *dhcp.Request) {
	if req.Stage == dhcp.System || !req.Said() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arches[req.MAC] = req.Arch
}

func (l *link) guess(req *dhcp.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := l.arches[req.MAC]; ok {
		req.Arch = a
	}
}

// silence ends an exchange without an answer, whether that is right (dhcp.Silence) or a failure of ours.
func (l *link) silence(ex Exchange, why error) *dhcp.Reply {
	if dhcp.IsSilence(why) || errors.Is(why, errElsewhere) || errors.Is(why, errFull) {
		l.log.Info("DHCP request not answered", "mac", ex.MAC, "asked", ex.Asked, "why", why)
		l.trace(ex, Silent, "", why.Error())
		return nil
	}
	l.log.Error("answer DHCP", "mac", ex.MAC, "err", why)
	l.trace(ex, Failed, "", why.Error())
	return nil
}

// answered ends an exchange with a reply.
func (l *link) answered(req *dhcp.Request, ex Exchange, rep *dhcp.Reply, basis Basis, why string) *dhcp.Reply {
	if a := rep.Addr(); a.IsValid() {
		ex.From = a
	}
	ex.Bytes, ex.File = int64(rep.Len()), rep.Boot
	ex.DHCP.Answer, ex.DHCP.Addr, ex.DHCP.Basis = rep.Type.String(), rep.Addr(), basis
	outcome := Answered
	if rep.Type == dhcpv4.MessageTypeNak {
		outcome = Refused
	}
	got := rep.String()
	l.trace(ex, outcome, got, why)
	l.log.Debug("DHCP", "mac", req.MAC, "asked", ex.Asked, "got", got, "road", rep.How.String())
	return rep
}

// note remembers who has which address, and how often firmware took the loader.
func (l *link) note(req *dhcp.Request, rep *dhcp.Reply) {
	if rep.Type != dhcpv4.MessageTypeAck {
		return
	}
	if a := rep.Addr(); a.IsValid() {
		l.remember(a, req.MAC)
	}
	l.progress(req.Stage, req.Arch, req.MAC)
}

// progress counts the rounds of a machine that never gets further than its firmware.
func (l *link) progress(stage dhcp.Stage, arch dhcp.Arch, mac string) {
	switch stage {
	case dhcp.IPXE, dhcp.System:
		l.loops.clear(mac)
	case dhcp.PXE:
		if l.loops.count(mac, time.Now()) {
			l.log.Warn("machine takes the loader again and again and never asks for its script; offering the script itself", "mac", mac, "arch", arch)
		}
	}
}

// begin starts the record of a DHCP exchange.
func begin(req *dhcp.Request) Exchange {
	f := req.Facts()
	return Exchange{At: time.Now(), MAC: req.MAC, From: req.Holds(), Proto: "dhcp", Asked: req.String(), DHCP: DHCPFacts{
		Message: req.Type.String(), Stage: req.Stage.String(), Arch: f.Arch, VendorClass: f.VendorClass, UserClass: f.UserClass,
		UUID: f.UUID, Relay: f.Relay, Link: f.Link, Circuit: f.Circuit, Server: f.Server,
	}}
}
