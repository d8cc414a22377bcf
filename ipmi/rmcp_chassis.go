package ipmi

import (
	"context"
	"errors"
	"time"

	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"
)

var controls = map[Op]chassis.ChassisControl{
	OpOn:    chassis.ChassisControlPowerUp,
	OpOff:   chassis.ChassisControlPowerDown,
	OpCycle: chassis.ChassisControlPowerCycle,
	OpReset: chassis.ChassisControlHardReset,
	OpSoft:  chassis.ChassisControlSoftShutdown,
}

// controlAnswer is how long a BMC may take to answer a chassis control command at least: some act first.
const controlAnswer = 5 * time.Second

func (r *rmcpConn) power(ctx context.Context) (Power, error) {
	p := Unknown
	err := r.wire.exchange(ctx, r.answer, func(ctx context.Context) error {
		s, err := r.c.GetChassisStatus(ctx)
		if err != nil {
			return commandError(err)
		}
		p = Off
		if s.PowerIsOn {
			p = On
		}
		return nil
	})
	return p, err
}

func (r *rmcpConn) command(ctx context.Context, op Op, _ Power) error {
	err := r.wire.exchange(ctx, max(r.answer, controlAnswer), func(ctx context.Context) error {
		_, err := r.c.ChassisControl(ctx, controls[op])
		return commandError(err)
	})
	if errors.Is(err, ErrUnsupported) && (op == OpCycle || op == OpReset) {
		return errRestartUnsupported
	}
	return err
}

var bootSelectors = map[Device]types.BootDeviceSelector{
	DevicePXE:   types.BootDeviceSelectorForcePXE,
	DeviceDisk:  types.BootDeviceSelectorForceHardDrive,
	DeviceMedia: types.BootDeviceSelectorForceCDROM,
	DeviceNone:  types.BootDeviceSelectorNoOverride,
}

// flags is boot option parameter 5 for an override. Without one it is all zero: a valid, persistent "no override" is what
// some tools leave behind, and an override for the firmware of some machines.
func flags(o override) types.BootOptionParam_BootFlags {
	if o.device == DeviceNone {
		return types.BootOptionParam_BootFlags{}
	}
	return types.BootOptionParam_BootFlags{BootFlagsValid: true, Persist: o.persistent(), BIOSBootType: types.BIOSBootType(o.asUEFI()), BootDeviceSelector: bootSelectors[o.device]}
}

func (r *rmcpConn) setBoot(ctx context.Context, o override) error {
	// Parameter 3: keep the flags when no power command comes within 60 s, after a watchdog, a button or a PEF action.
	// A BMC that cannot is not refused: the Controller looks again before it starts the host.
	for _, p := range []struct {
		selector types.BootOptionParamSelector
		data     []byte
	}{
		{types.BootOptionParamSelector_BMCBootFlagValidBitClear, []byte{0x1f}},
		{types.BootOptionParamSelector_BootInfoAcknowledge, []byte{0x01, 0x01}}, // the firmware has yet to look
	} {
		if err := r.setParam(ctx, p.selector, p.data); err != nil && isAny(err, ErrUnreachable, ErrCredentials) {
			return err
		}
	}
	want := flags(o)
	if err := r.setParam(ctx, types.BootOptionParamSelector_BootFlags, want.Pack()); err != nil {
		return err
	}
	kept, err := r.keepsBoot(ctx, o)
	if err == nil && !kept {
		return failf(ErrLied, "the boot flags read back are not those that were set")
	}
	return err
}

func (r *rmcpConn) setParam(ctx context.Context, selector types.BootOptionParamSelector, data []byte) error {
	return r.wire.exchange(ctx, r.answer, func(ctx context.Context) error {
		_, err := r.c.SetSystemBootOptionsParam(ctx, &chassis.SetSystemBootOptionsParamRequest{ParamSelector: selector, ParamData: data})
		if code, ok := types.IsResponseError(err); ok && code.CompletionCode() == 0xd5 {
			return failf(ErrOff, "completion code 0xd5")
		}
		return commandError(err)
	})
}

func (r *rmcpConn) keepsBoot(ctx context.Context, o override) (bool, error) {
	var res *chassis.GetSystemBootOptionsParamResponse
	if err := r.wire.exchange(ctx, r.answer, func(ctx context.Context) (err error) {
		res, err = r.c.GetSystemBootOptionsParam(ctx, types.BootOptionParamSelector_BootFlags, 0, 0)
		return commandError(err)
	}); err != nil {
		return false, err
	}
	var got types.BootOptionParam_BootFlags
	if len(res.ParamData) > 5 {
		res.ParamData = res.ParamData[:5]
	}
	if err := got.Unpack(res.ParamData); err != nil {
		return false, failf(ErrUnsupported, "boot flags of %d bytes", len(res.ParamData))
	}
	want := flags(o)
	if res.ParameterInValid {
		got.BootFlagsValid = false
	}
	switch {
	case o.device == DeviceNone:
		return !got.BootFlagsValid, nil
	case got.BootFlagsValid && got.Persist == want.Persist && got.BIOSBootType == want.BIOSBootType && got.BootDeviceSelector == want.BootDeviceSelector:
		return true, nil
	case !got.BootFlagsValid && got.BootDeviceSelector == want.BootDeviceSelector:
		return r.keepsDeviceOnly(ctx)
	}
	return false, nil
}

// OpenIPMI's ipmi_sim, by what it says in Get Device ID: it keeps the boot device and shows none of the bits beside it.
const (
	simManufacturer = 0x001291
	simProduct      = 0x0f02
)

// keepsDeviceOnly reports whether the BMC is one whose boot flags cannot be read back in full though it uses them.
func (r *rmcpConn) keepsDeviceOnly(ctx context.Context) (bool, error) {
	sim := false
	err := r.wire.exchange(ctx, r.answer, func(ctx context.Context) error {
		id, err := r.c.GetDeviceID(ctx)
		sim = err == nil && id.ManufacturerID == simManufacturer && id.ProductID == simProduct
		return commandError(err)
	})
	return sim, err
}
