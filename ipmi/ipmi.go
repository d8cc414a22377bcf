// Package ipmi drives baseboard management controllers over IPMI and Redfish and believes none of them without looking.
package ipmi

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Protocols that a BMC may speak.
const (
	IPMI    = "ipmi"
	Redfish = "redfish"
)

// Target says how to reach a BMC and as whom.
//
// A Redfish URL may say http: then the password crosses the network in clear, which is for laboratories.
//
// The password is never printed: every fmt verb, slog and encoding/json leave it out. Keep a Target in an exported field
// where it is printed as part of something else: fmt cannot call methods on unexported fields.
type Target struct {
	Name     string // the machine's name, for errors; may be empty
	Protocol string // IPMI or Redfish
	Address  string // IPMI: host or host:port (623 by default); Redfish: base URL, or the URL of one system where there are several
	Username string
	Password string    `json:"-"`
	Proven   time.Time // when the password on record was last changed and seen to work, by whichever server; what was refused before counts no more
	CertPin  string    // SHA-256 of the BMC's certificate in hex (colons allowed); with it the pin alone is trusted. Redfish over TLS

	// IPMIAddress is where a Redfish BMC speaks IPMI too, as host or host:port, with the same user and password. Its serial
	// console comes that way, for Redfish has none. Empty means that it does not.
	IPMIAddress string
}

// String names the BMC, without credentials.
func (t Target) String() string { return t.Protocol + " " + displayAddress(t.Address) }

// key names the BMC in a map: two spellings of one address are one BMC.
func (t Target) key() string {
	address := strings.ToLower(displayAddress(t.Address))
	if t.Protocol == IPMI {
		host, port := splitAddress(address)
		return IPMI + " " + net.JoinHostPort(host, port)
	}
	return t.Protocol + " " + strings.TrimRight(address, "/")
}

// splitAddress splits the address of an IPMI BMC, whose port is 623 unless it says so.
func splitAddress(a string) (host, port string) {
	if h, p, err := net.SplitHostPort(a); err == nil {
		return h, p
	}
	return strings.Trim(a, "[]"), "623"
}

// Format prints String whatever the verb, so that %v, %+v, %#v and %x all leave the credentials out.
func (t Target) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// LogValue is the target without credentials.
func (t Target) LogValue() slog.Value {
	return slog.GroupValue(slog.String("protocol", t.Protocol), slog.String("address", displayAddress(t.Address)))
}

// Power is the power state of a host, as its BMC tells it.
type Power string

// Power states. Unknown is not off: it covers a BMC that does not say and a host on its way up or down.
const (
	On      Power = "on"
	Off     Power = "off"
	Unknown Power = "unknown"
)

// Op is a power operation.
type Op string

// Power operations.
const (
	OpOn    Op = "on"    // reaches On
	OpOff   Op = "off"   // cuts the power; reaches Off
	OpCycle Op = "cycle" // off and on again; On when the host was off
	OpReset Op = "reset" // a hard reset without losing power; On when the host was off
	OpSoft  Op = "soft"  // asks the operating system to shut down; reaches Off, or fails at the deadline, and is never turned into OpOff
)

// Device is what a host boots next.
type Device string

// Boot devices.
const (
	DevicePXE   Device = "pxe"
	DeviceDisk  Device = "disk"
	DeviceMedia Device = "media" // virtual media, as a CD
	DeviceNone  Device = "none"  // no override: what the firmware is set to
)
