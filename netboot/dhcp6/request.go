// Package dhcp6 answers DHCPv6 for machines that boot over IPv6: bytes to request, request and terms to reply, reply to bytes.
package dhcp6

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// Request is one question of a client.
type Request struct {
	Type  dhcpv6.MessageType
	MAC   string // lower case with colons
	Stage dhcp.Stage
	Arch  dhcp.Arch // meaningless for System
	Said  bool      // it says which architecture it is of

	Peer netip.AddrPort // where it came from: the client, or the last relay

	msg   *dhcpv6.Message
	relay *dhcpv6.RelayMessage // the last relay's; nil on our own network
	inner *dhcpv6.RelayMessage // the first relay's
}

// errNotForUs marks what a server has no business answering.
var errNotForUs = errors.New("not a request to a DHCPv6 server")

// maxHops bounds how often a message may be wrapped (RFC 8415 section 7.6).
const maxHops = 8

// Parse reads a request from peer. The MAC address is in no field that firmware must fill: iPXE, and EDK2 where the
// machine has a UUID, name themselves by that (RFC 6355). So it is read from what the first relay saw (RFC 6939), from
// the link-local address that the packet came from, or from the DUID, in this order.
func Parse(b []byte, peer netip.AddrPort) (*Request, error) {
	d, err := dhcpv6.FromBytes(b)
	if err != nil {
		return nil, fmt.Errorf("decode DHCPv6: %w", err)
	}
	r := &Request{Peer: peer}
	client := peer.Addr()
	for hops := 0; d.IsRelay(); hops++ {
		m, ok := d.(*dhcpv6.RelayMessage)
		if !ok || m.MessageType != dhcpv6.MessageTypeRelayForward || hops >= maxHops {
			return nil, errNotForUs
		}
		if r.relay == nil {
			r.relay = m
		}
		r.inner = m
		a, _ := netip.AddrFromSlice(m.PeerAddr)
		client = a
		if d = m.Options.RelayMessage(); d == nil {
			return nil, errNotForUs
		}
	}
	msg, ok := d.(*dhcpv6.Message)
	if !ok {
		return nil, errNotForUs
	}
	r.msg, r.Type = msg, msg.MessageType
	switch r.Type {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind,
		dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline, dhcpv6.MessageTypeInformationRequest:
	default:
		return nil, errNotForUs
	}
	if msg.Options.ClientID() == nil && r.Type != dhcpv6.MessageTypeInformationRequest {
		return nil, fmt.Errorf("%s without a client identifier", r.Type)
	}
	mac, ok := r.mac(client)
	if !ok {
		return nil, fmt.Errorf("%s from %s does not tell whose it is", r.Type, client)
	}
	r.MAC = mac.String()
	r.Stage, r.Arch, r.Said = stage(msg.Options)
	return r, nil
}

// mac finds the MAC address of the client.
func (r *Request) mac(client netip.Addr) (net.HardwareAddr, bool) {
	if r.inner != nil {
		if _, mac := r.inner.Options.ClientLinkLayerAddress(); usable(mac) {
			return mac, true
		}
	}
	if mac := fromLinkLocal(client); usable(mac) {
		return mac, true
	}
	switch d := r.msg.Options.ClientID().(type) {
	case *dhcpv6.DUIDLL:
		return d.LinkLayerAddr, d.HWType == iana.HWTypeEthernet && usable(d.LinkLayerAddr)
	case *dhcpv6.DUIDLLT:
		return d.LinkLayerAddr, d.HWType == iana.HWTypeEthernet && usable(d.LinkLayerAddr)
	}
	return nil, false
}

func usable(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && !bytes.Equal(mac, make([]byte, 6))
}

// fromLinkLocal undoes how a link-local address is made of a MAC address (RFC 4291 appendix A).
func fromLinkLocal(a netip.Addr) net.HardwareAddr {
	b := a.As16()
	if !a.IsLinkLocalUnicast() || b[11] != 0xff || b[12] != 0xfe {
		return nil
	}
	return net.HardwareAddr{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
}

// stage reads the signs of a boot: vendor class, user class, architecture.
func stage(o dhcpv6.MessageOptions) (dhcp.Stage, dhcp.Arch, bool) {
	class := vendorClass(o)
	arch, said := archOf(o)
	switch {
	case userClass(o, "iPXE"):
		return dhcp.IPXE, arch, said
	case strings.HasPrefix(class, "HTTPClient"):
		return dhcp.HTTPBoot, arch, said
	case strings.HasPrefix(class, "PXEClient"), said:
		return dhcp.PXE, arch, said
	}
	return dhcp.System, arch, said
}

// vendorClass returns the text of option 16, whoever's enterprise number it is under: firmware uses several.
func vendorClass(o dhcpv6.MessageOptions) string {
	for _, c := range o.VendorClasses() {
		for _, data := range c.Data {
			return string(data)
		}
	}
	return ""
}

func userClass(o dhcpv6.MessageOptions, want string) bool {
	for _, c := range o.UserClasses() {
		if string(c) == want {
			return true
		}
	}
	return false
}

func archOf(o dhcpv6.MessageOptions) (dhcp.Arch, bool) {
	all := o.ArchTypes()
	for _, a := range all {
		if dhcp.Arch(a).Platform() != dhcp.NoPlatform {
			return dhcp.Arch(a), true
		}
	}
	if len(all) > 0 {
		return dhcp.Arch(all[0]), true
	}
	return 0, false
}

// Relayed returns the address of the last relay, if one passed the request on.
func (r *Request) Relayed() (netip.Addr, bool) { return r.Peer.Addr(), r.relay != nil }

// Link returns an address on the client's network as its first relay that knows one tells it; not valid on our own
// network.
func (r *Request) Link() netip.Addr {
	var link netip.Addr
	for m := r.relay; m != nil; {
		if a, ok := netip.AddrFromSlice(m.LinkAddr); ok && !a.IsUnspecified() {
			link = a // the last that is set is nearest to the client
		}
		m, _ = m.Options.RelayMessage().(*dhcpv6.RelayMessage)
	}
	return link
}

// Facts returns what a request says of a machine, for people who ask why it does not boot.
func (r *Request) Facts() dhcp.Facts {
	f := dhcp.Facts{Arch: -1, VendorClass: printable(vendorClass(r.msg.Options)), Link: r.Link()}
	if r.Said {
		f.Arch = int(r.Arch)
	}
	for _, c := range r.msg.Options.UserClasses() {
		f.UserClass = printable(string(c))
	}
	if d, ok := r.msg.Options.ClientID().(*dhcpv6.DUIDUUID); ok {
		f.UUID = fmt.Sprintf("%x", d.UUID)
	}
	if r.relay != nil {
		f.Relay = r.Peer.Addr()
		f.Circuit = printable(string(r.inner.Options.InterfaceID()))
	}
	return f
}

func printable(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return fmt.Sprintf("%x", s)
		}
	}
	return s
}

// String is the request in a few words for a log.
func (r *Request) String() string {
	if r.Stage == dhcp.System {
		return fmt.Sprintf("%s %s over IPv6", r.Type, r.Stage)
	}
	return fmt.Sprintf("%s %s arch %d over IPv6", r.Type, r.Stage, r.Arch)
}
