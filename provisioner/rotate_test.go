package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// account is a BMC's account whose password can be changed, and a server that dies at a point of the change. What the real
// Controller makes of real BMCs' faults is in ipmi; what a death leaves behind, no real part can show.
type account struct {
	password string
	refuses  error // what SetPassword answers without doing it
	silent   bool  // nothing is answered
	lies     bool  // SetPassword says that it was not done, and it was
	breaks   bool  // what it set logs nobody in, nor does the old one
	forbids  bool  // who logs in may not read the power state
	dies     string
	failures int // logins that were refused
}

// death is how a killed server ends a call.
type death struct{ at string }

func (a *account) die(at string) {
	if a.dies == at {
		a.dies = ""
		panic(death{at})
	}
}

func (a *account) login(t ipmi.Target) error {
	switch {
	case a.silent:
		return fmt.Errorf("BMC of %s at %s: check: %w", t.Name, t.Address, ipmi.ErrUnreachable)
	case t.Password != a.password:
		a.failures++
		return fmt.Errorf("BMC of %s at %s: check: %w", t.Name, t.Address, ipmi.ErrCredentials)
	}
	return nil
}

func (a *account) Check(_ context.Context, t ipmi.Target) error {
	a.die("before the look")
	err := a.login(t)
	if err == nil && a.forbids {
		err = fmt.Errorf("BMC of %s at %s: check: %w", t.Name, t.Address, errors.Join(ipmi.ErrCredentials, ipmi.ErrForbidden))
	}
	a.die("after the look")
	return err
}

func (a *account) SetPassword(_ context.Context, t ipmi.Target, _, password string) error {
	a.die("before the change")
	if err := a.login(t); err != nil {
		return err
	}
	if a.refuses != nil {
		return fmt.Errorf("BMC of %s at %s: set password: %w", t.Name, t.Address, a.refuses)
	}
	a.password = password
	if a.breaks {
		a.password = "nobody knows"
	}
	if a.lies {
		return fmt.Errorf("BMC of %s at %s: set password: %w", t.Name, t.Address, ipmi.ErrLied)
	}
	a.die("after the change")
	if err := a.login(ipmi.Target{Password: password}); err != nil {
		return err
	}
	a.die("after the test")
	return nil
}

// dyingVault dies right before or after a commit.
type dyingVault struct {
	provisioner.Vault
	*account
}

func (v dyingVault) Propose(ctx context.Context, id, password string) (string, error) {
	v.die("before it is kept")
	p, err := v.Vault.Propose(ctx, id, password)
	v.die("after it is kept")
	return p, err
}

func (v dyingVault) Promote(ctx context.Context, id, password string) error {
	v.die("before the old one is forgotten")
	err := v.Vault.Promote(ctx, id, password)
	v.die("after the old one is forgotten")
	return err
}

// rotates calls Rotate as one life of a server, and reports where it was killed.
func (y *yard) rotates(id string) (killed string, err error) {
	defer func() {
		if p := recover(); p != nil {
			d, ok := p.(death)
			if !ok {
				panic(p)
			}
			killed = d.at
		}
	}()
	return "", y.Rotate(y.t.Context(), id)
}

// TestRotateCrash kills the server between any two steps of a change: at each moment a password on record logs in, and the next
// life brings the change to an end.
func TestRotateCrash(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	for _, at := range []string{"before it is kept", "after it is kept", "before the change", "after the change", "after the test",
		"before the old one is forgotten", "after the old one is forgotten"} {
		t.Run(at, func(t *testing.T) {
			s, err := y.db.Secrets(t.Context(), m.ID)
			y.must(err)
			a := &account{password: s.Current, dies: at}
			y.Accounts, y.Vault = a, dyingVault{y.db, a}
			if killed, _ := y.rotates(m.ID); killed != at {
				t.Fatalf("killed at %q", killed)
			}
			left, err := y.db.Secrets(t.Context(), m.ID)
			y.must(err)
			if left.Current != a.password && left.Next != a.password {
				t.Fatal("no password on record logs in")
			}
			// What a job does meanwhile works with whichever holds.
			y.Engine.Power = (*gate)(a)
			y.must(y.FencePower(t.Context(), m))
			y.Engine.Power = y

			before := a.password
			if killed, err := y.rotates(m.ID); err != nil || killed != "" {
				t.Fatal(err, killed)
			}
			now, err := y.db.Secrets(t.Context(), m.ID)
			y.must(err)
			if now.Next != "" || now.Current != a.password || now.Current == s.Current {
				t.Errorf("the change did not come to an end: next %q, holds %v, changed %v", now.Next, now.Current == a.password, now.Current != s.Current)
			}
			if at == "after the change" && now.Current != before {
				t.Error("a password that was in force already was changed again")
			}
			if a.failures > 2 {
				t.Errorf("%d logins were refused on the way: near to a lock-out", a.failures)
			}
		})
	}
}

// TestTwoPasswordsOnRecord: while two passwords are on record and the BMC takes neither, no account is locked by asking again; the second is tried
// only where the first did not log in.
func TestTwoPasswordsOnRecord(t *testing.T) {
	for _, protocol := range []string{ipmi.IPMI, ipmi.Redfish} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m, s := y.addSimulated(1, protocol, "")
			ctx := t.Context()
			s.faults.Set(func(f *bmctest.Fault) { f.LockAfter = 3 })
			y.must(y.db.Replace(ctx, m.ID, "admin", "Neither-one-1"))
			_, err := y.db.Propose(ctx, m.ID, "Neither-two-2")
			y.must(err)
			for range 4 {
				if err := y.FencePower(ctx, m); !errors.Is(err, ipmi.ErrCredentials) {
					t.Fatal(err)
				}
			}
			if err := (&ipmi.Controller{}).Check(ctx, s.target); err != nil {
				t.Fatalf("the right password, afterwards: %v", err)
			}
			// What an older server left half done is brought to its end by whoever has the password that works.
			y.must(y.db.Replace(ctx, m.ID, "admin", "Neither-one-1"))
			_, err = y.db.Propose(ctx, m.ID, "Secret-pass-1")
			y.must(err)
			for range 4 {
				y.must(y.FencePower(ctx, m))
			}
			f := &forbidding{}
			y.Engine.Power = f
			if err := y.FencePower(ctx, m); !errors.Is(err, ipmi.ErrForbidden) || f.asked != 1 {
				t.Errorf("one request refused: %v, asked %d times", err, f.asked)
			}
		})
	}
}

// forbidding is BMCs that log everybody in and let nobody do anything.
type forbidding struct {
	gate
	asked int
}

func (f *forbidding) SetPower(context.Context, ipmi.Target, ipmi.Op) error {
	f.asked++
	return errors.Join(ipmi.ErrCredentials, ipmi.ErrForbidden)
}

// gate is a BMC's power behind its account.
type gate account

func (g *gate) Power(_ context.Context, t ipmi.Target) (ipmi.Power, error) {
	return ipmi.Off, (*account)(g).login(t)
}
func (g *gate) SetPower(_ context.Context, t ipmi.Target, _ ipmi.Op) error {
	return (*account)(g).login(t)
}
func (g *gate) SetNextBoot(context.Context, ipmi.Target, ipmi.Device, bool) error { return nil }
func (g *gate) BootFrom(context.Context, ipmi.Target, ipmi.Device, bool) error    { return nil }

// TestRotateRefused: whatever the BMC makes of a change, the password that holds is on record, and the error names the machine
// and no address.
func TestRotateRefused(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	for name, c := range map[string]struct {
		account account
		text    string
		pending bool
	}{
		"the BMC takes no passwords":         {account{password: "secret", refuses: ipmi.ErrUnsupported}, "unsupported", false},
		"not this one":                       {account{password: "secret", refuses: ipmi.ErrPassword}, "password not possible", false},
		"took it and went back":              {account{password: "secret", refuses: ipmi.ErrLied}, "accepted but not done", false},
		"busy":                               {account{password: "secret", refuses: ipmi.ErrBusy}, "busy", false},
		"silent":                             {account{password: "secret", silent: true}, "unreachable", true},
		"somebody has changed it at the BMC": {account{password: "another"}, "neither the password on record", true},
	} {
		t.Run(name, func(t *testing.T) {
			a := c.account
			y.Accounts, y.Vault = &a, y.db
			_, err := y.rotates(m.ID)
			var me *machine.Error
			if !errors.As(err, &me) || me.Code != machine.Unavailable || !strings.Contains(me.Message, c.text) || !strings.Contains(me.Message, "of n1") || me.Hint == "" {
				t.Errorf("%v", err)
			}
			if err != nil && strings.Contains(err.Error(), "10.78.0.") {
				t.Errorf("the error holds the BMC's address: %v", err)
			}
			s, err := y.db.Secrets(t.Context(), m.ID)
			y.must(err)
			if s.Current != "secret" || (s.Next != "") != c.pending {
				t.Errorf("%+v", s)
			}
			if a.failures > 2 {
				t.Errorf("%d logins were refused", a.failures)
			}
			y.must(y.db.Replace(t.Context(), m.ID, "admin", "secret"))
		})
	}
}

// TestRotateWaits: a password is not changed under a job's feet, and an operator's word about it is tried first.
func TestRotateWaits(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	a := &account{password: "right"}
	y.Accounts = a
	if err := y.SetCredentials(t.Context(), m.ID, "", "wrong", false); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("a wrong password is recorded: %v", err)
	}
	y.must(y.SetCredentials(t.Context(), m.ID, "root", "right", false))
	if s, err := y.db.Secrets(t.Context(), m.ID); err != nil || s.Current != "right" || s.Username != "root" {
		t.Errorf("%+v, %v", s, err)
	}
	y.must(y.SetCredentials(t.Context(), m.ID, "", "unheard of", true))
	if s, err := y.db.Secrets(t.Context(), m.ID); err != nil || s.Current != "unheard of" || s.Username != "root" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := y.Place(t.Context(), y.request(), ""); err != nil {
		t.Fatal(err)
	}
	if err := y.Rotate(t.Context(), m.ID); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("under a job: %v", err)
	}
}
