package provisioner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// Limit lowers an order's bandwidth to mbit each way, until Unlimit. A reason is shown to the customer.
func (e *Engine) Limit(ctx context.Context, orderID string, mbit int, reason, key string) (machine.Order, error) {
	return e.onOrderOnce(ctx, orderID, key, []any{"limit", mbit, reason}, func(w *Work) error {
		if err := restrictable(w); err != nil {
			return err
		}
		if mbit < 1 || mbit > max(Acting(*w.Order).Up, Acting(*w.Order).Down) {
			return &machine.Error{Code: machine.Invalid, Field: "rate", Message: fmt.Sprintf("%d Mbit/s is no limit", mbit), Hint: "give 1 Mbit/s or more, up to what the order has"}
		}
		if w.Order.Network.Limit == mbit && w.Order.Network.LimitReason == reason {
			return nil
		}
		w.Order.Network.Limit, w.Order.Network.LimitReason = mbit, reason
		w.note("network.limit", "limited to %d Mbit/s: %s", mbit, orSilent(reason))
		w.port()
		return nil
	})
}

// Unlimit gives an order its bandwidth back.
func (e *Engine) Unlimit(ctx context.Context, orderID, key string) (machine.Order, error) {
	return e.onOrderOnce(ctx, orderID, key, []any{"unlimit"}, func(w *Work) error {
		if w.Order.Network.Limit == 0 {
			return nil
		}
		w.Order.Network.Limit, w.Order.Network.LimitReason = 0, ""
		w.note("network.unlimit", "no longer limited: %s", Acting(*w.Order))
		w.port()
		return nil
	})
}

// Bounds of a null-route. It ends by itself: nobody must be forgotten in one.
const (
	shortestBlackhole = time.Minute
	longestBlackhole  = 30 * 24 * time.Hour
)

// Blackhole null-routes the addresses of an order for a while from now on. The customer sees until when, and why.
func (e *Engine) Blackhole(ctx context.Context, orderID string, d time.Duration, reason, key string) (machine.Order, error) {
	return e.onOrderOnce(ctx, orderID, key, []any{"blackhole", d, reason}, func(w *Work) error {
		if err := restrictable(w); err != nil {
			return err
		}
		if d < shortestBlackhole || d > longestBlackhole {
			return &machine.Error{Code: machine.Invalid, Field: "for", Message: fmt.Sprintf("a null-route of %s is not possible", d), Hint: "give 1m to 720h, e.g. 2h; it can be made longer later"}
		}
		w.Order.Network.BlackholeUntil, w.Order.Network.BlackholeReason = w.Now.Add(d).Truncate(time.Second), reason
		w.note("network.blackhole", "null-routed until %s: %s", w.Order.Network.BlackholeUntil.UTC().Format(time.RFC3339), orSilent(reason))
		w.port()
		return e.redue(ctx, w)
	})
}

// Restore ends a null-route before its time.
func (e *Engine) Restore(ctx context.Context, orderID, key string) (machine.Order, error) {
	return e.onOrderOnce(ctx, orderID, key, []any{"restore"}, func(w *Work) error {
		if w.Order.Network.BlackholeUntil.IsZero() {
			return nil
		}
		w.Order.Network.BlackholeUntil, w.Order.Network.BlackholeReason = time.Time{}, ""
		w.note("network.restore", "no longer null-routed")
		w.port()
		return e.redue(ctx, w)
	})
}

func restrictable(w *Work) error {
	if slices.Contains([]machine.OrderState{machine.OrderActive, machine.OrderExpired}, w.Order.State) {
		return nil
	}
	return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("order is %s", w.Order.State), Hint: "only an order that was handed over and has not ended has a network"}
}

func orSilent(reason string) string {
	if reason == "" {
		return "no reason given"
	}
	return reason
}
