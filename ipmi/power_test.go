package ipmi_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func TestSetPower(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		on   bool
		op   ipmi.Op
		want ipmi.Power
		ops  []ipmi.Op
	}{
		{"on when off", false, ipmi.OpOn, ipmi.On, []ipmi.Op{ipmi.OpOn}},
		{"on when on", true, ipmi.OpOn, ipmi.On, nil},
		{"off when on", true, ipmi.OpOff, ipmi.Off, []ipmi.Op{ipmi.OpOff}},
		{"off when off", false, ipmi.OpOff, ipmi.Off, nil},
		{"soft when on", true, ipmi.OpSoft, ipmi.Off, []ipmi.Op{ipmi.OpSoft}},
		{"reset when on", true, ipmi.OpReset, ipmi.On, []ipmi.Op{ipmi.OpReset}},
		{"reset when off", false, ipmi.OpReset, ipmi.On, []ipmi.Op{ipmi.OpOn}},
		{"cycle when on", true, ipmi.OpCycle, ipmi.On, []ipmi.Op{ipmi.OpCycle}},
		{"cycle when off", false, ipmi.OpCycle, ipmi.On, []ipmi.Op{ipmi.OpOn}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				w.memory.Force(tt.on)
				c := quick()
				must(t, c.SetPower(long(t), w.target, tt.op))
				got, err := c.Power(long(t), w.target)
				must(t, err)
				if got != tt.want {
					t.Errorf("power = %s, want %s", got, tt.want)
				}
				if w.name == "ipmi_sim" && tt.op == ipmi.OpCycle && tt.on {
					wantOps(t, w, ipmi.OpOff, ipmi.OpOn) // its script knows no cycle
					return
				}
				wantOps(t, w, tt.ops...)
			})
		})
	}
}

// D09: a BMC shows an old power state, or nothing, for a while after a command.
func TestD09(t *testing.T) {
	t.Parallel()
	t.Run("off, lost, off, off, on", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) {
				f.PowerReads = []bmctest.Read{bmctest.ReadOff, bmctest.ReadLost, bmctest.ReadOff, bmctest.ReadOff}
			})
			c := quick()
			c.Answer = 200 * time.Millisecond
			if w.name == "Redfish" {
				c.Answer = 0
			}
			must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
			wantOps(t, w, ipmi.OpOn)
		})
	})
	t.Run("stale", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.memory.Force(true)
			w.faults.Set(func(f *bmctest.Fault) { f.StalePolls = 5 })
			must(t, quick().SetPower(long(t), w.target, ipmi.OpOff))
			wantOps(t, w, ipmi.OpOff)
			if on, _ := w.memory.Power(t.Context()); on {
				t.Error("still on")
			}
		})
	})
	t.Run("cycle that nobody saw off", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.memory.Force(true)
			must(t, quick().SetPower(long(t), w.target, ipmi.OpCycle))
			wantOps(t, w, ipmi.OpCycle)
		}, "IPMI", "Redfish")
	})
	t.Run("slow off", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.memory.Force(true)
			w.faults.Set(func(f *bmctest.Fault) { f.SlowOff = 300 * time.Millisecond })
			must(t, quick().SetPower(long(t), w.target, ipmi.OpOff))
			wantOps(t, w, ipmi.OpOff)
		})
	})
	t.Run("on ignored", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.IgnorePowerOn = true })
			err := quick().SetPower(brief(t, 2*time.Second), w.target, ipmi.OpOn)
			if !errors.Is(err, ipmi.ErrLied) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("err = %v, want ErrLied at the deadline", err)
			}
		})
	})
	t.Run("soft off ignored is not forced", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.memory.Force(true)
			w.faults.Set(func(f *bmctest.Fault) { f.IgnoreSoft = true })
			err := quick().SetPower(brief(t, 2*time.Second), w.target, ipmi.OpSoft)
			if !errors.Is(err, ipmi.ErrLied) {
				t.Errorf("err = %v, want ErrLied", err)
			}
			wantOps(t, w)
		})
	})
	t.Run("unknown is not off", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.Unreachable = true })
			c := quick()
			c.Answer = 100 * time.Millisecond
			p, err := c.Power(long(t), w.target)
			if p != ipmi.Unknown || !errors.Is(err, ipmi.ErrUnreachable) {
				t.Errorf("Power = %s, %v, want unknown, ErrUnreachable", p, err)
			}
			if err := c.SetPower(brief(t, time.Second), w.target, ipmi.OpOff); !errors.Is(err, ipmi.ErrUnreachable) {
				t.Errorf("SetPower off = %v, want ErrUnreachable", err)
			}
			w.faults.Set(func(f *bmctest.Fault) { f.Unreachable = false })
			c.Answer = 0
			must(t, quick().SetPower(long(t), w.target, ipmi.OpOff))
		}, "IPMI", "Redfish")
	})
}

// A cancelled operation ends at once, says so and leaves no session behind.
func TestCancel(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		w.faults.Set(func(f *bmctest.Fault) { f.IgnorePowerOn = true })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
		if err := quick().SetPower(ctx, w.target, ipmi.OpOn); !errors.Is(err, context.Canceled) || errors.Is(err, ipmi.ErrLied) {
			t.Errorf("err = %v, want context.Canceled alone", err)
		}
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		must(t, c.Check(long(t), w.target))
		bad := w.target
		bad.Password = "wrong"
		if err := c.Check(long(t), bad); !errors.Is(err, ipmi.ErrCredentials) {
			t.Errorf("wrong password: %v, want ErrCredentials", err)
		}
		if w.logins != nil && w.logins() != 2 {
			t.Errorf("%d logins for two checks", w.logins())
		}
		bad = w.target
		bad.Username = "nobody"
		if err := c.Check(long(t), bad); !errors.Is(err, ipmi.ErrCredentials) {
			t.Errorf("unknown user: %v, want ErrCredentials", err)
		}
	})
}

func TestLockedOut(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		must(t, c.Check(long(t), w.target))
		w.faults.Set(func(f *bmctest.Fault) { f.LockAfter = 2 })
		bad := w.target
		bad.Password = "wrong"
		for range 2 {
			if err := c.Check(long(t), bad); !errors.Is(err, ipmi.ErrCredentials) {
				t.Fatalf("wrong password: %v, want ErrCredentials", err)
			}
		}
		if err := c.Check(long(t), w.target); !errors.Is(err, ipmi.ErrLocked) {
			t.Errorf("after the lock-out: %v, want ErrLocked", err)
		}
		before := w.logins()
		if err := c.SetPower(brief(t, 2*time.Second), w.target, ipmi.OpOn); !errors.Is(err, ipmi.ErrLocked) {
			t.Errorf("SetPower: %v, want ErrLocked", err)
		}
		if n := w.logins() - before; n != 0 {
			t.Errorf("SetPower tried to log in %d times to a BMC that locks us out", n)
		}
		w.faults.Set(func(f *bmctest.Fault) { f.LockAfter = 0 })
		must(t, c.Check(long(t), w.target)) // an operator's word ends it
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
	}, "IPMI", "Redfish")
}

// Two wrong passwords in turn cost one failed login each, whatever works meanwhile; a change that any server has seen to work, or a check, lets a
// password be sent again.
func TestRefusedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		bad, worse := w.withPassword("wrong-password"), w.withPassword("another-wrong")
		tries := func(what string, want int, targets ...ipmi.Target) {
			t.Helper()
			before := w.logins()
			for _, target := range targets {
				if _, err := c.Power(long(t), target); (err == nil) != (target.Password == password) || err != nil && (!errors.Is(err, ipmi.ErrCredentials) || errors.Is(err, ipmi.ErrForbidden)) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if n := w.logins() - before; n != want {
				t.Errorf("%s: %d logins, want %d", what, n, want)
			}
		}
		tries("in turn", 2, bad, worse, bad, worse, bad, worse)
		tries("beside one that works", 1, w.target, bad, worse)
		bad.Proven = time.Now()
		tries("after a change", 1, bad, bad)
		if err := c.Check(long(t), worse); !errors.Is(err, ipmi.ErrCredentials) {
			t.Errorf("checked: %v", err)
		}
		tries("after a check of the other", 0, bad, worse)
	}, "IPMI", "Redfish")
}

func TestBusy(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		w.faults.Set(func(f *bmctest.Fault) { f.SessionsFull, f.NoBasic = true, true })
		c := quick()
		if _, err := c.Power(long(t), w.target); !errors.Is(err, ipmi.ErrBusy) {
			t.Errorf("Power: %v, want ErrBusy", err)
		}
		time.AfterFunc(100*time.Millisecond, func() { w.faults.Set(func(f *bmctest.Fault) { f.SessionsFull = false }) })
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn)) // which waits for a slot
		if n := w.logins(); n > 2 {
			t.Errorf("%d logins, want no more than the refused Basic one and the one that worked", n)
		}
	}, "IPMI", "Redfish")
}

// Many at once share one session.
func TestOneSessionPerBMC(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		var g sync.WaitGroup
		for range 20 {
			g.Go(func() {
				if _, err := c.Power(long(t), w.target); err != nil {
					t.Error(err)
				}
			})
		}
		g.Go(func() {
			if err := c.SetPower(long(t), w.target, ipmi.OpOn); err != nil {
				t.Error(err)
			}
		})
		g.Wait()
		if w.redfish != nil && w.redfish.MostSessions() != 1 {
			t.Errorf("%d sessions at once", w.redfish.MostSessions())
		}
		if w.ipmi != nil && w.ipmi.MostSessions() != 1 {
			t.Errorf("%d sessions at once", w.ipmi.MostSessions())
		}
	})
}

// Whoever gives up while a session is being opened leaves none behind.
func TestCancelWhileLoggingIn(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		var g sync.WaitGroup
		for i := range 60 {
			g.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*300*time.Microsecond)
				defer cancel()
				_, _ = quick().Power(ctx, w.target)
			})
			if i%4 == 3 { // as many as there are slots
				g.Wait()
			}
		}
		g.Wait()
	}, "IPMI", "Redfish")
}
