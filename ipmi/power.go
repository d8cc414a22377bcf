package ipmi

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// SetPower brings the host into the state that op is about and returns nil only when the BMC showed that state.
//
// It sends one command and then looks, until the context's deadline: a BMC may show the old state for a while or answer
// nothing. Where the BMC refuses a command it is sent again; where nobody knows whether it arrived it is not. Cycle and
// reset of a host that is off switch it on. A reset cannot be seen in the power state: nil then means that the BMC took
// it and that the host is still on after Settle.
//
// ErrLied together with context.DeadlineExceeded means that the BMC took the command and the state did not come, which for
// OpSoft may be the operating system's choice.
func (c *Controller) SetPower(ctx context.Context, t Target, op Op) error {
	switch op {
	case OpOn, OpOff, OpCycle, OpReset, OpSoft:
	default:
		return t.on("set power", failf(ErrUnsupported, "no such operation"))
	}
	return c.operate(ctx, t, "power "+string(op), func(ctx context.Context, l *link) error { return c.setPower(ctx, l, op) })
}

func (c *Controller) setPower(ctx context.Context, w wire, op Op) error {
	err := c.reach(ctx, w, op)
	if !errors.Is(err, errRestartUnsupported) {
		return err
	}
	if err := c.reach(ctx, w, OpOff); err != nil {
		return err
	}
	return c.reach(ctx, w, OpOn)
}

// wire is what a power change needs of a BMC.
type wire interface {
	power(ctx context.Context) (Power, error)
	command(ctx context.Context, op Op, now Power) error
}

// command sends op once, and before a start it makes sure that the override that was set is still there.
func (l *link) command(ctx context.Context, op Op, now Power) error {
	return l.do(ctx, func(conn conn) error {
		starts := op == OpOn || op == OpCycle || op == OpReset
		if a := l.b.armed; starts && a != nil && time.Since(a.set) < armedFor {
			kept, err := conn.keepsBoot(ctx, a.override)
			if err == nil && !kept {
				l.c.log().Info("BMC forgot the boot override; set again", "bmc", l.t)
				l.b.known.quirk("forgets a boot override before the host starts")
				err = conn.setBoot(ctx, a.override)
			}
			if err != nil {
				return err
			}
		}
		err := conn.command(ctx, op, now)
		if starts && (err == nil || mayHaveArrived(err)) {
			l.b.armed = nil
		}
		return err
	})
}

// reach sends the one command that op needs and waits for the state.
func (c *Controller) reach(ctx context.Context, w wire, op Op) error {
	now, err := c.known(ctx, w)
	if err != nil {
		return err
	}
	goal := On
	if op == OpOff || op == OpSoft {
		goal = Off
	}
	restart, refusals := false, 0
	for {
		act := op
		if now == Off && (op == OpCycle || op == OpReset) {
			act = OpOn
		}
		restart = act == OpCycle || act == OpReset
		if now == goal && !restart {
			return nil
		}
		err := w.command(ctx, act, now)
		if err == nil || mayHaveArrived(err) {
			break
		}
		refusals++
		if !transient(err) || !c.pause(ctx, refusals, err) {
			return orOver(ctx, err)
		}
		if now, err = c.known(ctx, w); err != nil { // it may have been refused for a state that we did not see
			return err
		}
	}
	return c.watch(ctx, w, goal, restart)
}

// watch reads the power state until it is goal. After a restart, a host that reads on has done it if it was seen off in
// between, or if it stays on for a while.
func (c *Controller) watch(ctx context.Context, w wire, goal Power, restart bool) error {
	settle := cmp.Or(c.Settle, 10*time.Second)
	if d, ok := ctx.Deadline(); ok {
		settle = min(settle, time.Until(d)/2)
	}
	seenOff := false
	onSince := time.Time{}
	last, read, failed, lastErr := Unknown, false, 0, error(nil)
	for {
		p, err := w.power(ctx)
		switch {
		case err != nil && !transient(err) && ctx.Err() == nil:
			return err
		case err != nil && ctx.Err() == nil:
			failed++
			lastErr = err
		case err == nil:
			last, read, failed, lastErr = p, true, 0, nil
		}
		switch {
		case err != nil || p != goal:
			onSince = time.Time{}
			seenOff = seenOff || err == nil && p == Off
		case !restart || seenOff:
			return nil
		case onSince.IsZero():
			onSince = time.Now()
		case time.Since(onSince) >= settle:
			return nil
		}
		if !c.pause(ctx, failed, lastErr) {
			if read && failed == 1 { // the deadline cut it short
				lastErr = nil
			}
			return c.unreached(ctx, last, lastErr)
		}
	}
}

// unreached is the error of a state that did not come before the context ended.
func (c *Controller) unreached(ctx context.Context, last Power, lastErr error) error {
	if ctx.Err() == nil {
		return lastErr
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return over(ctx)
	}
	if lastErr != nil {
		return orOver(ctx, lastErr)
	}
	return &failure{kind: ErrLied, detail: "last read " + string(last), cause: ctx.Err()}
}

// known reads the power state, and waits for a BMC that is busy, for one that is silent not longer than Silence, and for a host that is on its way. A host whose
// BMC does not say within Settle is Unknown.
func (c *Controller) known(ctx context.Context, w wire) (Power, error) {
	settle := cmp.Or(c.Settle, 10*time.Second)
	var unknownSince time.Time
	failed, begun := 0, time.Now()
	for {
		p, err := w.power(ctx)
		switch {
		case err == nil && p != Unknown:
			return p, nil
		case err == nil && unknownSince.IsZero():
			unknownSince = time.Now()
		case err == nil && time.Since(unknownSince) >= settle:
			return Unknown, nil
		case err != nil && !transient(err):
			return Unknown, err
		}
		if failed++; err == nil {
			failed, begun = 0, time.Now()
		}
		if c.Silence > 0 && errors.Is(err, ErrUnreachable) && time.Since(begun) >= c.Silence {
			return Unknown, orOver(ctx, err)
		}
		if !c.pause(ctx, failed, err) {
			if err == nil {
				return Unknown, over(ctx)
			}
			return Unknown, orOver(ctx, err)
		}
	}
}

func isAny(err error, kinds ...error) bool {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}
