package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/linuxedge"
	"github.com/bareyard/bareyard/provisioner"
)

// crasher is a yard whose server can be told to kill itself.
type crasher struct {
	*yard
	starts  int            // how often it had been started when it was armed
	crashes int            // seen so far
	written map[string]int // images, by machine, before this round
	began   time.Time
}

func newCrasher(t *testing.T, suffix string, machines ...MachineConfig) *crasher {
	t.Helper()
	return &crasher{yard: newYard(t, suffix, nil, machines...), written: map[string]int{}, began: time.Now()}
}

// arm makes the server kill itself at the n-th transition that it commits from now on: the transition is in the database, and
// nothing that comes after it has happened, not even the answer to whoever asked for it. Then again after every further ones,
// unless that is 0. An n of 0 disarms it.
func (c *crasher) arm(n, every int) {
	c.t.Helper()
	c.starts = c.Status().Server.Starts
	path := filepath.Join(c.cfg.Dir, crashFile)
	if n == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.t.Fatal(err)
		}
		return
	}
	c.must(os.WriteFile(path+".new", fmt.Appendf(nil, "%d %d", n, every), 0o600))
	c.must(os.Rename(path+".new", path))
}

// crashed reports whether the server has killed itself since it was armed.
func (c *crasher) crashed() bool {
	n := c.Status().Server.Starts - c.starts
	c.crashes += n
	return n > 0
}

// reinstall asks for a reinstall once. Unlike the other requests it cannot be repeated blindly: a repetition after the end is
// another reinstall, so whoever got no answer looks first.
func (c *crasher) reinstall(o machine.Order) {
	c.t.Helper()
	insist(c.yard, func(ctx context.Context) (int, error) {
		jobs, err := c.client.Jobs(ctx, o.ID, "")
		if err != nil || slices.ContainsFunc(jobs, func(j machine.Job) bool { return j.Kind == machine.ReinstallJob }) {
			return 0, err
		}
		_, err = c.client.Reinstall(ctx, o.ID, "tiny", "host", false)
		return 0, err
	})
}

func (c *crasher) release(o machine.Order) {
	c.t.Helper()
	insist(c.yard, func(ctx context.Context) (machine.Order, error) { return c.client.Act(ctx, o.ID, "release") })
}

// TestCrashAtEveryTransition kills the server at each transition that it commits between order and active, then between
// reinstall and active, then between release and the machine's return to stock. Each round kills it once in each of the three,
// at the transition of the round's number, until a round comes through alive: then there is no transition left. Whatever the
// moment, the job ends right, the customer pays for one order, and nothing is stuck. Two labs share the work.
func TestCrashAtEveryTransition(t *testing.T) {
	t.Parallel()
	for lane := range 2 {
		t.Run([]string{"odd", "even"}[lane], func(t *testing.T) {
			t.Parallel()
			c := newCrasher(t, "k"+string(rune('a'+lane)), MachineConfig{}, MachineConfig{BMC: Redfish})
			var lasts [3]int // the last transition at which each part crashed
			var done [3]bool
			for n := lane + 1; done != [3]bool{true, true, true}; n += 2 {
				if n > 80 {
					t.Fatalf("the server still finds transitions to crash at: %v", lasts)
				}
				c.round(n, &lasts, &done)
			}
			t.Logf("last transitions of order, reinstall and release: %v; %d crashes in %s", lasts, c.crashes, time.Since(c.began).Round(time.Second))
			if lasts[0] < 20 || lasts[1] < 20 || lasts[2] < 10 {
				t.Errorf("crashed at %v transitions only: the server does not crash where it should", lasts)
			}
		})
	}
}

// round is the life of one order, with a crash at the n-th transition of each part that is not done yet.
func (c *crasher) round(n int, lasts *[3]int, done *[3]bool) {
	c.t.Helper()
	key := fmt.Sprintf("round-%d", n)
	var o machine.Order
	for part, do := range []func(){
		func() { o = c.place(key); o = c.settled(o.ID, machine.OrderActive, machine.Active) },
		func() { c.reinstall(o); c.settled(o.ID, machine.OrderActive, machine.Active) },
		func() { c.release(o); o = c.settled(o.ID, machine.OrderEnded, machine.Available) },
	} {
		at := n
		if done[part] {
			at = 0
		}
		c.arm(at, 0)
		do()
		if at == 0 {
			continue
		}
		if c.crashed() {
			lasts[part] = n
		} else {
			done[part] = true
		}
	}
	c.audit(key, o)
}

// TestCrashAgainAndAgain lets the server live for a few transitions only, whatever it does, while two orders are delivered,
// reinstalled and released side by side.
func TestCrashAgainAndAgain(t *testing.T) {
	t.Parallel()
	const each = 10 // a start alone may take half of them: to look again at actions whose end the queue did not hear of
	c := newCrasher(t, "kc", MachineConfig{}, MachineConfig{BMC: Redfish})
	c.arm(each, each)
	keys := []string{"a", "b"}
	orders := make([]machine.Order, len(keys))
	for i, key := range keys {
		orders[i] = c.place(key)
	}
	all := func(want machine.OrderState, state machine.State) {
		t.Helper()
		for i := range orders {
			orders[i] = c.settled(orders[i].ID, want, state)
		}
	}
	all(machine.OrderActive, machine.Active)
	for i := range orders {
		c.reinstall(orders[i])
	}
	all(machine.OrderActive, machine.Active)
	for i := range orders {
		c.release(orders[i])
	}
	all(machine.OrderEnded, machine.Available)
	c.crashed()
	c.arm(0, 0)
	for i, key := range keys {
		c.audit(key, orders[i])
	}
	t.Logf("%d crashes in %s", c.crashes, time.Since(c.began).Round(time.Second))
	if c.crashes < 10 {
		t.Errorf("%d crashes only", c.crashes)
	}
}

// TestCrashWhileMoving kills the server around the moment at which a machine fails its order: it is quarantined and cut off,
// and the order gets another machine.
func TestCrashWhileMoving(t *testing.T) {
	t.Parallel()
	c := newCrasher(t, "kd", MachineConfig{Name: "bad", Cards: 2, BMC: Redfish}, MachineConfig{Name: "good", Cards: 2})
	bad := c.Simulated("bad")
	bad.Trouble(func(x *Trouble) { x.LostCards = 1 })
	class := bad.Class
	moved := 0
	for n := 21; n <= 29; n++ {
		key := fmt.Sprintf("round-%d", n)
		c.arm(n, 0)
		o := insist(c.yard, func(ctx context.Context) (machine.Order, error) {
			r := request()
			r.Class = class
			return c.client.Place(ctx, r, key)
		})
		o = c.settled(o.ID, machine.OrderActive, machine.Active)
		m := c.machine("bad")
		if len(o.Tried) != 1 || o.Tried[0] != m.ID || m.State != machine.Quarantined || !strings.Contains(m.Reason, "1 of 2") || m.OrderID != "" || m.Public {
			t.Fatalf("round %d: order tried %v; bad is %s: %s", n, o.Tried, m.State, m.Reason)
		}
		if c.crashed() {
			moved++
		}
		c.until("the bad machine is cut off", yardPatience, func() bool {
			on, _ := bad.memory.Power(t.Context())
			return !on && c.sql(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 0
		})
		if got := c.edge(); len(got) != 1 || !strings.Contains(got[0], o.MachineID) {
			t.Errorf("round %d: the edge carries %v", n, got)
		}
		if got := c.sql(`SELECT count(*) FROM charge WHERE order_id = $1`, o.ID); got != 1 {
			t.Errorf("round %d: %d charges", n, got)
		}
		// The bad one first, so that it is the next to be sold again.
		insist(c.yard, func(ctx context.Context) (machine.Machine, error) {
			return c.client.Move(ctx, "bad", "return", "checked")
		})
		c.until("the bad machine is back", yardPatience, func() bool { return c.machine("bad").State == machine.Available })
		c.release(o)
		c.settled(o.ID, machine.OrderEnded, machine.Available)
	}
	if moved < 7 {
		t.Errorf("the server crashed in %d rounds only", moved)
	}
}

// audit holds an order that was placed with key, reinstalled and released against what must be true whatever happened meanwhile.
func (c *crasher) audit(key string, o machine.Order) {
	t := c.t
	t.Helper()
	for what, check := range map[string]struct {
		want  int
		query string
		arg   any
	}{
		"orders for the key":              {1, `SELECT count(*) FROM orders WHERE idem_key = $1`, key},
		"charges":                         {1, `SELECT count(*) FROM charge WHERE order_id = $1`, o.ID},
		"minor units charged":             {int(o.Price), `SELECT coalesce(sum(amount), 0) FROM charge WHERE order_id = $1`, o.ID},
		"its address in cool-down":        {1, `SELECT count(*) FROM address WHERE addr = $1 AND order_id IS NULL AND free_at > now()`, o.Address},
		"times it had an address":         {1, `SELECT count(*) FROM assignment WHERE order_id = $1 AND NOT upper_inf(during)`, o.ID},
		"addresses that it holds":         {0, `SELECT count(*) FROM assignment WHERE order_id = $1 AND upper_inf(during)`, o.ID},
		"its jobs that succeeded":         {3, `SELECT count(*) FROM job WHERE order_id = $1 AND state = 'succeeded'`, o.ID},
		"its jobs that did anything else": {0, `SELECT count(*) FROM job WHERE order_id = $1 AND state <> 'succeeded'`, o.ID},
	} {
		if got := c.sql(check.query, check.arg); got != check.want {
			t.Errorf("%s: %s: %d, want %d", key, what, got, check.want)
		}
	}
	// The queue marks an action as done a moment after what it did is to be seen.
	c.until("the queue is empty", yardPatience, func() bool { return c.sql(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 0 })

	m := c.machine(o.MachineID)
	s := c.Simulated(m.Name)
	if on, _ := s.memory.Power(t.Context()); on || s.Dirty() || m.OrderID != "" || m.Public {
		t.Errorf("%s: %s is on: %v, has a customer's data: %v, is held by %q, public: %v", key, m.Name, on, s.Dirty(), m.OrderID, m.Public)
	}
	if got := c.edge(); len(got) != 0 {
		t.Errorf("%s: the edge carries %v", key, got)
	}
	// No crash of the server costs an attempt: agents wait for it.
	attempts := c.sql(`SELECT sum(attempt) FROM job WHERE order_id = $1 AND kind <> 'reclaim'`, o.ID)
	if writes := s.Writes() - c.written[m.Name]; attempts != 2 || writes != 2 {
		t.Errorf("%s: %d images written in %d attempts, want 2 in 2", key, writes, attempts)
	}
	c.written[m.Name] = s.Writes()
	c.replay(m, o)
	if t.Failed() {
		c.history(o.ID)
		t.FailNow()
	}
}

// edge lists what the edge carries.
func (y *yard) edge() []string {
	y.t.Helper()
	e, err := linuxedge.New(linuxedge.Config{Netns: y.Netns(Edge), Uplink: "up0", Downlink: "down0"})
	y.must(err)
	ports, err := e.Read(y.t.Context())
	y.must(err)
	var list []string
	for _, p := range ports {
		list = append(list, fmt.Sprint(p.Machine, p.Addrs))
	}
	return list
}

// replay takes the log of events through the transition functions: each event must be legal where it stands, the end must be
// what the rows say, and each attempt must have taken the steps of its plan in their order, none twice.
func (y *yard) replay(m machine.Machine, o machine.Order) {
	t := y.t
	t.Helper()
	y.replayMachine(m)
	events := y.events(o.ID, "")
	order := machine.OrderPlaced
	for _, e := range events {
		if name, ok := strings.CutPrefix(e.Kind, "order."); ok && slices.Contains(machine.OrderEvents(), machine.OrderEvent(name)) {
			next, err := machine.NextOrder(order, machine.OrderEvent(name))
			if err != nil {
				t.Errorf("event %d: %v", e.ID, err)
			}
			order = next
		}
	}
	if order != o.State {
		t.Errorf("order %s is %s, its events say %s", o.ID, o.State, order)
	}
	jobs := insist(y, func(ctx context.Context) ([]machine.Job, error) { return y.client.Jobs(ctx, o.ID, "") })
	for _, j := range jobs {
		y.replayJob(j, events)
	}
}

// replayMachine is the part of replay that is about the machine.
func (y *yard) replayMachine(m machine.Machine) {
	t := y.t
	t.Helper()
	state := machine.Available // as enrolled
	for _, e := range y.events("", m.ID) {
		if name, ok := strings.CutPrefix(e.Kind, "machine."); ok && slices.Contains(machine.Events(), machine.Event(name)) && machine.Event(name) != machine.Enroll {
			next, err := machine.Next(state, machine.Event(name))
			if err != nil {
				t.Errorf("event %d: %v", e.ID, err)
			}
			state = next
		}
	}
	if state != m.State {
		t.Errorf("machine %s is %s, its events say %s", m.Name, m.State, state)
	}
}

func (y *yard) replayJob(j machine.Job, events []provisioner.Event) {
	t := y.t
	t.Helper()
	state, attempt := machine.JobRunning, 1
	plan := machine.Plan(j.Kind)
	for _, e := range events {
		name, ok := strings.CutPrefix(e.Kind, "job.")
		if e.JobID != j.ID || !ok || !slices.Contains(machine.JobEvents(), machine.JobEvent(name)) {
			continue
		}
		next, err := machine.NextJob(state, machine.JobEvent(name))
		if err != nil {
			t.Errorf("event %d: %v", e.ID, err)
		}
		state = next
		if e.Attempt != attempt {
			t.Errorf("event %d is of attempt %d, want %d", e.ID, e.Attempt, attempt)
		}
		switch machine.JobEvent(name) {
		case machine.JobAdvance, machine.JobSucceed:
			if len(plan) == 0 || plan[0].Name != e.Step {
				t.Fatalf("event %d: step %s is done out of turn, left of the plan: %v", e.ID, e.Step, plan)
			}
			plan = plan[1:]
		case machine.JobRetry:
			attempt, plan = attempt+1, machine.Plan(j.Kind)
		case machine.JobReboot:
			plan = machine.Plan(j.Kind)
			plan = plan[slices.IndexFunc(plan, func(s machine.Step) bool { return s.Name == machine.StepPowerOff }):]
		}
	}
	if state != j.State || state == machine.JobSucceeded && len(plan) != 0 {
		t.Errorf("job %s is %s, its events say %s, left of the plan: %v", j.ID, j.State, state, plan)
	}
}
