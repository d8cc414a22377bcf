package ipmi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// logEvents adds n events to a board.
func logEvents(b *bmctest.Board, n int) {
	for i := range n {
		b.Log(ipmi.Event{At: time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC), Severity: ipmi.Critical, Sensor: "PSU2", Kind: "power supply", Message: fmt.Sprintf("Power supply failure %d", i)})
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	body := func(t *testing.T, w *world) {
		c := quick()
		page, err := c.Events(long(t), w.target, "")
		must(t, err)
		if w.name == "ipmi_sim" {
			if len(page.Events) != 3 || page.Events[0].Severity != ipmi.Critical || page.Events[0].Kind != "power supply" || !page.Events[0].At.IsZero() { // its clock is not set
				t.Errorf("page = %+v", page)
			}
			again, err := c.Events(long(t), w.target, page.Cursor)
			must(t, err)
			if len(again.Events) != 0 || again.Cursor != page.Cursor || again.Reset {
				t.Errorf("again = %+v", again)
			}
			must(t, c.ClearEvents(long(t), w.target))
			again, err = c.Events(long(t), w.target, page.Cursor)
			must(t, err)
			if !again.Reset {
				t.Errorf("after it was cleared: %+v", again)
			}
			return
		}
		if len(page.Events) != 3 || page.Reset || page.More {
			t.Fatalf("page = %+v", page)
		}
		e := page.Events[0]
		if e.ID != "1" || e.Severity != ipmi.Critical || e.Kind != "power supply" || e.Message == "" || !e.At.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) || e.Cleared {
			t.Errorf("event = %+v", e)
		}
		again, err := c.Events(long(t), w.target, page.Cursor)
		must(t, err)
		if len(again.Events) != 0 || again.Cursor != page.Cursor || again.Reset {
			t.Errorf("nothing new: %+v", again)
		}
		w.board.Log(ipmi.Event{At: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Severity: ipmi.Critical, Sensor: "PSU2", Kind: "power supply", Message: "Power supply failure", Cleared: true})
		again, err = c.Events(long(t), w.target, page.Cursor)
		must(t, err)
		if len(again.Events) != 1 || !again.Events[0].Cleared || again.Events[0].Severity != ipmi.OK || again.Events[0].ID != "4" {
			t.Errorf("one new: %+v", again)
		}
		if n := len(w.board.Events()); n != 4 {
			t.Fatalf("%d events are left in the log: reading must not clear it", n)
		}
		// It is cleared, and gets as many events as before: the IDs are the same, the events are not.
		w.board.Clear()
		w.board.Log(ipmi.Event{At: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), Severity: ipmi.Warning, Sensor: "CPU1 Temp", Kind: "temperature", Message: "Upper Non-critical - going high"})
		for range 4 {
			logEvents(w.board, 1)
		}
		reset, err := c.Events(long(t), w.target, again.Cursor)
		must(t, err)
		if !reset.Reset || len(reset.Events) != 5 {
			t.Errorf("after it was cleared by somebody: %+v", reset)
		}
		must(t, c.ClearEvents(long(t), w.target))
		if n := len(w.board.Events()); n != 0 {
			t.Errorf("%d events after ClearEvents", n)
		}
		empty, err := c.Events(long(t), w.target, reset.Cursor)
		must(t, err)
		if !empty.Reset || len(empty.Events) != 0 {
			t.Errorf("empty: %+v", empty)
		}
		for _, wrong := range []string{"nonsense", "sel:99999:0", "redfish:0", "sel:0:"} {
			if _, err := c.Events(long(t), w.target, wrong); err != nil {
				t.Errorf("cursor %q: %v", wrong, err)
			}
		}
	}
	three := func(w *world) { logEvents(w.board, 3) }
	for _, name := range []string{"IPMI", "ipmi_sim"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(t, newWorld(t, name, three))
		})
	}
	vendors(t, func(t *testing.T, w *world) { three(w); body(t, w) })
	t.Run("more than a page", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.board.Capacity(1200)
			logEvents(w.board, 1100)
			w.faults.Set(func(f *bmctest.Fault) { f.FullLog = true })
			c, seen, cursor := quick(), 0, ""
			for {
				page, err := c.Events(long(t), w.target, cursor)
				must(t, err)
				for _, e := range page.Events {
					if seen++; e.ID != fmt.Sprint(seen) {
						t.Fatalf("event %s comes as number %d", e.ID, seen)
					}
				}
				if !page.Full {
					t.Error("it does not say that the log overflowed")
				}
				if cursor = page.Cursor; !page.More {
					break
				}
			}
			if seen != 1100 {
				t.Errorf("%d events, want 1100", seen)
			}
		}, "IPMI", "Redfish")
	})
	t.Run("a BMC that logs passwords", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			w.board.Log(ipmi.Event{Severity: ipmi.OK, Message: "PATCH {\"Password\":\"" + password + "\"}"})
			page, err := quick().Events(long(t), w.target, "")
			must(t, err)
			if len(page.Events) != 1 || strings.Contains(page.Events[0].Message, password) {
				t.Errorf("page = %+v", page)
			}
		})
	})
	t.Run("odd types", func(t *testing.T) {
		redfish(t, bmctest.Fault{OddTypes: true}, func(t *testing.T, w *world) {
			logEvents(w.board, 3)
			page, err := quick().Events(long(t), w.target, "")
			must(t, err)
			if len(page.Events) != 3 || page.Events[2].ID != "3" {
				t.Errorf("page = %+v", page)
			}
		})
	})
}
