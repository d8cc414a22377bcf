package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// ChangeKind says what a change of bandwidth is.
type ChangeKind string

// Kinds of change.
const (
	Upgrade   ChangeKind = "upgrade"   // acts at once
	Downgrade ChangeKind = "downgrade" // acts when the paid term is over
	Pack      ChangeKind = "pack"      // adds to the bandwidth for some days, and reverts by itself
)

// ChangeState says how far a change is.
type ChangeState string

// States of a change.
const (
	ChangeWaiting   ChangeState = "waiting"   // for its time to come
	ChangeActing    ChangeState = "acting"    // it is in force
	ChangeOver      ChangeState = "over"      // another is in force, or its days are over
	ChangeWithdrawn ChangeState = "withdrawn" // given up before its time came
)

// Change is one change of an order's bandwidth.
type Change struct {
	ID      string        `json:"id"`
	OrderID string        `json:"order_id"`
	Kind    ChangeKind    `json:"kind"`
	State   ChangeState   `json:"state"`
	Rates   network.Rates `json:"rates"`          // Mbit/s: the bandwidth that it leads to; of a pack, what it adds
	Was     network.Rates `json:"was"`            // Mbit/s that were ordered before
	Made    time.Time     `json:"made"`           // when it was asked for
	Begins  time.Time     `json:"begins"`         // when it acts
	Ends    time.Time     `json:"ends,omitzero"`  // packs: exclusive
	Term    billing.Rest  `json:"term"`           // what is left of the paid term when it begins: what an upgrade is charged for
	Days    int           `json:"days,omitempty"` // packs
}

// Terms keeps what orders have agreed on, and what was answered to requests that may be repeated.
type Terms interface {
	// Changes lists the changes of an order's bandwidth, oldest first.
	Changes(ctx context.Context, orderID string) ([]Change, error)
	// PutChange inserts a change, or writes its state.
	PutChange(ctx context.Context, c Change) error
	// Answered returns what was answered to a request with this key. It answers a Conflict when the digest of that request was
	// another one.
	Answered(ctx context.Context, orderID, key, digest string) (answer []byte, ok bool, err error)
	// Answer remembers it, in place of an earlier answer.
	Answer(ctx context.Context, orderID, key, digest string, answer []byte) error
}

// Calendar knows which orders have something that changes by itself.
type Calendar interface {
	// OrdersDue lists orders of which something is due, the longest overdue first, at most n.
	OrdersDue(ctx context.Context, n int) ([]string, error)
}

// Ordered is the bandwidth that an order has, without packs.
func Ordered(o machine.Order) network.Rates {
	return network.Rates{Up: o.Bandwidth, Down: o.BandwidthDown}
}

// Acting is the bandwidth that an order has now, with its packs.
func Acting(o machine.Order) network.Rates {
	return Ordered(o).Add(network.Rates{Up: o.Network.ExtraUp, Down: o.Network.ExtraDown})
}

// checkNetwork fills in what was left out of a request for a network and refuses what the line does not sell.
func checkNetwork(o *machine.Order, r Request, line network.Line) error {
	if o.BandwidthDown = r.BandwidthDown; o.BandwidthDown == 0 {
		o.BandwidthDown = min(r.Bandwidth, line.MaxDown)
	}
	if err := line.CheckBandwidth(Ordered(*o)); err != nil {
		return err
	}
	model := cmp.Or(r.Model, line.Models[0])
	if err := line.CheckModel(model, r.Committed, Ordered(*o)); err != nil {
		return err
	}
	o.Model, o.Committed = string(model), r.Committed
	for _, n := range []struct {
		field string
		count int
	}{{"addresses", r.Addresses}, {"ipv6", r.IPv6}} {
		if n.count < 0 || n.count > line.MaxAddresses {
			return tooMany(n.field, n.count, line)
		}
	}
	return nil
}

func tooMany(field string, n int, line network.Line) error {
	return &machine.Error{Code: machine.Invalid, Field: field, Message: fmt.Sprintf("line %s does not give %d to one order", line.Name, n), Hint: fmt.Sprintf("ask for up to %d", line.MaxAddresses)}
}

// SetBandwidth changes what an order has. What is more than before acts at once; what is less acts when the paid term is over.
// So one wish may come to two changes, which are returned. The bandwidth that there is already withdraws a downgrade that
// waits. A direction that is zero stays as it is. With quote, nothing is changed.
func (e *Engine) SetBandwidth(ctx context.Context, orderID string, wish network.Rates, quote bool, key string) ([]Change, error) {
	var made []Change
	err := e.once(ctx, orderID, key, []any{"bandwidth", wish, quote}, &made, func(w *Work) error {
		line, err := changeable(ctx, w)
		if err != nil {
			return err
		}
		if wish == (network.Rates{}) {
			return &machine.Error{Code: machine.Invalid, Field: "bandwidth", Message: "no bandwidth is named", Hint: "give the Mbit/s from the machine, to it, or both"}
		}
		wish := network.Rates{Up: cmp.Or(wish.Up, w.Order.Bandwidth), Down: cmp.Or(wish.Down, w.Order.BandwidthDown)}
		if err := line.CheckBandwidth(wish); err != nil {
			return err
		}
		extra := network.Rates{Up: w.Order.Network.ExtraUp, Down: w.Order.Network.ExtraDown}
		if total := wish.Add(extra); total.Up > line.MaxBandwidth || total.Down > line.MaxDown {
			return &machine.Error{Code: machine.Conflict, Field: "bandwidth", Message: fmt.Sprintf("%s and the packs that act come to more than line %s has", wish, line.Name),
				Hint: "wait for the packs to end, or choose less; see `bareyard order show`"}
		}
		before, err := w.Terms.Changes(ctx, orderID)
		if err != nil {
			return err
		}
		var touched []Change
		if made, touched, err = wishFor(*w.Order, before, wish, w.Now); err != nil || quote {
			return err
		}
		for _, c := range append(touched, made...) {
			if err := w.Terms.PutChange(ctx, c); err != nil {
				return err
			}
		}
		for _, c := range made {
			if c.Kind == Upgrade {
				w.Order.Bandwidth, w.Order.BandwidthDown = c.Rates.Up, c.Rates.Down
				w.note("bandwidth.upgrade", "bandwidth goes from %s to %s", c.Was, c.Rates)
				w.port()
				continue
			}
			w.note("bandwidth.downgrade", "bandwidth will go from %s to %s at %s, when the paid term is over", c.Was, c.Rates, c.Begins.UTC().Format(time.RFC3339))
		}
		for _, c := range touched {
			if c.State == ChangeWithdrawn {
				w.note("bandwidth.withdraw", "the downgrade to %s is withdrawn", c.Rates)
			}
		}
		return e.redue(ctx, w)
	})
	return made, err
}

// changeable returns the line of an order whose bandwidth and addresses can be changed now.
func changeable(ctx context.Context, w *Work) (network.Line, error) {
	if w.Order.State != machine.OrderActive {
		return network.Line{}, &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("order is %s", w.Order.State), Hint: "only the network of an active order can be changed"}
	}
	return w.Stock.Line(ctx, w.Order.Line)
}

// wishFor says what a wish for another bandwidth comes to: the changes that it makes, and those before it that it touches.
func wishFor(o machine.Order, before []Change, wish network.Rates, now time.Time) (made, touched []Change, err error) {
	has := Ordered(o)
	higher := network.Rates{Up: max(has.Up, wish.Up), Down: max(has.Down, wish.Down)}
	change := func(kind ChangeKind, state ChangeState, was, to network.Rates, begins time.Time) Change {
		return Change{ID: NewID("b"), OrderID: o.ID, Kind: kind, State: state, Rates: to, Was: was, Made: now, Begins: begins,
			Term: billing.Remaining(o.Started, o.Until, begins, time.UTC)}
	}
	waits := false
	for _, c := range before {
		switch {
		case c.Kind == Downgrade && c.State == ChangeWaiting:
			waits = waits || c.Rates != wish
			if c.Rates == wish && higher == has {
				return nil, nil, &machine.Error{Code: machine.Conflict, Field: "bandwidth", Message: fmt.Sprintf("the order goes down to %s already, at %s", wish, c.Begins.UTC().Format(time.RFC3339)), Hint: "there is nothing to do"}
			}
			c.State = ChangeWithdrawn
			touched = append(touched, c)
		case c.Kind != Pack && c.State == ChangeActing && higher != has:
			c.State = ChangeOver
			touched = append(touched, c)
		}
	}
	if higher != has {
		made = append(made, change(Upgrade, ChangeActing, has, higher, now))
	}
	if wish != higher {
		made = append(made, change(Downgrade, ChangeWaiting, higher, wish, o.Until))
	}
	if len(made) == 0 && !waits {
		return nil, nil, &machine.Error{Code: machine.Conflict, Field: "bandwidth", Message: fmt.Sprintf("the order has %s already", wish), Hint: "there is nothing to do"}
	}
	return made, touched, nil
}

// longestPack bounds a pack, in days.
const longestPack = 31

// AddPack adds to the bandwidth of an order for some days, from now on.
func (e *Engine) AddPack(ctx context.Context, orderID string, add network.Rates, days int, key string) (Change, error) {
	var made Change
	err := e.once(ctx, orderID, key, []any{"pack", add, days}, &made, func(w *Work) error {
		line, err := changeable(ctx, w)
		if err != nil {
			return err
		}
		ends := w.Now.Add(time.Duration(days) * 24 * time.Hour)
		switch total := Acting(*w.Order).Add(add); {
		case add.Up < 0 || add.Down < 0 || add == network.Rates{}:
			return &machine.Error{Code: machine.Invalid, Field: "bandwidth", Message: fmt.Sprintf("a pack of %s adds nothing", add), Hint: "give the Mbit/s to add"}
		case days < 1 || days > longestPack:
			return &machine.Error{Code: machine.Invalid, Field: "days", Message: fmt.Sprintf("a pack of %d days is not offered", days), Hint: fmt.Sprintf("choose 1 to %d days", longestPack)}
		case total.Up > line.MaxBandwidth || total.Down > line.MaxDown:
			left := network.Rates{Up: line.MaxBandwidth - Acting(*w.Order).Up, Down: line.MaxDown - Acting(*w.Order).Down}
			return &machine.Error{Code: machine.Invalid, Field: "bandwidth", Message: fmt.Sprintf("line %s has no more than %s", line.Name, network.Rates{Up: line.MaxBandwidth, Down: line.MaxDown}),
				Hint: fmt.Sprintf("add up to %s", left)}
		case ends.After(w.Order.Until):
			return &machine.Error{Code: machine.Invalid, Field: "days", Message: fmt.Sprintf("the order ends at %s, before the pack", w.Order.Until.UTC().Format(time.RFC3339)), Hint: "choose fewer days, or renew first"}
		}
		made = Change{ID: NewID("b"), OrderID: orderID, Kind: Pack, State: ChangeActing, Rates: add, Was: Ordered(*w.Order), Made: w.Now, Begins: w.Now, Ends: ends, Days: days}
		if err := w.Terms.PutChange(ctx, made); err != nil {
			return err
		}
		w.Order.Network.ExtraUp += add.Up
		w.Order.Network.ExtraDown += add.Down
		w.note("bandwidth.pack", "a pack adds %s until %s: now %s", add, ends.UTC().Format(time.RFC3339), Acting(*w.Order))
		w.port()
		return e.redue(ctx, w)
	})
	return made, err
}

// redue works out when the next thing of the order's network changes by itself.
func (e *Engine) redue(ctx context.Context, w *Work) error {
	changes, err := w.Terms.Changes(ctx, w.Order.ID)
	if err != nil {
		return err
	}
	w.Order.Network.ChangeDue = nextDue(*w.Order, changes)
	return nil
}

func nextDue(o machine.Order, changes []Change) (due time.Time) {
	for _, d := range dues(o, changes) {
		if due.IsZero() || d.at.Before(due) {
			due = d.at
		}
	}
	return due
}

// dueChange is a moment at which something changes by itself; change is nil for the end of a blackhole.
type dueChange struct {
	at     time.Time
	change *Change
}

func dues(o machine.Order, changes []Change) (list []dueChange) {
	for i, c := range changes {
		switch {
		case c.Kind == Pack && c.State == ChangeActing:
			list = append(list, dueChange{c.Ends, &changes[i]})
		case c.Kind == Downgrade && c.State == ChangeWaiting:
			list = append(list, dueChange{c.Begins, &changes[i]})
		}
	}
	if !o.Network.BlackholeUntil.IsZero() {
		list = append(list, dueChange{at: o.Network.BlackholeUntil})
	}
	slices.SortStableFunc(list, func(a, b dueChange) int { return a.at.Compare(b.at) })
	return list
}

// SettleOrder brings about what is due of an order's network, in the order of its time, however late it is.
func (e *Engine) SettleOrder(ctx context.Context, orderID string) error {
	return e.Store.OnOrder(ctx, orderID, func(w *Work) error {
		changes, err := w.Terms.Changes(ctx, orderID)
		if err != nil {
			return err
		}
		for _, d := range dues(*w.Order, changes) {
			if d.at.After(w.Now) {
				break
			}
			at := d.at.UTC().Format(time.RFC3339)
			switch n := &w.Order.Network; {
			case d.change == nil:
				n.BlackholeUntil, n.BlackholeReason = time.Time{}, ""
				w.note("network.restore", "the null-route ended at %s", at)
			case d.change.Kind == Pack:
				d.change.State = ChangeOver
				n.ExtraUp, n.ExtraDown = max(0, n.ExtraUp-d.change.Rates.Up), max(0, n.ExtraDown-d.change.Rates.Down)
				w.note("bandwidth.revert", "the pack of %s ended at %s: now %s", d.change.Rates, at, Acting(*w.Order))
			default:
				for i := range changes {
					if changes[i].Kind != Pack && changes[i].State == ChangeActing {
						changes[i].State = ChangeOver
						if err := w.Terms.PutChange(ctx, changes[i]); err != nil {
							return err
						}
					}
				}
				d.change.State = ChangeActing
				w.Order.Bandwidth, w.Order.BandwidthDown = d.change.Rates.Up, d.change.Rates.Down
				w.note("bandwidth.downgrade", "bandwidth went from %s to %s at %s", d.change.Was, d.change.Rates, at)
			}
			if d.change != nil {
				if err := w.Terms.PutChange(ctx, *d.change); err != nil {
					return err
				}
			}
			w.port()
		}
		w.Order.Network.ChangeDue = nextDue(*w.Order, changes)
		return nil
	})
}

// port asks for the edge to be made as the order says now. Once is enough, however much was changed.
func (w *Work) port() {
	if w.Machine == nil || slices.ContainsFunc(w.Actions, func(a Action) bool { return a.Kind == ActPort && a.MachineID == w.Machine.ID }) {
		return
	}
	w.Actions = append(w.Actions, Action{Kind: ActPort, MachineID: w.Machine.ID, OrderID: w.Order.ID})
}
