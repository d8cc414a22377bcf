package inband

import (
	"context"
	"errors"
	"fmt"

	"github.com/bougou/go-ipmi/pkg/open"

	"github.com/bareyard/bareyard/machine"
)

const (
	setUserAccess = 0x43 // 22.26
	getUserAccess = 0x44 // 22.27

	codeDenied   = 0xd4 // insufficient privilege, or another restriction
	codeDisabled = 0xd6 // the function is disabled
	codeUnknown  = 0xc1 // no such command: how some hide it
)

// refusal is a completion code that is not 0.
type refusal struct {
	cmd  byte
	code byte
}

func (r refusal) Error() string {
	return fmt.Sprintf("command %#02x: completion code %#02x", r.cmd, r.code)
}

// Try tries to change the BMC behind /dev/ipmi0, whose driver must be loaded.
func Try(ctx context.Context) (machine.InBand, error) {
	var device open.DeviceBackend
	if err := device.Connect(ctx, 0); err != nil {
		return machine.InBand{}, fmt.Errorf("reach BMC: %w", err)
	}
	defer device.Close(ctx)
	return TryWith(ctx, &device), nil
}

// TryWith tries whether the BMC lets this machine change it, as `ipmitool user priv` would: it sets the privilege of the last user to what
// it is. Nothing is changed, and a BMC that takes this takes a new administrator as well.
func TryWith(ctx context.Context, s Sender) machine.InBand {
	if _, err := ask(ctx, s, netApp, getDeviceID); err != nil {
		if denied(err) {
			return machine.InBand{State: machine.InBandClosed, Why: why("Get Device ID", err)}
		}
		return machine.InBand{State: machine.InBandAbsent, Why: why("Get Device ID", err)}
	}
	channel := byte(1)
	for c := byte(1); c <= lastChannel && ctx.Err() == nil; c++ {
		if info, err := ask(ctx, s, netApp, getChannelInfo, c); err == nil && len(info) >= 2 && info[1]&0x7f == mediumLAN {
			channel = c
			break
		}
	}
	first, err := ask(ctx, s, netApp, getUserAccess, channel, 1)
	if err != nil || len(first) < 4 {
		if denied(err) {
			return machine.InBand{State: machine.InBandClosed, Why: why("Get User Access", err)}
		}
		return machine.InBand{Why: why("Get User Access", err)}
	}
	user := max(first[0]&0x3f, 1)
	access, err := ask(ctx, s, netApp, getUserAccess, channel, user)
	if err != nil || len(access) < 4 { // it answers for the slots in use only
		user, access = 1, first
	}
	_, err = ask(ctx, s, netApp, setUserAccess, channel, user, access[3]&0x0f) // bit 7 of the first is 0: all else stays
	switch {
	case err == nil:
		return machine.InBand{State: machine.InBandOpen, Why: "/dev/ipmi0: Set User Access is carried out"}
	case denied(err):
		return machine.InBand{State: machine.InBandClosed, Why: why("Set User Access", err)}
	case errors.As(err, new(refusal)): // it looked at what was asked
		return machine.InBand{State: machine.InBandOpen, Why: why("Set User Access is looked at, and", err)}
	}
	return machine.InBand{Why: why("Set User Access", err)}
}

// denied reports whether a command is not for the host.
func denied(err error) bool {
	var r refusal
	return errors.As(err, &r) && (r.code == codeDenied || r.code == codeDisabled || r.code == codeUnknown)
}

func why(command string, err error) string {
	var r refusal
	switch {
	case err == nil:
		return "/dev/ipmi0: " + command + ": an answer that is too short"
	case errors.As(err, &r):
		return fmt.Sprintf("/dev/ipmi0: %s refused with %02Xh", command, r.code)
	}
	return fmt.Sprintf("/dev/ipmi0: %s: %v", command, err)
}
