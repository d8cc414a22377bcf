package ipmi

import (
	"context"
	"time"
)

// Baseline is what a tenant could have changed about a machine through its BMC, as one value to keep and to compare: users and
// their privileges, LAN, boot order and override, virtual media, SNMP, SSH and other services, certificate, firmware
// versions, BIOS settings. It holds no password and nothing that changes by itself. encoding/json writes and reads it.
type Baseline struct {
	Taken time.Time `json:"taken"`
	// Facts is path to value, such as user/2/name: admin, lan/1/address, bios/BootMode, firmware/BMC.
	Facts map[string]string `json:"facts"`
	// Unread is the subjects, the first words of paths, that could not be read, and why. Unread is not absent.
	Unread map[string]string `json:"unread,omitempty"`
}

// Difference is a fact that changed.
type Difference struct {
	Path string `json:"path"`
	Was  string `json:"was"` // "" where it was not there
	Is   string `json:"is"`  // "" where it is not there any more
}

// Baseline reads the machine's baseline. A subject that this BMC does not tell is in Unread; an error means that nothing is known.
func (c *Controller) Baseline(ctx context.Context, t Target) (Baseline, error) {
	return Baseline{}, t.on("read baseline", failf(ErrUnsupported, "not yet"))
}

// Diff lists what differs between b and a later baseline, sorted by path. A subject that was read in b and is unread later differs
// as a whole: path SUBJECT, Is "unread: why". A subject that was unread in b is not compared.
func (b Baseline) Diff(later Baseline) []Difference { return nil }
