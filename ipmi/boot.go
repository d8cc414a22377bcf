package ipmi

import (
	"context"
	"errors"
	"time"
)

// SetNextBoot makes the host boot from d at its next start only, by UEFI or by BIOS, and returns nil only when the BMC
// still said so after it was set. DeviceNone takes an override back.
//
// Call it right before SetPower. For a quarter of an hour the Controller checks again before each command that starts the
// host, and sets the override again where the BMC forgot it.
//
// ErrOff means that this BMC takes an override only while the host is on: see BootFrom.
func (c *Controller) SetNextBoot(ctx context.Context, t Target, d Device, uefi bool) error {
	doing := "set next boot"
	if !d.valid() {
		return t.on(doing, failf(ErrUnsupported, "no such device"))
	}
	return c.operate(ctx, t, doing, func(ctx context.Context, l *link) error { return l.setNextBoot(ctx, d, uefi) })
}

func (d Device) valid() bool {
	return d == DevicePXE || d == DeviceDisk || d == DeviceMedia || d == DeviceNone
}

func (l *link) setNextBoot(ctx context.Context, d Device, uefi bool) error {
	set := func(conn conn) error {
		l.b.armed = nil
		err := conn.setBoot(ctx, d, uefi)
		if err == nil && d != DeviceNone {
			l.b.armed = &nextBoot{device: d, uefi: uefi, set: time.Now()}
		}
		return err
	}
	return l.again(ctx, func() error { return l.do(ctx, set) })
}

// BootFrom starts or restarts the host so that it boots from d once, whatever state it is in and in whichever order its
// BMC takes override and power command. It returns nil when the override was kept and the host is on.
//
// Where the BMC takes an override only while the host is on, a host that is off is started first and then reset: it may
// run what is on its disk for some seconds.
func (c *Controller) BootFrom(ctx context.Context, t Target, d Device, uefi bool) error {
	doing := "boot from " + string(d)
	if !d.valid() {
		return t.on("boot", failf(ErrUnsupported, "no such device"))
	}
	return c.operate(ctx, t, doing, func(ctx context.Context, l *link) error { return l.bootFrom(ctx, d, uefi) })
}

func (l *link) bootFrom(ctx context.Context, d Device, uefi bool) error {
	err := l.setNextBoot(ctx, d, uefi)
	if !errors.Is(err, ErrOff) {
		if err != nil {
			return err
		}
		return l.c.setPower(ctx, l, OpCycle)
	}
	if err := l.c.setPower(ctx, l, OpOn); err != nil {
		return err
	}
	if err := l.setNextBoot(ctx, d, uefi); err != nil {
		return err
	}
	return l.c.setPower(ctx, l, OpReset)
}
