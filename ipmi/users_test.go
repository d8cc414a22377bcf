package ipmi_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// withPassword is a world's target with another password.
func (w *world) withPassword(p string) ipmi.Target {
	t := w.target
	t.Password = p
	return t
}

// D03: passwords of 17 to 20 bytes, longer ones, and ones that need quoting.
func TestD03(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"Test-pass-word-17", "Test-pass-word-20-xx", "Test-pässwörd-18x", "Te'st\"pa$s `x`", "Test-pass-word16", ipmi.NewPassword()} {
		t.Run(next, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				c := quick()
				err := c.SetPassword(long(t), w.target, user, next)
				if w.name == "ipmi_sim" && len(next) > 16 { // OpenIPMI 2.0.33 takes the 20-byte form and keeps something else
					if !errors.Is(err, ipmi.ErrLied) {
						t.Errorf("err = %v, want ErrLied", err)
					}
					must(t, c.Check(long(t), w.target))
					return
				}
				must(t, err)
				must(t, c.Check(long(t), w.withPassword(next)))
				if err := c.Check(long(t), w.target); !errors.Is(err, ipmi.ErrCredentials) {
					t.Errorf("the old password: %v, want ErrCredentials", err)
				}
			})
		})
	}
	for name, next := range map[string]string{"21 bytes": strings.Repeat("x", 21), "11 letters of two bytes": strings.Repeat("ü", 11), "empty": "", "NUL": "Test-pass\x00word", "line": "Test-pass\nword"} {
		t.Run("refused before anything is sent: "+name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				before := w.logins()
				if err := quick().SetPassword(long(t), w.target, user, next); !errors.Is(err, ipmi.ErrPassword) {
					t.Errorf("err = %v, want ErrPassword", err)
				}
				if n := w.logins() - before; n != 0 {
					t.Errorf("%d logins", n)
				}
			}, "IPMI")
		})
	}
	t.Run("too long for this Redfish service", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			for _, next := range []string{strings.Repeat("x", 41), "short"} {
				if err := quick().SetPassword(long(t), w.target, user, next); !errors.Is(err, ipmi.ErrPassword) {
					t.Errorf("err = %v, want ErrPassword", err)
				}
			}
			w.target.IPMIAddress = "192.0.2.1"
			if err := quick().SetPassword(long(t), w.target, user, strings.Repeat("x", 21)); !errors.Is(err, ipmi.ErrPassword) {
				t.Errorf("too long for its IPMI: %v, want ErrPassword", err)
			}
			must(t, quick().Check(long(t), w.target))
		}, "Redfish")
	})
	for name, fault := range map[string]bmctest.Fault{"cut to 16 bytes": {CutPassword: 16}, "accepted and dropped": {DropPassword: true}} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				w.faults.Set(func(f *bmctest.Fault) { *f = fault })
				c := quick()
				err := c.SetPassword(long(t), w.target, user, "Test-pass-word-20-xx")
				if !errors.Is(err, ipmi.ErrLied) || !strings.Contains(err.Error(), "the old one was put back") {
					t.Errorf("err = %v, want ErrLied and the old one put back", err)
				}
				if n := w.logins(); n != 3 { // the session, the new password, the old one again
					t.Errorf("%d logins, want 3", n)
				}
				must(t, c.SetPower(long(t), w.target, ipmi.OpOn)) // the failed trial is not held against the old one
			}, "IPMI", "Redfish")
		})
	}
	t.Run("refused by the BMC", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.RefuseWeak = true })
			err := quick().SetPassword(long(t), w.target, user, canary[:12])
			if !errors.Is(err, ipmi.ErrPassword) {
				t.Errorf("err = %v, want ErrPassword", err)
			}
			noCanary(t, "error", err.Error())
			must(t, quick().Check(long(t), w.target))
		}, "IPMI", "Redfish")
	})
	t.Run("another account", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			must(t, w.addUser("second", "Another-pass", ipmi.PrivilegeOperator))
			must(t, quick().SetPassword(long(t), w.target, "second", "New-pass-word-17x"))
			other := w.withPassword("New-pass-word-17x")
			other.Username = "second"
			must(t, quick().Check(long(t), other))
			if err := quick().SetPassword(long(t), w.target, "nobody", "New-pass-word-17x"); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("no such account: %v, want ErrUnsupported", err)
			}
		}, "IPMI", "Redfish")
	})
	t.Run("the slots are full for a while", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			c := quick()
			w.faults.Set(func(f *bmctest.Fault) { f.NoBasic = true })
			must(t, c.InSession(long(t), w.target, func() {
				w.faults.Set(func(f *bmctest.Fault) { f.SessionsFull = true })
			}))
			w.faults.Set(func(f *bmctest.Fault) { f.SessionsFull = false })
			must(t, c.SetPassword(long(t), w.target, user, "Test-pass-word-17"))
		}, "IPMI", "Redfish")
	})
}

func TestNewPassword(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		p := ipmi.NewPassword()
		if len(p) != 16 || seen[p] {
			t.Fatalf("%q", p)
		}
		seen[p] = true
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		list, err := quick().Users(long(t), w.target)
		must(t, err)
		i := slices.IndexFunc(list, func(u ipmi.User) bool { return u.Name == user })
		if i < 0 || !list[i].Enabled || list[i].Privilege != ipmi.PrivilegeAdmin || list[i].ID == "" {
			t.Fatalf("users = %+v", list)
		}
		if w.addUser == nil {
			return
		}
		must(t, w.addUser("second", "Another-pass", ipmi.PrivilegeReadOnly))
		list, err = quick().Users(long(t), w.target)
		must(t, err)
		if len(list) != 2 || list[1].Name != "second" || list[1].Privilege != ipmi.PrivilegeReadOnly || !list[1].Enabled {
			t.Errorf("users = %+v", list)
		}
	})
}

func TestEnableUser(t *testing.T) {
	t.Parallel()
	t.Run("and again", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			must(t, w.addUser("second", "Another-pass", ipmi.PrivilegeOperator))
			c, other := quick(), w.withPassword("Another-pass")
			other.Username = "second"
			must(t, c.EnableUser(long(t), w.target, "second", false))
			if err := c.Check(long(t), other); !errors.Is(err, ipmi.ErrCredentials) {
				t.Errorf("disabled: %v, want ErrCredentials", err)
			}
			if err := c.SetPassword(long(t), w.target, "second", "Another-pass-2"); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("password of a disabled account: %v, want ErrUnsupported", err)
			}
			must(t, c.EnableUser(long(t), w.target, "second", true))
			must(t, c.Check(long(t), other))
			if err := c.EnableUser(long(t), w.target, user, false); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("our own account: %v, want ErrUnsupported", err)
			}
		}, "IPMI", "Redfish")
	})
	t.Run("accepted and not done", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			must(t, w.addUser("second", "Another-pass", ipmi.PrivilegeOperator))
			w.faults.Set(func(f *bmctest.Fault) { f.DropEnable = true })
			if err := quick().EnableUser(long(t), w.target, "second", false); !errors.Is(err, ipmi.ErrLied) {
				t.Errorf("err = %v, want ErrLied", err)
			}
		}, "IPMI", "Redfish")
	})
}

// Credentials that were refused are not sent again until they change or somebody asks for a check.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c, bad := quick(), w.withPassword("wrong-password")
		for range 3 {
			if _, err := c.Power(long(t), bad); !errors.Is(err, ipmi.ErrCredentials) {
				t.Errorf("Power: %v, want ErrCredentials", err)
			}
			if err := c.SetPower(long(t), bad, ipmi.OpOn); !errors.Is(err, ipmi.ErrCredentials) {
				t.Errorf("SetPower: %v, want ErrCredentials", err)
			}
		}
		if w.logins != nil && w.logins() != 1 {
			t.Errorf("%d logins, want 1", w.logins())
		}
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
		if err := c.Check(long(t), bad); !errors.Is(err, ipmi.ErrCredentials) {
			t.Errorf("Check: %v, want ErrCredentials", err)
		}
	})
}
