package provisioner

import (
	"context"
	"net/netip"
	"time"

	"github.com/bareyard/bareyard/network"
)

// Registry is a system of record outside that wants to know what has become of addresses; answered by netbox.
type Registry interface {
	// Push is idempotent.
	Push(ctx context.Context, a network.Assignment) error
	// Told lists the addresses that it has as held.
	Told(ctx context.Context) ([]netip.Prefix, error)
}

// Outbox keeps what the registry is still to be told. What changes is put in by the transaction that changes it.
type Outbox interface {
	// NextTold takes the address that waits longest, as it is now; for a minute nobody else gets it. since names this change of it.
	NextTold(ctx context.Context) (a network.Assignment, since time.Time, ok bool, err error)
	// WasTold says that the registry knows, unless the address has changed since.
	WasTold(ctx context.Context, p netip.Prefix, since time.Time) error
	// NotTold says why not; it is due again after a time that grows with the tries.
	NotTold(ctx context.Context, p netip.Prefix, again time.Duration, problem string) error
	// TellAgain puts in what is held and was told, and that the registry has no more; it returns how many.
	TellAgain(ctx context.Context, has []netip.Prefix) (int, error)
}

const (
	pushTime   = 2 * time.Minute // bounds telling one address; NextTold keeps it from others for longer
	compareFor = 5 * time.Minute // bounds reading all that the registry has
)

// TellRegistry tells the registry what changes, and every so often compares what it has, until ctx ends. Every replica may run it.
func (e *Engine) TellRegistry(ctx context.Context, every, compare time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	compared := time.Time{}
	for {
		if err := e.tellRegistry(ctx); err != nil && ctx.Err() == nil {
			e.log().Error("registry of addresses failed", "err", err)
		}
		if time.Since(compared) >= compare {
			compared = time.Now()
			if err := e.CompareRegistry(ctx); err != nil && ctx.Err() == nil {
				e.log().Warn("registry of addresses could not be compared", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// tellRegistry works off what waits. One that fails does not hold up the others.
func (e *Engine) tellRegistry(ctx context.Context) error {
	for ctx.Err() == nil {
		a, since, ok, err := e.Outbox.NextTold(ctx)
		if err != nil || !ok {
			return err
		}
		call, cancel := context.WithTimeout(ctx, pushTime)
		failure := e.Registry.Push(call, a)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if failure == nil {
			err = e.Outbox.WasTold(ctx, a.Prefix, since)
		} else {
			e.log().Warn("registry of addresses was not told", "address", bare(a.Prefix), "err", failure)
			err = e.Outbox.NotTold(ctx, a.Prefix, 10*time.Second, failure.Error())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CompareRegistry has put back what somebody has deleted there.
func (e *Engine) CompareRegistry(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compareFor)
	defer cancel()
	has, err := e.Registry.Told(ctx)
	if err != nil {
		return err
	}
	n, err := e.Outbox.TellAgain(ctx, has)
	if n > 0 {
		e.log().Warn("addresses are missing in the registry and are put back", "number", n)
	}
	return err
}
