package lab

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestBadDays runs the real server into what goes wrong in a data centre, each on machines of a class of their own. What takes
// a minute of silence is begun first and looked at last.
func TestBadDays(t *testing.T) {
	t.Parallel()
	y := newYard(t, "f", func(records []Record) {
		for i := range records {
			if records[i].Machine.Name == "locked" {
				records[i].Password = "not this one"
			}
		}
	},
		// So slow to boot that the agent of the first attempt is back before the agent of the second one says hello.
		MachineConfig{Name: "mute", Class: "mute", BootTime: 11 * time.Second},
		MachineConfig{Name: "cut", Class: "cut", BMC: Redfish, WriteTime: time.Hour},
		MachineConfig{Name: "last", Class: "last"},
		MachineConfig{Name: "carded", Class: "carded", Cards: 2, Absent: 1}, MachineConfig{Name: "carded2", Class: "carded", Cards: 2, BMC: Redfish},
		MachineConfig{Name: "slow", Class: "slow", WriteTime: time.Hour},
		MachineConfig{Name: "locked", Class: "locked"}, MachineConfig{Name: "locked2", Class: "locked"},
		MachineConfig{Name: "clumsy", Class: "clumsy"},
		MachineConfig{Name: "stray", Class: "stray", BMC: Redfish},
	)
	mute, cut := y.Simulated("mute"), y.Simulated("cut")
	mute.Trouble(func(x *Trouble) { x.MuteAt, x.Undead = machine.StepWrite, true })
	muted, severed := y.placeClass("mute"), y.placeClass("cut")
	y.at(severed, machine.StepWrite)
	cut.PowerCut()
	cut.WriteTime = 0 // nothing of it runs: its next life reads it

	t.Run("the last machine is sold once", y.lastMachine)
	t.Run("a card that is gone", y.lostCard)
	t.Run("cancelled while the image is written", y.cancelled)
	t.Run("a BMC that refuses the password", y.refused)
	t.Run("a write that fails", y.failedWrite)
	t.Run("a machine in use boots from the network", y.strayBoot)

	t.Run("a machine that lost its power", func(t *testing.T) {
		y.secondAttempt(t, severed, "no sign of life")
	})
	t.Run("an agent that falls silent and comes back late", func(t *testing.T) {
		y.until("a second attempt", 2*yardPatience, func() bool { return y.job(muted).Attempt == 2 })
		y.at(muted, machine.StepHello)
		ctx, cancel := context.WithTimeout(t.Context(), yardPatience)
		defer cancel()
		if err := mute.Reconnect(ctx); !errors.Is(err, agent.ErrNotWanted) {
			t.Errorf("the late agent ended with %v, want to be told that it is not wanted", err)
		}
		y.secondAttempt(t, muted, "no sign of life")
		if mute.Writes() != 1 {
			t.Errorf("%d images written, want the new attempt's alone", mute.Writes())
		}
		stale := 0
		for _, e := range y.events(muted.ID, "") {
			if e.Kind == "report.stale" && strings.Contains(e.Text, "attempt 1") {
				stale++
			}
		}
		if stale == 0 {
			t.Error("no late report was noted")
		}
		if o := y.order(muted.ID); o.State != machine.OrderActive {
			t.Errorf("the late agent moved the order to %s", o.State)
		}
	})
}

func (y *yard) placeClass(class string) machine.Order {
	y.t.Helper()
	return insist(y, func(ctx context.Context) (machine.Order, error) {
		r := request()
		r.Class = class
		return y.client.Place(ctx, r, "key-"+class)
	})
}

// job returns the newest job of an order.
func (y *yard) job(o machine.Order) machine.Job {
	y.t.Helper()
	jobs := insist(y, func(ctx context.Context) ([]machine.Job, error) { return y.client.Jobs(ctx, o.ID, "") })
	if len(jobs) == 0 {
		y.t.Fatalf("order %s has no job", o.ID)
	}
	return jobs[0]
}

// at waits until the order's job has come to a step.
func (y *yard) at(o machine.Order, step machine.StepName) {
	y.t.Helper()
	y.until("the job at "+string(step), yardPatience, func() bool { return y.job(o).Step == step })
}

// with is the yard in a subtest.
func (y *yard) with(t *testing.T) *yard {
	c := *y
	c.t = t
	return &c
}

func (y *yard) charges(o machine.Order) int {
	y.t.Helper()
	return y.sql(`SELECT count(*) FROM charge WHERE order_id = $1`, o.ID)
}

func (y *yard) lastMachine(t *testing.T) {
	y = y.with(t)
	var wg sync.WaitGroup
	orders, errs := make([]machine.Order, 6), make([]error, 6)
	for i := range orders {
		wg.Go(func() {
			r := request()
			r.Class = "last"
			orders[i], errs[i] = y.client.Place(t.Context(), r, "last-"+string(rune('a'+i)))
		})
	}
	wg.Wait()
	won := ""
	for i, err := range errs {
		switch {
		case err == nil && won == "":
			won = orders[i].ID
		case err == nil:
			t.Errorf("orders %s and %s both got the last machine", won, orders[i].ID)
		case machine.CodeOf(err) != machine.Exhausted || !strings.Contains(err.Error(), "sold out"):
			t.Errorf("a loser is told: %v", err)
		}
	}
	if won == "" {
		t.Fatal("nobody got the last machine")
	}
	y.settled(won, machine.OrderActive, machine.Active)
	if n := y.sql(`SELECT count(*) FROM orders WHERE class = 'last'`); n != 1 {
		t.Errorf("%d orders were written, want the winner's alone", n)
	}
}

func (y *yard) lostCard(t *testing.T) {
	y = y.with(t)
	o := y.placeClass("carded")
	o = y.settled(o.ID, machine.OrderActive, machine.Active)
	y.movedOn(o, "carded", machine.Quarantined, "is missing (1 of 2 cards found)")
	if y.Simulated("carded").Writes() != 0 {
		t.Error("the machine was written to although its card is missing")
	}
}

// movedOn expects that a machine failed the order, is out of stock for a reason, and cut off, and that the order was charged for once.
func (y *yard) movedOn(o machine.Order, name string, state machine.State, reason string) {
	y.t.Helper()
	m := y.machine(name)
	if m.State != state || !strings.Contains(m.Reason, reason) || m.OrderID != "" || m.Public || !slices.Equal(o.Tried, []string{m.ID}) {
		y.t.Errorf("%s is %s (%s), held by %q, public %v; the order tried %v", name, m.State, m.Reason, m.OrderID, m.Public, o.Tried)
	}
	if n := y.charges(o); n != 1 {
		y.t.Errorf("%d charges", n)
	}
	if slices.ContainsFunc(y.edge(), func(s string) bool { return strings.Contains(s, m.ID) }) {
		y.t.Errorf("the edge carries %s", name)
	}
}

func (y *yard) cancelled(t *testing.T) {
	y = y.with(t)
	o := y.placeClass("slow")
	y.at(o, machine.StepWrite)
	slow := y.Simulated("slow")
	if !slow.Dirty() {
		t.Fatal("nothing has been written yet: the test shows nothing")
	}
	_, err := y.client.Act(t.Context(), o.ID, "cancel")
	y.must(err)
	o = y.settled(o.ID, machine.OrderCancelled, machine.Available)
	if slow.Dirty() || slow.Writes() != 0 || y.charges(o) != 0 {
		t.Errorf("customer's data on it: %v, images written: %d, charges: %d", slow.Dirty(), slow.Writes(), y.charges(o))
	}
	if n := y.sql(`SELECT count(*) FROM address WHERE addr = $1 AND order_id IS NULL`, o.Address); n != 1 {
		t.Errorf("address %s is not free", o.Address)
	}
}

func (y *yard) refused(t *testing.T) {
	y = y.with(t)
	o := y.placeClass("locked")
	o = y.settled(o.ID, machine.OrderActive, machine.Active)
	y.movedOn(o, "locked", machine.Maintenance, "power-off")
	if n := y.sql(`SELECT count(*) FROM event WHERE order_id = $1 AND kind = 'job.try'`, o.ID); n != 0 {
		t.Errorf("%d more tries with a password that the BMC refuses: that locks its account", n)
	}
}

func (y *yard) failedWrite(t *testing.T) {
	y = y.with(t)
	clumsy := y.Simulated("clumsy")
	clumsy.Trouble(func(x *Trouble) { x.FailWrites = 1 })
	o := y.placeClass("clumsy")
	y.secondAttempt(t, o, errHalfWay.Error())
	if clumsy.Writes() != 1 {
		t.Errorf("%d images written", clumsy.Writes())
	}
}

// secondAttempt expects that an order comes right in the second attempt, and why the first one failed.
func (y *yard) secondAttempt(t *testing.T, o machine.Order, why string) {
	t.Helper()
	y = y.with(t)
	// A minute of silence, and the next attempt.
	y.until("a second attempt", 2*yardPatience, func() bool { return y.job(o).Attempt == 2 })
	o = y.settled(o.ID, machine.OrderActive, machine.Active)
	j := y.job(o)
	if j.Attempt != 2 || j.State != machine.JobSucceeded || len(o.Tried) != 0 || y.charges(o) != 1 {
		t.Errorf("job %s in attempt %d, order tried %v, charges %d", j.State, j.Attempt, o.Tried, y.charges(o))
	}
	if !slices.ContainsFunc(y.events(o.ID, ""), func(e provisioner.Event) bool { return e.Kind == "job.retry" && strings.Contains(e.Text, why) }) {
		t.Errorf("no event says %q", why)
	}
	y.replayJob(j, y.events(o.ID, ""))
}

func (y *yard) strayBoot(t *testing.T) {
	y = y.with(t)
	o := y.placeClass("stray")
	y.settled(o.ID, machine.OrderActive, machine.Active)
	stray := y.Simulated("stray")
	before := stray.Boots()
	y.must(y.client.Power(t.Context(), o.ID, "cycle"))
	y.until("the machine boots", yardPatience, func() bool { return len(stray.Boots()) > len(before) })
	if got := stray.Boots(); got[len(got)-1] != FromDisk {
		t.Errorf("the customer's machine booted from %s", got[len(got)-1])
	}
	log, err := os.ReadFile(y.serverLog())
	y.must(err)
	if !strings.Contains(string(log), `msg="machine asks what to boot" mac=`+stray.provMAC+` boots=disk`) {
		t.Error("it did not ask the boot server: the test shows nothing")
	}
	if j := y.job(o); j.Kind != machine.ProvisionJob || y.order(o.ID).State != machine.OrderActive {
		t.Errorf("the boot changed something: job %s, order %s", j.Kind, y.order(o.ID).State)
	}
}
