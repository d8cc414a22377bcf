package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// squatters are who uses addresses without having them: by address, MAC addresses. That of "" uses all the others; "each" is one of its
// own for each address.
type squatters struct {
	y      *yard
	by     map[string]string
	fail   error
	probed []netip.Prefix
	while  func(addrs []netip.Prefix) // happens while they are probed
}

func (y *yard) squatters(by map[string]string) *squatters {
	s := &squatters{y: y, by: by}
	y.Prober, y.Tasks = s, y.db
	return s
}

func (s *squatters) Probe(_ context.Context, site string, addrs []netip.Prefix) (found []network.Answer, err error) {
	if site != "lab" {
		s.y.t.Errorf("probed at site %q", site)
	}
	if s.while != nil {
		s.while(addrs)
	}
	if s.fail != nil {
		return nil, s.fail
	}
	// What is probed is held by the order, and nobody waits for a probe: other orders go on meanwhile.
	var locked int
	s.y.must(s.y.db.Conn.QueryRow(s.y.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()`).Scan(&locked))
	if locked > 0 {
		s.y.t.Error("a transaction is open while the edge probes")
	}
	for _, p := range addrs {
		s.probed = append(s.probed, p)
		a := network.FirstOf(p).Addr()
		by, used := s.by[a.String()]
		if all, ok := s.by[""]; ok && !used {
			by, used = all, true
		}
		if by == "each" {
			by = fmt.Sprintf("02:00:5e:30:00:%02x", a.AsSlice()[3])
		}
		if used {
			found = append(found, network.Answer{Addr: a, By: by, On: "on down0"})
		}
	}
	return found, nil
}

func (y *yard) told(orderID, kind string) (texts []string) {
	y.t.Helper()
	list, err := y.db.Events(y.t.Context(), provisioner.EventFilter{OrderID: orderID})
	y.must(err)
	for _, e := range list {
		if e.Kind == kind {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// TestI07AddressInUse: an address at which somebody answers is set aside, the operator is told, and the order gets the next one.
func TestI07AddressInUse(t *testing.T) {
	y := newYard(t)
	s := y.squatters(map[string]string{"203.0.113.0": "02:00:5e:20:00:77", "203.0.113.1": ""})
	o := y.active(1, nil)
	if o.Address.String() != "203.0.113.2" || !slices.Equal(o.Addresses, []netip.Prefix{netip.MustParsePrefix("203.0.113.2/32")}) {
		t.Errorf("the order has %s, %v", o.Address, o.Addresses)
	}
	if got := y.carried(o.MachineID); !slices.Equal(got, o.Addresses) {
		t.Errorf("the edge carries %v", got)
	}
	aside := y.addresses(provisioner.AddressFilter{State: provisioner.AddressConflict})
	if len(aside) != 2 || aside["203.0.113.0/32"] == "" || aside["203.0.113.1/32"] == "" {
		t.Errorf("set aside: %v", aside)
	}
	tasks, err := y.db.Tasks(t.Context(), network.TaskOpen)
	y.must(err)
	if len(tasks) != 2 || !strings.Contains(tasks[0].Title, "203.0.113.0 is used by 02:00:5e:20:00:77 on down0") {
		t.Errorf("tasks: %+v", tasks)
	}
	if got := y.told(o.ID, "address.conflict"); len(got) != 2 || !strings.Contains(got[0]+got[1], "203.0.113.1 is taken instead") {
		t.Errorf("events: %q", got)
	}
	if h, err := y.db.History(t.Context(), netip.MustParseAddr("203.0.113.0"), time.Time{}); err != nil || len(h) != 1 || h[0].To.IsZero() {
		t.Errorf("history of the address that was set aside: %+v, %v", h, err)
	}

	// Once the stranger has left, an operator puts it back, and it is looked at again before anybody gets it.
	delete(s.by, "203.0.113.0")
	_, err = y.db.KeepBack(t.Context(), netip.MustParsePrefix("203.0.113.0/32"), provisioner.AddressFree, "")
	y.must(err)
	if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressConflict}); len(got) != 1 {
		t.Errorf("still set aside: %v", got)
	}
}

// TestAnswersForEverybody: a router with proxy ARP, or a customer who wants the stock to run out, is believed a few times and no more.
func TestAnswersForEverybody(t *testing.T) {
	y := newYard(t)
	y.squatters(map[string]string{"": "02:00:5e:20:00:77"})
	for n := range 3 {
		y.active(n+1, nil)
	}
	if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressConflict}); len(got) != 3 {
		t.Errorf("set aside: %v", got)
	}
	tasks, err := y.db.Tasks(t.Context(), network.TaskOpen)
	y.must(err)
	told := slices.DeleteFunc(tasks, func(k network.Task) bool { return !strings.Contains(k.Title, "answers at every address") })
	if len(told) != 1 || told[0].Subject != "02:00:5e:20:00:77" {
		t.Errorf("who answers for everybody is one task, not one for each address: %+v", told)
	}
}

// TestStrangersEverywhere: whoever answers with a MAC address of its own at each address, or from behind a router, does not take a line
// out of stock: so much is set aside, and then the orders wait for an operator, who has one task for the line.
func TestStrangersEverywhere(t *testing.T) {
	for _, by := range []string{"", "each"} {
		t.Run("by "+by, func(t *testing.T) {
			y := newYard(t)
			_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("203.0.113.64/27"))
			y.must(err)
			s := y.squatters(map[string]string{"": by})
			m := y.addMachine(1)
			o, err := y.Place(t.Context(), y.request(), "")
			y.must(err)
			for range 6 { // as the queue does, again and again
				j := y.job(y.machine(m.ID).JobID)
				y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: m.ID, JobID: j.ID, Turn: j.Turn}))
			}
			j := y.job(y.machine(m.ID).JobID)
			if j.Step != machine.StepIsolate || j.Try != 1 || !strings.Contains(j.Reason, "an operator must look first") {
				t.Errorf("job is at %s, try %d: %s", j.Step, j.Try, j.Reason)
			}
			if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressConflict}); len(got) != 16 {
				t.Errorf("%d addresses are set aside", len(got))
			}
			tasks, err := y.db.Tasks(t.Context(), network.TaskOpen)
			y.must(err)
			tasks = slices.DeleteFunc(tasks, func(k network.Task) bool { return k.Kind == "address" })
			if len(tasks) != 1 || tasks[0].Subject != "bgp" || !strings.Contains(tasks[0].Title, "orders wait") {
				t.Errorf("beside those of addresses, tasks are %+v", tasks)
			}
			s.by = nil
			y.install(m.ID)
			if o = y.order(o.ID); o.State != machine.OrderActive {
				t.Errorf("when the strangers have left, the order is %s: %s", o.State, o.Reason)
			}
		})
	}
}

// crowd sets 16 addresses of the line aside, and adds others.
func (y *yard) crowd() {
	y.t.Helper()
	for _, p := range []string{"203.0.113.64/28", "203.0.113.96/28"} {
		_, err := y.db.AddAddresses(y.t.Context(), "bgp", netip.MustParsePrefix(p))
		y.must(err)
	}
	_, err := y.db.Conn.Exec(y.t.Context(), `UPDATE address SET state = 'conflict' WHERE addr << '203.0.113.64/28'`)
	y.must(err)
}

// TestCrowdedLine: while too much of a line is set aside for more, orders still get what is free of it. Those who find nothing but strangers
// wait for an operator, and fail after a day; their machines are not to blame.
func TestCrowdedLine(t *testing.T) {
	t.Run("Some Are Free", func(t *testing.T) {
		y := newYard(t)
		y.crowd()
		y.squatters(map[string]string{"203.0.113.0": "02:00:5e:20:00:77", "203.0.113.1": ""})
		o := y.active(1, nil)
		if got := y.told(o.ID, "address.conflict"); o.Address.String() != "203.0.113.2" || len(got) != 2 || !strings.Contains(got[0], "put back") {
			t.Errorf("the order has %s, events: %q", o.Address, got)
		}
		if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressConflict}); len(got) != 16 {
			t.Errorf("%d addresses are set aside", len(got))
		}
		tasks, err := y.db.Tasks(t.Context(), network.TaskOpen)
		y.must(err)
		if len(tasks) != 1 || tasks[0].Subject != "bgp" {
			t.Errorf("tasks: %+v", tasks)
		}
		if got := y.active(2, nil).Address.String(); got != "203.0.113.3" {
			t.Errorf("the next order has %s, and not what is idle for longest", got)
		}
	})
	t.Run("None Is Free", func(t *testing.T) {
		y := newYard(t)
		y.crowd()
		y.squatters(map[string]string{"": "each"})
		m := y.addMachine(1)
		o, err := y.Place(t.Context(), y.request(), "")
		y.must(err)
		look := func() {
			j := y.job(y.machine(m.ID).JobID)
			y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: m.ID, JobID: j.ID, Turn: j.Turn}))
		}
		for range 4 {
			look()
		}
		if j := y.job(y.machine(m.ID).JobID); len(y.told(o.ID, "address.conflict")) != 8 || !strings.Contains(j.Reason, "an operator must look first") {
			t.Errorf("job says %s, events: %q", j.Reason, y.told(o.ID, "address.conflict"))
		}
		_, err = y.db.Conn.Exec(t.Context(), `UPDATE job SET seen_at = seen_at - interval '25 hours' WHERE machine_id = $1`, m.ID)
		y.must(err)
		look()
		if o = y.order(o.ID); o.State != machine.OrderFailed || !strings.Contains(o.Reason, "no address could be given") {
			t.Errorf("the order is %s: %s", o.State, o.Reason)
		}
		y.turn(m.ID)
		y.bootAgent(m.ID).until()
		y.turn(m.ID)
		if m = y.machine(m.ID); m.State != machine.Available || m.OrderID != "" || m.Reason != "" {
			t.Errorf("the machine is %s: %s", m.State, m.Reason)
		}
		if n := y.count(`SELECT count(*) FROM address WHERE order_id IS NOT NULL`); n != 0 {
			t.Errorf("%d addresses are held", n)
		}
	})
}

// TestLastAddressInUse: that a stranger uses the last address does not make the line sold out. The order waits until he has left.
func TestLastAddressInUse(t *testing.T) {
	y := newYard(t)
	s := y.squatters(map[string]string{"": ""})
	for _, kept := range []string{"203.0.113.2/31", "203.0.113.4/30"} {
		_, err := y.db.KeepBack(t.Context(), netip.MustParsePrefix(kept), provisioner.AddressReserved, "")
		y.must(err)
	}
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.must(y.act(provisioner.ActStep))
	j := y.job(y.machine(m.ID).JobID)
	if o = y.order(o.ID); o.State != machine.OrderProvisioning || j.State != machine.JobRunning || j.Step != machine.StepIsolate || !strings.Contains(j.Reason, "has no other") {
		t.Fatalf("order is %s (%s), job is %s at %s: %s", o.State, o.Reason, j.State, j.Step, j.Reason)
	}
	s.by = nil
	y.install(m.ID)
	if o = y.order(o.ID); o.State != machine.OrderActive {
		t.Errorf("order is %s: %s", o.State, o.Reason)
	}
}

// TestEdgeCannotProbe: it is said, and nobody waits.
func TestEdgeCannotProbe(t *testing.T) {
	y := newYard(t)
	y.squatters(nil).fail = fmt.Errorf("an edge with driver manual %w", network.ErrCannotProbe)
	o := y.active(1, nil)
	if got := y.told(o.ID, "address.unproven"); len(got) != 1 || !strings.Contains(got[0], "driver manual cannot look") {
		t.Errorf("events: %q", got)
	}
}

// TestProbeFails: an edge that does not answer for a moment has not said that an address is free: it is asked again, three times in all.
func TestProbeFails(t *testing.T) {
	silent := errors.New("edge e1 does not answer")
	t.Run("Then Answers", func(t *testing.T) {
		y := newYard(t)
		s := y.squatters(map[string]string{"203.0.113.0": "02:00:5e:20:00:77"})
		s.fail = silent
		s.while = func([]netip.Prefix) { s.while = func([]netip.Prefix) { s.fail = nil } }
		o := y.active(1, nil)
		if o.Address.String() != "203.0.113.1" || len(y.told(o.ID, "address.unproven")) != 0 {
			t.Errorf("the order has %s, events: %q", o.Address, y.told(o.ID, "address.unproven"))
		}
	})
	t.Run("Stays Silent", func(t *testing.T) {
		y := newYard(t)
		s := y.squatters(nil)
		looks := 0
		s.fail, s.while = silent, func([]netip.Prefix) { looks++ }
		o := y.active(1, nil)
		if got := y.told(o.ID, "address.unproven"); looks != 3 || len(got) != 1 || !strings.Contains(got[0], "edge e1 does not answer") {
			t.Errorf("after %d looks, events: %q", looks, got)
		}
	})
	t.Run("At Added Ones", func(t *testing.T) {
		y := newYard(t)
		s := y.squatters(nil)
		o := y.active(1, nil)
		s.fail = silent
		added, err := y.AddAddresses(t.Context(), o.ID, 4, 1, "")
		y.must(err)
		for range 2 {
			if got := y.order(o.ID).Unproven; !slices.Equal(got, added) {
				t.Errorf("nobody has looked at %v yet, unproven are %v", added, got)
			}
			_, err = y.db.Conn.Exec(t.Context(), `UPDATE river_job SET state = 'available' WHERE state = 'scheduled' AND args->'action'->>'kind' = 'probe'`)
			y.must(err)
			y.must(y.act(provisioner.ActProbe))
		}
		s.fail, s.by = nil, map[string]string{added[0].Addr().String(): ""}
		_, err = y.db.Conn.Exec(t.Context(), `UPDATE river_job SET state = 'available' WHERE state = 'scheduled' AND args->'action'->>'kind' = 'probe'`)
		y.must(err)
		y.must(y.act(provisioner.ActProbe))
		if got := y.order(o.ID); len(got.Unproven) != 0 || slices.Contains(got.Addresses, added[0]) {
			t.Errorf("the order has %v, of which nobody has looked at %v", got.Addresses, got.Unproven)
		}
	})
}

// TestAddedAddressInUse: an address that is added to a running order is looked at before it is routed, and a repeated request is told
// what the first was.
func TestAddedAddressInUse(t *testing.T) {
	y := newYard(t)
	s := y.squatters(map[string]string{"203.0.113.1": "02:00:5e:20:00:77", "203.0.113.2": "02:00:5e:20:00:01"})
	o := y.active(1, nil) // whose own MAC address ends in 01
	s.while = func(addrs []netip.Prefix) {
		y.must(y.Reconcile(t.Context()))
		if got := y.carried(o.MachineID); slices.ContainsFunc(got, func(p netip.Prefix) bool { return slices.Contains(addrs, p) }) {
			t.Errorf("before anybody has looked at %v the edge carries %v", addrs, got)
		}
	}
	added, err := y.AddAddresses(t.Context(), o.ID, 4, 2, "key")
	y.must(err)
	want := []netip.Prefix{netip.MustParsePrefix("203.0.113.3/32"), netip.MustParsePrefix("203.0.113.2/32")}
	if !slices.Equal(added, want) {
		t.Errorf("added %v, want %v", added, want)
	}
	y.must(y.act(provisioner.ActPort))
	if got := y.carried(o.MachineID); len(got) != 3 || slices.Contains(got, netip.MustParsePrefix("203.0.113.1/32")) {
		t.Errorf("the edge carries %v", got)
	}
	again, err := y.AddAddresses(t.Context(), o.ID, 4, 2, "key")
	if err != nil || !slices.Equal(again, want) {
		t.Errorf("again: %v, %v", again, err)
	}
	s.by[""], s.while = "", nil // strangers everywhere
	for _, time := range []string{"first", "again"} {
		if got, err := y.AddAddresses(t.Context(), o.ID, 4, 4, "key 2"); machine.CodeOf(err) != machine.Exhausted || len(got) != 0 {
			t.Errorf("%s: added %v, %v", time, got, err)
		}
	}
	if got := y.order(o.ID).Addresses; len(got) != 3 {
		t.Errorf("the order has %v", got)
	}
}

// TestAddedAddressesAreLookedAtLater: when a look leads nowhere, the answer names the addresses that the order has now, and not those
// that were set aside meanwhile. They are routed once somebody has looked.
func TestAddedAddressesAreLookedAtLater(t *testing.T) {
	y := newYard(t)
	_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("203.0.113.64/27"))
	y.must(err)
	o := y.active(1, nil)
	s := y.squatters(map[string]string{"": "each"})
	added, err := y.AddAddresses(t.Context(), o.ID, 4, 1, "key")
	y.must(err)
	has := y.order(o.ID)
	if len(added) != 1 || len(has.Addresses) != 2 || has.Addresses[1] != added[0] || !slices.Equal(has.Unproven, added) {
		t.Errorf("added %v; the order has %v, of which nobody has looked at %v", added, has.Addresses, has.Unproven)
	}
	if aside := y.addresses(provisioner.AddressFilter{State: provisioner.AddressConflict}); len(aside) != 6 {
		t.Errorf("set aside: %v", aside)
	}
	y.must(y.act(provisioner.ActPort))
	if got := y.carried(o.MachineID); !slices.Equal(got, o.Addresses) {
		t.Errorf("the edge carries %v", got)
	}
	_, err = y.RemoveAddress(t.Context(), o.ID, o.Addresses[0], "")
	y.refused(err, machine.Conflict, "address") // the other one is not routed
	s.by = nil
	again, err := y.AddAddresses(t.Context(), o.ID, 4, 1, "key")
	if err != nil || !slices.Equal(again, added) {
		t.Errorf("again: %v, %v", again, err)
	}
	y.must(y.act(provisioner.ActPort))
	if got := y.carried(o.MachineID); !slices.Equal(got, has.Addresses) {
		t.Errorf("the edge carries %v", got)
	}
}

// TestMovedAddressIsLookedAt: an address that moves before anybody has looked is routed to its new machine when somebody has.
func TestMovedAddressIsLookedAt(t *testing.T) {
	y := newYard(t)
	a := y.active(1, func(r *provisioner.Request) { r.Addresses = 2 })
	b := y.active(2, nil)
	p := a.Addresses[1]
	_, err := y.db.Conn.Exec(t.Context(), `UPDATE address SET proven = false WHERE addr = $1`, p)
	y.must(err)
	s := y.squatters(nil)
	_, err = y.MoveAddress(t.Context(), a.ID, p, b.ID, "")
	y.must(err)
	y.must(y.act(provisioner.ActLeave, provisioner.ActPort))
	if got := y.carried(b.MachineID); slices.Contains(got, p) || len(s.probed) != 0 {
		t.Errorf("before anybody has looked the edge carries %v", got)
	}
	y.must(y.act(provisioner.ActProbe, provisioner.ActPort))
	if got := y.carried(b.MachineID); !slices.Contains(got, p) || !slices.Equal(s.probed, []netip.Prefix{p}) {
		t.Errorf("the edge carries %v; looked at: %v", got, s.probed)
	}
}
