package dhcp6

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// Terms are what one machine is told.
type Terms struct {
	Server dhcpv6.DUID  // who we are
	Addr   netip.Addr   // of the machine; not valid: it gets none
	Net    netip.Prefix // its network
	DNS    []netip.Addr // IPv6
	Boot   string       // URL of what it loads next; empty: nothing
	For    time.Duration
}

const (
	serverPort = 547
	clientPort = 546
)

// Reply is an answer and where it goes.
type Reply struct {
	Type dhcpv6.MessageType
	Addr netip.Addr // that it gives; not valid when none
	Boot string
	To   netip.AddrPort

	d dhcpv6.DHCPv6
}

// Bytes returns the reply on the wire.
func (r *Reply) Bytes() []byte { return r.d.ToBytes() }

// String is the reply in a few words for a log.
func (r *Reply) String() string {
	s := r.Type.String()
	if r.Addr.IsValid() {
		s += " " + r.Addr.String()
	}
	if r.Boot != "" {
		s += " " + r.Boot
	}
	return s
}

// maxURL is what firmware takes of a boot file URL; EDK2's buffer for a file name is far larger, old iPXE's is not.
const maxURL = 255

// Answer returns the reply to a request, or a dhcp.Silence when there must be none (RFC 8415 section 18.3).
func (r *Request) Answer(t Terms) (*Reply, error) {
	if t.Server == nil {
		return nil, errors.New("no server identifier")
	}
	if len(t.Boot) > maxURL {
		return nil, fmt.Errorf("boot URL is %d bytes long; firmware takes %d: %s", len(t.Boot), maxURL, t.Boot)
	}
	if link := r.Link(); link.IsValid() && !t.Net.Contains(link) {
		return nil, dhcp.Silence(fmt.Sprintf("seen on the network of %s, its own is %s", link, t.Net))
	}
	chosen := r.msg.Options.ServerID()
	switch r.Type {
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		if chosen == nil || !chosen.Equal(t.Server) {
			return nil, dhcp.Silence("it chose another server")
		}
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRebind:
		if chosen != nil {
			return nil, dhcp.Silence("a " + r.Type.String() + " does not name a server")
		}
	case dhcpv6.MessageTypeInformationRequest:
		if chosen != nil && !chosen.Equal(t.Server) {
			return nil, dhcp.Silence("it chose another server")
		}
	}
	switch r.Type {
	case dhcpv6.MessageTypeSolicit:
		return r.give(t, dhcpv6.MessageTypeAdvertise)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		return r.give(t, dhcpv6.MessageTypeReply)
	case dhcpv6.MessageTypeConfirm:
		return r.confirm(t)
	case dhcpv6.MessageTypeInformationRequest:
		rep, m := r.reply(t, dhcpv6.MessageTypeReply)
		r.options(t, rep, m)
		return r.wrap(rep, m)
	}
	rep, m := r.reply(t, dhcpv6.MessageTypeReply) // RELEASE, DECLINE: the address stays the machine's
	m.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess})
	return r.wrap(rep, m)
}

// give answers with the machine's address and what it boots.
func (r *Request) give(t Terms, typ dhcpv6.MessageType) (*Reply, error) {
	rep, m := r.reply(t, typ)
	valid := t.For
	if valid <= 0 {
		valid = time.Hour
	}
	given := false
	for _, ia := range r.msg.Options.IANA() {
		out := &dhcpv6.OptIANA{IaId: ia.IaId}
		if !t.Addr.IsValid() || given {
			out.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "one address for each machine"})
			m.AddOption(out)
			continue
		}
		given = true
		out.T1, out.T2 = valid/2, valid/5*4
		out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: t.Addr.AsSlice(), PreferredLifetime: valid, ValidLifetime: valid})
		for _, had := range ia.Options.Addresses() { // what it has from elsewhere ends now
			if a, _ := netip.AddrFromSlice(had.IPv6Addr); a != t.Addr && r.Type != dhcpv6.MessageTypeSolicit && r.Type != dhcpv6.MessageTypeRequest {
				out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: had.IPv6Addr})
			}
		}
		m.AddOption(out)
	}
	if !given && typ == dhcpv6.MessageTypeAdvertise && len(r.msg.Options.IANA()) > 0 {
		return nil, dhcp.Silence("no address for it")
	}
	if given {
		rep.Addr = t.Addr
	}
	r.options(t, rep, m)
	return r.wrap(rep, m)
}

// confirm tells a client that was moved or has slept whether its addresses are good where it is now.
func (r *Request) confirm(t Terms) (*Reply, error) {
	status, asked := iana.StatusSuccess, false
	for _, ia := range r.msg.Options.IANA() {
		for _, had := range ia.Options.Addresses() {
			asked = true
			if a, _ := netip.AddrFromSlice(had.IPv6Addr); !t.Net.Contains(a) {
				status = iana.StatusNotOnLink
			}
		}
	}
	if !asked {
		return nil, dhcp.Silence("CONFIRM without an address")
	}
	rep, m := r.reply(t, dhcpv6.MessageTypeReply)
	m.AddOption(&dhcpv6.OptStatusCode{StatusCode: status})
	return r.wrap(rep, m)
}

// reply starts a reply.
func (r *Request) reply(t Terms, typ dhcpv6.MessageType) (*Reply, *dhcpv6.Message) {
	m := &dhcpv6.Message{MessageType: typ, TransactionID: r.msg.TransactionID}
	if id := r.msg.Options.ClientID(); id != nil {
		m.AddOption(dhcpv6.OptClientID(id))
	}
	m.AddOption(dhcpv6.OptServerID(t.Server))
	return &Reply{Type: typ}, m
}

// options adds what a client is told beside its address.
func (r *Request) options(t Terms, rep *Reply, m *dhcpv6.Message) {
	if len(t.DNS) > 0 {
		var ips []net.IP
		for _, a := range t.DNS {
			ips = append(ips, a.AsSlice())
		}
		m.AddOption(dhcpv6.OptDNS(ips...))
	}
	if r.Stage == dhcp.System || t.Boot == "" {
		return
	}
	rep.Boot = t.Boot
	m.AddOption(dhcpv6.OptBootFileURL(t.Boot))
	if r.Stage != dhcp.HTTPBoot {
		// No vendor class for PXE: EDK2 takes an answer with PXEClient in it for one that needs a boot server.
		return
	}
	for _, c := range r.msg.Options.VendorClasses() { // EDK2 drops an answer to its HTTP client without it
		m.AddOption(&dhcpv6.OptVendorClass{EnterpriseNumber: c.EnterpriseNumber, Data: [][]byte{[]byte("HTTPClient")}})
		return
	}
}

// wrap puts the reply into what the relays expect, and says where it goes.
func (r *Request) wrap(rep *Reply, m *dhcpv6.Message) (*Reply, error) {
	if r.relay == nil {
		rep.d, rep.To = m, netip.AddrPortFrom(r.Peer.Addr(), clientPort)
		return rep, nil
	}
	d, err := dhcpv6.NewRelayReplFromRelayForw(r.relay, m)
	if err != nil {
		return nil, fmt.Errorf("wrap reply for relay: %w", err)
	}
	rep.d, rep.To = d, netip.AddrPortFrom(r.Peer.Addr(), serverPort)
	return rep, nil
}
