package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Baselines reads what a customer could have changed about a machine through its BMC; answered by ipmi.Controller.
type Baselines interface {
	Baseline(ctx context.Context, t ipmi.Target) (ipmi.Baseline, error)
}

// Care is what operators want left out of what is done about a BMC between two customers. The zero value leaves out nothing.
type Care struct {
	KeepPassword   bool     // it is not changed at return
	KeepPasswordAt []string // nor at these sites
	LeaveInBand    bool     // the machine's own ways to its BMC are left as they are
	Ignore         []string // paths of the baseline that do not count, each with all below it, e.g. bios/BootOrder or firmware
}

// rotates reports whether the password of a machine's BMC is changed at return.
func (c Care) rotates(m machine.Machine) bool {
	return !c.KeepPassword && !slices.Contains(c.KeepPasswordAt, m.Site)
}

// ignores reports whether a path of the baseline does not count.
func (c Care) ignores(path string) bool {
	return slices.ContainsFunc(c.Ignore, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// changedError says that a BMC is not as it was.
type changedError struct {
	machine string
	since   time.Time
	what    []string
}

func (e *changedError) Error() string {
	return fmt.Sprintf("the BMC of %s is not as it was at hand-over: %s", e.machine, count(len(e.what), "difference"))
}

func (e *changedError) detail() string { return brief(e.what) }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// readBaseline reads a machine's baseline now.
func (e *Engine) readBaseline(ctx context.Context, m machine.Machine) (b ipmi.Baseline, err error) {
	err = e.bmc(ctx, m, func(t ipmi.Target) (err error) {
		b, err = e.Baselines.Baseline(ctx, t)
		return err
	})
	return b, err
}

// recordBaseline keeps what a machine's BMC is like when a customer gets the machine. A reinstallation keeps the record of the
// hand-over: what the customer changed since must show at return.
func (e *Engine) recordBaseline(ctx context.Context, m machine.Machine, kind machine.JobKind) error {
	if e.Baselines == nil || e.BMCs == nil {
		return nil
	}
	if kind == machine.ReinstallJob {
		kept, err := e.BMCs.BMC(ctx, m.ID)
		if err != nil {
			return err
		}
		if kept.Baseline != nil {
			return e.BMCs.PutBMC(ctx, m.ID, func(b *BMC) ([]Event, error) {
				b.Compared = time.Time{} // he has the machine from now on: what is found next is his doing
				return nil, nil
			})
		}
	}
	now, err := e.readBaseline(ctx, m)
	if err != nil {
		return err
	}
	return e.BMCs.PutBMC(ctx, m.ID, func(b *BMC) ([]Event, error) {
		text := "recorded at hand-over: " + summary(now)
		if b.Baseline != nil {
			if d := e.differences(*b.Baseline, now, false); len(d) > 0 {
				text += "; since the one before: " + brief(describe(*b.Baseline, now, d))
			}
		}
		b.Baseline, b.Found, b.Compared = &now, nil, time.Time{}
		return []Event{{Kind: "bmc.baseline", Text: clip(text)}}, nil
	})
}

// compareBaseline refuses a machine whose BMC is not as it was at hand-over.
func (e *Engine) compareBaseline(ctx context.Context, m machine.Machine, o *machine.Order) error {
	if e.Baselines == nil || e.BMCs == nil {
		return nil
	}
	kept, err := e.BMCs.BMC(ctx, m.ID)
	if err != nil {
		return err
	}
	if kept.Baseline == nil {
		if o != nil && !o.Started.IsZero() {
			e.noteBMC(ctx, m, "bmc.baseline", "none was recorded when the customer got it: what was changed through its BMC cannot be seen")
		}
		return nil
	}
	now, err := e.readBaseline(ctx, m)
	if err != nil {
		return err
	}
	wanted, err := e.profile(ctx, m)
	if err != nil {
		return err
	}
	// What was done to the machine since by us is no change by a customer.
	theirs := kept.Compared.Before(kept.Baseline.Taken) && o != nil && !o.Started.IsZero()
	d := slices.DeleteFunc(e.differences(*kept.Baseline, now, theirs), func(d ipmi.Difference) bool { return asWanted(wanted, d) || shutByUs(kept, d) })
	var changed *changedError
	err = e.BMCs.PutBMC(ctx, m.ID, func(b *BMC) ([]Event, error) {
		b.Found = &now
		if len(d) == 0 {
			b.Compared = now.Taken
			return nil, nil
		}
		changed = &changedError{machine: m.Name, since: kept.Baseline.Taken, what: describe(*kept.Baseline, now, d)}
		return []Event{{Kind: "bmc.changed", Text: clip("not as it was at hand-over: " + changed.detail())}}, nil
	})
	if err == nil && changed != nil {
		return changed
	}
	return err
}

// differences lists what differs and counts. What an installation itself changes, the boot override and the ways that are shut for a
// customer, counts only while it is the customer's doing.
func (e *Engine) differences(was, is ipmi.Baseline, theirs bool) []ipmi.Difference {
	return slices.DeleteFunc(was.Diff(is), func(d ipmi.Difference) bool {
		switch {
		case e.Care.ignores(d.Path):
			return true
		case d.Path == "boot/override": // one for the next boot only goes away, or is overridden
			return !theirs || !strings.Contains(d.Is, "persistent") && !strings.Contains(d.Is, "Continuous")
		case strings.HasPrefix(d.Path, "services/host-"):
			return !theirs
		}
		return false
	})
}

// renew makes a machine's BMC fit for the next customer: nothing of the last one runs any more.
func (e *Engine) renew(ctx context.Context, m machine.Machine, o *machine.Order) error {
	if err := e.compareBaseline(ctx, m, o); err != nil {
		return err
	}
	if err := e.openInBand(ctx, m); err != nil {
		return err
	}
	if e.Accounts == nil || !e.Care.rotates(m) {
		return nil
	}
	if err := e.rotate(ctx, m); err != nil {
		return fmt.Errorf("change password: %w", err)
	}
	return nil
}

// Comparison is a machine's baseline, and what differs from it.
type Comparison struct {
	Baseline    *ipmi.Baseline    `json:"baseline,omitempty"` // nil: none is recorded
	Found       *ipmi.Baseline    `json:"found,omitempty"`    // as it was at the last comparison
	Differences []ipmi.Difference `json:"differences"`
	Words       []string          `json:"words"` // the differences, one a line
}

// Baseline returns what is recorded of a machine's BMC. With now it is read anew; with accept, that becomes the record.
func (e *Engine) Baseline(ctx context.Context, machineID string, now, accept bool) (Comparison, error) {
	var c Comparison
	m, err := e.Shelf.Machine(ctx, machineID)
	if now || accept {
		m, err = e.idle(ctx, machineID, "its BMC is read")
	}
	if err != nil {
		return c, err
	}
	kept, err := e.BMCs.BMC(ctx, m.ID)
	if err != nil {
		return c, err
	}
	c.Baseline, c.Found = kept.Baseline, kept.Found
	if now || accept {
		if e.Baselines == nil {
			return c, &machine.Error{Code: machine.Invalid, Message: "this server reads no baselines", Hint: "ask the one that drives the BMCs"}
		}
		read, err := e.readBaseline(ctx, m)
		if err != nil {
			return c, &machine.Error{Code: machine.Unavailable, Message: err.Error(), Hint: "nothing was changed"}
		}
		c.Found = &read
	}
	if c.Baseline != nil && c.Found != nil {
		wanted, err := e.profile(ctx, m)
		if err != nil {
			return c, err
		}
		c.Differences = slices.DeleteFunc(e.differences(*c.Baseline, *c.Found, true), func(d ipmi.Difference) bool { return asWanted(wanted, d) || shutByUs(kept, d) })
		c.Words = describe(*c.Baseline, *c.Found, c.Differences)
	}
	if !accept {
		return c, nil
	}
	rented := m.State == machine.Active
	if m.OrderID != "" && !rented { // parked or quarantined under its customer, who may get it back
		o, err := e.Shelf.Order(ctx, m.OrderID)
		if err != nil {
			return c, err
		}
		rented = !o.State.Terminal()
	}
	return c, e.BMCs.PutBMC(ctx, m.ID, func(b *BMC) ([]Event, error) {
		text := "an operator accepted the BMC as it is: " + summary(*c.Found)
		if len(c.Words) > 0 {
			text += "; " + brief(c.Words)
		}
		b.Baseline, b.Found, b.Compared = c.Found, nil, time.Time{}
		if !rented { // what is done to it from now on is our own doing
			b.Compared = c.Found.Taken
		}
		return []Event{{Kind: "bmc.baseline", Text: clip(text)}}, nil
	})
}

// CheckBMC logs in to a machine's BMC once with each password on record, also where it refused them before, and says in words what
// came of it. A change of the password that was cut short comes to an end where the BMC has taken it.
func (e *Engine) CheckBMC(ctx context.Context, machineID string) (says string, err error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return "", err
	}
	if e.Accounts == nil {
		return "", &machine.Error{Code: machine.Invalid, Message: "this server drives no BMCs", Hint: "ask the one that does"}
	}
	s, err := e.Vault.Secrets(ctx, m.ID)
	if err != nil {
		return "", err
	}
	says, err = e.checkSecrets(ctx, m, s)
	if err != nil {
		e.noteBMC(ctx, m, "bmc.check", err.Error())
		return "", err
	}
	e.noteBMC(ctx, m, "bmc.check", says)
	return says, nil
}

// noteBMC appends an event that operators alone read. What cannot be appended is logged.
func (e *Engine) noteBMC(ctx context.Context, m machine.Machine, kind, text string) {
	err := e.BMCs.PutBMC(context.WithoutCancel(ctx), m.ID, func(*BMC) ([]Event, error) { return []Event{{Kind: kind, Text: clip(text)}}, nil })
	if err != nil {
		e.log().Error("event lost", "machine", m.Name, "kind", kind, "text", text, "err", err)
	}
}

func (e *Engine) checkSecrets(ctx context.Context, m machine.Machine, s Secrets) (string, error) {
	first := e.Accounts.Check(ctx, s.target(m, s.Current))
	switch {
	case first == nil:
		return fmt.Sprintf("the BMC of %s takes user %s and the password on record", m.Name, machine.CleanText(s.Username)), nil
	case errors.Is(first, ipmi.ErrForbidden):
		return "", &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("the BMC of %s takes the password of user %s and does not let him read the power state: %v", m.Name, machine.CleanText(s.Username), discreet(m, first)),
			Hint: "give that user the privilege of an administrator at the BMC, or record another one with `bareyard machine bmc set`"}
	case !refusedLogin(first):
		return "", &machine.Error{Code: machine.Unavailable, Message: discreet(m, first).Error(), Hint: checkHint(first)}
	}
	if s.Next != "" {
		switch second := e.Accounts.Check(ctx, s.target(m, s.Next)); {
		case second == nil, errors.Is(second, ipmi.ErrForbidden):
			if err := e.Vault.Promote(ctx, m.ID, s.Next); err != nil {
				return "", err
			}
			return fmt.Sprintf("the BMC of %s takes user %s and the new password of a change that was cut short: it is the one on record now", m.Name, machine.CleanText(s.Username)), nil
		case refusedLogin(second):
			return "", &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("BMC of %s: user %s: %v", m.Name, machine.CleanText(s.Username), errNeither), Hint: rotateHint(errNeither)}
		default:
			return "", &machine.Error{Code: machine.Unavailable, Message: discreet(m, second).Error(), Hint: checkHint(second)}
		}
	}
	return "", &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("user %s: %v", machine.CleanText(s.Username), discreet(m, first)),
		Hint: "record what the BMC has with `bareyard machine bmc set`; until then nothing logs in to it"}
}

func checkHint(err error) string {
	switch {
	case errors.Is(err, ipmi.ErrLocked):
		return "wait until the BMC's lock-out is over, and check once: each login meanwhile may begin it anew"
	case errors.Is(err, ipmi.ErrUntrusted):
		return "nothing was sent; look at its certificate with `bareyard machine bmc trust`"
	case errors.Is(err, ipmi.ErrBusy):
		return "the password was not looked at: try again in a minute"
	}
	return "the password was not looked at: is the BMC on its network?"
}
