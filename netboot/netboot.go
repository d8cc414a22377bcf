// Package netboot holds the boot conversation of one provisioning network: DHCP, TFTP, HTTP and router advertisements.
package netboot

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// ErrUnknown is returned by a Booter that knows no machine with this MAC address: the network stays silent.
var ErrUnknown = errors.New("unknown machine")

// ErrRefused is returned by Booter.Archive outside the boot window of the machine, or when the request does not
// come from the address that is leased to it.
var ErrRefused = errors.New("not in its boot window, or not from its address")

// Booter answers what a booting machine asks. It only reads, except that Archive mints the one-time nonce of a boot.
// A MAC address is lower case with colons. Any error but ErrUnknown and ErrRefused is logged, and the machine, which
// gets no answer, asks again.
type Booter interface {
	// Lease returns what is reserved for the port, the same on every call for as long as the machine is known.
	// It returns ErrUnknown when no machine has the port.
	Lease(ctx context.Context, mac string) (Lease, error)

	// Boot says what the machine should boot now. It returns ErrUnknown when no machine has the port.
	Boot(ctx context.Context, mac string) (Boot, error)

	// Archive returns the cpio archive of this one boot: the server's CA and a fresh nonce. It returns ErrRefused
	// when the machine has no business booting the agent or when from is not the address leased to it.
	Archive(ctx context.Context, mac string, from netip.Addr) ([]byte, error)
}

// Lease is what DHCP tells a machine on the provisioning network.
type Lease struct {
	Addr     netip.Prefix  // the reserved address, with the length of the network
	Router   netip.Addr    // default gateway; none when not valid
	DNS      []netip.Addr  // may be empty
	Hostname string        // may be empty
	For      time.Duration // zero means one hour
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

// Exchange is one question of a machine and what became of it. It is a hint for people, never a transition.
type Exchange struct {
	MAC    string     // of the machine; empty when the question did not say and the address is not leased
	From   netip.Addr // where the question came from; the zero address while the machine has none
	Proto  string     // "dhcp", "tftp" or "http"
	Asked  string     // e.g. "DISCOVER ipxe bios", "snponly.efi", "/boot/vmlinuz"
	Got    string     // e.g. "OFFER 10.99.0.64 http://…", "200", "refused: …"
	Bytes  int64      // payload sent; DHCP: length of the reply
	Failed bool       // the machine did not get what it asked for
}
