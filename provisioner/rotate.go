package provisioner

import (
	"context"
	"errors"
	"fmt"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Rotate gives a machine's BMC a new random password. The old one is kept until the new one was seen to work, so that whoever
// dies in the middle loses neither; a change that was cut short is brought to an end by the next call.
func (e *Engine) Rotate(ctx context.Context, machineID string) error {
	m, err := e.idle(ctx, machineID, "its password is rotated")
	if err != nil {
		return err
	}
	if err := e.rotate(ctx, m); err != nil {
		e.noteFault(ctx, m, "bmc.rotate", "password not changed: %v", err)
		return &machine.Error{Code: machine.Unavailable, Message: err.Error(), Hint: rotateHint(err)}
	}
	return nil
}

func rotateHint(err error) string {
	switch {
	case errors.Is(err, errNeither):
		return "find out which password holds and record it with `bareyard machine bmc set`"
	case errors.Is(err, ipmi.ErrCredentials):
		return "record the password that the BMC has with `bareyard machine bmc set`"
	case errors.Is(err, ipmi.ErrUnsupported), errors.Is(err, ipmi.ErrPassword):
		return "change it at the BMC, and record it with `bareyard machine bmc set`"
	}
	return "the old password is kept beside the new one; rotate again when the BMC answers"
}

// errNeither means that no password on record logs in. Both are kept.
var errNeither = errors.New("neither the password on record nor the one that it was being changed to is taken; both are kept")

// rotate is Rotate without a look at what else happens to the machine.
func (e *Engine) rotate(ctx context.Context, m machine.Machine) error {
	if e.Accounts == nil {
		return discreet(m, fmt.Errorf("change password: %w", ipmi.ErrUnsupported))
	}
	s, err := e.Vault.Secrets(ctx, m.ID)
	if err != nil {
		return fmt.Errorf("read BMC password: %w", err)
	}
	cutShort := s.Next != ""
	if cutShort { // did the BMC take it?
		err := e.Accounts.Check(ctx, s.target(m, s.Next))
		if err == nil {
			return e.Vault.Promote(ctx, m.ID, s.Next)
		}
		if errors.Is(err, ipmi.ErrForbidden) { // it logged in
			return e.Vault.Promote(ctx, m.ID, s.Next)
		}
		if !errors.Is(err, ipmi.ErrCredentials) {
			return discreet(m, err)
		}
	}
	next, err := e.Vault.Propose(ctx, m.ID, ipmi.NewPassword())
	if err != nil {
		return fmt.Errorf("keep new BMC password: %w", err)
	}
	err = e.Accounts.SetPassword(ctx, s.target(m, s.Current), s.Username, next)
	switch {
	case err == nil: // a login with it worked
		return e.Vault.Promote(ctx, m.ID, next)
	case errors.Is(err, ipmi.ErrPassword): // nothing was changed
		return errors.Join(discreet(m, err), e.Vault.Withdraw(ctx, m.ID, next))
	case ctx.Err() != nil:
		return discreet(m, err)
	case refusedLogin(err) && cutShort: // nor does the other one
		return fmt.Errorf("BMC of %s: %w", m.Name, errNeither)
	}
	return e.settle(ctx, m, s, next, err)
}

// refusedLogin reports whether a BMC refused the password, and not one request of a session that the password had opened.
func refusedLogin(err error) bool {
	return errors.Is(err, ipmi.ErrCredentials) && !errors.Is(err, ipmi.ErrForbidden)
}

// settle finds out which password holds after a change that failed: what the BMC said of it counts for nothing, a login does. It
// logs in at most twice.
func (e *Engine) settle(ctx context.Context, m machine.Machine, s Secrets, next string, failure error) error {
	if !refusedLogin(failure) {
		old := e.Accounts.Check(ctx, s.target(m, s.Current))
		if old == nil || errors.Is(old, ipmi.ErrForbidden) {
			return errors.Join(discreet(m, failure), e.Vault.Withdraw(ctx, m.ID, next))
		}
		if !refusedLogin(old) {
			return discreet(m, failure)
		}
	}
	switch err := e.Accounts.Check(ctx, s.target(m, next)); {
	case err == nil, errors.Is(err, ipmi.ErrForbidden):
		return e.Vault.Promote(ctx, m.ID, next)
	case refusedLogin(err):
		return fmt.Errorf("BMC of %s: %w", m.Name, errNeither)
	}
	return discreet(m, failure)
}

// SetCredentials records what an operator says that the BMC's user and password are; unless unchecked, it is recorded only after
// it logged in. An empty user keeps the one on record.
func (e *Engine) SetCredentials(ctx context.Context, machineID, username, password string, unchecked bool) error {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return err
	}
	if password == "" {
		return &machine.Error{Code: machine.Invalid, Field: "password", Message: "the password is empty", Hint: "give the one that the BMC has"}
	}
	s, err := e.Vault.Secrets(ctx, m.ID)
	if err != nil {
		return err
	}
	if username == "" {
		username = s.Username
	}
	s.Username = username
	if !unchecked && e.Accounts != nil {
		if err := e.Accounts.Check(ctx, s.target(m, password)); err != nil {
			return &machine.Error{Code: machine.Unavailable, Message: discreet(m, err).Error(),
				Hint: "nothing was changed; correct it, or record it as it is with --unchecked"}
		}
	}
	return e.Vault.Replace(ctx, m.ID, username, password)
}

// idle returns a machine that no job works on.
func (e *Engine) idle(ctx context.Context, machineID, doing string) (machine.Machine, error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return m, err
	}
	if m.JobID != "" {
		return m, &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("a job is under way on machine %s", m.Name), Hint: "wait for it to end before " + doing}
	}
	return m, nil
}

// noteFault appends an event about a machine. What cannot be appended is logged.
func (e *Engine) noteFault(ctx context.Context, m machine.Machine, kind, format string, a ...any) {
	err := e.Store.OnMachine(context.WithoutCancel(ctx), m.ID, func(w *Work) error {
		w.note(kind, format, a...)
		return nil
	})
	if err != nil {
		e.log().Error("event lost", "machine", m.Name, "kind", kind, "text", fmt.Sprintf(format, a...), "err", err)
	}
}
