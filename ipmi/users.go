package ipmi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

// Privilege is what a user of a BMC may do.
type Privilege string

// Privileges.
const (
	PrivilegeNone     Privilege = "none"
	PrivilegeReadOnly Privilege = "read-only" // IPMI: callback or user
	PrivilegeOperator Privilege = "operator"
	PrivilegeAdmin    Privilege = "administrator"
	PrivilegeOther    Privilege = "other" // OEM, or a role of the vendor's own
)

// User is an account of a BMC.
type User struct {
	ID        string // IPMI: the user number; Redfish: the account's Id
	Name      string
	Enabled   bool
	Locked    bool // Redfish tells, IPMI does not
	Privilege Privilege
	Role      string // as the BMC words it
}

// account is a user, and what its BMC needs to change it.
type account struct {
	User
	number uint8             // IPMI
	path   string            // Redfish
	extra  map[string]string // what else a baseline compares
}

// accountKeeper is a session with a BMC whose accounts can be changed.
type accountKeeper interface {
	conn
	accounts(ctx context.Context) ([]account, error)
	setPassword(ctx context.Context, a account, password string) error
	setEnabled(ctx context.Context, a account, enabled bool) error
	// admits says before anything is sent whether the BMC can take a password.
	admits(ctx context.Context, password string) error
}

// Users lists the accounts that have a name or may log in.
func (c *Controller) Users(ctx context.Context, t Target) ([]User, error) {
	var users []User
	err := c.read(ctx, t, "list users", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() error {
			users = nil
			return on(ctx, l, func(k accountKeeper) error {
				list, err := k.accounts(ctx)
				for _, a := range list {
					users = append(users, a.User)
				}
				return err
			})
		})
	})
	if err != nil {
		return nil, err
	}
	return users, nil
}

func find(ctx context.Context, k accountKeeper, name string) (account, error) {
	list, err := k.accounts(ctx)
	if err != nil {
		return account{}, err
	}
	for _, a := range list {
		if a.Name == name {
			return a, nil
		}
	}
	return account{}, failf(ErrUnsupported, "it has no such account")
}

// SetPassword gives the account called name a new password and returns nil only when a login of its own with the new password
// worked. Until then keep both: the caller stores the new one before the call and forgets the old one after it.
//
// When the new password does not log in, the old one of t.Username is put back in the session that is still open:
// ErrLied then means that the BMC took the new one, does not honour it, and the old one works again. ErrPassword means that the BMC
// cannot have such a password, or refused it: the old one holds. Any other error leaves open which of the two holds; Check tells.
//
// The password of another account than t.Username cannot be put back.
func (c *Controller) SetPassword(ctx context.Context, t Target, name, password string) error {
	const doing = "set password"
	if err := possible(t, password); err != nil {
		return t.on(doing, err)
	}
	return c.operate(ctx, t, doing, func(ctx context.Context, l *link) error {
		as := t
		as.Username, as.Password = name, password
		return on(ctx, l, func(k accountKeeper) error {
			if err := k.admits(ctx, password); err != nil {
				return err
			}
			a, err := find(ctx, k, name)
			if err != nil {
				return err
			}
			if !a.Enabled {
				return failf(ErrUnsupported, "the account is disabled: whether it takes the password cannot be seen")
			}
			if err := k.setPassword(ctx, a, password); err != nil {
				return err
			}
			err = l.trial(ctx, as)
			if err == nil {
				l.b.off.forget(as.credentials()) // it may have been tried before it was set
			}
			if err == nil || !isAny(err, ErrCredentials, ErrLocked) {
				return loginsAside(err)
			}
			l.b.known.quirk(fmt.Sprintf("took a password of %d bytes and did not honour it", len(password)))
			if name != t.Username {
				return failf(ErrLied, "the new password does not log in")
			}
			if k.setPassword(context.WithoutCancel(ctx), a, t.Password) != nil || l.trial(context.WithoutCancel(ctx), t) != nil {
				return failf(ErrLied, "the new password does not log in, and the old one could not be put back for certain")
			}
			return failf(ErrLied, "the new password does not log in; the old one was put back and does")
		})
	})
}

// possible refuses a password that no BMC takes whole, before anything is sent.
func possible(t Target, password string) error {
	switch {
	case password == "":
		return failf(ErrPassword, "it is empty")
	case (t.Protocol == IPMI || t.IPMIAddress != "") && len(password) > maxPassword:
		return failf(ErrPassword, "%d bytes; IPMI takes at most %d", len(password), maxPassword)
	}
	for _, b := range []byte(password) {
		if b < ' ' || b == 0x7f {
			return failf(ErrPassword, "it holds a control character")
		}
	}
	return nil
}

// trial logs in once as t, in a session of its own beside the one that is open, and out again. It waits for a BMC that is busy, for
// that is no failed login.
func (l *link) trial(ctx context.Context, t Target) error {
	ctx, cancel := l.c.within(ctx)
	defer cancel()
	for failed := 1; ; failed++ {
		aside := &bmc{}
		aside.known.k.CipherSuite, aside.looked = l.b.known.suite(), true
		conn, err := (&link{c: l.c, t: t, b: aside}).dial(ctx)
		if err == nil {
			conn.close(ctx)
			return nil
		}
		if !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnreachable) || !l.c.pause(ctx, failed, err) {
			return err
		}
	}
}

// loginsAside keeps the failed login of a trial from being held against the credentials of the session.
func loginsAside(err error) error {
	if f, ok := err.(*failure); ok {
		aside := *f
		aside.login = false
		return &aside
	}
	return err
}

// EnableUser lets the account called name log in, or stops it, and looks that it is so. It refuses to stop t.Username.
func (c *Controller) EnableUser(ctx context.Context, t Target, name string, enabled bool) error {
	doing := "disable user"
	if enabled {
		doing = "enable user"
	}
	if !enabled && name == t.Username {
		return t.on(doing, failf(ErrUnsupported, "it is the account that this program uses"))
	}
	return c.operate(ctx, t, doing, func(ctx context.Context, l *link) error {
		return l.again(ctx, func() error {
			return on(ctx, l, func(k accountKeeper) error {
				a, err := find(ctx, k, name)
				if err != nil || a.Enabled == enabled {
					return err
				}
				if err := k.setEnabled(ctx, a, enabled); err != nil {
					return err
				}
				if a, err = find(ctx, k, name); err == nil && a.Enabled != enabled {
					return failf(ErrLied, "it still reads the other way")
				}
				return err
			})
		})
	})
}

// NewPassword makes a password that every BMC known to us takes whole: 16 characters, letters of both cases, digits and a
// sign that needs no quoting.
func NewPassword() string {
	const lower, upper, digits = "abcdefghijkmnopqrstuvwxyz", "ABCDEFGHJKLMNPQRSTUVWXYZ", "23456789"
	for {
		out := make([]byte, 15)
		seed := make([]byte, 4*len(out))
		_, _ = rand.Read(seed) // never fails
		for i := range out {
			all := lower + upper + digits
			n := uint32(seed[4*i]) | uint32(seed[4*i+1])<<8 | uint32(seed[4*i+2])<<16 | uint32(seed[4*i+3])<<24
			out[i] = all[n%uint32(len(all))]
		}
		text := string(out[:8]) + "-" + string(out[8:])
		if strings.ContainsAny(text, lower) && strings.ContainsAny(text, upper) && strings.ContainsAny(text, digits) {
			return text
		}
	}
}
