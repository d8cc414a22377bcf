package provisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Prober looks whether somebody uses addresses before they are given out; answered by the edge of a site.
type Prober interface {
	Probe(ctx context.Context, site string, addrs []netip.Prefix) ([]network.Answer, error)
}

const (
	probeTime  = 3 * time.Second // bounds one probe; it takes less than one unless the edge is far away or busy
	probeTurns = 5               // how often an order is given other addresses at once
	probeTries = 3               // how often it is looked before addresses are given out without
	probeLater = 10 * time.Second
)

// errUsed says that an order waits, as others use the addresses that it is given: no fault of its machine.
var errUsed = fmt.Errorf("%w", network.ErrPending)

// errUnseen says that nobody knows yet whether somebody uses addresses.
var errUnseen = errors.New("cannot see whether somebody uses")

// prove looks whether somebody else uses the addresses that an order has got lately, and gives it others for those. It returns
// what was given for what. No transaction is open while it looks. A look that comes to nothing is errUnseen and leaves the addresses
// unproven, unless it is the last one or the edge has no way to look.
func (e *Engine) prove(ctx context.Context, orderID string, last bool) (instead map[netip.Prefix]netip.Prefix, err error) {
	instead = map[netip.Prefix]netip.Prefix{}
	for range probeTurns + 1 { // the last one finds nothing more to look at
		var look []netip.Prefix
		var site string
		err := e.Store.OnOrder(ctx, orderID, func(w *Work) (err error) {
			if look, err = w.Moves.Unproven(ctx, orderID); err != nil || len(look) == 0 {
				return err
			}
			if e.Prober == nil {
				if w.Order.State == machine.OrderActive {
					w.port()
				}
				return w.Moves.Prove(ctx, orderID, look)
			}
			line, err := w.Stock.Line(ctx, w.Order.Line)
			site = line.Site
			return err
		})
		if err != nil || len(look) == 0 || e.Prober == nil {
			return instead, err
		}
		probe, cancel := context.WithTimeout(ctx, probeTime)
		answers, failure := e.Prober.Probe(probe, site, look)
		cancel()
		if ctx.Err() != nil {
			return instead, ctx.Err()
		}
		if failure != nil && !last && !errors.Is(failure, network.ErrCannotProbe) {
			return instead, fmt.Errorf("%w %s: %v", errUnseen, list(look), failure)
		}
		var tasks []network.Task
		var turn map[netip.Prefix]netip.Prefix
		err = e.Store.OnOrder(ctx, orderID, func(w *Work) (err error) {
			turn = map[netip.Prefix]netip.Prefix{} // what is rolled back was not given
			tasks, err = e.judgeProbe(ctx, w, look, answers, failure, turn)
			return err
		})
		if err == nil {
			maps.Copy(instead, turn)
		}
		for _, t := range tasks {
			if e.Tasks == nil {
				break
			}
			if err := e.Tasks.Open(ctx, t); err != nil {
				return instead, err
			}
		}
		if err != nil {
			return instead, err
		}
	}
	return instead, fmt.Errorf("%d addresses in a row are used by others: %w", probeTurns, errUsed)
}

// judgeProbe acts on what a probe found: what is free is proven, what is used is set aside and another one taken for it. An order that is
// left without enough, as the line has no other, waits for somebody: that is no reason to call the line sold out.
func (e *Engine) judgeProbe(ctx context.Context, w *Work, looked []netip.Prefix, answers []network.Answer, failure error, instead map[netip.Prefix]netip.Prefix) (tasks []network.Task, err error) {
	still, err := w.Moves.Unproven(ctx, w.Order.ID)
	if err != nil {
		return nil, err
	}
	looked = slices.DeleteFunc(slices.Clone(looked), func(p netip.Prefix) bool { return !slices.Contains(still, p) })
	if failure != nil {
		w.note("address.unproven", "nobody knows whether somebody uses %s: %v", list(looked), failure)
		e.log().Warn("addresses are given out without a look for users", "order", w.Order.ID, "err", failure)
		answers = nil
	}
	own := ""
	if w.Machine != nil {
		nic, _ := w.Machine.Hardware.NICByRole(machine.PublicNIC)
		own = nic.MAC
	}
	for _, p := range slices.Clone(looked) {
		at := slices.IndexFunc(answers, func(a network.Answer) bool { return p.Contains(a.Addr) && (a.By == "" || a.By != own) })
		if at < 0 {
			continue
		}
		task, aside, err := e.replace(ctx, w, p, answers[at], instead)
		if task.ID != "" {
			tasks = append(tasks, task)
		}
		if err != nil {
			return tasks, err
		}
		if aside {
			looked = slices.DeleteFunc(looked, func(q netip.Prefix) bool { return q == p })
		}
	}
	if err := w.Moves.Prove(ctx, w.Order.ID, looked); err != nil {
		return tasks, err
	}
	if left, err := w.Moves.Unproven(ctx, w.Order.ID); err != nil || len(left) > 0 {
		return tasks, err
	}
	if w.Order.State == machine.OrderActive {
		w.port()
	}
	return tasks, nil
}

// replace sets an address of an order aside, as somebody answered at it, and takes another one. An answer that is not believed,
// because the same one answers everywhere, leaves it as it is.
func (e *Engine) replace(ctx context.Context, w *Work, p netip.Prefix, a network.Answer, instead map[netip.Prefix]netip.Prefix) (t network.Task, aside bool, err error) {
	who := "somebody " + a.On
	if a.By != "" {
		who = a.By + " " + a.On
	}
	belief, err := w.Moves.Spoil(ctx, w.Order.ID, p, a.By, "used by "+who)
	if err != nil {
		return network.Task{}, false, err
	}
	switch belief {
	case AnswersForAll:
		w.note("address.answers", "%s answers at %s as at others: it answers for everybody, and is not believed", who, bare(p))
		return answersTask(a.By, who), false, nil
	case TooManyAside:
		return crowdTask(w.Order.Line), false, fmt.Errorf("%s is used by %s, and so much of line %s is set aside that an operator must look first: %w", bare(p), who, w.Order.Line, errUsed)
	}
	t, fate := usedTask(p, who), "it is set aside"
	if belief == PutBack {
		t, fate = crowdTask(w.Order.Line), "as much of the line is set aside already, it is put back"
	}
	family := 4
	if p.Addr().Is6() {
		family = 6
	}
	at := slices.Index(w.Order.Addresses, p)
	others, err := w.Stock.Addresses(ctx, Want{Line: w.Order.Line, Family: family, Count: 1}, w.Order.ID)
	if machine.CodeOf(err) == machine.Exhausted && w.Order.State == machine.OrderActive && belief == SetAside {
		if at >= 0 {
			w.Order.Addresses = slices.Delete(w.Order.Addresses, at, at+1)
		}
		instead[p] = netip.Prefix{}
		w.note("address.conflict", "%s is used by %s: it is set aside, and the line has no other", bare(p), who)
		return t, true, nil
	}
	if machine.CodeOf(err) == machine.Exhausted {
		return t, false, fmt.Errorf("%s is used by %s, and line %s has no other: %w", bare(p), who, w.Order.Line, errUsed)
	}
	if err != nil {
		return network.Task{}, false, err
	}
	if at >= 0 {
		w.Order.Addresses[at] = others[0]
	}
	if w.Order.Address == p.Addr() {
		w.Order.Address = others[0].Addr()
	}
	instead[p] = others[0]
	w.note("address.conflict", "%s is used by %s: %s, %s is taken instead", bare(p), who, fate, bare(others[0]))
	e.log().Warn("an address is used by somebody", "address", bare(p), "by", who, "order", w.Order.ID)
	return t, true, nil
}

// usedTask is for an address that somebody uses who should not.
func usedTask(p netip.Prefix, who string) network.Task {
	addr := p.Addr().String()
	return network.Task{ID: network.TaskID("address", addr, who), Kind: "address", Subject: addr, Wanted: who,
		Title: fmt.Sprintf("%s is used by %s", bare(p), who),
		Steps: []string{"Find who that is: a machine of ours with an address of its last customer, a router, or a stranger on the segment.", "Have the address taken off it, or keep it back: bareyard address reserve " + p.String(),
			"Put it into stock again when nobody answers any more: bareyard address free " + p.String()},
		Check: "bareyard address list --state conflict"}
}

// answersTask is for somebody who answers at addresses of others; one for him, at however many.
func answersTask(by, who string) network.Task {
	return network.Task{ID: network.TaskID("answers", by, ""), Kind: "answers", Subject: by,
		Title: fmt.Sprintf("%s answers at every address", who),
		Steps: []string{"Switch proxy ARP off there, or find out why it answers. Until then the probe of addresses is blind behind it."},
		Check: "bareyard address list --state conflict"}
}

// crowdTask is for a line of which too much is set aside.
func crowdTask(line string) network.Task {
	list := fmt.Sprintf("bareyard address list --line %s --state conflict", line)
	return network.Task{ID: network.TaskID("line", line, "conflict"), Kind: "line", Subject: line, Wanted: "conflict",
		Title: fmt.Sprintf("orders wait: many addresses of line %s are used by others", line),
		Steps: []string{"See where somebody answers: " + list, "Find who that is. When one stranger or customer answers with many MAC addresses, take him off the network.",
			"Put what is free into stock again with `bareyard address free`, and keep back what is not with `bareyard address reserve`. The orders go on by themselves."},
		Check: list}
}

// given says what became of addresses, some of which others were given for.
func given(addrs []netip.Prefix, instead map[netip.Prefix]netip.Prefix) (out []netip.Prefix) {
	for _, p := range addrs {
		for range instead { // none stands in for itself, however often addresses go back and forth
			if q, replaced := instead[p]; replaced {
				p = q
			}
		}
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// actProbe proves addresses whose request was cut off by a crash, or by an edge that did not answer. That is tried again later.
func (e *Engine) actProbe(ctx context.Context, a Action) error {
	_, err := e.prove(ctx, a.OrderID, a.Try+1 >= probeTries)
	if !errors.Is(err, errUnseen) {
		return err
	}
	e.log().Warn("addresses are looked at later", "order", a.OrderID, "err", err)
	return e.Store.OnOrder(ctx, a.OrderID, func(w *Work) error {
		a.Try, a.After = a.Try+1, probeLater
		w.Actions = append(w.Actions, a)
		return nil
	})
}
