package provisioner

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/bareyard/bareyard/machine"
)

// AddAddresses gives an active order more addresses of its line: IPv4, or IPv6 prefixes. They are routed to its machine as soon as
// the edge has looked whether somebody uses them; the customer configures them, or reinstalls.
func (e *Engine) AddAddresses(ctx context.Context, orderID string, family, count int, key string) ([]netip.Prefix, error) {
	var added []netip.Prefix
	err := e.once(ctx, orderID, key, []any{"addresses", family, count}, &added, func(w *Work) error {
		line, err := changeable(ctx, w)
		if err != nil {
			return err
		}
		if family != 4 && family != 6 {
			return &machine.Error{Code: machine.Invalid, Field: "family", Message: fmt.Sprintf("there is no IPv%d", family), Hint: "say 4 or 6"}
		}
		has := 0
		for _, p := range w.Order.Addresses {
			if p.Addr().Is4() == (family == 4) {
				has++
			}
		}
		if count < 1 || has+count > line.MaxAddresses {
			return &machine.Error{Code: machine.Invalid, Field: "count", Message: fmt.Sprintf("%d IPv%d addresses cannot be added to the %d that there are", count, family, has),
				Hint: fmt.Sprintf("line %s gives up to %d to one order", line.Name, line.MaxAddresses)}
		}
		if added, err = w.Stock.Addresses(ctx, Want{Line: line.Name, Family: family, Count: count}, orderID); err != nil {
			return err
		}
		w.Order.Addresses = append(w.Order.Addresses, added...)
		w.note("address.add", "%s added", list(added))
		w.Actions = append(w.Actions, Action{Kind: ActProbe, MachineID: w.Order.MachineID, OrderID: orderID, After: probeLater})
		return nil
	})
	if err != nil {
		return nil, err
	}
	instead, later := e.prove(ctx, orderID, false)
	added = given(added, instead) // also what was replaced before it failed
	if len(instead) > 0 && key != "" {
		if err := e.answerAnew(ctx, orderID, key, []any{"addresses", family, count}, added); err != nil {
			return nil, err
		}
	}
	if later != nil {
		e.log().Warn("addresses are looked at later", "order", orderID, "err", later)
	}
	if len(added) < count {
		return added, &machine.Error{Code: machine.Exhausted, Field: "count", Message: fmt.Sprintf("%d of the line's last free addresses are used by somebody else and were set aside; %d were added", count-len(added), len(added)), Hint: "choose another line, or try again later"}
	}
	return added, nil
}

// RemoveAddress takes an address off an order. The edge lets go of it first; then it cools down.
func (e *Engine) RemoveAddress(ctx context.Context, orderID string, p netip.Prefix, key string) (machine.Order, error) {
	return e.onOrderOnce(ctx, orderID, key, []any{"remove", p}, func(w *Work) error {
		if err := leave(ctx, w, p, ""); err != nil {
			return err
		}
		w.note("address.remove", "%s is taken off the machine", bare(p))
		return nil
	})
}

// MoveAddress moves an address to another active order of the same project, on a line of the same site. The edge takes it
// off the one machine before it routes it to the other.
func (e *Engine) MoveAddress(ctx context.Context, orderID string, p netip.Prefix, to, key string) (machine.Order, error) {
	next, err := e.Shelf.Order(ctx, to)
	if err != nil {
		return machine.Order{}, err
	}
	return e.onOrderOnce(ctx, orderID, key, []any{"move", p, to}, func(w *Work) error {
		if err := mayTake(ctx, w, *w.Order, next, p); err != nil {
			return err
		}
		if err := leave(ctx, w, p, to); err != nil {
			return err
		}
		w.note("address.move", "%s goes to order %s", bare(p), to)
		return nil
	})
}

// mayTake refuses to move an address of from to next.
func mayTake(ctx context.Context, w *Work, from, next machine.Order, p netip.Prefix) error {
	refuse := func(code machine.Code, message, hint string) error {
		return &machine.Error{Code: code, Field: "to", Message: message, Hint: hint}
	}
	if next.Project != from.Project {
		return refuse(machine.NotFound, fmt.Sprintf("no order %q", next.ID), "list yours with `bareyard order list`")
	}
	if next.ID == from.ID {
		return refuse(machine.Invalid, "the address is this order's already", "name another order")
	}
	if next.State != machine.OrderActive {
		return refuse(machine.Conflict, fmt.Sprintf("order %s is %s", next.ID, next.State), "an address can move to an active order")
	}
	here, err := w.Stock.Line(ctx, from.Line)
	if err != nil {
		return err
	}
	there, err := w.Stock.Line(ctx, next.Line)
	if err != nil {
		return err
	}
	if here.Site != there.Site {
		return refuse(machine.Invalid, fmt.Sprintf("order %s is at site %s; the address is routed to site %s", next.ID, there.Site, here.Site), "addresses move within a site only")
	}
	same := 0
	for _, q := range next.Addresses {
		if q.Addr().Is4() == p.Addr().Is4() {
			same++
		}
	}
	if same >= there.MaxAddresses {
		return refuse(machine.Conflict, fmt.Sprintf("order %s has %d addresses already", next.ID, same), "take one off it first")
	}
	return nil
}

// leave begins to take an address off an order.
func leave(ctx context.Context, w *Work, p netip.Prefix, next string) error {
	if _, err := changeable(ctx, w); err != nil {
		return err
	}
	at := slices.Index(w.Order.Addresses, p)
	if at < 0 {
		return &machine.Error{Code: machine.NotFound, Field: "address", Message: fmt.Sprintf("%s is no address of order %s", bare(p), w.Order.ID), Hint: "see `bareyard order show`"}
	}
	w.Order.Addresses = slices.Delete(slices.Clone(w.Order.Addresses), at, at+1)
	if p.Addr() == w.Order.Address {
		another := slices.IndexFunc(w.Order.Addresses, func(q netip.Prefix) bool { return q.Addr().Is4() && !slices.Contains(w.Order.Unproven, q) })
		if another < 0 {
			return &machine.Error{Code: machine.Conflict, Field: "address", Message: fmt.Sprintf("%s is the only IPv4 address of the order that is routed", bare(p)),
				Hint: "add another one first, with `bareyard order address add`"}
		}
		w.Order.Address = w.Order.Addresses[another].Addr()
	}
	if err := w.Moves.Leave(ctx, w.Order.ID, p, next); err != nil {
		return err
	}
	w.Actions = append(w.Actions, Action{Kind: ActLeave, MachineID: w.Order.MachineID, OrderID: w.Order.ID, Address: p})
	return nil
}

// actLeave has the edge let go of an address that leaves an order, and then passes it on or lets it cool down.
func (e *Engine) actLeave(ctx context.Context, a Action) error {
	if err := e.actPort(ctx, a.MachineID); err != nil {
		return err
	}
	// A look without the other order's lock, and again below with it: locks are taken one order at a time.
	next := ""
	err := e.Store.OnOrder(ctx, a.OrderID, func(w *Work) error {
		to, leaving, err := w.Moves.Leaving(ctx, a.OrderID, a.Address)
		if err != nil || !leaving {
			return err
		}
		if next = to; next != "" {
			return nil
		}
		w.note("address.remove", "%s is off the machine, and cools down", bare(a.Address))
		return w.Moves.Pass(ctx, a.OrderID, a.Address, "")
	})
	if err != nil || next == "" {
		return err
	}
	from, err := e.Shelf.Order(ctx, a.OrderID)
	if err != nil {
		return err
	}
	return e.Store.OnOrder(ctx, next, func(w *Work) error {
		to, leaving, err := w.Moves.Leaving(ctx, a.OrderID, a.Address)
		if err != nil || !leaving || to != next {
			return err
		}
		if err := mayTake(ctx, w, from, *w.Order, a.Address); err != nil {
			w.note("address.move", "%s of order %s does not come: %v; it cools down", bare(a.Address), a.OrderID, err)
			return w.Moves.Pass(ctx, a.OrderID, a.Address, "")
		}
		if err := w.Moves.Pass(ctx, a.OrderID, a.Address, next); err != nil {
			return err
		}
		w.Order.Addresses = append(w.Order.Addresses, a.Address)
		w.note("address.move", "%s came from order %s", bare(a.Address), a.OrderID)
		w.port()
		w.Actions = append(w.Actions, Action{Kind: ActProbe, MachineID: w.Order.MachineID, OrderID: next}) // if nobody has looked yet
		return nil
	})
}

// actPort makes the edge as the machine's order says, when it is to carry the machine at all.
func (e *Engine) actPort(ctx context.Context, machineID string) error {
	if machineID == "" {
		return nil
	}
	err := e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if !w.Machine.Public || w.Order == nil {
			return nil // a job or a fence sees to it
		}
		return e.applyPort(ctx, w)
	})
	if err != nil {
		return fmt.Errorf("program edge for machine %s: %w", machineID, err)
	}
	return nil
}

// bare writes a single address without its length.
func bare(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func list(ps []netip.Prefix) string {
	s := ""
	for i, p := range ps {
		if i > 0 {
			s += ", "
		}
		s += bare(p)
	}
	return s
}
