package manual

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/network"
)

// Edge has people route addresses and limit bandwidth, on whatever router there is. What they have confirmed is what it
// carries.
type Edge struct{ Tasks network.Tasks }

const edgeKind = "edge"

// wanted is the state that a task brings about.
type wanted struct {
	Port network.Port `json:"port"`
	Gone bool         `json:"gone,omitempty"` // it is to be taken away
}

// Caps implements network.Edge.
func (e Edge) Caps(context.Context) (network.Caps, error) {
	return network.Caps{Driver: "manual", Modes: network.Modes(), Burst: true, IPv6: true, Person: true}, nil
}

// Counters implements network.Edge: nobody reads counters by hand every five minutes.
func (e Edge) Counters(context.Context) ([]network.Counter, error) { return nil, nil }

// Read implements network.Edge. A port whose last task is not confirmed has Mode "": nobody knows how far somebody is with it.
func (e Edge) Read(ctx context.Context) ([]network.Port, error) {
	latest, err := e.Tasks.Latest(ctx, edgeKind)
	if err != nil {
		return nil, err
	}
	var ports []network.Port
	for _, id := range slices.Sorted(maps.Keys(latest)) {
		w, err := recall(latest[id])
		if err != nil {
			return nil, err
		}
		if latest[id].State != network.TaskDone {
			w.Port.Mode = ""
		} else if w.Gone {
			continue
		}
		ports = append(ports, w.Port)
	}
	return ports, nil
}

func recall(t network.Task) (w wanted, err error) {
	if err = json.Unmarshal([]byte(t.Wanted), &w); err != nil {
		return w, fmt.Errorf("read task %s: %w", t.ID, err)
	}
	return w, nil
}

// Apply implements network.Edge. It opens a task for each port that is not as it should be, and answers with ErrPending until all are
// confirmed.
func (e Edge) Apply(ctx context.Context, set []network.Port, remove []string) error {
	latest, err := e.Tasks.Latest(ctx, edgeKind)
	if err != nil {
		return err
	}
	have := map[string]network.Port{}
	for id, t := range latest {
		w, err := recall(t)
		if err != nil {
			return err
		}
		if !w.Gone {
			have[id] = w.Port
		}
	}
	for _, id := range remove {
		delete(have, id)
	}
	now := time.Now()
	var tasks []network.Task
	for _, p := range set {
		until := p.Until
		p = p.At(now)
		p.Until, p.Then = time.Time{}, ""
		p.Addrs = slices.SortedFunc(slices.Values(p.Addrs), netip.Prefix.Compare)
		_, carried := have[p.Machine]
		have[p.Machine] = p
		if p.Mode == network.Off && !carried && nothingDone(latest[p.Machine]) {
			continue // nothing passes to what nobody has routed
		}
		tasks = append(tasks, task(wanted{Port: p}, until))
	}
	// Fields that only a task of ours could have wrong are not checked again.
	ports := slices.DeleteFunc(slices.Collect(maps.Values(have)), func(p network.Port) bool { return p.Mode == "" })
	slices.SortFunc(ports, func(a, b network.Port) int { return cmp.Compare(a.Machine, b.Machine) })
	if err := network.ValidatePorts(ports); err != nil {
		return err
	}
	for _, id := range remove {
		if nothingDone(latest[id]) {
			continue
		}
		w, err := recall(latest[id])
		if err != nil {
			return err
		}
		w.Gone = true
		tasks = append(tasks, task(w, time.Time{}))
	}
	var errs []error
	for _, t := range tasks {
		if err := askAgain(ctx, e.Tasks, t, latest[t.Subject]); err != nil {
			errs = append(errs, err)
		}
	}
	return join(errs)
}

// join keeps the code of a single error.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// nothingDone reports whether nobody has ever been asked to carry a machine's port, or has confirmed that it is gone.
func nothingDone(last network.Task) bool {
	if last.ID == "" {
		return true
	}
	w, err := recall(last)
	return err == nil && w.Gone && last.State == network.TaskDone
}

// task writes down what is to be done.
func task(w wanted, until time.Time) network.Task {
	p := w.Port
	text, _ := json.Marshal(w) // it is of strings and numbers
	t := network.Task{Kind: edgeKind, Subject: p.Machine, Wanted: string(text)}
	t.ID = network.TaskID(t.Kind, t.Subject, t.Wanted)
	var addrs []string
	for _, a := range p.Addrs {
		addrs = append(addrs, a.String())
	}
	all := strings.Join(addrs, ", ")
	if w.Gone {
		t.Title = fmt.Sprintf("take %s away from machine %s", all, p.Machine)
		t.Steps = []string{
			fmt.Sprintf("on the router of %s, delete the routes of %s", site(p), all),
			fmt.Sprintf("delete the limits of the port with the MAC address %s, and have it pass nothing", p.MAC),
			"save the router's configuration",
		}
		t.Check = "from outside, none of the addresses answers, and traceroute ends at the router"
		return t
	}
	route := fmt.Sprintf("on the router of %s, route %s to the port with the MAC address %s", site(p), all, p.MAC)
	guard := fmt.Sprintf("let in from there only the MAC address %s with these source addresses: %s", p.MAC, all)
	t.Check = "from outside, ping reaches the first of the addresses; from the machine, a source address that is not its own gets no answer"
	switch p.Mode {
	case network.Off:
		t.Title = fmt.Sprintf("have nothing pass to and from machine %s (%s)", p.Machine, all)
		t.Steps = []string{fmt.Sprintf("on the router of %s, drop everything from and to %s; the addresses stay this machine's", site(p), all)}
		t.Check = "from outside, none of the addresses answers"
	case network.Blackhole:
		t.Title = fmt.Sprintf("null-route %s of machine %s", all, p.Machine)
		t.Steps = []string{
			fmt.Sprintf("on the router of %s, null-route %s", site(p), all),
			"announce them to the carriers with their blackhole communities",
		}
		if !until.IsZero() {
			t.Steps = append(t.Steps, fmt.Sprintf("it is to end at %s: a task will say so then", until.UTC().Format("2006-01-02 15:04 UTC")))
		}
		t.Check = "from outside, traceroute to the addresses ends at the carriers"
	default:
		t.Title = fmt.Sprintf("carry %s for machine %s, %s up and %s down", all, p.Machine, rate(p.Passes(network.Up)), rate(p.Passes(network.Down)))
		t.Steps = []string{route, guard,
			fmt.Sprintf("limit what the machine sends to %s, and what it receives to %s, counted with Ethernet headers", rate(p.Passes(network.Up)), rate(p.Passes(network.Down)))}
	}
	t.Steps = append(t.Steps, "save the router's configuration")
	return t
}

func site(p network.Port) string {
	if p.Site == "" {
		return "its site"
	}
	return "site " + p.Site
}

// rate writes a bandwidth as people say it.
func rate(b network.Bandwidth) string {
	mbit := func(kbit int) string {
		if kbit%1000 == 0 {
			return fmt.Sprintf("%d Mbit/s", kbit/1000)
		}
		return fmt.Sprintf("%d kbit/s", kbit)
	}
	if b.Burst > 0 {
		return fmt.Sprintf("%s, bursts up to %s", mbit(b.Kbit), mbit(b.Burst))
	}
	return mbit(b.Kbit)
}
