package ipmi

import "context"

// BIOS is the firmware settings of a machine.
type BIOS struct {
	Version    string
	Attributes map[string]any // string, bool, int64 or float64
	Pending    map[string]any // what will hold after the next start, where that differs from Attributes
}

// BIOSState is how far a change of firmware settings is.
type BIOSState string

// States of a change.
const (
	BIOSApplied BIOSState = "applied" // every setting holds, as read back
	BIOSPending BIOSState = "pending" // restart the host, then call BIOSChange again
	BIOSFailed  BIOSState = "failed"  // the BMC dropped the change, or its job failed
)

// BIOSChange is the state of a wanted set of settings.
type BIOSChange struct {
	State BIOSState
	Wrong []Difference // settings that do not hold yet: Was is what holds, Is is what is wanted
	Job   string       // the BMC's job, where there is one
	Text  string       // what the BMC's job says, in our words
}

// BIOS reads the firmware settings. IPMI has none: ErrUnsupported.
func (c *Controller) BIOS(ctx context.Context, t Target) (BIOS, error) {
	return BIOS{}, t.on("read BIOS settings", failf(ErrUnsupported, "not yet"))
}

// SetBIOS asks for settings, each checked against what the BMC knows of it before anything is sent: a setting that there is
// not, or a value of a wrong type, is ErrUnsupported and names it. What holds already is not sent. It restarts nothing: BIOSPending means
// that the host must be restarted.
func (c *Controller) SetBIOS(ctx context.Context, t Target, want map[string]any) (BIOSChange, error) {
	return BIOSChange{}, t.on("set BIOS settings", failf(ErrUnsupported, "not yet"))
}

// CheckBIOS compares the settings with want, after a restart too; a change that is still under way is BIOSPending.
func (c *Controller) CheckBIOS(ctx context.Context, t Target, want map[string]any) (BIOSChange, error) {
	return BIOSChange{}, t.on("check BIOS settings", failf(ErrUnsupported, "not yet"))
}
