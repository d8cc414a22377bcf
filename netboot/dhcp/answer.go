package dhcp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Terms are what one machine is told: its reservation and where it finds what it boots.
type Terms struct {
	Server   netip.Addr   // our address on the machine's network: server identifier and next-server
	Addr     netip.Prefix // reserved address, with the length of the network
	Router   netip.Addr   // none when not valid
	DNS      []netip.Addr
	Hostname string
	For      time.Duration // zero means one hour

	Script     string // URL of the iPXE script
	LoaderBase string // URL of the folder with the loaders, ending in a slash; TFTP clients get the bare name
	Loader     string // name of the loader; empty means the usual one of the platform
	Looping    bool   // the machine took the loader again and again and never became iPXE: give it the script
	NoBoot     bool   // an address and nothing to boot
}

// maxFile is the longest name that fits into the `file` field with its terminating zero.
const maxFile = 127

// Validate reports what could not be sent: an address that is not IPv4, or a URL that `file` cannot hold. The
// codec below would cut it without a word and the firmware would ask for half a name.
func (t Terms) Validate() error {
	if !t.Server.Is4() || !t.Addr.IsValid() || !t.Addr.Addr().Is4() {
		return fmt.Errorf("server %v and address %v must be IPv4", t.Server, t.Addr)
	}
	if len(t.Script) > maxFile {
		return fmt.Errorf("script URL is %d bytes long; firmware takes %d: %s", len(t.Script), maxFile, t.Script)
	}
	loader := cmp.Or(t.Loader, PlatformARM64.Loader()) // the longest of the usual names
	if n := len(t.LoaderBase) + len(loader); n > maxFile {
		return fmt.Errorf("loader URL is %d bytes long; firmware takes %d: %s", n, maxFile, t.LoaderBase+loader)
	}
	if len(t.Hostname) > 63 {
		return fmt.Errorf("host name is %d bytes long; a label takes 63: %s", len(t.Hostname), t.Hostname)
	}
	return nil
}

// Silence says why a request gets no answer. It is not a failure.
type Silence string

func (s Silence) Error() string { return string(s) }

// Answer returns the reply to a request, or a Silence when there must be none, or the error of Terms.Validate.
func (r *Request) Answer(t Terms) (*Reply, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if link := r.Link(); link.IsValid() && !t.Addr.Contains(link) {
		return nil, Silence(fmt.Sprintf("seen on the network of %s, its reserved address is %s", link, t.Addr))
	}
	switch r.Type {
	case dhcpv4.MessageTypeDiscover:
		return r.grant(t, dhcpv4.MessageTypeOffer), nil
	case dhcpv4.MessageTypeRequest:
		return r.confirm(t)
	case dhcpv4.MessageTypeInform:
		return r.inform(t)
	case dhcpv4.MessageTypeDecline:
		return nil, Silence("declined: another host uses its reserved address " + t.Addr.Addr().String())
	case dhcpv4.MessageTypeRelease:
		return nil, Silence("released; the reservation stays")
	}
	return nil, Silence(fmt.Sprintf("%s is not for a server", r.Type))
}

// confirm answers a REQUEST by the four cases of RFC 2131 section 4.3.2. We are authoritative for a machine that we
// know, and only for that one.
func (r *Request) confirm(t Terms) (*Reply, error) {
	server := addr(r.pkt.ServerIdentifier())
	asked := addr(r.pkt.RequestedIPAddress())
	held := addr(r.pkt.ClientIPAddr)
	if server.IsValid() { // selecting
		if !r.Chose(t) {
			return nil, Silence(fmt.Sprintf("it chose the server %s", server))
		}
		if !asked.IsValid() { // option 50 left out: it means what we offered
			asked = t.Addr.Addr()
		}
	} else if !asked.IsValid() { // renewing, rebinding
		asked = held
	} // else it comes back after a reboot
	if asked != t.Addr.Addr() {
		return r.Refuse(t), nil
	}
	return r.grant(t, dhcpv4.MessageTypeAck), nil
}

// inform answers a client that has an address by other means: options, no lease.
func (r *Request) inform(t Terms) (*Reply, error) {
	if !addr(r.pkt.ClientIPAddr).IsValid() {
		return nil, Silence("INFORM without an address")
	}
	rep := r.grant(t, dhcpv4.MessageTypeAck)
	rep.pkt.YourIPAddr = net.IPv4zero
	for _, o := range []dhcpv4.OptionCode{dhcpv4.OptionIPAddressLeaseTime, dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue} {
		rep.pkt.Options.Del(o)
	}
	rep.To, rep.How = netip.AddrPortFrom(addr(r.pkt.ClientIPAddr), clientPort), Routed
	return rep, nil
}

// reply starts a reply with what every reply has: the header fields of the request and the options to be echoed.
func (r *Request) reply(t Terms, typ dhcpv4.MessageType) *Reply {
	p := &dhcpv4.DHCPv4{
		OpCode:        dhcpv4.OpcodeBootReply,
		HWType:        r.pkt.HWType,
		TransactionID: r.pkt.TransactionID,
		Flags:         r.pkt.Flags,
		ClientIPAddr:  net.IPv4zero,
		YourIPAddr:    net.IPv4zero,
		ServerIPAddr:  net.IPv4zero,
		GatewayIPAddr: r.pkt.GatewayIPAddr,
		ClientHWAddr:  r.pkt.ClientHWAddr,
		Options:       dhcpv4.Options{},
	}
	p.UpdateOption(dhcpv4.OptMessageType(typ))
	server := t.Server
	if o := r.override(); o.IsValid() {
		server = o
	}
	p.UpdateOption(dhcpv4.OptServerIdentifier(server.AsSlice()))
	// Option 82 byte for byte, which the encoder puts last; 61 by RFC 6842.
	for _, o := range []dhcpv4.OptionCode{optClientID, optAgentInfo} {
		if v := r.pkt.Options.Get(o); v != nil {
			p.Options[o.Code()] = v
		}
	}
	return &Reply{Type: typ, From: t.Server, pkt: p}
}

// Refuse builds a NAK: no address, no lease, no boot, to everybody, since the client has no address that counts.
func (r *Request) Refuse(t Terms) *Reply {
	rep := r.reply(t, dhcpv4.MessageTypeNak)
	if gi, ok := r.Relayed(); ok {
		rep.pkt.SetBroadcast()
		rep.To, rep.How = netip.AddrPortFrom(gi, serverPort), Routed
		return rep
	}
	rep.To, rep.How = netip.AddrPortFrom(broadcast, clientPort), Broadcast
	return rep
}

// grant builds an OFFER or an ACK.
func (r *Request) grant(t Terms, typ dhcpv4.MessageType) *Reply {
	rep := r.reply(t, typ)
	p := rep.pkt
	p.YourIPAddr = t.Addr.Addr().AsSlice()
	p.ServerIPAddr = t.Server.AsSlice()
	if typ == dhcpv4.MessageTypeAck {
		p.ClientIPAddr = r.pkt.ClientIPAddr
	}
	lease := t.For
	if lease <= 0 {
		lease = time.Hour
	}
	p.Options[dhcpv4.OptionIPAddressLeaseTime.Code()] = seconds(lease)
	p.Options[dhcpv4.OptionRenewTimeValue.Code()] = seconds(lease / 2)
	p.Options[dhcpv4.OptionRebindingTimeValue.Code()] = seconds(lease / 8 * 7)
	p.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(t.Addr.Bits(), 32)))
	if t.Router.Is4() {
		p.UpdateOption(dhcpv4.OptRouter(t.Router.AsSlice()))
	}
	if dns := addrs(t.DNS); len(dns) > 0 {
		p.UpdateOption(dhcpv4.OptDNS(dns...))
	}
	if t.Hostname != "" {
		p.UpdateOption(dhcpv4.OptHostName(t.Hostname))
	}
	r.boot(t, rep)
	r.address(t, rep)
	rep.fit(r.pkt)
	return rep
}

// override returns the address by which a relay wants us to be known (RFC 5107), so that renewals pass through it too.
func (r *Request) override() netip.Addr {
	if _, relayed := r.Relayed(); !relayed {
		return netip.Addr{}
	}
	if v := r.agentInfo(11); len(v) == 4 {
		return addr(v)
	}
	return netip.Addr{}
}

// boot adds what a client that boots from the network needs.
func (r *Request) boot(t Terms, rep *Reply) {
	p, loader := rep.pkt, cmp.Or(t.Loader, r.Arch.Platform().Loader())
	if r.Stage == System || t.NoBoot {
		return
	}
	if v := r.pkt.Options.Get(optMachineUUID); v != nil {
		p.Options[optMachineUUID.Code()] = v
	}
	// Without this iPXE waits three seconds for another server's ProxyDHCP offer. It also keeps option 67 from
	// being the last: old ROMs read past its end and ask for "undionly.kpxe\xff".
	p.Options[optIPXE.Code()] = []byte{0xb0, 1, 1}
	switch {
	case r.Stage == IPXE || t.Looping:
		p.BootFileName = t.Script
	case loader == "" || r.Arch.Platform() == NoPlatform:
		return
	case r.Stage == HTTPBoot:
		p.BootFileName = t.LoaderBase + loader
		p.Options[optVendorClass.Code()] = []byte("HTTPClient") // EDK2 drops an offer without it
	default:
		p.BootFileName = loader
		p.Options[optVendorClass.Code()] = []byte("PXEClient")
		// Discovery control, bit 3: use the file of this offer. Without it EDK2 takes the offer for one that needs
		// a boot server on port 4011, and gives up when none answers.
		p.Options[optVendor.Code()] = []byte{6, 1, 8}
	}
	rep.Boot = p.BootFileName
	if asksFor(r.pkt, dhcpv4.OptionBootfileName) {
		p.Options[dhcpv4.OptionBootfileName.Code()] = []byte(p.BootFileName)
	}
}

// address decides where the reply goes (RFC 2131 section 4.1).
func (r *Request) address(t Terms, rep *Reply) {
	if gi, ok := r.Relayed(); ok {
		rep.To, rep.How = netip.AddrPortFrom(gi, serverPort), Routed
		return
	}
	if held := addr(r.pkt.ClientIPAddr); held.IsValid() {
		rep.To, rep.How = netip.AddrPortFrom(held, clientPort), Routed
		return
	}
	if r.pkt.IsBroadcast() {
		rep.To, rep.How = netip.AddrPortFrom(broadcast, clientPort), Broadcast
		return
	}
	rep.To, rep.How = netip.AddrPortFrom(t.Addr.Addr(), clientPort), Framed
}

func asksFor(p *dhcpv4.DHCPv4, code dhcpv4.OptionCode) bool {
	return slices.Contains(p.Options.Get(dhcpv4.OptionParameterRequestList), code.Code())
}

func seconds(d time.Duration) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(min(d/time.Second, 1<<32-1)))
}

func addrs(as []netip.Addr) []net.IP {
	var ips []net.IP
	for _, a := range as {
		if a.Is4() {
			ips = append(ips, a.AsSlice())
		}
	}
	return ips
}

// IsSilence reports whether err says that there must be no answer.
func IsSilence(err error) bool {
	var s Silence
	return errors.As(err, &s)
}
