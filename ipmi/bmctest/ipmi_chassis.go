package bmctest

import (
	"context"
	"time"

	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/bareyard/bareyard/ipmi"
)

// Bits of the boot option parameters 3 and 5 (IPMI 2.0 table 28-14).
const (
	noClearOnTimeout = 1 << 3
	flagsValid       = 1 << 7
	flagsPersist     = 1 << 6
	flagsEFI         = 1 << 5

	codeParamUnsupported = types.CompletionCode(0x80)
	codeWrongState       = types.CompletionCode(0xd5)

	// bootFlagLife is how long the boot flags stay valid without a chassis control command, unless parameter 3 forbids
	// that they are cleared.
	bootFlagLife = time.Minute
)

var controlOps = map[chassis.ChassisControl]ipmi.Op{
	chassis.ChassisControlPowerDown:    ipmi.OpOff,
	chassis.ChassisControlPowerUp:      ipmi.OpOn,
	chassis.ChassisControlPowerCycle:   ipmi.OpCycle,
	chassis.ChassisControlHardReset:    ipmi.OpReset,
	chassis.ChassisControlSoftShutdown: ipmi.OpSoft,
}

func (b *IPMI) chassisStatus(ctx context.Context, _ *handlers.HandlerContext, _ []byte) ([]byte, types.CompletionCode, error) {
	on, lost, err := b.front.power(ctx)
	if err != nil {
		return nil, types.CodeUnspecifiedError, nil
	}
	if lost {
		b.conn.lose.Add(1)
	}
	return (&chassis.GetChassisStatusResponse{PowerIsOn: on}).Pack(), types.CodeOK, nil
}

func (b *IPMI) chassisControl(ctx context.Context, _ *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
	if len(req) < 1 {
		return nil, types.CodeRequestDataTruncated, nil
	}
	op, ok := controlOps[chassis.ChassisControl(req[0]&0x0f)]
	if !ok {
		return nil, types.CodeParameterOutOfRange, nil
	}
	if op == ipmi.OpCycle || op == ipmi.OpReset {
		if on, err := b.Chassis.Power(ctx); err != nil || !on {
			return nil, codeWrongState, nil
		}
	}
	b.mu.Lock()
	b.expire()
	expired := b.expired
	b.expired = false
	b.mu.Unlock()
	if expired {
		if err := b.Chassis.SetNextBoot(ctx, Boot{Device: ipmi.DeviceNone}); err != nil {
			return nil, types.CodeUnspecifiedError, nil
		}
	}
	if err := b.front.setPower(ctx, op); err != nil {
		return nil, types.CodeNodeBusy, nil
	}
	return nil, types.CodeOK, nil
}

func (b *IPMI) setBootOption(ctx context.Context, _ *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
	if len(req) < 1 {
		return nil, types.CodeRequestDataTruncated, nil
	}
	fault := b.Faults.Now()
	switch data := req[1:]; types.BootOptionParamSelector(req[0] & 0x7f) {
	case types.BootOptionParamSelector_BMCBootFlagValidBitClear:
		if fault.NoBootClearing {
			return nil, codeParamUnsupported, nil
		}
		if len(data) != 1 {
			return nil, types.CodeRequestDataLengthInvalid, nil
		}
		b.mu.Lock()
		b.noClear = data[0]
		b.mu.Unlock()
		return nil, types.CodeOK, nil
	case types.BootOptionParamSelector_BootInfoAcknowledge:
		return nil, types.CodeOK, nil
	case types.BootOptionParamSelector_BootFlags:
		if len(data) != 5 {
			return nil, types.CodeRequestDataLengthInvalid, nil
		}
		if fault.DropBoot {
			return nil, types.CodeOK, nil
		}
		boot := bootOf([5]byte(data))
		if fault.ignores(boot, "") {
			boot = Boot{Device: ipmi.DeviceNone}
		}
		if err := b.Chassis.SetNextBoot(ctx, boot); err != nil {
			return nil, types.CodeUnspecifiedError, nil
		}
		b.mu.Lock()
		b.flags, b.flagsSet, b.expired = [5]byte(data), b.now(), false
		b.mu.Unlock()
		return nil, types.CodeOK, nil
	}
	return nil, codeParamUnsupported, nil
}

func (b *IPMI) getBootOption(_ context.Context, _ *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
	if len(req) < 1 {
		return nil, types.CodeRequestDataTruncated, nil
	}
	param := req[0] & 0x7f
	b.mu.Lock()
	defer b.mu.Unlock()
	switch types.BootOptionParamSelector(param) {
	case types.BootOptionParamSelector_BMCBootFlagValidBitClear:
		if b.Faults.Now().NoBootClearing {
			return nil, codeParamUnsupported, nil
		}
		return []byte{1, param, b.noClear}, types.CodeOK, nil
	case types.BootOptionParamSelector_BootInfoAcknowledge:
		return []byte{1, param, 0, 0}, types.CodeOK, nil
	case types.BootOptionParamSelector_BootFlags:
		b.expire()
		return append([]byte{1, param}, b.flags[:]...), types.CodeOK, nil
	}
	return nil, codeParamUnsupported, nil
}

// expire clears the valid bit of boot flags that are too old. b.mu is held.
func (b *IPMI) expire() {
	if b.flags[0]&flagsValid == 0 || b.noClear&noClearOnTimeout != 0 || b.now().Sub(b.flagsSet) <= bootFlagLife {
		return
	}
	b.flags[0] &^= flagsValid
	b.expired = true
}

// booted plays the firmware, which clears the boot flags once it used them.
func (b *IPMI) booted(op ipmi.Op, wasOn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if boots(op, wasOn) && b.flags[0]&flagsPersist == 0 && !b.Faults.Now().NoPersistReset {
		b.flags[0] &^= flagsValid
	}
}

// bootOf reads boot option parameter 5.
func bootOf(f [5]byte) Boot {
	out := Boot{Device: ipmi.DeviceNone}
	if f[0]&flagsValid == 0 {
		return out
	}
	switch types.BootDeviceSelector(f[1] >> 2 & 0x0f) {
	case types.BootDeviceSelectorForcePXE:
		out.Device = ipmi.DevicePXE
	case types.BootDeviceSelectorForceHardDrive:
		out.Device = ipmi.DeviceDisk
	case types.BootDeviceSelectorForceCDROM:
		out.Device = ipmi.DeviceMedia
	default:
		return out
	}
	out.Once = f[0]&flagsPersist == 0
	out.UEFI = f[0]&flagsEFI != 0
	return out
}

// SetBootFlags sets boot option parameter 5 as the host could from inside.
func (b *IPMI) SetBootFlags(flags [5]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flags, b.flagsSet, b.noClear = flags, b.now(), noClearOnTimeout
}
