package ipmi_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// D01: what a BMC says about cipher suites is not what it does, and a wrong password is not a cipher problem.
func TestD01(t *testing.T) {
	t.Parallel()
	t.Run("A: 17 is listed and refused", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.RefuseSuites = []int{17} })
			c := quick()
			must(t, c.Check(long(t), w.target))
			if n := w.logins(); n != 1 {
				t.Errorf("%d attempts to log in, want 1", n)
			}
			refused := w.ipmi.Refusals()
			must(t, c.Check(long(t), w.target))
			if n := w.ipmi.Refusals() - refused; n != 0 {
				t.Errorf("suite 17 was asked for again %d times: the working suite was not remembered", n)
			}
		}, "IPMI")
	})
	t.Run("B: no list, only 17 works", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.NoSuiteList, f.OnlySuite = true, 17 })
			must(t, quick().Check(long(t), w.target))
			if n := w.logins(); n != 1 {
				t.Errorf("%d attempts to log in, want 1", n)
			}
		}, "IPMI")
	})
	t.Run("C: wrong password", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.target.Password = "not-the-password"
			if err := quick().Check(long(t), w.target); !errors.Is(err, ipmi.ErrCredentials) {
				t.Errorf("err = %v, want ErrCredentials", err)
			}
			if w.logins != nil && w.logins() != 1 {
				t.Errorf("%d attempts to log in, want 1", w.logins())
			}
		}, "IPMI", "ipmi_sim")
	})
	t.Run("no suite in common", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.RefuseSuites = []int{3, 17} })
			if err := quick().Check(long(t), w.target); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("err = %v, want ErrUnsupported", err)
			}
		}, "IPMI")
	})
	t.Run("the suite changes under us", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			c := quick()
			must(t, c.Check(long(t), w.target))
			w.faults.Set(func(f *bmctest.Fault) { f.OnlySuite = 3 })
			must(t, c.Check(long(t), w.target))
		}, "IPMI")
	})
}

// A password that IPMI cannot carry is refused before anything is sent.
func TestLongPassword(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		w.target.Password = strings.Repeat("x", 21)
		if err := quick().Check(long(t), w.target); !errors.Is(err, ipmi.ErrCredentials) {
			t.Errorf("err = %v, want ErrCredentials", err)
		}
		if n := w.logins(); n != 0 {
			t.Errorf("%d attempts to log in", n)
		}
	}, "IPMI")
}

func TestOperatorIsEnough(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		w.faults.Set(func(f *bmctest.Fault) { f.OperatorOnly = true })
		c := quick()
		must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
	}, "IPMI")
}

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// D05: boot flags expire 60 s after they were set.
func TestD05(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]bmctest.Fault{
		"BMC that can be told to keep them": {},
		"BMC that cannot":                   {NoBootClearing: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clk := &clock{t: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			m, faults := bmctest.NewMemory(bmctest.Identity{}), &bmctest.Faults{}
			faults.Set(func(f *bmctest.Fault) { *f = fault })
			b := &bmctest.IPMI{Addr: "127.0.0.1:0", User: user, Password: password, Chassis: m, Faults: faults, Now: clk.now}
			serve(t, b)
			c := quick()
			must(t, c.SetNextBoot(long(t), b.Target(), ipmi.DevicePXE, true))
			clk.add(90 * time.Second)
			must(t, c.SetPower(long(t), b.Target(), ipmi.OpOn))
			want := bmctest.Boot{Device: ipmi.DevicePXE, Once: true, UEFI: true}
			if s := m.Starts(); len(s) != 1 || s[0] != want {
				t.Errorf("starts = %+v, want %+v", s, want)
			}
			must(t, c.SetPower(long(t), b.Target(), ipmi.OpCycle))
			if s := m.Starts(); len(s) != 2 || s[1].Device != ipmi.DeviceNone {
				t.Errorf("starts = %+v, want the second without override", s)
			}
		})
	}
}

// D07: "none" must not leave a valid, persistent override of nothing.
func TestD07(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
		if got, want := w.ipmi.BootFlags(), [5]byte{0xa0, 0x04}; got != want {
			t.Errorf("flags = % x, want % x", got, want)
		}
		must(t, c.SetNextBoot(long(t), w.target, ipmi.DeviceNone, true))
		if got := w.ipmi.BootFlags(); got != [5]byte{} {
			t.Errorf("flags = % x, want zeros", got)
		}
	}, "IPMI")
}

func TestNextBoot(t *testing.T) {
	t.Parallel()
	for _, d := range []ipmi.Device{ipmi.DevicePXE, ipmi.DeviceDisk} {
		for _, uefi := range []bool{true, false} {
			name := string(d) + " BIOS"
			if uefi {
				name = string(d) + " UEFI"
			}
			t.Run(name, func(t *testing.T) {
				worlds(t, func(t *testing.T, w *world) {
					c := quick()
					must(t, c.SetNextBoot(long(t), w.target, d, uefi))
					must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
					must(t, c.SetPower(long(t), w.target, ipmi.OpOff))
					must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
					want := bmctest.Boot{Device: d, Once: true, UEFI: uefi && w.bits}
					if s := w.memory.Starts(); len(s) != 2 || s[0] != want || s[1].Device != ipmi.DeviceNone {
						t.Errorf("starts = %+v, want %+v and then none", s, want)
					}
				})
			})
		}
	}
	t.Run("taken back", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			c := quick()
			must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
			must(t, c.SetNextBoot(long(t), w.target, ipmi.DeviceNone, true))
			must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
			if s := w.memory.Starts(); len(s) != 1 || s[0].Device != ipmi.DeviceNone {
				t.Errorf("starts = %+v, want one without override", s)
			}
		})
	})
	t.Run("accepted and not kept", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.faults.Set(func(f *bmctest.Fault) { f.DropBoot = true })
			if err := quick().SetNextBoot(long(t), w.target, ipmi.DevicePXE, true); !errors.Is(err, ipmi.ErrLied) {
				t.Errorf("err = %v, want ErrLied", err)
			}
		})
	})
	t.Run("boot from", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			c := quick()
			must(t, c.BootFrom(long(t), w.target, ipmi.DevicePXE, false)) // off
			must(t, c.BootFrom(long(t), w.target, ipmi.DevicePXE, false)) // on
			s := w.memory.Starts()
			if len(s) != 2 || s[0].Device != ipmi.DevicePXE || s[1].Device != ipmi.DevicePXE {
				t.Errorf("starts = %+v, want two from pxe", s)
			}
		})
	})
}

func TestIPv6(t *testing.T) {
	m := bmctest.NewMemory(bmctest.Identity{})
	for _, s := range []server{
		&bmctest.IPMI{Addr: "[::1]:0", User: user, Password: password, Chassis: m},
		&bmctest.Redfish{Addr: "[::1]:0", TLS: true, User: user, Password: password, Chassis: m},
	} {
		serve(t, s)
		if err := quick().Check(long(t), s.Target()); err != nil {
			t.Error(err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	for _, target := range []ipmi.Target{
		{Protocol: ipmi.IPMI, Address: "127.0.0.1:9", Username: user, Password: password},
		{Protocol: ipmi.Redfish, Address: "http://127.0.0.1:9", Username: user, Password: password},
	} {
		c := &ipmi.Controller{Answer: 100 * time.Millisecond}
		p, err := c.Power(context.Background(), target)
		if p != ipmi.Unknown || !errors.Is(err, ipmi.ErrUnreachable) {
			t.Errorf("%s: %s, %v, want unknown, ErrUnreachable", target, p, err)
		}
		if err := c.Check(context.Background(), target); !errors.Is(err, ipmi.ErrUnreachable) {
			t.Errorf("%s: Check: %v, want ErrUnreachable", target, err)
		}
	}
}
