package dhcp

import (
	"encoding/binary"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	serverPort = 67
	clientPort = 68
	bootPort   = 4011 // of a boot server (PXE 2.1, section 2.2.5)
)

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// How says by which road a reply travels.
type How int

// Roads of a reply.
const (
	Routed    How = iota // an ordinary datagram: to a relay, or to a client that has its address
	Broadcast            // to everybody on the link
	Framed               // to the client's MAC address: it has no IP address yet and does not answer ARP
)

func (h How) String() string { return [...]string{"routed", "broadcast", "framed"}[h] }

// Reply is an answer and where it goes.
type Reply struct {
	Type dhcpv4.MessageType
	Boot string     // what `file` names; empty when the client is not told to boot
	From netip.Addr // our address on the client's network
	To   netip.AddrPort
	How  How

	pkt *dhcpv4.DHCPv4
}

// Addr returns the address that the reply gives; not valid in a NAK.
func (r *Reply) Addr() netip.Addr { return addr(r.pkt.YourIPAddr) }

// Bytes returns the reply on the wire, padded to the 300 bytes below which BSD relays drop it.
func (r *Reply) Bytes() []byte { return r.pkt.ToBytes() }

// Len returns how many bytes there are in Bytes, without writing them.
func (r *Reply) Len() int {
	n := 241 // header, cookie and the end option
	for _, v := range r.pkt.Options {
		n += len(v) + 2*max(1, (len(v)+254)/255) // a long option is written as several (RFC 3396)
	}
	return max(n, 300)
}

// fit drops options that the client can do without until the reply fits into what it can receive: option 57, or 576
// bytes with IP and UDP headers.
func (r *Reply) fit(req *dhcpv4.DHCPv4) {
	limit := 576
	if v := req.Options.Get(dhcpv4.OptionMaximumDHCPMessageSize); len(v) == 2 {
		limit = max(limit, min(int(binary.BigEndian.Uint16(v)), 1500))
	}
	limit -= 28
	for _, o := range []dhcpv4.OptionCode{
		dhcpv4.OptionBootfileName, // also in `file`
		dhcpv4.OptionHostName,
		dhcpv4.OptionDomainNameServer,
		optClientID,
		optMachineUUID,
	} {
		if r.Len() <= limit {
			return
		}
		r.pkt.Options.Del(o)
	}
}

// String is the reply in a few words for a log.
func (r *Reply) String() string {
	s := r.Type.String()
	if a := r.Addr(); a.IsValid() {
		s += " " + a.String()
	}
	if r.Boot != "" {
		s += " " + r.Boot
	}
	return s
}
