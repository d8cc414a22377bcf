package manual_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/manual"
)

// book keeps tasks as the database does.
type book struct {
	tasks map[string]network.Task // by ID
	order []string                // of openings
}

func newBook() *book { return &book{tasks: map[string]network.Task{}} }

func (b *book) Open(_ context.Context, t network.Task) error {
	if b.tasks[t.ID].State == network.TaskOpen {
		return nil
	}
	for id, o := range b.tasks {
		if o.Kind == t.Kind && o.Subject == t.Subject && o.State == network.TaskOpen {
			o.State = network.TaskWithdrawn
			b.tasks[id] = o
		}
	}
	t.State = network.TaskOpen
	b.tasks[t.ID] = t
	b.order = append(b.order, t.ID)
	return nil
}

func (b *book) Latest(_ context.Context, kind string) (map[string]network.Task, error) {
	out := map[string]network.Task{}
	for _, id := range b.order {
		if t := b.tasks[id]; t.Kind == kind {
			out[t.Subject] = t
		}
	}
	return out, nil
}

// open returns the tasks that wait for somebody.
func (b *book) open() (out []network.Task) {
	for id, t := range b.tasks {
		if t.State == network.TaskOpen && id == t.ID {
			out = append(out, t)
		}
	}
	return out
}

// close ends all open tasks.
func (b *book) close(state network.TaskState) {
	for _, t := range b.open() {
		t.State = state
		b.tasks[t.ID] = t
	}
}

func port(id string, n byte, mode network.Mode) network.Port {
	return network.Port{Machine: id, Site: "sha1", MAC: "02:00:00:00:00:0" + string('0'+n), Mode: mode, Up: network.Fixed(100_000), Down: network.Bandwidth{Kbit: 10_000, Burst: 200_000},
		Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, n}), 32)}}
}

func pending(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, network.ErrPending) {
		t.Fatalf("got %v, want it to wait for somebody", err)
	}
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEdge(t *testing.T) {
	b := newBook()
	e := manual.Edge{Tasks: b}
	a := port("a", 1, network.Off)
	done(t, e.Apply(t.Context(), []network.Port{a}, nil)) // nobody has routed it: nothing passes
	done(t, e.Apply(t.Context(), nil, []string{"a", "nobody"}))
	if n := len(b.open()); n != 0 {
		t.Fatalf("%d tasks about nothing", n)
	}

	a.Mode = network.On
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil))
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil)) // again
	open := b.open()
	if len(open) != 1 {
		t.Fatalf("the tasks are %+v", open)
	}
	for _, want := range []string{"203.0.113.1/32", "02:00:00:00:00:01", "100 Mbit/s", "10 Mbit/s, bursts up to 200 Mbit/s", "site sha1", "save"} {
		if !strings.Contains(strings.Join(open[0].Steps, "\n"), want) {
			t.Errorf("the steps do not say %q:\n%s", want, strings.Join(open[0].Steps, "\n"))
		}
	}
	if have, err := e.Read(t.Context()); err != nil || len(have) != 1 || have[0].Mode != "" {
		t.Errorf("before it is done it carries %+v, %v", have, err)
	}
	b.close(network.TaskDone)
	done(t, e.Apply(t.Context(), []network.Port{a}, nil))
	have, err := e.Read(t.Context())
	if set, remove := network.Diff([]network.Port{a}, have); err != nil || len(set)+len(remove) > 0 {
		t.Errorf("once it is done: to set %v, to remove %v, %v", set, remove, err)
	}

	// Two changes, of which the first is overtaken.
	a.Up = network.Fixed(300_000)
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil))
	a.Up = network.Fixed(500_000)
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil))
	if open := b.open(); len(open) != 1 || !strings.Contains(open[0].Title, "500 Mbit/s") {
		t.Errorf("the tasks are %+v", open)
	}
	b.close(network.TaskDone)

	// A blackhole says when it ends, and its end is a task.
	a.Mode, a.Until = network.Blackhole, time.Now().Add(time.Hour)
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil))
	if open := b.open(); len(open) != 1 || !strings.Contains(strings.Join(open[0].Steps, " "), "it is to end at "+a.Until.UTC().Format("2006-01-02 15:04")) {
		t.Errorf("the tasks are %+v", open)
	}
	b.close(network.TaskDone)
	a.Until = a.Until.Add(time.Hour)
	done(t, e.Apply(t.Context(), []network.Port{a}, nil)) // another end is nothing to do
	a.Until = time.Now().Add(-time.Second)
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil))
	b.close(network.TaskDone)

	// What goes is asked for even when what was there before it is not confirmed: somebody may have begun.
	a.Mode, a.Until, a.Up = network.On, time.Time{}, network.Fixed(1_000_000)
	pending(t, e.Apply(t.Context(), []network.Port{a}, nil))
	pending(t, e.Apply(t.Context(), nil, []string{"a"}))
	if open := b.open(); len(open) != 1 || !strings.Contains(open[0].Title, "take 203.0.113.1/32 away") {
		t.Errorf("the tasks are %+v", open)
	}
	// Its address may be asked for elsewhere meanwhile: both are tasks.
	other := port("b", 1, network.On)
	other.MAC = "02:00:00:00:00:0b"
	pending(t, e.Apply(t.Context(), []network.Port{other}, nil))
	b.close(network.TaskDone)
	done(t, e.Apply(t.Context(), []network.Port{other}, []string{"a"}))
	if have, err := e.Read(t.Context()); err != nil || len(have) != 1 || have[0].Machine != "b" {
		t.Errorf("it carries %+v, %v", have, err)
	}
	if err := e.Apply(t.Context(), []network.Port{a}, nil); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("an address that another has: %v", err)
	}
}

func TestEdgeRefused(t *testing.T) {
	b := newBook()
	e := manual.Edge{Tasks: b}
	pending(t, e.Apply(t.Context(), []network.Port{port("a", 1, network.On)}, nil))
	b.close(network.TaskRefused)
	if err := e.Apply(t.Context(), []network.Port{port("a", 1, network.On)}, nil); machine.CodeOf(err) != machine.Unavailable || errors.Is(err, network.ErrPending) {
		t.Errorf("a task that was refused: %v", err)
	}
	// Somebody refused one thing; another may be asked for, and then the first one again.
	pending(t, e.Apply(t.Context(), nil, []string{"a"}))
	pending(t, e.Apply(t.Context(), []network.Port{port("a", 1, network.On)}, nil))
}

func TestPorts(t *testing.T) {
	b := newBook()
	p := manual.Ports{Tasks: b}
	pending(t, p.Set(t.Context(), "sw9:12", true))
	pending(t, p.Set(t.Context(), "sw9:12", true))
	if open := b.open(); len(open) != 1 || open[0].Title != "open port 12 of switch sw9" || open[0].Check == "" || len(open[0].Steps) != 2 {
		t.Errorf("the tasks are %+v", open)
	}
	b.close(network.TaskDone)
	done(t, p.Set(t.Context(), "sw9:12", true))
	pending(t, p.Set(t.Context(), "sw9:12", false))
	// Wanted open again before it was shut: nobody knows how far somebody is.
	pending(t, p.Set(t.Context(), "sw9:12", true))
	if open := b.open(); len(open) != 1 || open[0].Wanted != "open" {
		t.Errorf("the tasks are %+v", open)
	}
	b.close(network.TaskDone)
	done(t, p.Set(t.Context(), "sw9:12", true))
	done(t, p.Pin(t.Context(), "sw9:12", "02:00:00:00:00:01"))
	for _, bad := range []string{"", "12", ":12", "sw9:"} {
		if err := p.Set(t.Context(), bad, true); machine.CodeOf(err) != machine.Invalid {
			t.Errorf("port %q: %v", bad, err)
		}
	}
}
