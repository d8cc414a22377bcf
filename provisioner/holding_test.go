package provisioner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// active places an order like request and takes it to its customer.
func (y *yard) active(n int, change func(*provisioner.Request)) machine.Order {
	y.t.Helper()
	m := y.addMachine(n)
	r := y.request()
	if change != nil {
		change(&r)
	}
	o, err := y.Place(y.t.Context(), r, "")
	y.must(err)
	y.install(m.ID)
	o = y.order(o.ID)
	if o.State != machine.OrderActive || o.MachineID != m.ID {
		y.t.Fatalf("order is %s on %s, want active on %s", o.State, o.MachineID, m.ID)
	}
	return o
}

// act carries out the actions that a transition left for the edge, as the queue does: again and again until they are done.
func (y *yard) act(kinds ...provisioner.ActionKind) error {
	y.t.Helper()
	for {
		var raw []byte
		var id int64
		err := y.db.Conn.QueryRow(y.t.Context(), `SELECT id, args->'action' FROM river_job WHERE state = 'available' AND args->'action'->>'kind' = ANY ($1) ORDER BY id LIMIT 1`, kinds).Scan(&id, &raw)
		if err != nil {
			return nil // none is left
		}
		var a provisioner.Action
		decode(y.t, raw, &a)
		if err := y.Act(y.t.Context(), a); err != nil {
			return err
		}
		_, err = y.db.Conn.Exec(y.t.Context(), `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $1`, id)
		y.must(err)
	}
}

func (y *yard) addresses(f provisioner.AddressFilter) map[string]provisioner.AddressState {
	y.t.Helper()
	list, err := y.db.Addresses(y.t.Context(), f)
	y.must(err)
	states := map[string]provisioner.AddressState{}
	for _, a := range list {
		states[a.Prefix.String()] = a.State
	}
	return states
}

func (y *yard) carried(machineID string) []netip.Prefix {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.edge[machineID].Addrs
}

func (y *yard) refused(err error, code machine.Code, field string) {
	y.t.Helper()
	var e *machine.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != field || e.Hint == "" {
		y.t.Errorf("got %v (%+v), want %s about %q with a hint", err, e, code, field)
	}
}

// TestOrderWithSeveralAddresses: two IPv4 addresses and an IPv6 prefix reach the edge and the seed, and all cool down at the end.
func TestOrderWithSeveralAddresses(t *testing.T) {
	y := newYard(t)
	_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("2001:db8:7::/60"))
	y.must(err)
	o := y.active(1, func(r *provisioner.Request) { r.Addresses, r.IPv6, r.BandwidthDown = 2, 1, 20 })
	if len(o.Addresses) != 3 || o.Addresses[0].Addr() != o.Address || !o.Addresses[2].Addr().Is6() || o.Addresses[2].Bits() != 64 {
		t.Fatalf("order holds %v, known by %s", o.Addresses, o.Address)
	}
	if got := y.carried(o.MachineID); !slices.Equal(got, o.Addresses) {
		t.Errorf("the edge carries %v, want %v", got, o.Addresses)
	}
	p := y.edge[o.MachineID]
	if p.Up != network.Fixed(100_000) || p.Down != network.Fixed(20_000) {
		t.Errorf("the edge gives %+v up and %+v down", p.Up, p.Down)
	}
	m := y.machine(o.MachineID)
	seed, err := provisioner.Seed(m, machine.Job{ID: "j", Attempt: 1}, o, provisioner.SeedOptions{Token: "t", Net: provisioner.BootNet{Prefix: netip.PrefixFrom(m.BootAddr, 24)}})
	y.must(err)
	for _, a := range []string{o.Addresses[0].String(), o.Addresses[1].String(), network.FirstOf(o.Addresses[2]).String()} {
		if !strings.Contains(seed["network-config"], a) {
			t.Errorf("%s is not in the seed:\n%s", a, seed["network-config"])
		}
	}
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressHeld}); len(got) != 3 {
		t.Errorf("while the old machine may still run, %v are held; want all three", got)
	}
	y.turn(m.ID)
	y.bootAgent(m.ID).until()
	y.turn(m.ID)
	if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressCooling}); len(got) != 3 {
		t.Errorf("after the wipe %v cool down, want all three", got)
	}
}

// TestI07NotAtOnceToTheNext: a released address is nobody's until its cool-down is over, and the longest idle comes first.
func TestI07NotAtOnceToTheNext(t *testing.T) {
	y := newYard(t)
	first := y.active(1, nil)
	_, err := y.Release(t.Context(), first.ID)
	y.must(err)
	y.turn(first.MachineID)
	y.bootAgent(first.MachineID).until()
	y.turn(first.MachineID)
	seen := map[netip.Addr]bool{first.Address: true}
	for n := 2; n <= 8; n++ { // the pool has eight
		y.addMachine(n)
		o, err := y.Place(t.Context(), y.request(), "")
		y.must(err)
		if seen[o.Address] {
			t.Fatalf("order %d gets %s, which is held or cools down", n, o.Address)
		}
		seen[o.Address] = true
	}
	y.addMachine(9)
	_, err = y.Place(t.Context(), y.request(), "")
	y.refused(err, machine.Exhausted, "line")
	if err == nil || !strings.Contains(err.(*machine.Error).Hint, "cool down") {
		t.Errorf("the refusal does not say that an address cools down: %v", err)
	}
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE address SET free_at = now() - interval '1 second' WHERE free_at > now()`)
	y.must(err)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	if o.Address != first.Address {
		t.Errorf("after its cool-down %s is not given out again, but %s", first.Address, o.Address)
	}
}

// TestAddAndRemoveAddress: an address comes and goes while the machine runs; the edge lets go of it before it cools down.
func TestAddAndRemoveAddress(t *testing.T) {
	y := newYard(t)
	o := y.active(1, nil)
	main := o.Addresses[0]
	added, err := y.AddAddresses(t.Context(), o.ID, 4, 2, "k1")
	y.must(err)
	again, err := y.AddAddresses(t.Context(), o.ID, 4, 2, "k1")
	y.must(err)
	if !slices.Equal(added, again) || len(y.order(o.ID).Addresses) != 3 {
		t.Errorf("the same request gave %v, then %v; the order has %v", added, again, y.order(o.ID).Addresses)
	}
	_, err = y.AddAddresses(t.Context(), o.ID, 4, 1, "k1")
	y.refused(err, machine.Conflict, "Idempotency-Key")
	y.must(y.act(provisioner.ActPort))
	if got := y.carried(o.MachineID); len(got) != 3 {
		t.Fatalf("the edge carries %v", got)
	}
	for _, c := range []struct {
		family, count int
		field         string
	}{{5, 1, "family"}, {4, 0, "count"}, {4, 6, "count"}, {6, 1, "ipv6"}} {
		_, err := y.AddAddresses(t.Context(), o.ID, c.family, c.count, "")
		y.refused(err, machine.Invalid, c.field)
	}

	// The edge is out of order: the address stays held, and nobody else gets it.
	y.mu.Lock()
	y.deaf = errors.New("the edge does not answer")
	y.mu.Unlock()
	got, err := y.RemoveAddress(t.Context(), o.ID, main, "")
	y.must(err)
	if got.Address == main.Addr() || !slices.Contains(got.Addresses, netip.PrefixFrom(got.Address, 32)) {
		t.Errorf("the order is known by %s of %v", got.Address, got.Addresses)
	}
	if err := y.act(provisioner.ActLeave); err == nil {
		t.Fatal("the address left though the edge does not answer")
	}
	if got := y.addresses(provisioner.AddressFilter{})[main.String()]; got != provisioner.AddressLeaving {
		t.Errorf("%s is %s while the edge carries it", main, got)
	}
	y.mu.Lock()
	y.deaf = nil
	y.mu.Unlock()
	y.must(y.act(provisioner.ActLeave))
	if got := y.addresses(provisioner.AddressFilter{})[main.String()]; got != provisioner.AddressCooling {
		t.Errorf("%s is %s after it left", main, got)
	}
	if slices.Contains(y.carried(o.MachineID), main) {
		t.Errorf("the edge still carries %s", main)
	}
	y.must(y.Reconcile(t.Context()))
	if want := y.order(o.ID).Addresses; !slices.Equal(y.carried(o.MachineID), want) {
		t.Errorf("the edge carries %v, want %v", y.carried(o.MachineID), want)
	}
	for _, p := range added[1:] {
		_, err = y.RemoveAddress(t.Context(), o.ID, p, "k2")
		y.must(err)
		_, err = y.RemoveAddress(t.Context(), o.ID, netip.PrefixFrom(p.Addr(), 24), "k2")
		y.refused(err, machine.Conflict, "Idempotency-Key")
	}
	_, err = y.RemoveAddress(t.Context(), o.ID, added[0], "")
	y.refused(err, machine.Conflict, "address")
	_, err = y.RemoveAddress(t.Context(), o.ID, main, "")
	y.refused(err, machine.NotFound, "address")
}

// TestMoveAddress: an address moves between machines of one customer, with its history, and to nobody else's.
func TestMoveAddress(t *testing.T) {
	y := newYard(t)
	a := y.active(1, func(r *provisioner.Request) { r.Addresses = 2 })
	b := y.active(2, nil)
	foreign := y.active(3, func(r *provisioner.Request) { r.Project = "other" })
	p := a.Addresses[1]
	for to, want := range map[string]struct {
		code  machine.Code
		field string
	}{foreign.ID: {machine.NotFound, "to"}, "o-none": {machine.NotFound, ""}, a.ID: {machine.Invalid, "to"}} {
		_, err := y.MoveAddress(t.Context(), a.ID, p, to, "")
		y.refused(err, want.code, want.field)
	}
	before := time.Now()
	_, err := y.MoveAddress(t.Context(), a.ID, p, b.ID, "")
	y.must(err)
	y.must(y.act(provisioner.ActLeave, provisioner.ActPort))
	if got := y.order(b.ID).Addresses; !slices.Equal(got, []netip.Prefix{b.Addresses[0], p}) {
		t.Errorf("order b has %v", got)
	}
	if slices.Contains(y.carried(a.MachineID), p) || !slices.Contains(y.carried(b.MachineID), p) {
		t.Errorf("the edge carries %v and %v", y.carried(a.MachineID), y.carried(b.MachineID))
	}
	history, err := y.db.History(t.Context(), p.Addr(), time.Time{})
	y.must(err)
	if len(history) != 2 || history[0].OrderID != b.ID || history[1].OrderID != a.ID || history[0].From.Before(history[1].To) || !history[0].To.IsZero() ||
		history[1].Machine != "n1" || history[0].Machine != "n2" || history[0].Project != "acme" || history[0].Hostname != "gpu1" {
		t.Errorf("history of %s is %+v", p, history)
	}
	then, err := y.db.History(t.Context(), p.Addr(), before.Add(-time.Millisecond))
	y.must(err)
	if len(then) != 1 || then[0].OrderID != a.ID {
		t.Errorf("before the move %+v had it", then)
	}
	// The order that was to get it is gone when the edge has let go: it cools down.
	_, err = y.MoveAddress(t.Context(), b.ID, p, a.ID, "")
	y.must(err)
	_, err = y.Release(t.Context(), a.ID)
	y.must(err)
	y.must(y.act(provisioner.ActLeave))
	if got := y.addresses(provisioner.AddressFilter{})[p.String()]; got != provisioner.AddressCooling {
		t.Errorf("%s is %s, and the order that was to get it has ended", p, got)
	}
}

// TestHistoryFollowsTheMachine: an order whose machine fails takes its address to another machine, and the history says when.
func TestHistoryFollowsTheMachine(t *testing.T) {
	y := newYard(t)
	o := y.active(1, nil)
	other := y.addMachine(2)
	_, err := y.db.Conn.Exec(t.Context(), `UPDATE orders SET machine_id = $2 WHERE id = $1`, o.ID, other.ID)
	y.must(err)
	history, err := y.db.History(t.Context(), o.Address, time.Time{})
	y.must(err)
	var machines []string
	for _, h := range history {
		machines = append(machines, h.Machine)
	}
	if !slices.Equal(machines, []string{"n2", "n1"}) || history[1].To.IsZero() || history[0].From.Before(history[1].To) {
		t.Errorf("history is %+v", history)
	}
}

// TestStockRespectsTheSite: a line brings its addresses to its own site, so an order gets a machine there or none.
func TestStockRespectsTheSite(t *testing.T) {
	y := newYard(t)
	y.must(y.db.PutLine(t.Context(), network.Line{Name: "far-bgp", Site: "far", MinBandwidth: 1, MaxBandwidth: 1000}, time.Hour))
	_, err := y.db.AddAddresses(t.Context(), "far-bgp", netip.MustParsePrefix("198.51.100.0/30"))
	y.must(err)
	here := y.addMachine(1)
	_, err = y.Examine(t.Context(), here.ID) // which takes it off no offer
	y.must(err)
	r := y.request()
	r.Line = "far-bgp"
	_, err = y.Place(t.Context(), r, "")
	y.refused(err, machine.Exhausted, "line")
	if !strings.Contains(err.Error(), "no machines at site far") || !strings.Contains(err.(*machine.Error).Hint, "lab: [bgp]") {
		t.Errorf("the refusal is %v, hint %s", err, err.(*machine.Error).Hint)
	}
	if got := y.addresses(provisioner.AddressFilter{State: provisioner.AddressHeld}); len(got) != 0 {
		t.Errorf("a refused order holds %v", got)
	}
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	if o.MachineID != here.ID {
		t.Errorf("order is on %s", o.MachineID)
	}
	classes, err := y.db.Classes(t.Context())
	y.must(err)
	y.addMachine(2)
	classes2, err := y.db.Classes(t.Context())
	y.must(err)
	if len(classes[0].Sites) != 0 || classes2[0].Available != 1 || !cmp.Equal(classes2[0].Sites, map[string]int{"lab": 1}) {
		t.Errorf("stock is %+v, then %+v", classes[0], classes2[0])
	}
	// A line whose addresses are in use does not move house.
	err = y.db.PutLine(t.Context(), network.Line{Name: "bgp", Site: "far", MinBandwidth: 1, MaxBandwidth: 1000}, time.Hour)
	y.refused(err, machine.Conflict, "site")
}

// TestPools: ranges do not overlap, what is kept back is not handed out, and history outlives a range.
func TestPools(t *testing.T) {
	y := newYard(t)
	ctx := t.Context()
	pool := func(name string, ranges ...string) network.AddressPool {
		p := network.AddressPool{Name: name, Line: "bgp", Site: "lab", Bits: 32, CoolDown: time.Hour}
		for _, r := range ranges {
			p.Ranges = append(p.Ranges, netip.MustParsePrefix(r))
		}
		return p
	}
	p := pool("second", "198.51.100.0/29")
	p.Gateways, p.Reserved = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")}, []netip.Prefix{netip.MustParsePrefix("198.51.100.6/31")}
	added, err := y.db.PutPool(ctx, p)
	y.must(err)
	if added != 8 {
		t.Errorf("%d addresses added, want 8", added)
	}
	if added, err := y.db.PutPool(ctx, p); err != nil || added != 0 {
		t.Errorf("the same again: %d, %v", added, err)
	}
	for _, bad := range []string{"198.51.100.4/30", "198.51.100.0/28", "203.0.113.0/30"} {
		_, err := y.db.PutPool(ctx, pool("third", bad))
		y.refused(err, machine.Conflict, "ranges")
	}
	if list, err := y.db.Pools(ctx, ""); err != nil || len(list) != 2 {
		t.Errorf("a refused pool is there: %+v, %v", list, err)
	}
	y.must(y.db.PutLine(ctx, network.Line{Name: "other", Site: "lab", MinBandwidth: 1, MaxBandwidth: 10}, time.Hour))
	theirs := pool("second", "192.0.2.0/30")
	theirs.Line = "other"
	_, err = y.db.PutPool(ctx, theirs)
	y.refused(err, machine.Conflict, "name")

	states := y.addresses(provisioner.AddressFilter{})
	for addr, want := range map[string]provisioner.AddressState{"198.51.100.0/32": "free", "198.51.100.1/32": "gateway", "198.51.100.6/32": "reserved", "198.51.100.7/32": "reserved"} {
		if states[addr] != want {
			t.Errorf("%s is %s, want %s", addr, states[addr], want)
		}
	}
	var all []string
	for n := 1; n <= 13; n++ { // 8 + 8, of which three are kept back
		y.addMachine(n)
		o, err := y.Place(ctx, y.request(), "")
		y.must(err)
		all = append(all, o.Address.String())
		if kept := states[o.Address.String()+"/32"]; kept != provisioner.AddressFree {
			t.Errorf("order %d gets %s, which was %s", n, o.Address, kept)
		}
	}
	y.addMachine(14)
	_, err = y.Place(ctx, y.request(), "")
	y.refused(err, machine.Exhausted, "line")

	held := netip.MustParsePrefix(all[0] + "/32")
	_, err = y.db.KeepBack(ctx, held, provisioner.AddressReserved, "mine")
	y.refused(err, machine.Conflict, "address")
	_, err = y.db.KeepBack(ctx, netip.MustParsePrefix("192.0.2.77/32"), provisioner.AddressReserved, "")
	y.refused(err, machine.NotFound, "address")
	n, err := y.db.KeepBack(ctx, netip.MustParsePrefix("198.51.100.6/31"), provisioner.AddressFree, "")
	y.must(err)
	if n != 2 {
		t.Errorf("%d addresses put back, want 2", n)
	}

	_, err = y.db.RetireRange(ctx, netip.MustParsePrefix("198.51.100.0/29"))
	y.refused(err, machine.Conflict, "range")
	_, err = y.db.RetireRange(ctx, netip.MustParsePrefix("198.51.100.0/30"))
	y.refused(err, machine.NotFound, "range")
	_, err = y.db.Conn.Exec(ctx, `UPDATE address SET order_id = NULL, since = NULL, free_at = now() WHERE pool = 'second'`)
	y.must(err)
	if n, err := y.db.RetireRange(ctx, netip.MustParsePrefix("198.51.100.0/29")); err != nil || n != 8 {
		t.Errorf("retired %d, %v", n, err)
	}
	if h, err := y.db.History(ctx, netip.MustParseAddr("198.51.100.2"), time.Time{}); err != nil || len(h) != 1 {
		t.Errorf("history of an address that was given up: %+v, %v", h, err)
	}
}

func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

// take places an order that takes addresses and nothing else; after may roll it back.
func (y *yard) take(ctx context.Context, id string, w provisioner.Want, after func() error) error {
	o := machine.Order{ID: id, Project: "p", Class: "rtx5090x2", Image: "debian-12", Line: "bgp", Bandwidth: 1, BandwidthDown: 1, Model: "fixed", SSHKeys: []string{}, Months: 1, State: machine.OrderPlaced}
	_, err := y.db.Place(ctx, o, "", fmt.Sprint("digest ", id), func(work *provisioner.Work) error {
		if _, err := work.Stock.Addresses(ctx, w, id); err != nil {
			return err
		}
		return after()
	})
	return err
}
