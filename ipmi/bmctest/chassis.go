// Package bmctest simulates BMCs, honest and lying, in front of anything that can be switched on: a QEMU machine, a
// simulated machine or a value in memory.
package bmctest

import (
	"context"

	"github.com/bareyard/bareyard/ipmi"
)

// Chassis is the machine behind a simulated BMC. The BMCs here call SetPower from one goroutine at a time, and the other
// methods at any time, also while SetPower runs.
type Chassis interface {
	// Power reports whether the host is on.
	Power(ctx context.Context) (on bool, err error)
	// SetPower does op. It may take long: the BMCs here answer their caller first and call it afterwards.
	SetPower(ctx context.Context, op ipmi.Op) error
	// SetNextBoot sets what the host boots next; ipmi.DeviceNone takes an override back. It is called at once when a
	// client sets the override, so that the order of override and power operation is kept.
	SetNextBoot(ctx context.Context, b Boot) error
	// Identity says who the machine is.
	Identity() Identity
}

// Boot is a boot override.
type Boot struct {
	Device ipmi.Device
	Once   bool // for the next boot only
	UEFI   bool // boot by UEFI rather than by BIOS
}

// Identity is what a BMC says about its machine.
type Identity struct {
	UUID   string // canonical lower case
	Serial string
	Model  string
}
