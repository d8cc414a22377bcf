package ipmi_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func wantState(t *testing.T, c ipmi.BIOSChange, err error, want ipmi.BIOSState) {
	t.Helper()
	if err != nil || c.State != want {
		t.Fatalf("change = %+v, %v, want %s", c, err, want)
	}
}

var profile = map[string]any{"SriovEnable": "Disabled", "NumaNodesPerSocket": 4, "ProcTurboMode": "false"}

func TestBIOS(t *testing.T) {
	t.Parallel()
	vendors(t, func(t *testing.T, w *world) {
		c := quick()
		b, err := c.BIOS(long(t), w.target)
		must(t, err)
		if b.Version != "2.7" || b.Attributes["SriovEnable"] != "Enabled" || b.Attributes["NumaNodesPerSocket"] != int64(1) || b.Attributes["ProcTurboMode"] != true || len(b.Pending) != 0 {
			t.Errorf("BIOS = %+v", b)
		}
		if _, ok := b.Attributes["SystemPassword"]; ok {
			t.Error("a password is among the settings")
		}
		change, err := c.CheckBIOS(long(t), w.target, profile)
		wantState(t, change, err, ipmi.BIOSDiffers)
		if len(change.Wrong) != 3 || change.Wrong[0] != (ipmi.Difference{Path: "NumaNodesPerSocket", Was: "1", Is: "4"}) {
			t.Errorf("wrong = %+v", change.Wrong)
		}
		change, err = c.SetBIOS(long(t), w.target, profile)
		wantState(t, change, err, ipmi.BIOSPending)
		change, err = c.SetBIOS(long(t), w.target, profile) // again, by a server that was restarted
		wantState(t, change, err, ipmi.BIOSPending)
		change, err = quick().SetBIOS(long(t), w.target, profile)
		wantState(t, change, err, ipmi.BIOSPending)
		b, err = c.BIOS(long(t), w.target)
		must(t, err)
		if len(b.Pending) != 3 || b.Attributes["SriovEnable"] != "Enabled" {
			t.Errorf("BIOS = %+v", b)
		}
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
		change, err = c.CheckBIOS(long(t), w.target, profile)
		wantState(t, change, err, ipmi.BIOSApplied)
		change, err = c.SetBIOS(long(t), w.target, profile)
		wantState(t, change, err, ipmi.BIOSApplied)
		now := w.board.BIOS()
		if now["SriovEnable"] != "Disabled" || now["NumaNodesPerSocket"] != int64(4) || now["ProcTurboMode"] != false {
			t.Errorf("board = %+v", now)
		}
	})
	t.Run("what cannot be is refused before anything is sent", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			for name, bad := range map[string]map[string]any{
				"NoSuchSetting": {"NoSuchSetting": 1, "SriovEnable": "Disabled"}, "SriovEnable": {"SriovEnable": "Maybe"}, "NumaNodesPerSocket": {"NumaNodesPerSocket": 99},
				"ProcTurboMode": {"ProcTurboMode": "sometimes"}, "SystemPassword": {"SystemPassword": "secret"},
			} {
				_, err := quick().SetBIOS(long(t), w.target, bad)
				if !errors.Is(err, ipmi.ErrUnsupported) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v, want ErrUnsupported that names it", name, err)
				}
			}
			if n := len(w.redfish.IfMatches()); n != 0 {
				t.Errorf("%d PATCHes", n)
			}
		})
	})
	t.Run("dropped at the start", func(t *testing.T) {
		redfish(t, bmctest.Fault{BIOSDropped: true, TaskPlace: "none"}, func(t *testing.T, w *world) {
			c := quick()
			change, err := c.SetBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSPending)
			must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
			change, err = c.CheckBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSFailed)
		})
	})
}

// E13: a task that is completed and failed, and tasks that are hard to find.
func TestE13(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"", "absolute", "none"} {
		for _, gone := range []bool{false, true} {
			name := "task told " + place
			if gone {
				name += ", gone when finished"
			}
			t.Run(name, func(t *testing.T) {
				redfish(t, bmctest.Fault{TaskPlace: place, TaskGone: gone}, func(t *testing.T, w *world) {
					c := quick()
					change, err := c.SetBIOS(long(t), w.target, profile)
					wantState(t, change, err, ipmi.BIOSPending)
					if place != "none" && !strings.HasPrefix(change.Job, "/redfish/v1/") {
						t.Errorf("job = %q", change.Job)
					}
					must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
					change, err = c.CheckBIOS(long(t), w.target, profile)
					wantState(t, change, err, ipmi.BIOSApplied)
				})
			})
		}
		t.Run("completed, 100 %, critical, told "+place, func(t *testing.T) {
			redfish(t, bmctest.Fault{TaskPlace: place, BIOSJobFails: true}, func(t *testing.T, w *world) {
				c := quick()
				change, err := c.SetBIOS(long(t), w.target, profile)
				wantState(t, change, err, ipmi.BIOSPending)
				must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
				change, err = c.CheckBIOS(long(t), w.target, profile)
				wantState(t, change, err, ipmi.BIOSFailed)
				if place != "none" && !strings.Contains(change.Text, "JCP052") {
					t.Errorf("text = %q", change.Text)
				}
			})
		})
	}
	t.Run("gone and failed", func(t *testing.T) {
		redfish(t, bmctest.Fault{BIOSJobFails: true, TaskGone: true}, func(t *testing.T, w *world) {
			c := quick()
			change, err := c.SetBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSPending)
			must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
			change, err = c.CheckBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSFailed)
		})
	})
	t.Run("a job that has to be made", func(t *testing.T) {
		redfish(t, bmctest.Fault{BIOSNeedsJob: true, BIOSJobFails: true}, func(t *testing.T, w *world) {
			c := quick()
			change, err := c.SetBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSPending)
			must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
			change, err = c.CheckBIOS(long(t), w.target, profile)
			wantState(t, change, err, ipmi.BIOSFailed)
		})
	})
}
