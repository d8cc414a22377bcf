// Package inuse asks a network whether an IPv4 address is in use: by ARP on a link, by ICMP echo through routers.
package inuse

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// Patience: how long an owner has to answer. A host on the link answers within a millisecond; a probe that is lost
// is repeated once.
const (
	patienceARP  = 200 * time.Millisecond
	patienceEcho = 500 * time.Millisecond
)

// waiters are the questions that are open.
type waiters struct {
	mu   sync.Mutex
	open map[netip.Addr][]chan string
}

func (w *waiters) add(a netip.Addr) chan string {
	c := make(chan string, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[netip.Addr][]chan string{}
	}
	w.open[a] = append(w.open[a], c)
	return c
}

func (w *waiters) drop(a netip.Addr, c chan string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range w.open[a] {
		if x == c {
			w.open[a] = append(w.open[a][:i:i], w.open[a][i+1:]...)
		}
	}
	if len(w.open[a]) == 0 {
		delete(w.open, a)
	}
}

// answered tells everybody who asks for a that owner has it.
func (w *waiters) answered(a netip.Addr, owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open[a] {
		select {
		case c <- owner:
		default: // it has an answer already
		}
	}
}

// ask sends the question twice and waits for an answer.
func (w *waiters) ask(ctx context.Context, a netip.Addr, patience time.Duration, send func() error) (owner string, used bool, err error) {
	c := w.add(a)
	defer w.drop(a, c)
	for range 2 {
		if err := send(); err != nil {
			return "", false, err
		}
		t := time.NewTimer(patience / 2)
		select {
		case owner := <-c:
			t.Stop()
			return owner, true, nil
		case <-ctx.Done():
			t.Stop()
			return "", false, ctx.Err()
		case <-t.C:
		}
	}
	return "", false, nil
}
