// Package nvidia reads NVIDIA cards through their driver's library, each question in a process of its own.
package nvidia

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// Vendor is NVIDIA's PCI vendor.
const Vendor = "10de"

// Library is the name by which the driver's library is found.
const Library = "libnvidia-ml.so.1"

// Reader reads the cards. The library is a vendor's code in front of hardware that may be failing: it crashes, hangs, lacks functions. So each
// probe runs in a child, which is this program again with ProbeArg as its first argument; main must hand that call to Probe.
type Reader struct {
	Self     string        // the program to run for a probe; this one when empty
	Library  string        // name or path; Library when empty
	Deadline time.Duration // for one probe; a minute when zero: without persistence the driver starts every card anew
	Parallel int           // probes at a time; 4 when zero
}

// Read asks the driver for its cards. It always returns: what went wrong is in the result, on the card that it concerns.
// The bus serves to tell where a card is that cannot tell it itself.
func (r Reader) Read(ctx context.Context, bus accelerator.Bus) accelerator.Driver {
	d := accelerator.Driver{Vendor: Vendor, Cards: []accelerator.Card{}}
	system, fault := r.probe(ctx, "system")
	d.Version, d.Count, d.Fault = system.Version, system.Count, fault
	if fault != nil || !d.Count.Known() {
		return d
	}
	n := min(int(d.Count.Value), maxCards)
	d.Cards = make([]accelerator.Card, n)
	slots := make(chan struct{}, cmp.Or(r.Parallel, 4))
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			m, fault := r.probe(ctx, "card", strconv.Itoa(i))
			d.Cards[i] = m.Card
			d.Cards[i].Index = i
			if d.Cards[i].Fault == nil {
				d.Cards[i].Fault = fault
			}
		})
	}
	wg.Wait()
	place(d.Cards, bus)
	return d
}

// maxCards is more than any machine has and keeps a driver that counts nonsense from starting processes without end.
const maxCards = 64

// place gives the cards that could not say where they are the addresses that no other card claims. Driver and bus count in the same order; when
// the numbers do not fit, nothing is guessed.
func place(cards []accelerator.Card, bus accelerator.Bus) {
	claimed := map[string]bool{}
	lost := 0
	for _, c := range cards {
		claimed[c.Slot] = true
		if c.Slot == "" {
			lost++
		}
	}
	var free []string
	for _, p := range bus.Cards {
		if p.Vendor == Vendor && !claimed[p.Slot] {
			free = append(free, p.Slot)
		}
	}
	if len(free) != lost {
		return
	}
	for i := range cards {
		if cards[i].Slot == "" {
			cards[i].Slot, free = free[0], free[1:]
		}
	}
}

// ask runs one probe in a child. The message holds what the child had found out when it ended, however it ended.
func (r Reader) ask(ctx context.Context, on func(message), question ...string) (message, *accelerator.Fault) {
	self := r.Self
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return message{}, &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
		}
	}
	return child.Ask(ctx, child.Command{Path: self, Args: append([]string{ProbeArg, cmp.Or(r.Library, Library)}, question...), Deadline: r.Deadline}, on)
}

func (r Reader) probe(ctx context.Context, question ...string) (message, *accelerator.Fault) {
	return r.ask(ctx, nil, question...)
}
