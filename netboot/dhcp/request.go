// Package dhcp answers DHCPv4 for machines with a reserved address: bytes to request, request and terms to reply, reply to bytes.
package dhcp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// Stage says how far a machine has come in its boot.
type Stage int

// Stages.
const (
	System   Stage = iota // an operating system or the agent: wants a lease and nothing to boot
	PXE                   // firmware that loads by TFTP
	HTTPBoot              // firmware that loads by HTTP
	IPXE                  // a loader, or a network card's own, that can run our script
)

func (s Stage) String() string {
	switch s {
	case PXE:
		return "pxe"
	case HTTPBoot:
		return "http-boot"
	case IPXE:
		return "ipxe"
	}
	return "system"
}

// Arch is a processor architecture type of RFC 4578 and IANA's list after it.
type Arch uint16

// Architectures that a loader is known for.
const (
	BIOS      Arch = 0
	IA32      Arch = 6
	X64       Arch = 7
	EBC       Arch = 9 // what RFC 4578 calls x64 and much firmware sends
	ARM64     Arch = 11
	IA32HTTP  Arch = 15
	X64HTTP   Arch = 16
	ARM64HTTP Arch = 19
)

// Platform is what an architecture needs of a loader: those of one platform take the same file.
type Platform string

// Platforms.
const (
	NoPlatform    Platform = ""
	PlatformBIOS  Platform = "bios"
	PlatformIA32  Platform = "ia32"  // UEFI of 32 bits
	PlatformX64   Platform = "x64"   // UEFI
	PlatformARM64 Platform = "arm64" // UEFI
)

// Platform returns the platform of an architecture.
func (a Arch) Platform() Platform {
	switch a {
	case BIOS:
		return PlatformBIOS
	case X64, EBC, X64HTTP:
		return PlatformX64
	case IA32, IA32HTTP:
		return PlatformIA32
	case ARM64, ARM64HTTP:
		return PlatformARM64
	}
	return NoPlatform
}

// Loader returns the usual name of a platform's loader. Debian's package ipxe brings those for BIOS and x64; the others
// are served when somebody puts them into the loader folder.
func (p Platform) Loader() string {
	switch p {
	case PlatformBIOS:
		return "undionly.kpxe"
	case PlatformX64:
		return "snponly.efi"
	case PlatformIA32:
		return "snponly-ia32.efi"
	case PlatformARM64:
		return "snponly-arm64.efi"
	}
	return ""
}

// Options that the library has no name for, or decodes in ways that firmware breaks.
const (
	optVendor      = dhcpv4.GenericOptionCode(43)
	optOverload    = dhcpv4.GenericOptionCode(52)
	optVendorClass = dhcpv4.GenericOptionCode(60)
	optClientID    = dhcpv4.GenericOptionCode(61)
	optUserClass   = dhcpv4.GenericOptionCode(77)
	optAgentInfo   = dhcpv4.GenericOptionCode(82)
	optArch        = dhcpv4.GenericOptionCode(93)
	optMachineUUID = dhcpv4.GenericOptionCode(97)
	optIPXE        = dhcpv4.GenericOptionCode(175)
)

// Request is one question of a client.
type Request struct {
	Type  dhcpv4.MessageType
	MAC   string // chaddr, lower case with colons: the only thing that is the same in every stage of a boot
	Stage Stage
	Arch  Arch // meaningless for System

	BootServer bool           // it came to port 4011: a client that has an address asks a boot server for its file
	Peer       netip.AddrPort // where it came from; not valid when unknown

	pkt *dhcpv4.DHCPv4
}

// errNotForUs marks what a server has no business answering.
var errNotForUs = errors.New("not a request to a DHCP server")

// Parse reads a request. It accepts what firmware gets wrong (no end option) and returns an error for
// everything that cannot be answered: replies of other servers, plain BOOTP, no or a group MAC address.
func Parse(b []byte) (*Request, error) {
	// Some ROMs forget the end option. One more after the end is padding to everybody else.
	pkt, err := dhcpv4.FromBytes(append(bytes.Clone(b), 0xff))
	if err != nil {
		return nil, fmt.Errorf("decode DHCP: %w", err)
	}
	if err := unload(pkt, b); err != nil {
		return nil, fmt.Errorf("decode DHCP: %w", err)
	}
	if pkt.OpCode != dhcpv4.OpcodeBootRequest {
		return nil, errNotForUs
	}
	mac := pkt.ClientHWAddr
	if pkt.HWType != iana.HWTypeEthernet || len(mac) != 6 {
		return nil, fmt.Errorf("hardware type %d with a %d-byte address is not Ethernet", pkt.HWType, len(mac))
	}
	if mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return nil, fmt.Errorf("%s is not the address of one port", mac)
	}
	if len(pkt.Options.Get(dhcpv4.OptionDHCPMessageType)) != 1 {
		return nil, fmt.Errorf("plain BOOTP is not served: %w", errNotForUs)
	}
	r := &Request{Type: pkt.MessageType(), MAC: strings.ToLower(mac.String()), pkt: pkt}
	r.Stage, r.Arch = stage(pkt.Options)
	return r, nil
}

// ToBootServer says that a request came to port 4011: nobody but firmware asks there, whatever it leaves out.
func (r *Request) ToBootServer() {
	r.BootServer = true
	if r.Stage == System {
		r.Stage = PXE
	}
}

// unload moves options out of the fields that option 52 lends them (RFC 2132 section 9.3), so that `file` is not
// taken for a name. It reads the bytes of the packet, because the library ends both fields at the first zero.
func unload(pkt *dhcpv4.DHCPv4, b []byte) error {
	v := pkt.Options.Get(optOverload)
	if len(v) != 1 {
		return nil
	}
	if v[0]&1 != 0 {
		if err := pkt.Options.FromBytes(b[108:236]); err != nil {
			return fmt.Errorf("options in file: %w", err)
		}
		pkt.BootFileName = ""
	}
	if v[0]&2 != 0 {
		if err := pkt.Options.FromBytes(b[44:108]); err != nil {
			return fmt.Errorf("options in sname: %w", err)
		}
		pkt.ServerHostName = ""
	}
	return nil
}

// stage reads the signs of a boot: vendor class, user class, architecture, iPXE's own option.
func stage(o dhcpv4.Options) (Stage, Arch) {
	class := string(o.Get(optVendorClass))
	arch, hasArch := archOf(o.Get(optArch), class)
	switch {
	case speaksScript(o):
		return IPXE, arch
	case strings.HasPrefix(class, "HTTPClient"):
		return HTTPBoot, arch
	case strings.HasPrefix(class, "PXEClient"), hasArch:
		return PXE, arch
	}
	return System, arch
}

// archOf takes the first architecture of option 93 that has a loader. Old Intel ROMs leave the option out; the
// vendor class then says it.
func archOf(v []byte, class string) (Arch, bool) {
	if len(v) >= 2 {
		first := Arch(binary.BigEndian.Uint16(v))
		for ; len(v) >= 2; v = v[2:] {
			if a := Arch(binary.BigEndian.Uint16(v)); a.Platform() != NoPlatform {
				return a, true
			}
		}
		return first, true
	}
	if _, rest, ok := strings.Cut(class, ":Arch:"); ok {
		digits, _, _ := strings.Cut(rest, ":")
		if n, err := strconv.ParseUint(digits, 10, 16); err == nil {
			return Arch(n), true
		}
	}
	return BIOS, false
}

// speaksScript reports whether the client is an iPXE that can fetch a script over HTTP. FlexBoot is iPXE but sends
// no user class; its option 175 gives it away. An iPXE that lists its features without HTTP (19) is a ROM that must
// load ours first.
func speaksScript(o dhcpv4.Options) bool {
	user := string(o.Get(optUserClass))
	features := o.Get(optIPXE)
	// The plain text that iPXE sends, or the length-prefixed form of RFC 3004.
	named := user == "iPXE" || user == "\x04iPXE"
	if len(features) == 0 {
		return named
	}
	http, listed := false, false
	for len(features) >= 2 {
		code, n := features[0], int(features[1])
		if len(features) < 2+n {
			break
		}
		if code < 0x40 { // feature codes; the settings are above
			listed = true
			http = http || code == 19
		}
		features = features[2+n:]
	}
	return http || named && !listed
}

// Relayed returns the address of the relay, if one passed the request on.
func (r *Request) Relayed() (netip.Addr, bool) {
	a := addr(r.pkt.GatewayIPAddr)
	return a, a.IsValid()
}

// Link returns an address on the client's network as the relay tells it: sub-option 5 of option 82 (RFC 3527),
// else giaddr. It is not valid when the client is on our own network.
func (r *Request) Link() netip.Addr {
	gi, ok := r.Relayed()
	if !ok {
		return netip.Addr{} // option 82 without a relay comes from the client itself: not believed
	}
	if v := r.agentInfo(5); len(v) == 4 {
		return netip.AddrFrom4([4]byte(v))
	}
	return gi
}

// Facts is what a request says of a machine, for people who ask why it does not boot.
type Facts struct {
	Arch        int        // option 93, or what option 60 says; -1 when neither does
	VendorClass string     // option 60
	UserClass   string     // option 77
	UUID        string     // option 97 without its type, in hex, as it came: firmware disagrees about the byte order
	Relay       netip.Addr // not valid on our own network
	Link        netip.Addr // see Request.Link
	Circuit     string     // option 82, sub-option 1. Hex where it is not text
	Server      netip.Addr // option 54: the server that the client chose
}

// Facts returns them. Text that a client made up is cut to what can be printed.
func (r *Request) Facts() Facts {
	o := r.pkt.Options
	class := string(o.Get(optVendorClass))
	f := Facts{Arch: -1, VendorClass: printable(o.Get(optVendorClass)), UserClass: printable(o.Get(optUserClass)),
		Link: r.Link(), Server: addr(r.pkt.ServerIdentifier())}
	if arch, said := archOf(o.Get(optArch), class); said {
		f.Arch = int(arch)
	}
	if v := o.Get(optMachineUUID); len(v) == 17 {
		f.UUID = hex.EncodeToString(v[1:])
	}
	if gi, ok := r.Relayed(); ok {
		f.Relay = gi
		f.Circuit = printable(r.agentInfo(1))
	}
	return f
}

// Said reports whether the request says which architecture it is of. Requests to port 4011 need not.
func (r *Request) Said() bool {
	_, said := archOf(r.pkt.Options.Get(optArch), string(r.pkt.Options.Get(optVendorClass)))
	return said
}

// Broadcasts reports whether the client asks for a broadcast answer.
func (r *Request) Broadcasts() bool { return r.pkt.IsBroadcast() }

// Chosen returns the address that a REQUEST asks for and the server that it chose; not valid where it says neither, and
// where the relay's name for us stands in place of the server.
func (r *Request) Chosen() (asked, server netip.Addr) {
	asked = addr(r.pkt.RequestedIPAddress())
	if !asked.IsValid() {
		asked = addr(r.pkt.ClientIPAddr)
	}
	if server = addr(r.pkt.ServerIdentifier()); server == r.override() {
		return asked, netip.Addr{}
	}
	return asked, server
}

// Chose reports whether the server that a REQUEST chose is the one of these terms, by the name that its relay gave it.
func (r *Request) Chose(t Terms) bool {
	server := addr(r.pkt.ServerIdentifier())
	return server.IsValid() && (server == t.Server || server == r.override())
}

// Holds returns the address that the client has already (ciaddr); not valid when it has none.
func (r *Request) Holds() netip.Addr { return addr(r.pkt.ClientIPAddr) }

// agentInfo returns a sub-option of option 82, nil when it is not there or cut short.
func (r *Request) agentInfo(code byte) []byte {
	for v := r.pkt.Options.Get(optAgentInfo); len(v) >= 2 && len(v) >= 2+int(v[1]); v = v[2+int(v[1]):] {
		if v[0] == code {
			return v[2 : 2+int(v[1])]
		}
	}
	return nil
}

// printable returns text as it is, and anything else in hex.
func printable(v []byte) string {
	for _, c := range v {
		if c < ' ' || c > '~' {
			return hex.EncodeToString(v)
		}
	}
	return string(v)
}

// String is the request in a few words for a log.
func (r *Request) String() string {
	if r.Stage == System {
		return r.Type.String() + " " + r.Stage.String()
	}
	return r.Type.String() + " " + r.Stage.String() + " arch " + strconv.Itoa(int(r.Arch))
}

// addr returns an IPv4 address of a header field or option; not valid when it is absent or 0.0.0.0.
func addr(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip)
	if a = a.Unmap(); !ok || !a.Is4() || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}
