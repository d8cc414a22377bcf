package provisioner_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

const pollPeriod = time.Minute

// ward is a yard whose machines have real (simulated) BMCs, and the poller that reads them.
type ward struct {
	*yard
	*ipmi.Poller
	boards map[string]*bmctest.Board // by machine ID
	faults map[string]*bmctest.Faults
	power  map[string]*bmctest.Memory
}

func newWard(t *testing.T, protocols ...string) (*ward, []machine.Machine) {
	w := &ward{yard: newYard(t), boards: map[string]*bmctest.Board{}, faults: map[string]*bmctest.Faults{}, power: map[string]*bmctest.Memory{}}
	w.Doctor = w.db
	w.Poller = &ipmi.Poller{Controller: &ipmi.Controller{}, Period: pollPeriod, Reach: w.ReachBMC}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	var all []machine.Machine
	for i, protocol := range protocols {
		board, faults, memory := bmctest.NewBoard(), &bmctest.Faults{}, bmctest.NewMemory(bmctest.Identity{Serial: fmt.Sprint(i)})
		var sim interface {
			Listen() (string, error)
			Run(context.Context) error
			Target() ipmi.Target
		} = &bmctest.IPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: memory, Board: board, Faults: faults}
		if protocol == ipmi.Redfish {
			sim = &bmctest.Redfish{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: memory, Board: board, Faults: faults}
		}
		_, err := sim.Listen()
		w.must(err)
		running.Go(func() { _ = sim.Run(ctx) })
		m := w.addMachine(i + 1)
		_, err = w.db.Conn.Exec(ctx, `UPDATE machine SET bmc = bmc || jsonb_build_object('protocol', $2::text, 'address', $3::text) WHERE id = $1`, m.ID, protocol, sim.Target().Address)
		w.must(err)
		m, err = w.db.Machine(ctx, m.ID)
		w.must(err)
		w.boards[m.ID], w.faults[m.ID], w.power[m.ID] = board, faults, memory
		w.must(memory.SetPower(ctx, ipmi.OpOn))
		all = append(all, m)
	}
	return w, all
}

// poll reads a machine's BMC once and keeps what it says.
func (w *ward) poll(m machine.Machine) provisioner.Health {
	w.t.Helper()
	h, err := w.db.Health(w.t.Context(), m.ID)
	w.must(err)
	p, asked := w.Once(w.t.Context(), ipmi.PollTarget{Key: m.ID, Cursor: h.Cursor, Events: true, Inventory: true})
	if !asked {
		w.t.Fatal("the BMC was left alone")
	}
	w.must(w.Polled(w.t.Context(), pollPeriod, p))
	h, err = w.db.Health(w.t.Context(), m.ID)
	w.must(err)
	return h
}

// TestHealthIsKept: what a BMC's sensors and its event log say becomes the machine's health and our events, by both protocols; a host
// that is off is not ill because its fans stand still, and a log that is older than our record is history.
func TestHealthIsKept(t *testing.T) {
	for _, protocol := range []string{ipmi.IPMI, ipmi.Redfish} {
		t.Run(protocol, func(t *testing.T) {
			w, all := newWard(t, protocol)
			m := all[0]
			board := w.boards[m.ID]
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			board.Log(ipmi.Event{At: at, Severity: ipmi.Critical, Sensor: "PSU2", Kind: "power supply", Message: "of a year ago"})
			if h := w.poll(m); h.Overall != ipmi.OK || h.Power != ipmi.On || h.Open != 0 || len(h.Readings) != 8 || h.At.IsZero() {
				t.Errorf("a healthy machine: %+v", h)
			}
			if got := w.events(m.ID, "bmc.log"); !strings.Contains(got, "1 critical of the first 1") || w.events(m.ID, "bmc.event") != "" {
				t.Errorf("history is told as %q, %q", got, w.events(m.ID, "bmc.event"))
			}
			b, err := w.db.BMC(t.Context(), m.ID)
			w.must(err)
			if b.Inventory == nil || len(b.Inventory.Firmware) == 0 {
				t.Fatalf("inventory = %+v", b.Inventory)
			}

			board.Set(bmctest.Sensor{Name: "FAN1", Kind: ipmi.Fan, Value: 0, State: ipmi.Critical})
			if h := w.poll(m); h.Overall != ipmi.Critical || h.Sensors != ipmi.Critical {
				t.Errorf("with a fan that stands still: %+v", h)
			}
			w.poll(m)
			if got := w.events(m.ID, "bmc.health"); got != "FAN1 is critical: 0 RPM" {
				t.Errorf("the fan is told as %q", got)
			}
			w.must(w.power[m.ID].SetPower(t.Context(), ipmi.OpOff))
			if h := w.poll(m); h.Overall == ipmi.Critical || h.Power != ipmi.Off {
				t.Errorf("off, with a fan that stands still: %+v", h)
			}
			w.must(w.power[m.ID].SetPower(t.Context(), ipmi.OpOn))
			board.Set(bmctest.Sensor{Name: "FAN1", Kind: ipmi.Fan, Value: 5400, State: ipmi.OK})

			board.Log(ipmi.Event{At: at.Add(time.Hour), Severity: ipmi.Critical, Sensor: "PSU2", Kind: "power supply", Message: "failure detected"})
			if h := w.poll(m); h.Overall != ipmi.Critical || h.Sensors != ipmi.OK || h.Open != 1 {
				t.Errorf("with a critical entry: %+v", h)
			}
			if got := w.events(m.ID, "bmc.event"); strings.Count(got, "critical in the BMC's event log") != 1 {
				t.Errorf("the entry is told as %q", got)
			}
			n, err := w.db.Acknowledge(t.Context(), m.ID)
			w.must(err)
			if h := w.poll(m); n != 1 || h.Overall != ipmi.OK || h.Open != 0 {
				t.Errorf("%d acknowledged, then %+v", n, h)
			}
			log, err := w.db.LogEntries(t.Context(), m.ID, 10)
			w.must(err)
			if len(log) != 2 || !log[0].Acknowledged || !log[1].Acknowledged || !log[0].At.Equal(at.Add(time.Hour)) {
				t.Errorf("log = %+v", log)
			}
			if protocol == ipmi.Redfish {
				board.Flash(ipmi.Firmware{ID: "BIOS", Name: "BIOS", Version: "2.8"})
				w.poll(m)
				if got := w.events(m.ID, "bmc.firmware"); !strings.Contains(got, "is now 2.8, was 2.7") {
					t.Errorf("new firmware is told as %q", got)
				}
			}
		})
	}
}

// TestLogThatWasEmpty: only what stands in a log when it is first read to its end is history; what comes to one that was empty, or was cleared, is told.
func TestLogThatWasEmpty(t *testing.T) {
	for _, protocol := range []string{ipmi.IPMI, ipmi.Redfish} {
		t.Run(protocol, func(t *testing.T) {
			w, all := newWard(t, protocol)
			m := all[0]
			board := w.boards[m.ID]
			critical := ipmi.Event{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Severity: ipmi.Critical, Sensor: "PSU2", Kind: "power supply", Message: "failure detected"}
			w.poll(m)
			board.Log(critical)
			if h := w.poll(m); h.Open != 1 || h.Overall != ipmi.Critical || strings.Count(w.events(m.ID, "bmc.event"), "critical in the") != 1 {
				t.Errorf("the first entry of an empty log: %d open, %s", h.Open, w.events(m.ID, "bmc.event"))
			}
			_, err := w.db.Acknowledge(t.Context(), m.ID)
			w.must(err)
			board.Clear()
			w.poll(m)
			critical.At = critical.At.Add(time.Hour)
			board.Log(critical)
			if h := w.poll(m); h.Open != 1 || strings.Count(w.events(m.ID, "bmc.event"), "critical in the") != 2 {
				t.Errorf("the first entry of a cleared log: %d open, %s", h.Open, w.events(m.ID, "bmc.event"))
			}
		})
	}
	t.Run("read in parts", func(t *testing.T) {
		w, all := newWard(t, ipmi.Redfish)
		m := all[0]
		page := func(from, to string, more bool) provisioner.Health {
			t.Helper()
			w.must(w.Polled(t.Context(), pollPeriod, ipmi.Poll{Key: m.ID, At: time.Now(), From: from, Logged: true,
				Events: ipmi.EventPage{Cursor: to, More: more, Events: []ipmi.Event{{ID: to, Severity: ipmi.Critical, Sensor: "S" + to, Kind: "fan", Message: "failed"}}}}))
			h, err := w.db.Health(t.Context(), m.ID)
			w.must(err)
			return h
		}
		if h := page("", "1", true); h.Open != 0 {
			t.Errorf("the first part: %d open", h.Open)
		}
		if h := page("1", "2", false); h.Open != 0 {
			t.Errorf("the rest: %d open", h.Open)
		}
		if h := page("2", "3", false); h.Open != 1 {
			t.Errorf("what is new: %d open", h.Open)
		}
	})
}

// TestOddText: what a BMC writes into its texts costs no poll: the database refuses NUL, and terminals obey what is left.
func TestOddText(t *testing.T) {
	for _, protocol := range []string{ipmi.IPMI, ipmi.Redfish} {
		t.Run(protocol, func(t *testing.T) {
			w, all := newWard(t, protocol)
			m := all[0]
			if protocol == ipmi.IPMI { // with Redfish a name is a path, too
				w.boards[m.ID].Set(bmctest.Sensor{Name: "FAN\x00\x1b9", Kind: ipmi.Fan, Value: 5000, State: ipmi.OK})
			}
			w.boards[m.ID].Flash(ipmi.Firmware{ID: "NIC", Name: "N\x00IC", Version: "1\x00.2"})
			w.boards[m.ID].Log(ipmi.Event{Severity: ipmi.Critical, Sensor: "P\x00SU2", Kind: "power supply", Message: "failure\x00 \x1b[2Jdetected"})
			h := w.poll(m)
			if h.Error != "" || h.At.IsZero() || protocol == ipmi.IPMI && !slices.ContainsFunc(h.Readings, func(r ipmi.Reading) bool { return r.Name == "FAN9" }) {
				t.Errorf("%+v", h)
			}
			if log, err := w.db.LogEntries(t.Context(), m.ID, 10); err != nil || len(log) != 1 || strings.ContainsAny(log[0].Message+log[0].Sensor+log[0].Kind, "\x00\x1b") {
				t.Errorf("log %+v, %v", log, err)
			}
		})
	}
}

// TestSilentBMC: a BMC that does not answer keeps its last readings, is told of once, left alone longer and longer, and told of again when
// it answers. One that refuses the password is told of at once.
func TestSilentBMC(t *testing.T) {
	w, all := newWard(t, ipmi.Redfish, ipmi.Redfish)
	m, locked := all[0], all[1]
	w.poll(m)
	w.faults[m.ID].Set(func(f *bmctest.Fault) { f.SessionsFull, f.NoBasic, f.RetryHint = true, true, "3600" })
	for range 4 {
		h := w.poll(m)
		if h.Overall != ipmi.OK || len(h.Readings) == 0 || h.Error == "" || h.Silent.IsZero() || strings.Contains(h.Error, "secret") {
			t.Errorf("silent: %+v", h)
		}
	}
	if got := w.events(m.ID, "bmc.silent"); strings.Count(got, "cannot be read") != 1 {
		t.Errorf("told as %q", got)
	}
	var pause time.Duration
	w.must(w.db.Conn.QueryRow(t.Context(), `SELECT due - now() FROM bmc_health WHERE machine_id = $1`, m.ID).Scan(&pause))
	if pause < 15*pollPeriod || pause > 17*pollPeriod {
		t.Errorf("left alone for %s after four failures", pause)
	}
	w.faults[m.ID].Set(func(f *bmctest.Fault) { *f = bmctest.Fault{} })
	w.Poller.Controller = &ipmi.Controller{} // another server, which was not told to wait for an hour
	if h := w.poll(m); h.Error != "" || !h.Silent.IsZero() || h.Failed != 0 {
		t.Errorf("it answers: %+v", h)
	}
	if got := w.events(m.ID, "bmc.answers"); strings.Count(got, "is read again") != 1 {
		t.Errorf("told as %q", got)
	}

	w.must(w.db.Replace(t.Context(), locked.ID, "admin", "not this one"))
	w.poll(locked)
	if got := w.events(locked.ID, "bmc.silent"); !strings.Contains(got, "credentials refused") {
		t.Errorf("a refused password is told as %q", got)
	}
}

// TestPollsAreShared: of two servers one claims each BMC, and a machine that a job is at work on is left alone by both.
func TestPollsAreShared(t *testing.T) {
	w, all := newWard(t, ipmi.IPMI, ipmi.IPMI, ipmi.Redfish)
	first, err := w.db.DuePolls(t.Context(), pollPeriod)
	w.must(err)
	second, err := w.db.DuePolls(t.Context(), pollPeriod)
	w.must(err)
	if len(first) != len(all) || len(second) != 0 || !first[0].Inventory {
		t.Errorf("the first server claims %+v, the second %+v", first, second)
	}
	_, err = w.db.Conn.Exec(t.Context(), `UPDATE bmc_health SET due = now() - interval '1 s'`) // the first server died, and a period went by
	w.must(err)
	if third, err := w.db.DuePolls(t.Context(), pollPeriod); err != nil || len(third) != len(all) {
		t.Errorf("after a period: %+v, %v", third, err)
	}
	_, err = w.Place(t.Context(), w.request(), "")
	w.must(err)
	busy := 0
	for _, m := range all {
		m, err := w.db.Machine(t.Context(), m.ID)
		w.must(err)
		_, asked := w.Once(t.Context(), ipmi.PollTarget{Key: m.ID, Events: true})
		if asked == (m.JobID != "") {
			t.Errorf("%s with job %q: asked %v", m.Name, m.JobID, asked)
		}
		if m.JobID != "" {
			busy++
		}
	}
	if busy != 1 {
		t.Errorf("%d machines have a job: the test shows nothing", busy)
	}
}
