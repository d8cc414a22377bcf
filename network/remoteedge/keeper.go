package remoteedge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Keeper is an edge that is kept as it was told last: it writes that down before it acts, and brings it about again after drift, a
// crash or a reboot, whether a server is there or not. A blackhole ends when its time has come.
//
// What it brings about is never older than what it has confirmed: nobody's address was given to another while it could not be
// reached, as withdrawing it would have failed.
type Keeper struct {
	edge network.Edge
	file string
	log  *slog.Logger
	wake chan struct{} // there may be an earlier end to wait for

	mu   sync.Mutex
	want map[string]network.Port // nil until it is known
}

// NewKeeper returns the keeper of an edge with its memory in a file. Until it has brought about what is written there, the edge is left as it is.
func NewKeeper(edge network.Edge, file string, log *slog.Logger) *Keeper {
	return &Keeper{edge: edge, file: file, log: log, wake: make(chan struct{}, 1)}
}

// memory is the file.
type memory struct {
	Saved time.Time      `json:"saved"`
	Ports []network.Port `json:"ports"`
}

// recall reads the file, once. Without one, or with one that is damaged, what the edge carries completely is what is wanted:
// the next server sets it right.
func (k *Keeper) recall(ctx context.Context) error {
	if k.want != nil {
		return nil
	}
	ports, err := k.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.log.Info("no memory: keeping what the edge carries", "file", k.file)
	case err != nil:
		k.log.Error("the memory is damaged: keeping what the edge carries", "file", k.file, "err", err)
	}
	if err != nil {
		if ports, err = k.edge.Read(ctx); err != nil {
			return fmt.Errorf("read edge: %w", err)
		}
		ports = slices.DeleteFunc(ports, func(p network.Port) bool { return p.Validate() != nil })
	}
	want := make(map[string]network.Port, len(ports))
	for _, p := range ports {
		want[p.Machine] = p
	}
	k.want = want
	return nil
}

func (k *Keeper) load() ([]network.Port, error) {
	text, err := os.ReadFile(k.file)
	if err != nil {
		return nil, err
	}
	var m memory
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	return m.Ports, network.ValidatePorts(m.Ports)
}

func (k *Keeper) save(want map[string]network.Port) error {
	text, err := json.MarshalIndent(memory{time.Now(), list(want)}, "", " ")
	if err == nil {
		err = renameio.WriteFile(k.file, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write memory of edge: %w", err)
	}
	return nil
}

func list(want map[string]network.Port) []network.Port {
	return sorted(slices.Collect(maps.Values(want)))
}

// Run brings about what is wanted, now and every so often, until ctx ends.
func (k *Keeper) Run(ctx context.Context, every time.Duration) error {
	// Guards first: whatever may be wrong with reading, the box must not be an open router meanwhile.
	if err := k.edge.Apply(ctx, nil, nil); err != nil {
		k.log.Debug("guards are not up yet", "err", err) // what follows fails as well, and tells
	}
	for failed := false; ; {
		next, err := k.reconcile(ctx, every)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			k.log.Error("the edge is not as it is wanted", "err", err)
		} else if failed {
			k.log.Info("the edge is as it is wanted again")
		}
		failed = err != nil
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-k.wake:
			timer.Stop()
		}
	}
}

// reconcile brings about what is wanted, and says how long it stays wanted.
func (k *Keeper) reconcile(ctx context.Context, every time.Duration) (time.Duration, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recall(ctx); err != nil {
		return every, err
	}
	err := network.Reconcile(ctx, k.edge, list(k.want))
	now := time.Now()
	for _, p := range k.want {
		if p.Mode == network.Blackhole && p.Until.After(now) {
			every = min(every, p.Until.Sub(now))
		}
	}
	return every, err
}

// Read implements network.Edge: the ports as they are, and with Mode "" those that are wanted and not there, lest a server
// overlook what Run is about to bring back.
func (k *Keeper) Read(ctx context.Context) ([]network.Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recall(ctx); err != nil {
		return nil, err
	}
	ports, err := k.edge.Read(ctx)
	if err != nil {
		return nil, err
	}
	there := make(map[string]bool, len(ports))
	for _, p := range ports {
		there[p.Machine] = true
	}
	for id, p := range k.want {
		if !there[id] {
			p.Mode, p.Until, p.Then = "", time.Time{}, ""
			ports = append(ports, p)
		}
	}
	return sorted(ports), nil
}

// Counters implements network.Edge.
func (k *Keeper) Counters(ctx context.Context) ([]network.Counter, error) {
	return k.edge.Counters(ctx)
}

// Caps implements network.Edge.
func (k *Keeper) Caps(ctx context.Context) (network.Caps, error) { return k.edge.Caps(ctx) }

// Probe implements network.Prober where the edge that is kept does.
func (k *Keeper) Probe(ctx context.Context, addrs []netip.Prefix) ([]network.Answer, error) {
	return network.Probe(ctx, k.edge, "", addrs)
}

// Apply implements network.Edge. What is refused is not remembered; what fails otherwise is, and is tried again by Run.
func (k *Keeper) Apply(ctx context.Context, set []network.Port, remove []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recall(ctx); err != nil {
		return err
	}
	want := maps.Clone(k.want)
	for _, id := range remove {
		delete(want, id)
	}
	for _, p := range set {
		want[p.Machine] = p
	}
	if err := network.ValidatePorts(list(want)); err != nil {
		return err
	}
	before := k.want
	changed := !maps.EqualFunc(before, want, same)
	if changed {
		if err := k.save(want); err != nil {
			return err
		}
		k.want = want
	}
	err := k.edge.Apply(ctx, set, remove)
	switch machine.CodeOf(err) {
	case machine.Invalid, machine.Conflict, machine.Exhausted:
		if changed {
			k.want = before
			err = errors.Join(err, k.save(before))
		}
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return err
}

// same compares what nobody observes, too.
func same(a, b network.Port) bool {
	return a.Equal(b) && a.Site == b.Site && a.Limit == b.Limit && a.Until.Equal(b.Until) && a.Then == b.Then
}
