package dhcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

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
		if len(r.Bytes()) <= limit {
			return
		}
		r.pkt.Options.Del(o)
	}
}

// String is the reply in a few words for a log.
func (r *Reply) String() string {
	var b strings.Builder
	fmt.Fprint(&b, r.Type)
	if a := r.Addr(); a.IsValid() {
		fmt.Fprintf(&b, " %s", a)
	}
	if r.Boot != "" {
		fmt.Fprintf(&b, " %s", r.Boot)
	}
	return b.String()
}
