package lab

import (
	"context"
	"fmt"
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
	armed   int            // the server kills itself after so many transitions; 0 for not
	starts  int            // how often it had been started when it was armed
	crashes int            // seen so far
	written map[string]int // images, by machine, before this round
}

// arm makes the server kill itself, once, at the n-th transition that it commits from now on: the transition is in the
// database, and nothing that comes after it has happened, not even the answer to whoever asked for it. 0 disarms it.
func (c *crasher) arm(n int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), yardPatience)
	defer cancel()
	if n == 0 && c.armed == 0 {
		return
	}
	c.must(c.StopServer(ctx))
	if n > 0 {
		c.must(c.SetServerEnv(fmt.Sprintf("BAREYARD_CRASH_AFTER=%d", n)))
	}
	c.must(c.StartServer(ctx))
	c.must(c.SetServerEnv()) // the starts after this one are without
	c.armed, c.starts = n, c.Status().Server.Starts
	insist(c.yard, func(ctx context.Context) (int, error) { _, err := c.client.Classes(ctx); return 0, err })
}

// crashed reports whether the server has killed itself since it was armed.
func (c *crasher) crashed() bool {
	n := c.Status().Server.Starts - c.starts
	c.crashes += n
	if n > 0 {
		c.armed = 0
	}
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
// reinstall and active, then between release and the machine's return to stock. Each round kills it once in each of the three, at the
// transition of the round's number, until a round comes through all three alive: then there is no transition left. Whatever
// the moment, the job ends right, the customer pays for one order, and nothing is stuck.
func TestCrashAtEveryTransition(t *testing.T) {
	c := &crasher{yard: newYard(t, "k", nil, MachineConfig{}, MachineConfig{BMC: Redfish}), written: map[string]int{}}
	began := time.Now()
	var lasts [3]int // the last transition at which each part crashed
	done := [3]bool{}
	for n := 1; done != [3]bool{true, true, true}; n++ {
		if n > 80 {
			t.Fatalf("after %d rounds the server still finds transitions to crash at: %v", n, lasts)
		}
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
			c.arm(at)
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
		t.Logf("round %d after %s: %d crashes", n, time.Since(began).Round(time.Second), c.crashes)
	}
	t.Logf("transitions: order %d, reinstall %d, release %d; %d crashes in %s", lasts[0], lasts[1], lasts[2], c.crashes, time.Since(began).Round(time.Second))
	if lasts[0] < 20 || lasts[1] < 20 || lasts[2] < 10 {
		t.Errorf("crashed at %v transitions only: the server does not crash where it should", lasts)
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
		}
	}
	if state != j.State || state == machine.JobSucceeded && len(plan) != 0 {
		t.Errorf("job %s is %s, its events say %s, left of the plan: %v", j.ID, j.State, state, plan)
	}
}
