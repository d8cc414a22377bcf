// Package netboot holds the boot conversation of one provisioning network: DHCP, TFTP, HTTP and router advertisements.
package netboot

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// ErrUnknown is returned by a Booter that knows no machine with this MAC address.
var ErrUnknown = errors.New("unknown machine")

// ErrRefused is returned by Booter.Archive outside the boot window of the machine, or when the request does not
// come from the address that is leased to it.
var ErrRefused = errors.New("not in its boot window, or not from its address")

// Booter answers what a booting machine asks. It only reads, except that Archive mints the one-time nonce of a boot.
// A MAC address is lower case with colons. Any error but ErrUnknown and ErrRefused is logged, and the machine, which
// gets no answer, asks again.
type Booter interface {
	// Lease returns what is reserved for the port, the same on every call for as long as the machine is known.
	// It returns ErrUnknown when no machine has the port: it then gets an address of its network's range for
	// unknown machines, if there is one.
	Lease(ctx context.Context, mac string) (Lease, error)

	// Boot says what the machine should boot now. A Booter that discovers machines answers BootAgent for one that it
	// does not know. With ErrUnknown the machine may have an address, and nothing to boot.
	Boot(ctx context.Context, mac string) (Boot, error)

	// Archive returns the cpio archive of this one boot: the server's CA and a fresh nonce. It returns ErrRefused
	// when the machine has no business booting the agent or when from is not the address leased to it. For a machine
	// whose address is not the Booter's (unknown, or leased by another DHCP server) the Server has checked from.
	Archive(ctx context.Context, mac string, from netip.Addr) ([]byte, error)
}

// Lease is what DHCP tells a machine on the provisioning network.
type Lease struct {
	Addr     netip.Prefix  // the reserved address, with the length of the network; the Server's own word on that comes first
	Router   netip.Addr    // default gateway; not valid: that of the subnet
	DNS      []netip.Addr  // empty: those of the subnet
	Hostname string        // may be empty
	For      time.Duration // zero means one hour

	SecureBoot bool // its UEFI firmware gets the signed chain: shim, GRUB
}

// BootKind says what a machine boots.
type BootKind int

// Kinds of boot.
const (
	BootDisk  BootKind = iota // the local disk: the machine has no job that wants the agent
	BootAgent                 // kernel, RAM disk and the per-boot archive
)

func (k BootKind) String() string {
	switch k {
	case BootDisk:
		return "disk"
	case BootAgent:
		return "agent"
	}
	return "unknown"
}

// Boot is what a machine boots now.
type Boot struct {
	Kind    BootKind
	Cmdline string // BootAgent: kernel parameters. Never a secret: anyone on the network can read them
}

// Exchange is one question of a machine and what became of it. It is a hint for people, never a transition. Asked and
// Got are for their eyes; a program looks at the other fields.
type Exchange struct {
	At     time.Time     // when the question came
	Took   time.Duration // until the answer left; a transfer: until its end
	MAC    string        // of the machine; empty when the question did not say and the address is not leased
	From   netip.Addr    // where the question came from; the zero address while the machine has none
	Proto  string        // "dhcp", "tftp" or "http"
	Asked  string        // e.g. "DISCOVER ipxe arch 0", "snponly.efi", "/boot/vmlinuz"
	Got    string        // e.g. "OFFER 10.99.0.64 http://…", "200", "refused: …"
	Bytes  int64         // payload sent; DHCP: length of the reply
	Failed bool          // the machine did not get what it asked for

	Outcome Outcome
	Why     string // of a silence, a refusal or a failure; empty when it got what it asked for
	File    string // what a DHCP answer tells it to boot: a name or a URL; TFTP and HTTP: what it asked for
	Status  int    // HTTP: of the answer
	Size    int64  // HTTP, TFTP: of the whole file; 0 where it is not known
	Boots   string // HTTP: what a script told the machine to boot, "disk" or "agent"

	DHCP DHCPFacts // of a DHCP exchange
}

// Outcome says what became of a question.
type Outcome string

// Outcomes.
const (
	Answered Outcome = "answered" // it got all of it
	Probed   Outcome = "probed"   // TFTP: it wanted to know the size only, as UEFI firmware does before each transfer; HTTP: a HEAD
	Absent   Outcome = "absent"   // TFTP: a file that loaders look for and can do without
	Silent   Outcome = "silent"   // DHCP: there must be no answer, Why says why
	Refused  Outcome = "refused"  // it may not have it, or there is no such thing; DHCP: a NAK
	Broken   Outcome = "broken"   // the transfer began and did not end: Bytes arrived
	Failed   Outcome = "failed"   // we could not answer
)

// DHCPFacts are what a DHCP question said of the machine and what the answer gives it.
type DHCPFacts struct {
	Message     string     // "DISCOVER", "REQUEST", "INFORM", "DECLINE", "RELEASE"
	Answer      string     // "OFFER", "ACK", "NAK"; empty for silence
	Stage       string     // who asks: "pxe", "http-boot" (firmware), "ipxe", "system" (the agent or an operating system)
	Arch        int        // option 93, or what option 60 says; -1 when neither does
	VendorClass string     // option 60
	UserClass   string     // option 77
	UUID        string     // option 97 as the machine sent it, in hex: firmware disagrees about its byte order
	Addr        netip.Addr // that the answer gives; not valid when none
	Relay       netip.Addr // giaddr; not valid on our own network
	Link        netip.Addr // an address on the machine's network, as the relay tells it (option 82, sub-option 5)
	Circuit     string     // option 82, sub-option 1: usually the switch port. Hex where it is not text
	Server      netip.Addr // option 54 of the question: the DHCP server that the machine chose
	Basis       Basis      // of the address
}

// Basis says why a machine gets the address that a DHCP answer gives.
type Basis string

// Bases.
const (
	NoAddress Basis = ""         // none given
	Reserved  Basis = "reserved" // the Booter knows the machine
	Pooled    Basis = "pooled"   // unknown machine: from the range for those
	Proxied   Basis = "proxied"  // another server gives the address, we say what to boot
)
