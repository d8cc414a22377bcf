package provisioner_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// registry is a system of record that does as a test says.
type registry struct {
	has  map[netip.Prefix]network.Assignment
	fail error
	told int
}

func (r *registry) Push(_ context.Context, a network.Assignment) error {
	if r.fail != nil {
		return r.fail
	}
	r.told++
	r.has[a.Prefix] = a
	if !a.Held {
		delete(r.has, a.Prefix)
	}
	return nil
}

func (r *registry) Told(context.Context) (all []netip.Prefix, err error) {
	for p := range r.has {
		all = append(all, p)
	}
	return all, r.fail
}

// register runs the loop until nothing more is due.
func (y *yard) register(r *registry) {
	y.t.Helper()
	y.Outbox, y.Registry = y.db, r
	ctx, cancel := context.WithCancel(y.t.Context())
	done := make(chan error, 1)
	go func() { done <- y.TellRegistry(ctx, time.Hour, time.Hour) }()
	for range 1000 {
		if y.count(`SELECT count(*) FROM netbox_address WHERE state = 'waiting' AND due <= now() OR busy > now()`) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond) // the database is another process: no clock of ours can wait for it
	}
	cancel()
	y.must(<-done)
}

// TestRegistryIsTold: what is taken, named, moved, released and set aside reaches the registry, once, whatever fails meanwhile; and what
// somebody has deleted there is put back.
func TestRegistryIsTold(t *testing.T) {
	y := newYard(t)
	y.Directory = y.db
	r := &registry{has: map[netip.Prefix]network.Assignment{}}
	o := y.active(1, func(q *provisioner.Request) { q.Addresses = 2 })
	first := o.Addresses[0]
	r.fail = errors.New("NetBox is down")
	y.register(r)
	if n := y.count(`SELECT count(*) FROM netbox_address WHERE state = 'waiting' AND problem = 'NetBox is down' AND due > now()`); n != 2 {
		t.Errorf("%d of 2 wait for another try", n)
	}
	r.fail = nil
	again := func() {
		_, err := y.db.Conn.Exec(t.Context(), `UPDATE netbox_address SET due = now(), since = since - interval '1 hour'`)
		y.must(err)
	}
	again()
	y.register(r)
	if got := r.has[first]; got.OrderID != o.ID || got.Project != o.Project || got.Machine != "n1" || !got.Held || len(r.has) != 2 {
		t.Errorf("the registry has %+v", r.has)
	}
	y.must(y.SetName(t.Context(), o.ID, first.Addr(), "gpu1.example.com"))
	y.register(r)
	if got := r.has[first].Name; got != "gpu1.example.com" {
		t.Errorf("the name is %q", got)
	}
	told := r.told
	y.register(r)
	if r.told != told {
		t.Error("the registry is told what it knows")
	}

	delete(r.has, first) // by somebody there
	again()
	y.Outbox, y.Registry = y.db, r
	y.must(y.CompareRegistry(t.Context()))
	y.register(r)
	if got := r.has[first]; got.OrderID != o.ID {
		t.Errorf("what was deleted is not put back: %+v", r.has)
	}

	_, err := y.RemoveAddress(t.Context(), o.ID, o.Addresses[1], "")
	y.must(err)
	y.must(y.act(provisioner.ActLeave))
	y.register(r)
	if _, there := r.has[o.Addresses[1]]; there {
		t.Error("an address that was removed is still held there")
	}
}

// TestRegistryOutlivesCrash: an address that was being told when its server died is told by the next one; what changes while it is told
// is told after that.
func TestRegistryOutlivesCrash(t *testing.T) {
	y := newYard(t)
	y.Directory = y.db
	o := y.active(1, nil)
	ctx := t.Context()
	a, since, ok, err := y.db.NextTold(ctx)
	if err != nil || !ok || a.OrderID != o.ID {
		t.Fatalf("%+v, %v, %v", a, ok, err)
	}
	if _, _, ok, _ := y.db.NextTold(ctx); ok {
		t.Error("two servers tell the same")
	}
	y.must(y.SetName(ctx, o.ID, o.Address, "gpu1.example.com")) // it changes meanwhile
	y.must(y.db.WasTold(ctx, a.Prefix, since))
	a, _, ok, err = y.db.NextTold(ctx)
	if err != nil || !ok || a.Name != "gpu1.example.com" {
		t.Errorf("what changed meanwhile is not told: %+v, %v, %v", a, ok, err)
	}
	_, err = y.db.Conn.Exec(ctx, `UPDATE netbox_address SET busy = busy - interval '3 minutes'`) // the server died
	y.must(err)
	if b, _, ok, err := y.db.NextTold(ctx); err != nil || !ok || b != a {
		t.Errorf("after a crash: %+v, %v, %v", b, ok, err)
	}
}

// TestMovedAddressKeepsItsName: reverse DNS goes with an address to the project's other order, and is cleared when that releases it.
func TestMovedAddressKeepsItsName(t *testing.T) {
	y := newYard(t)
	y.Directory = y.db
	ctx := t.Context()
	two := func(q *provisioner.Request) { q.Addresses = 2 }
	a, b := y.active(1, two), y.active(2, nil)
	p := a.Addresses[1]
	y.must(y.SetName(ctx, a.ID, p.Addr(), "gpu1.example.com"))
	_, err := y.MoveAddress(ctx, a.ID, p, b.ID, "key")
	y.must(err)
	y.must(y.act(provisioner.ActLeave))
	_, err = y.MoveAddress(ctx, a.ID, p, b.ID, "key") // repeated: nothing more
	y.must(err)
	names := func(id string) (all []string) {
		list, err := y.db.Names(ctx, id)
		y.must(err)
		for _, n := range list {
			all = append(all, n.Name)
		}
		return all
	}
	if len(names(a.ID)) != 0 || !slices.Equal(names(b.ID), []string{"gpu1.example.com"}) {
		t.Errorf("names are %v and %v", names(a.ID), names(b.ID))
	}
	_, err = y.RemoveAddress(ctx, b.ID, p, "other")
	y.must(err)
	y.must(y.act(provisioner.ActLeave))
	_, err = y.RemoveAddress(ctx, b.ID, p, "other")
	y.must(err)
	if n := y.count(`SELECT count(*) FROM ptr WHERE name = '' AND state = 'waiting'`); n != 1 {
		t.Error("the name of an address that was released is not cleared")
	}
}

// TestRegistryIsToldTheNewest: what is committed while an address is being taken from the outbox is what the registry is told, or what it
// is told next.
func TestRegistryIsToldTheNewest(t *testing.T) {
	y := newYard(t)
	o := y.active(1, nil)
	r := &registry{has: map[netip.Prefix]network.Assignment{}}
	y.register(r)
	_, err := y.db.Conn.Exec(t.Context(), `UPDATE netbox_address SET state = 'waiting'`)
	y.must(err)
	blocked, resume := y.paused("UPDATE", "netbox_address")
	taken := make(chan network.Assignment, 1)
	go func() {
		a, _, _, err := y.db.NextTold(t.Context())
		if err != nil {
			t.Error(err)
		}
		taken <- a
	}()
	y.until("taking waits", func() bool { return blocked() == 1 })
	resume(`WITH freed AS (UPDATE address SET order_id = NULL, since = NULL WHERE order_id = $1 RETURNING addr)
		UPDATE assignment SET during = tstzrange(lower(during), clock_timestamp()) WHERE order_id = $1 AND upper_inf(during)`, o.ID)
	if a := <-taken; a.Held {
		t.Errorf("the registry is told that %s is held, and it was freed before", a.Prefix)
	}
}
