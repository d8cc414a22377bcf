package provisioner_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/manual"
	"github.com/bareyard/bareyard/provisioner"
)

// nameServer remembers what it was told, in order.
type nameServer struct {
	mu      sync.Mutex
	names   map[netip.Addr]string
	told    []string
	failure error
	hold    chan struct{} // while it is not nil, a call waits for it
	entered chan struct{}
}

func (n *nameServer) SetPTR(_ context.Context, addr netip.Addr, name string) error {
	if n.hold != nil {
		n.entered <- struct{}{}
		<-n.hold
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failure != nil {
		return n.failure
	}
	n.told = append(n.told, addr.String()+"="+name)
	n.names[addr] = name
	if name == "" {
		delete(n.names, addr)
	}
	return nil
}

// tell runs the loop that tells the name server until nothing is due.
func (y *yard) tell() {
	y.t.Helper()
	ctx, cancel := context.WithCancel(y.t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- y.TellNames(ctx, 20*time.Millisecond) }()
	for {
		var due int
		y.must(y.db.Conn.QueryRow(ctx, `SELECT count(*) FROM ptr WHERE state = 'waiting' AND due <= now() OR busy > now()`).Scan(&due))
		if due == 0 {
			break
		}
	}
	cancel()
	y.must(<-done)
}

func TestReverseDNSOfAnOrder(t *testing.T) {
	y := newYard(t)
	ns := &nameServer{names: map[netip.Addr]string{}}
	y.Directory, y.Names = y.db, ns
	_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("2001:db8:7::/64"))
	y.must(err)
	o := y.active(1, func(r *provisioner.Request) { r.IPv6 = 1 })
	six := netip.MustParseAddr("2001:db8:7::25")
	for _, bad := range []string{"gpu1", "a..b", "-x.example.com", "gpu 1.example.com", strings.Repeat("a", 64) + ".com", "203.0.113.7", "x.in-addr.arpa", "пример.рф", strings.Repeat("abcdefg.", 40) + "com"} {
		y.refused(y.SetName(t.Context(), o.ID, o.Address, bad), machine.Invalid, "name")
	}
	y.refused(y.SetName(t.Context(), o.ID, netip.MustParseAddr("203.0.113.99"), "a.example.com"), machine.NotFound, "address")
	y.must(y.SetName(t.Context(), o.ID, o.Address, "GPU1.Example.com."))
	y.must(y.SetName(t.Context(), o.ID, six, "six.example.com"))
	y.tell()
	if ns.names[o.Address] != "gpu1.example.com" || ns.names[six] != "six.example.com" {
		t.Errorf("the name server has %v", ns.names)
	}
	names, err := y.db.Names(t.Context(), o.ID)
	y.must(err)
	if len(names) != 2 || names[0].State != "set" || names[1].State != "set" {
		t.Errorf("names are %+v", names)
	}
	// The same again tells nobody anything.
	before := len(ns.told)
	y.must(y.SetName(t.Context(), o.ID, o.Address, "gpu1.example.com"))
	y.tell()
	if len(ns.told) != before {
		t.Errorf("the same name again: %v", ns.told)
	}

	// The order ends while the name server is down: the addresses stay nobody's until their names are gone, though they need
	// not cool down.
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE address_pool SET cool_down = '0'`)
	y.must(err)
	ns.failure = errors.New("connection refused")
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(o.MachineID)
	y.bootAgent(o.MachineID).until()
	y.turn(o.MachineID)
	y.tell()
	states := y.addresses(provisioner.AddressFilter{})
	if states[o.Address.String()+"/32"] != provisioner.AddressCooling || states["2001:db8:7::/64"] != provisioner.AddressCooling {
		t.Errorf("with their names still there the addresses are %v", states)
	}
	r := y.request()
	r.IPv6 = 1
	_, err = y.Place(t.Context(), r, "")
	y.refused(err, machine.Exhausted, "ipv6")
	if err == nil || !strings.Contains(err.(*machine.Error).Hint, "reverse DNS") {
		t.Errorf("the refusal does not say what is waited for: %v", err)
	}
	var problem string
	y.must(y.db.Conn.QueryRow(t.Context(), `SELECT problem FROM ptr LIMIT 1`).Scan(&problem))
	if problem != "connection refused" {
		t.Errorf("the problem is kept as %q", problem)
	}
	ns.failure = nil
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE ptr SET due = now()`)
	y.must(err)
	y.tell()
	if len(ns.names) != 0 {
		t.Errorf("after the release the name server has %v", ns.names)
	}
	if _, err = y.Place(t.Context(), r, ""); err != nil {
		t.Errorf("with the names gone: %v", err)
	}
}

// TestOldNameDoesNotComeBack: a name is on its way to the name server when the address is released. It is cleared after that,
// never before.
func TestOldNameDoesNotComeBack(t *testing.T) {
	y := newYard(t)
	ns := &nameServer{names: map[netip.Addr]string{}, hold: make(chan struct{}), entered: make(chan struct{}, 1)}
	y.Directory, y.Names = y.db, ns
	o := y.active(1, nil)
	y.must(y.SetName(t.Context(), o.ID, o.Address, "old.example.com"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := make(chan error, 1)
	go func() { slow <- y.TellNames(ctx, time.Hour) }()
	<-ns.entered
	_, err := y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(o.MachineID)
	y.bootAgent(o.MachineID).until()
	y.turn(o.MachineID)
	if due, err := y.db.NamesDue(t.Context(), 10); err != nil || len(due) != 0 {
		t.Fatalf("another server would clear it now: %v, %v", due, err)
	}
	close(ns.hold)
	<-ns.entered // the clearing follows by itself
	for {
		var left int
		y.must(y.db.Conn.QueryRow(t.Context(), `SELECT count(*) FROM ptr`).Scan(&left))
		if left == 0 {
			break
		}
	}
	cancel()
	y.must(<-slow)
	if want := []string{o.Address.String() + "=old.example.com", o.Address.String() + "="}; !slices.Equal(ns.told, want) || len(ns.names) != 0 {
		t.Errorf("the name server was told %v", ns.told)
	}
}

// TestNamesByHand: without a name server's API each name is a task; what is done is set, what is refused says why.
func TestNamesByHand(t *testing.T) {
	y := newYard(t)
	y.Directory, y.Names = y.db, manual.Names{Tasks: y.db}
	o := y.active(1, nil)
	ctx := t.Context()
	again := func() {
		_, err := y.db.Conn.Exec(ctx, `UPDATE ptr SET due = now()`)
		y.must(err)
		y.tell()
	}
	open := func() []network.Task {
		list, err := y.db.Tasks(ctx, network.TaskOpen)
		y.must(err)
		return list
	}
	y.must(y.SetName(ctx, o.ID, o.Address, "first.example.com"))
	y.tell()
	again()
	list := open()
	if len(list) != 1 || !strings.Contains(list[0].Steps[0], network.ReverseName(o.Address)+" PTR first.example.com.") {
		t.Fatalf("tasks are %+v", list)
	}
	// Something else is wanted before it is done.
	y.must(y.SetName(ctx, o.ID, o.Address, "second.example.com"))
	y.tell()
	second := open()
	if len(second) != 1 || second[0].ID == list[0].ID {
		t.Fatalf("tasks are %+v", second)
	}
	_, err := y.db.CloseTask(ctx, list[0].ID, network.TaskDone, "me", "")
	y.refused(err, machine.Conflict, "")
	_, err = y.db.CloseTask(ctx, "t-none", network.TaskDone, "me", "")
	y.refused(err, machine.NotFound, "")
	_, err = y.db.CloseTask(ctx, second[0].ID, network.TaskRefused, "me", "not our zone")
	y.must(err)
	y.tell()
	names, err := y.db.Names(ctx, o.ID)
	y.must(err)
	if names[0].State != "waiting" || !strings.Contains(names[0].Problem, "not our zone") || len(open()) != 0 {
		t.Errorf("refused: %+v, tasks %+v", names, open())
	}
	_, err = y.db.CloseTask(ctx, second[0].ID, network.TaskDone, "you", "after all")
	y.must(err)
	_, err = y.db.CloseTask(ctx, second[0].ID, network.TaskDone, "you", "after all")
	y.must(err)
	y.tell()
	if names, err = y.db.Names(ctx, o.ID); err != nil || names[0].State != "set" {
		t.Errorf("done: %+v, %v", names, err)
	}
	// The first name once more is the first task once more.
	y.must(y.SetName(ctx, o.ID, o.Address, "first.example.com"))
	y.tell()
	if third := open(); len(third) != 1 || third[0].ID != list[0].ID {
		t.Errorf("tasks are %+v", third)
	}
	events, err := y.db.Events(ctx, provisioner.EventFilter{})
	y.must(err)
	var kinds []string
	for _, ev := range events {
		if strings.HasPrefix(ev.Kind, "task.") {
			kinds = append(kinds, ev.Kind)
		}
	}
	if want := []string{"task.open", "task.withdraw", "task.open", "task.refused", "task.done", "task.open"}; !slices.Equal(kinds, want) {
		t.Errorf("events are %v, want %v", kinds, want)
	}
}
