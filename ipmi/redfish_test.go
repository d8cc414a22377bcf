package ipmi_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// redfish runs body on a Redfish BMC with some faults.
func redfish(t *testing.T, fault bmctest.Fault, body func(t *testing.T, w *world)) {
	t.Helper()
	worlds(t, func(t *testing.T, w *world) {
		w.faults.Set(func(f *bmctest.Fault) { *f = fault })
		body(t, w)
	}, "Redfish")
}

// wantPXE sets the override, starts the host and looks what it booted.
func wantPXE(t *testing.T, w *world) {
	t.Helper()
	c := quick()
	must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
	must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
	want := bmctest.Boot{Device: ipmi.DevicePXE, Once: true, UEFI: true}
	if s := w.memory.Starts(); len(s) != 1 || s[0] != want {
		t.Errorf("starts = %+v, want %+v", s, want)
	}
}

// E01: some services refuse a PATCH without the ETag of the last GET.
func TestE01(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]bmctest.Fault{
		"header":   {RequireETag: true},
		"body":     {RequireETag: true, ETagInBody: true},
		"none":     {},
		"and mode": {RequireETag: true, Mode: bmctest.ModeRequired},
		"settings": {RequireETag: true, SettingsBoot: true},
	} {
		t.Run(name, func(t *testing.T) { redfish(t, fault, wantPXE) })
	}
	t.Run("no header when none was given", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			wantPXE(t, w)
			if h := w.redfish.IfMatches(); len(h) != 1 || h[0] != "" {
				t.Errorf("If-Match of the PATCHes = %q, want none", h)
			}
		})
	})
	t.Run("412 once", func(t *testing.T) {
		redfish(t, bmctest.Fault{RequireETag: true, StaleETags: 1}, func(t *testing.T, w *world) {
			wantPXE(t, w)
			if h := w.redfish.IfMatches(); len(h) != 2 {
				t.Errorf("If-Match of the PATCHes = %q, want two", h)
			}
		})
	})
	t.Run("412 for ever", func(t *testing.T) {
		redfish(t, bmctest.Fault{RequireETag: true, StaleETags: 100}, func(t *testing.T, w *world) {
			if err := quick().SetNextBoot(long(t), w.target, ipmi.DevicePXE, true); err == nil {
				t.Error("no error")
			}
			if h := w.redfish.IfMatches(); len(h) != 2 {
				t.Errorf("%d PATCHes, want two", len(h))
			}
		})
	})
}

// E03: the mode is read-only on one service and required on another.
func TestE03(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{bmctest.ModeReadOnly, bmctest.ModeRequired} {
		t.Run(mode, func(t *testing.T) {
			redfish(t, bmctest.Fault{Mode: mode}, func(t *testing.T, w *world) {
				wantPXE(t, w)
				c := quick()
				must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
				must(t, c.SetNextBoot(long(t), w.target, ipmi.DeviceNone, true)) // Disabled needs the mode too
				if b := w.memory.NextBoot(); b.Device != ipmi.DeviceNone {
					t.Errorf("override = %+v, want none", b)
				}
			})
		})
	}
	t.Run("differs and cannot be changed", func(t *testing.T) {
		redfish(t, bmctest.Fault{Mode: bmctest.ModeReadOnly}, func(t *testing.T, w *world) {
			if err := quick().SetNextBoot(long(t), w.target, ipmi.DevicePXE, false); err == nil {
				t.Error("an override for BIOS was reported as set on a service that stays at UEFI")
			}
		})
	})
}

// E05: a session that is not closed holds a slot until the BMC is unusable.
func TestE05(t *testing.T) {
	t.Parallel()
	t.Run("token reused", func(t *testing.T) {
		redfish(t, bmctest.Fault{StalePolls: 10}, func(t *testing.T, w *world) {
			must(t, quick().SetPower(long(t), w.target, ipmi.OpOn))
			if n := w.logins(); n != 1 {
				t.Errorf("%d logins for one operation", n)
			}
		})
	})
	t.Run("401 mid-run", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			c := quick()
			must(t, c.InSession(long(t), w.target, func() {
				w.faults.Set(func(f *bmctest.Fault) { f.Unauthorized = 1 })
			}))
			w.faults.Set(func(f *bmctest.Fault) { f.StalePolls, f.Unauthorized = 3, 1 })
			must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
		})
	})
	t.Run("401 for ever", func(t *testing.T) {
		redfish(t, bmctest.Fault{Unauthorized: 1000}, func(t *testing.T, w *world) {
			if err := quick().SetPower(brief(t, 2*time.Second), w.target, ipmi.OpOn); !errors.Is(err, ipmi.ErrCredentials) {
				t.Errorf("err = %v, want ErrCredentials", err)
			}
			if n := w.logins(); n > 2 {
				t.Errorf("%d logins", n)
			}
			w.faults.Set(func(f *bmctest.Fault) { f.Unauthorized = 0 })
		})
	})
	t.Run("context cancelled", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			c := quick()
			ctx, cancel := context.WithCancel(t.Context())
			err := c.InSession(ctx, w.target, cancel)
			must(t, err)
			if _, err := c.Power(ctx, w.target); !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v, want context.Canceled", err)
			}
		})
	})
	t.Run("panic", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			c := quick()
			func() {
				defer func() { _ = recover() }()
				_ = c.InSession(long(t), w.target, func() { panic("boom") })
			}()
			if opened, closed := w.sessions(); opened == 0 || opened != closed {
				t.Errorf("%d opened, %d closed", opened, closed)
			}
			_, err := c.Power(long(t), w.target) // and the BMC is not held for ever
			must(t, err)
		})
	})
	t.Run("slots full: Basic", func(t *testing.T) {
		redfish(t, bmctest.Fault{SessionsFull: true}, func(t *testing.T, w *world) {
			must(t, quick().SetPower(long(t), w.target, ipmi.OpOn))
		})
	})
	t.Run("slots full: wrong password", func(t *testing.T) {
		redfish(t, bmctest.Fault{SessionsFull: true}, func(t *testing.T, w *world) {
			w.target.Password = "wrong"
			if err := quick().SetPower(brief(t, time.Second), w.target, ipmi.OpOn); err == nil {
				t.Error("no error")
			}
			if n := w.logins(); n > 1 {
				t.Errorf("%d failed logins while waiting for a slot", n)
			}
		})
	})
}

// E07: a reset type is missing, or does something else than its name says.
func TestE07(t *testing.T) {
	t.Parallel()
	first := []string{"On", "ForceOff", "ForceRestart", "GracefulShutdown", "PushPowerButton", "Nmi"}
	second := []string{"On", "ForceOff", "GracefulRestart", "GracefulShutdown"}
	for _, tt := range []struct {
		name  string
		fault bmctest.Fault
		op    ipmi.Op
		want  []string
	}{
		{"cycle by restart", bmctest.Fault{ResetTypes: first}, ipmi.OpCycle, []string{"ForceRestart"}},
		{"cycle by off and on", bmctest.Fault{ResetTypes: second}, ipmi.OpCycle, []string{"ForceOff", "On"}},
		{"reset by off and on", bmctest.Fault{ResetTypes: second}, ipmi.OpReset, []string{"ForceOff", "On"}},
		{"soft", bmctest.Fault{ResetTypes: second}, ipmi.OpSoft, []string{"GracefulShutdown"}},
		{"soft by button", bmctest.Fault{ResetTypes: []string{"On", "ForceOff", "PushPowerButton"}}, ipmi.OpSoft, []string{"PushPowerButton"}},
		{"soft is not forced", bmctest.Fault{ResetTypes: []string{"On", "ForceOff"}}, ipmi.OpSoft, nil},
		{"told by ActionInfo", bmctest.Fault{ResetTypes: second, ResetList: "actioninfo"}, ipmi.OpCycle, []string{"ForceOff", "On"}},
		{"not told", bmctest.Fault{ResetTypes: first, ResetList: "none"}, ipmi.OpCycle, []string{"PowerCycle", "ForceRestart"}},
		{"not told, all refused", bmctest.Fault{ResetTypes: second, ResetList: "none"}, ipmi.OpReset, []string{"ForceRestart", "PowerCycle", "ForceOff", "On"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redfish(t, tt.fault, func(t *testing.T, w *world) {
				w.memory.Force(true)
				err := quick().SetPower(long(t), w.target, tt.op)
				if tt.want == nil {
					if !errors.Is(err, ipmi.ErrUnsupported) {
						t.Errorf("err = %v, want ErrUnsupported", err)
					}
				} else {
					must(t, err)
				}
				if got := w.redfish.Resets(); !slices.Equal(got, tt.want) {
					t.Errorf("reset types = %q, want %q", got, tt.want)
				}
			})
		})
	}
	t.Run("204 and nothing happens", func(t *testing.T) {
		redfish(t, bmctest.Fault{IgnorePowerOn: true}, func(t *testing.T, w *world) {
			if err := quick().SetPower(brief(t, time.Second), w.target, ipmi.OpOn); !errors.Is(err, ipmi.ErrLied) {
				t.Errorf("err = %v, want ErrLied", err)
			}
			if got := w.redfish.Resets(); len(got) != 1 {
				t.Errorf("reset types = %q, want one", got)
			}
		})
	})
}

// E09: one field of the wrong type must not make power control fail.
func TestE09(t *testing.T) {
	t.Parallel()
	t.Run("odd types", func(t *testing.T) { redfish(t, bmctest.Fault{OddTypes: true}, wantPXE) })
	t.Run("login page", func(t *testing.T) {
		redfish(t, bmctest.Fault{LoginPage: true}, func(t *testing.T, w *world) {
			p, err := quick().Power(long(t), w.target)
			if p != ipmi.Unknown || !errors.Is(err, ipmi.ErrUnreachable) {
				t.Errorf("Power = %s, %v, want unknown, ErrUnreachable", p, err)
			}
		})
	})
}

// E11: an override that is refused while the host is off, or waits in a settings resource.
func TestE11(t *testing.T) {
	t.Parallel()
	t.Run("refused when off", func(t *testing.T) {
		redfish(t, bmctest.Fault{RefuseBootOff: true}, func(t *testing.T, w *world) {
			c := quick()
			if err := c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true); !errors.Is(err, ipmi.ErrOff) {
				t.Fatalf("err = %v, want ErrOff", err)
			}
			must(t, c.BootFrom(long(t), w.target, ipmi.DevicePXE, true))
			if s := w.memory.Starts(); len(s) != 2 || s[1].Device != ipmi.DevicePXE {
				t.Errorf("starts = %+v, want the second from pxe", s)
			}
			must(t, c.BootFrom(long(t), w.target, ipmi.DevicePXE, true)) // on already
			if s := w.memory.Starts(); len(s) != 3 || s[2].Device != ipmi.DevicePXE {
				t.Errorf("starts = %+v, want the third from pxe", s)
			}
		})
	})
	t.Run("settings resource", func(t *testing.T) { redfish(t, bmctest.Fault{SettingsBoot: true}, wantPXE) })
	t.Run("BIOS settings wait for a job", func(t *testing.T) {
		redfish(t, bmctest.Fault{BIOSNeedsJob: true}, func(t *testing.T, w *world) {
			c := quick()
			change, err := c.SetBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSPending)
			if change.Job == "" {
				t.Error("no job was made")
			}
			must(t, c.SetPower(long(t), w.target, ipmi.OpReset))  // off: On
			change, err = c.CheckBIOS(long(t), w.target, profile) // after the start, not after the PATCH
			wantState(t, change, err, ipmi.BIOSApplied)
		})
	})
	t.Run("taken back in the settings resource", func(t *testing.T) {
		redfish(t, bmctest.Fault{SettingsBoot: true}, func(t *testing.T, w *world) {
			c := quick()
			must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
			w.faults.Set(func(f *bmctest.Fault) { f.DropBoot = true })
			if err := c.SetNextBoot(long(t), w.target, ipmi.DeviceNone, true); !errors.Is(err, ipmi.ErrLied) {
				t.Errorf("not taken back: %v, want ErrLied", err)
			}
			w.faults.Set(func(f *bmctest.Fault) { f.DropBoot = false })
			must(t, c.SetNextBoot(long(t), w.target, ipmi.DeviceNone, true))
		})
	})
	t.Run("restart when off", func(t *testing.T) {
		redfish(t, bmctest.Fault{ResetWhenOff500: true}, func(t *testing.T, w *world) {
			must(t, quick().SetPower(long(t), w.target, ipmi.OpReset))
			wantOps(t, w, ipmi.OpOn)
		})
	})
	t.Run("restart when off and the BMC still says on", func(t *testing.T) {
		redfish(t, bmctest.Fault{ResetWhenOff500: true}, func(t *testing.T, w *world) {
			w.memory.Force(true)
			w.faults.Set(func(f *bmctest.Fault) { f.StalePolls = 3 })
			must(t, quick().SetPower(long(t), w.target, ipmi.OpOff))
			w.faults.Set(func(f *bmctest.Fault) { f.StalePolls = 0 })
			must(t, quick().SetPower(long(t), w.target, ipmi.OpCycle))
			wantOps(t, w, ipmi.OpOff, ipmi.OpOn)
		})
	})
}

func TestCertPin(t *testing.T) {
	redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
		before := w.logins()
		c := quick()
		for _, pin := range []string{"", "00" + w.target.CertPin[2:], "no hex"} {
			bad := w.target
			bad.CertPin = pin
			err := c.Check(long(t), bad)
			if pin == "no hex" {
				if !errors.Is(err, ipmi.ErrUnsupported) {
					t.Errorf("pin %q: %v, want ErrUnsupported", pin, err)
				}
			} else if !errors.Is(err, ipmi.ErrUntrusted) {
				t.Errorf("pin %q: %v, want ErrUntrusted", pin, err)
			}
		}
		if n := w.logins() - before; n != 0 {
			t.Errorf("%d logins over untrusted connections", n)
		}
	})
}
