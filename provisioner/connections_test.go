package provisioner_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// pairs is a Store whose transactions go on two by two: each waits a moment until another one is open.
type pairs struct {
	provisioner.Store
	meet chan struct{}
}

func (p pairs) OnOrder(ctx context.Context, id string, fn func(*provisioner.Work) error) error {
	return p.Store.OnOrder(ctx, id, func(w *provisioner.Work) error {
		alone := time.NewTimer(200 * time.Millisecond)
		defer alone.Stop()
		select {
		case p.meet <- struct{}{}:
		case <-p.meet:
		case <-alone.C:
		}
		return fn(w)
	})
}

// nobody uses addresses that are not his.
type nobody struct{}

func (nobody) Probe(context.Context, string, []netip.Prefix) ([]network.Answer, error) {
	return nil, nil
}

// TestFewConnections: what an order's transaction asks needs no second connection, or as many orders as there are connections would
// wait for each other for ever.
func TestFewConnections(t *testing.T) {
	y := newYard(t)
	var orders []machine.Order
	for n := range 3 {
		orders = append(orders, y.active(n+1, nil))
	}
	seal, err := postgres.NewSeal([]byte("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"))
	y.must(err)
	few, err := postgres.Open(t.Context(), y.db.URL, seal, nil, postgres.Tuning{Conns: 2})
	y.must(err)
	t.Cleanup(few.Close)
	y.Store, y.Shelf, y.Prober = pairs{few, make(chan struct{})}, few, nobody{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, o := range orders {
		all.Go(func() {
			if _, err := y.AddAddresses(ctx, o.ID, 4, 1, ""); err != nil {
				t.Errorf("order %s: %v", o.ID, err)
			}
		})
	}
	all.Wait()
	if n := y.count(`SELECT count(*) FROM address WHERE NOT proven`); n != 0 {
		t.Errorf("%d addresses were not looked at", n)
	}
}
