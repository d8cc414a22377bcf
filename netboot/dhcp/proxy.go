package dhcp

import (
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// proxy leaves out what only the server that gives addresses says.
func (t Terms) proxy() Terms {
	t.Addr, t.Router, t.DNS, t.Hostname = netip.PrefixFrom(netip.IPv4Unspecified(), 32), netip.Addr{}, nil, ""
	return t
}

// Propose returns the offer of a server that stands beside the network's own: what to boot, and no address (PXE 2.1,
// section 2.2.3). It is made for the DISCOVER of a client that boots from the network, and for nothing else.
func (r *Request) Propose(t Terms) (*Reply, error) {
	t = t.proxy()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	switch {
	case r.Type != dhcpv4.MessageTypeDiscover:
		return nil, Silence(r.Type.String() + " is for the server that gives the address")
	case r.Stage == System || t.NoBoot:
		return nil, Silence("nothing to boot, and the address is for another server to give")
	}
	rep := r.recommend(t, dhcpv4.MessageTypeOffer)
	if rep == nil {
		return nil, Silence("no loader for this architecture")
	}
	if gi, ok := r.Relayed(); ok {
		rep.To, rep.How = netip.AddrPortFrom(gi, serverPort), Routed
	} else {
		rep.To, rep.How = netip.AddrPortFrom(broadcast, clientPort), Broadcast // it has no address that we know
	}
	rep.fit(r.pkt)
	return rep, nil
}

// Direct answers a client that has its address and asks port 4011 for its file, as firmware does that takes an offer
// for one of a "boot server". Old ROMs leave most options out of this request.
func (r *Request) Direct(t Terms) (*Reply, error) {
	t = t.proxy()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if r.Type != dhcpv4.MessageTypeRequest && r.Type != dhcpv4.MessageTypeInform {
		return nil, Silence(r.Type.String() + " is not for a boot server")
	}
	if t.NoBoot {
		return nil, Silence("nothing to boot")
	}
	rep := r.recommend(t, dhcpv4.MessageTypeAck)
	if rep == nil {
		return nil, Silence("no loader for this architecture")
	}
	rep.pkt.ClientIPAddr = r.pkt.ClientIPAddr
	switch held := addr(r.pkt.ClientIPAddr); {
	case r.Peer.Port() != 0 && r.Peer.Addr().Is4() && !r.Peer.Addr().IsUnspecified():
		rep.To, rep.How = r.Peer, Routed // the port that it listens on is the port that it asked from
	case held.IsValid():
		rep.To, rep.How = netip.AddrPortFrom(held, clientPort), Routed
	default:
		rep.To, rep.How = netip.AddrPortFrom(broadcast, clientPort), Broadcast
	}
	rep.fit(r.pkt)
	return rep, nil
}

// recommend builds an answer that says what to boot and gives no address; nil when there is nothing for this client.
func (r *Request) recommend(t Terms, typ dhcpv4.MessageType) *Reply {
	rep := r.reply(t, typ)
	rep.pkt.ServerIPAddr = t.Server.AsSlice()
	r.boot(t, rep)
	if rep.Boot == "" {
		return nil
	}
	o := rep.pkt.Options
	if r.Stage == IPXE {
		// iPXE and card ROMs tell a proxy's offer from others by this class and by the absence of an address.
		o[optVendorClass.Code()] = []byte("PXEClient")
	}
	if r.Stage != HTTPBoot {
		vendor := []byte{6, 1, 8}
		if item := bootItem(r.pkt.Options.Get(optVendor)); item != nil { // the client looks for its question in the answer
			vendor = append(append(vendor, pxeBootItem, byte(len(item))), item...)
		}
		o[optVendor.Code()] = vendor
	}
	return rep
}

const (
	pxePad      = 0
	pxeBootItem = 71
	pxeEnd      = 255
)

// bootItem returns the boot item (type and layer) that a request to a boot server asks for, nil when there is none:
// sub-option 71 of option 43.
func bootItem(v []byte) []byte {
	for len(v) > 0 && v[0] != pxeEnd {
		if v[0] == pxePad {
			v = v[1:]
			continue
		}
		if len(v) < 2 || len(v) < 2+int(v[1]) {
			return nil
		}
		if v[0] == pxeBootItem && v[1] == 4 {
			return v[2:6]
		}
		v = v[2+int(v[1]):]
	}
	return nil
}
