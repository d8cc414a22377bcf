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

// setNextBoot sets the override by the most promising method that this BMC has. Only a boot from the network has more than one: what
// else is booted is not seen on the wire.
func (l *link) setNextBoot(ctx context.Context, d Device, uefi bool) error {
	methods := []BootMethod{BootOnce}
	if d == DevicePXE {
		methods = l.b.known.methods(l.t.Protocol, uefi)
	}
	l.b.known.using("")
	var first error
	for i, m := range methods {
		if i > 0 && m == BootOtherMode {
			break // only when the machine was not seen otherwise: it is not what was asked for
		}
		o := override{d, uefi, m}
		set := func(conn conn) error {
			l.b.armed = nil
			err := conn.setBoot(ctx, o)
			if err == nil && d != DeviceNone {
				l.b.armed = &nextBoot{override: o, set: time.Now()}
			}
			return err
		}
		err := l.again(ctx, func() error { return l.do(ctx, set) })
		if first == nil {
			first = err
		}
		if err == nil && d == DevicePXE {
			l.b.known.using(m)
			if m != BootOnce {
				l.c.log().Info("boot override by another method", "bmc", l.t, "method", m)
			}
		}
		if errors.Is(err, ErrOff) {
			l.b.known.quirk("takes a boot override only while the host is on")
		}
		if !isAny(err, ErrUnsupported, ErrLied) { // the next one, where the BMC has not this one, or does not keep it
			return err
		}
		if errors.Is(err, ErrLied) {
			l.b.known.quirk("takes a boot override and does not keep it: " + string(m))
		}
	}
	return first
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
