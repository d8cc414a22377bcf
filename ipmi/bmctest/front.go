package bmctest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bareyard/bareyard/ipmi"
)

// front stands between a protocol and a chassis: it carries power operations out after the caller was answered, as BMCs
// do, and it lies about the power state when told to.
type front struct {
	chassis Chassis
	faults  *Faults
	log     *slog.Logger
	ops     chan ipmi.Op
	done    func(op ipmi.Op, wasOn bool) // called after each operation that the chassis did; may be nil

	mu      sync.Mutex
	script  []Read // answers to the coming power reads, armed by a power command
	running bool   // run carries operations out; without it setPower does
}

func newFront(c Chassis, f *Faults, log *slog.Logger) *front {
	return &front{chassis: c, faults: f, log: cmp.Or(log, slog.New(slog.DiscardHandler)), ops: make(chan ipmi.Op, 64)}
}

// power answers a power read; lost means that no answer may be given.
func (f *front) power(ctx context.Context) (on, lost bool, err error) {
	f.mu.Lock()
	if len(f.script) > 0 {
		r := f.script[0]
		f.script = f.script[1:]
		f.mu.Unlock()
		return r == ReadOn, r == ReadLost, nil
	}
	f.mu.Unlock()
	on, err = f.chassis.Power(ctx)
	return on, false, err
}

// setPower accepts a power operation. It fails only when too many wait, or when nothing runs and it did the operation
// itself.
func (f *front) setPower(ctx context.Context, op ipmi.Op) error {
	fault := f.faults.Now()
	script := fault.PowerReads
	if fault.StalePolls > 0 {
		on, err := f.chassis.Power(ctx)
		if err != nil {
			return err
		}
		was := ReadOff
		if on {
			was = ReadOn
		}
		script = nil
		for range fault.StalePolls {
			script = append(script, was)
		}
	}
	f.mu.Lock()
	f.script = append([]Read(nil), script...)
	running := f.running
	f.mu.Unlock()
	if fault.IgnorePowerOn && op == ipmi.OpOn || fault.IgnoreSoft && op == ipmi.OpSoft {
		return nil
	}
	if !running {
		return f.do(ctx, op)
	}
	select {
	case f.ops <- op:
		return nil
	default:
		return errors.New("set power: too many operations wait")
	}
}

// run carries out operations until ctx ends.
func (f *front) run(ctx context.Context) error {
	f.mu.Lock()
	f.running = true
	f.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case op := <-f.ops:
			if err := f.do(ctx, op); err != nil && ctx.Err() == nil {
				f.log.Error("power operation failed", "op", op, "err", err)
			}
		}
	}
}

func (f *front) do(ctx context.Context, op ipmi.Op) error {
	on, err := f.chassis.Power(ctx)
	if err != nil {
		return fmt.Errorf("read power: %w", err)
	}
	if d := f.faults.Now().SlowOff; d > 0 && on && op != ipmi.OpOn && op != ipmi.OpReset {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
		}
	}
	if err := f.chassis.SetPower(ctx, op); err != nil {
		return fmt.Errorf("set power: %w", err)
	}
	if f.done != nil {
		f.done(op, on)
	}
	return nil
}

// boots reports whether op starts a host that was on or off before it.
func boots(op ipmi.Op, wasOn bool) bool {
	switch op {
	case ipmi.OpOn:
		return !wasOn
	case ipmi.OpCycle, ipmi.OpReset:
		return wasOn
	}
	return false
}
