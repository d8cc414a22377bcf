package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/ascend"
	"github.com/bareyard/bareyard/accelerator/burn"
	"github.com/bareyard/bareyard/accelerator/disk"
	"github.com/bareyard/bareyard/accelerator/nvidia"
	"github.com/bareyard/bareyard/accelerator/ppu"
	"github.com/bareyard/bareyard/machine"
)

// measurer measures the machine that it runs on and lets it be judged.
type measurer struct {
	roots  accelerator.Roots
	nvidia nvidia.Reader
	ascend ascend.Reader
	ppu    ppu.Reader
	tools  nvidia.Tools
	burn   burn.Runner
	rules  accelerator.Rules
	bmc    *accelerator.BMC // as somebody else read it; nil when nobody did

	plan     accelerator.Plan
	duration time.Duration // of load: of the burn at postboot, of the stress stage of an acceptance
	every    time.Duration // between two samples under load
	handover *accelerator.Report
	tell     func(format string, args ...any) // what goes on, for a person who waits
	trial    *machine.AcceptancePlan          // of an acceptance; nil: as long as duration says
	pace     pace                             // of an acceptance
}

// Times of a plan.
const (
	postbootWhole = 225 * time.Second // for all load of a postboot: with reading before it, and a card that hangs after it, that is five minutes
	postbootBurn  = 60 * time.Second
	patternShare  = 5 // of the burn's time one part for memory patterns
	shortBurn     = 30 * time.Second
	defaultStress = time.Hour
)

// ordered takes in how a server wants its machine validated.
func (m *measurer) ordered(v machine.Validate) error {
	plan, err := accelerator.ParsePlan(v.Plan)
	if err != nil {
		return err
	}
	m.plan, m.duration = plan, v.Load
	m.rules.Profiles, err = accelerator.ParseFolder("", v.Profiles)
	return err
}

// report carries out the plan and judges what it measured.
func (m *measurer) report(ctx context.Context, expect machine.Expect) accelerator.Report {
	f := m.read(ctx, expect)
	f.Plan, f.BMC = m.plan, m.bmc
	switch m.plan {
	case accelerator.PlanPostboot, accelerator.PlanReturn:
		m.postboot(ctx, &f, expect)
	case accelerator.PlanAcceptance:
		m.acceptance(ctx, &f, expect)
	}
	if m.plan == accelerator.PlanReturn {
		before := accelerator.Report{}
		if m.handover != nil {
			before = *m.handover
		}
		return accelerator.JudgeReturn(f, expect, m.rules, before)
	}
	return accelerator.Judge(f, expect, m.rules)
}

// read reads everything that can be read without a load. The log is read last: what reading the cards stirs up belongs in it.
func (m *measurer) read(ctx context.Context, expect machine.Expect) accelerator.Facts {
	f := accelerator.Facts{Taken: time.Now().UTC(), PCI: accelerator.ReadPCI(m.roots), Host: accelerator.ReadHost(m.roots)}
	disk.Reader{Dev: m.roots.Dev}.Read(ctx, f.Host.Disks)
	for _, vendor := range vendors(f.PCI, expect) {
		switch vendor {
		case nvidia.Vendor:
			f.Driver = append(f.Driver, m.nvidia.Read(ctx, f.PCI))
		case ascend.Vendor:
			f.Driver = append(f.Driver, m.ascend.Read(ctx, f.PCI))
		case ppu.Vendor:
			f.Driver = append(f.Driver, m.ppu.Read(ctx, f.PCI))
		}
	}
	f.Log = accelerator.ReadKernelLog(m.roots)
	return f
}

// vendors are those of the cards that are there and of those that should be. Which tools an image brings says nothing: some bring another vendor's
// tool under its name.
func vendors(bus accelerator.Bus, expect machine.Expect) []string {
	wanted, _, _ := strings.Cut(strings.ToLower(expect.CardID), ":")
	out := []string{}
	for _, v := range []string{nvidia.Vendor, ascend.Vendor, ppu.Vendor} {
		if v == wanted || slices.ContainsFunc(bus.Cards, func(c accelerator.PCICard) bool { return c.Vendor == v }) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		out = []string{nvidia.Vendor}
	}
	return out
}

// again reads once more after a load and keeps what was before.
func (m *measurer) again(ctx context.Context, f *accelerator.Facts, expect machine.Expect) {
	after := m.read(ctx, expect)
	f.Before = &accelerator.Snapshot{Taken: f.Taken, PCI: f.PCI, Driver: f.Driver, Log: f.Log, Host: f.Host}
	f.Taken, f.PCI, f.Driver, f.Log, f.Host = after.Taken, after.PCI, after.Driver, after.Log, after.Host
}

// loadable returns the NVIDIA cards that the class has and that answer: a load on a card that is lost would only wait for it.
func loadable(f accelerator.Facts, expect machine.Expect) []string {
	var out []string
	for _, d := range f.Driver {
		if d.Vendor != nvidia.Vendor || d.Fault != nil || !strings.HasPrefix(strings.ToLower(expect.CardID), nvidia.Vendor+":") {
			continue
		}
		for _, c := range d.Cards {
			if c.Fault == nil && c.Slot != "" {
				out = append(out, c.Slot)
			}
		}
	}
	return out
}

func (m *measurer) postboot(ctx context.Context, f *accelerator.Facts, expect machine.Expect) {
	whole, cancel := context.WithTimeout(ctx, postbootWhole)
	defer cancel()
	long := m.duration
	if long == 0 {
		long = postbootBurn
	}
	slots := loadable(*f, expect)
	if expect.Count == 0 || len(slots) == 0 {
		return
	}
	f.Asked = long.Seconds()
	stop := m.watch(ctx, slots)
	m.say("measuring copies and memory of %d cards", len(slots))
	f.Loads = append(f.Loads, m.burn.Rates(whole, slots)...)
	f.Loads = append(f.Loads, m.burn.Pairs(whole, slots)...)
	m.say("loading %d cards for %v", len(slots), long)
	f.Loads = append(f.Loads, m.burn.Stress(whole, slots, long/patternShare, long, stop.rate)...)
	f.Series, f.Seconds = stop.end(), burned(f.Loads)
	m.again(ctx, f, expect)
}

// diagnose runs the vendor's own tool.
func (m *measurer) diagnose(ctx context.Context, f *accelerator.Facts, expect machine.Expect, scene string, level int) {
	var d accelerator.Diagnosis
	switch vendor, _, _ := strings.Cut(strings.ToLower(expect.CardID), ":"); {
	case vendor == nvidia.Vendor && level > 0:
		d = m.tools.DCGM(ctx, level)
	case vendor == ascend.Vendor:
		d = m.ascend.Diagnose(ctx, scene, 2*time.Hour)
	default:
		return
	}
	if i := slices.IndexFunc(f.Diagnoses, func(o accelerator.Diagnosis) bool { return o.Tool == d.Tool }); i >= 0 && d.Fault == nil && f.Diagnoses[i].Fault == nil {
		f.Diagnoses[i].Tests = append(f.Diagnoses[i].Tests, d.Tests...)
		return
	} else if i >= 0 {
		if d.Fault == nil || d.Fault.Kind != accelerator.FaultAbsent {
			f.Diagnoses[i] = d
		}
		return
	}
	f.Diagnoses = append(f.Diagnoses, d)
}

// merge replaces the loads of which there is a newer one.
func merge(old, fresh []accelerator.Load) []accelerator.Load {
	out := slices.DeleteFunc(slices.Clone(old), func(o accelerator.Load) bool {
		return slices.ContainsFunc(fresh, func(n accelerator.Load) bool {
			return n.Test == o.Test && n.Tool == o.Tool && n.Slot == o.Slot && n.Peer == o.Peer
		})
	})
	return append(out, fresh...)
}

// burned is for how long the card that burned least did so.
func burned(loads []accelerator.Load) float64 {
	least, found := 0.0, false
	for _, l := range loads {
		if l.Test == accelerator.TestBurn && (!found || l.Seconds < least) {
			least, found = l.Seconds, true
		}
	}
	return least
}

func (m *measurer) say(format string, args ...any) {
	if m.tell != nil {
		m.tell(format, args...)
	}
}

// watch is the watching of some cards under load.
type watch struct {
	cancel   context.CancelFunc
	done     sync.WaitGroup
	mu       sync.Mutex
	watchers []*accelerator.Watcher
	faults   []*accelerator.Fault
	rates    map[string]told
}

type told struct {
	rate float64
	at   time.Time
}

// watch begins to watch cards, each from a child of its own, until end is called.
func (m *measurer) watch(ctx context.Context, slots []string) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{cancel: cancel, rates: map[string]told{}, faults: make([]*accelerator.Fault, len(slots))}
	every := m.every
	if every == 0 {
		every = time.Second
	}
	for i, slot := range slots {
		one := accelerator.NewWatcher(slot)
		w.watchers = append(w.watchers, one)
		w.done.Go(func() {
			w.faults[i] = m.nvidia.Watch(ctx, slot, every, func(s accelerator.Sample) {
				link := accelerator.ReadLink(m.roots, slot)
				s.PortGen, s.PortWidth = link.PortGen, link.PortWidth
				if !s.Gen.Known() {
					s.Gen = link.Gen
				}
				if !s.Width.Known() {
					s.Width = link.Width
				}
				s.Rate = w.latest(slot, 3*every+2*time.Second)
				m.pace.sample(slot, s)
				one.Add(s)
			})
		})
	}
	return w
}

// rate notes what a load test tells of itself.
func (w *watch) rate(slot string, rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rates != nil {
		w.rates[slot] = told{rate, time.Now()}
	}
}

// latest returns the last rate of a card, while it is fresh.
func (w *watch) latest(slot string, fresh time.Duration) accelerator.Reading {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.rates[slot]; ok && time.Since(t.at) < fresh {
		return accelerator.Reading(t.rate)
	}
	return accelerator.Missing()
}

// end ends the watch and returns what it saw.
func (w *watch) end() []accelerator.Series {
	if w.cancel == nil {
		return nil
	}
	w.cancel()
	w.done.Wait()
	var out []accelerator.Series
	for i, one := range w.watchers {
		s := one.Series()
		s.Fault = w.faults[i]
		out = append(out, s)
	}
	return out
}
