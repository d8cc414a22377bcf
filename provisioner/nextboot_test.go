package provisioner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// methods is what a server remembers of the one BMC of a test, by the rules of ipmi.Controller.
type methods struct {
	*yard
	known ipmi.Knowledge
	used  []ipmi.BootMethod
}

var all = []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootPersistent, ipmi.BootOtherMode}

func (b *methods) SetNextBoot(ctx context.Context, t ipmi.Target, d ipmi.Device, uefi bool) error {
	if d == ipmi.DevicePXE {
		best := b.known.Boot
		for _, m := range all {
			if best == "" || b.known.Boot == "" && b.known.Ignored[m] < b.known.Ignored[best] {
				best = m
			}
		}
		b.known.Set = best
		if n := len(b.used); n == 0 || b.used[n-1] != best {
			b.used = append(b.used, best)
		}
	}
	return b.yard.SetNextBoot(ctx, t, d, uefi)
}

func (b *methods) Learn(_ ipmi.Target, k ipmi.Knowledge) { b.known = k }
func (b *methods) Known(ipmi.Target) ipmi.Knowledge      { return b.known }

func (b *methods) BootSeen(_ ipmi.Target, seen bool) {
	ignored := map[ipmi.BootMethod]int{}
	for m, n := range b.known.Ignored {
		ignored[m] = n
	}
	switch {
	case b.known.Set == "":
	case seen:
		b.known.Boot = b.known.Set
		delete(ignored, b.known.Set)
	default:
		ignored[b.known.Set]++
		if b.known.Boot == b.known.Set {
			b.known.Boot = ""
		}
	}
	b.known.Ignored, b.known.Set = ignored, ""
}

// restart makes the yard's server forget all that is not in the database.
func (y *yard) restart() *methods {
	b := &methods{yard: y}
	y.Engine.Power, y.Memory, y.SeenWithin = b, b, time.Minute
	return b
}

func (y *yard) events(machineID, kind string) string {
	y.t.Helper()
	var text string
	y.must(y.db.Conn.QueryRow(y.t.Context(), `SELECT coalesce(string_agg(text, E'\n' ORDER BY id), '') FROM event WHERE machine_id = $1 AND kind = $2`, machineID, kind).Scan(&text))
	return text
}

// TestNextBootIsSeenOnTheWire: a BMC that takes the override and ignores it is found out by the machine's silence, whichever server
// looks; the method by which the machine came is remembered for the next job, and the operator reads which BMC ignores what.
func TestNextBootIsSeenOnTheWire(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	first := y.restart()
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	if j := y.job(o.JobID); j.Step != machine.StepHello || j.Due.Sub(j.StepAt) != time.Minute {
		t.Fatalf("at %s, due after %s", j.Step, j.Due.Sub(j.StepAt))
	}
	y.silence(m.ID)
	y.must(y.Expire(t.Context(), m.ID))
	if j := y.job(o.JobID); j.Step != machine.StepPowerOff || j.Attempt != 1 || j.Boots != 1 {
		t.Fatalf("not seen: at %s, attempt %d, %d boots in vain", j.Step, j.Attempt, j.Boots)
	}
	second := y.restart() // the server that set the next boot is dead
	y.turn(m.ID)
	if fmt.Sprint(first.used, second.used) != "[once] [persistent]" {
		t.Errorf("methods %v, then %v", first.used, second.used)
	}
	if text := y.events(m.ID, "bmc.boot"); !strings.Contains(text, `the BMC of n1 took a next boot by method "once", and the machine was not seen`) {
		t.Errorf("the operator is told: %s", text)
	}

	// Seen, and then slow: it gets its time.
	y.must(y.db.Sighted(t.Context(), m.Hardware.NICs[0].MAC, "DISCOVER pxe"))
	y.silence(m.ID)
	y.must(y.Expire(t.Context(), m.ID))
	if j := y.job(o.JobID); j.Step != machine.StepHello || j.Boots != 1 || j.Due.Sub(j.StepAt) != 15*time.Minute {
		t.Fatalf("seen: at %s, %d boots in vain, due after %s", j.Step, j.Boots, j.Due.Sub(j.StepAt))
	}
	third := y.restart()
	y.bootAgent(m.ID)
	if k, err := y.db.Knowledge(t.Context(), m.ID); err != nil || k.Boot != ipmi.BootPersistent || k.Ignored[ipmi.BootOnce] != 1 || k.Set != "" {
		t.Errorf("remembered: %+v, %v", k, err)
	}
	if text := y.events(m.ID, "bmc.boot"); !strings.Contains(text, `n1 boots from the network by method "persistent", which is remembered; its BMC ignores "once" (1 times)`) {
		t.Errorf("the operator is told: %s", text)
	}
	if len(third.used) != 0 {
		t.Errorf("a hello set the next boot: %v", third.used)
	}

	// What was seen in this boot does not count for the next one.
	y.must(y.Expire(t.Context(), m.ID))
	_, err = y.Cancel(t.Context(), o.ID)
	y.must(err)
	y.turn(m.ID)
	if n := y.machine(m.ID); n.JobID == "" || y.job(n.JobID).Step != machine.StepHello || fmt.Sprint(third.used) != "[persistent]" {
		t.Errorf("the next job boots by %v", third.used)
	}
	if j := y.job(y.machine(m.ID).JobID); j.Due.Sub(j.StepAt) != time.Minute {
		t.Errorf("an old sighting counts: due after %s", j.Due.Sub(j.StepAt))
	}
}

// TestNeverSeen: a machine that comes by no method is given up for good, with a reason that says what to look at, and the order
// moves on.
func TestNeverSeen(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	b := y.restart()
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	for range machine.MaxBoots {
		y.turn(m.ID)
		y.silence(m.ID)
		y.must(y.Expire(t.Context(), m.ID))
	}
	if got := fmt.Sprint(b.used); got != "[once persistent other-mode once]" {
		t.Errorf("methods: %s", got)
	}
	n := y.machine(m.ID)
	if n.State != machine.Maintenance || !strings.Contains(n.Reason, "not seen on the provisioning network after 4 starts") || n.OrderID != "" {
		t.Errorf("machine is %s: %s", n.State, n.Reason)
	}
	if j := y.job(o.JobID); j.State != machine.JobFailed || j.Attempt != 1 {
		t.Errorf("job is %s after %d attempts", j.State, j.Attempt)
	}
}
