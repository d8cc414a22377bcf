package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// HostAccess shuts and opens the ways by which a machine's own system reaches its BMC; answered by ipmi.Controller.
type HostAccess interface {
	// SetHostAccess returns the ways that it changed, by name, also beside an error; with only it touches no others. A BMC without any is
	// ErrUnsupported.
	SetHostAccess(ctx context.Context, t ipmi.Target, open bool, only []string) (changed []string, err error)
}

// shutInBand shuts a machine's own ways to its BMC before it is installed: from the RAM disk on, which tries them, nothing on the machine
// needs one. It stops no job: what stays open is said, and compared at return.
func (e *Engine) shutInBand(ctx context.Context, m machine.Machine, t ipmi.Target) {
	if e.HostAccess == nil || e.BMCs == nil || e.Care.LeaveInBand {
		return
	}
	shut, err := e.HostAccess.SetHostAccess(ctx, t, false, nil)
	var events []Event
	if err != nil && !errors.Is(err, ipmi.ErrUnsupported) {
		events = append(events, Event{Kind: "bmc.in-band", Text: clip("not shut: " + discreet(m, err).Error())})
	}
	err = e.BMCs.PutBMC(ctx, m.ID, func(b *BMC) ([]Event, error) {
		if len(shut) > 0 {
			events = append(events, Event{Kind: "bmc.in-band", Text: clip("shut, as the BMC reads it back: " + strings.Join(shut, ", "))})
		}
		all := append(waysShut(*b), shut...)
		slices.Sort(all)
		b.Shut = strings.Join(slices.Compact(all), ", ")
		return events, nil
	})
	if err != nil {
		e.log().Warn("in-band access of a BMC not kept", "machine", m.Name, "err", err)
	}
}

// waysShut is the ways that were shut by us, and not opened since.
func waysShut(b BMC) []string {
	return slices.DeleteFunc(strings.Split(b.Shut, ", "), func(s string) bool { return s == "" })
}

// shutByUs reports whether a difference from the baseline is a way that we shut after it was recorded, at a reinstallation.
func shutByUs(b BMC, d ipmi.Difference) bool {
	name, ok := strings.CutPrefix(d.Path, "services/host-access/")
	return ok && d.Is == "shut" && slices.ContainsFunc(waysShut(b), func(way string) bool { return strings.ReplaceAll(way, "/", "_") == name }) // as a baseline has it
}

// openInBand opens what shutInBand shut, and nothing that somebody else did. What the BMC does not open stays on record.
func (e *Engine) openInBand(ctx context.Context, m machine.Machine) error {
	if e.HostAccess == nil || e.BMCs == nil {
		return nil
	}
	kept, err := e.BMCs.BMC(ctx, m.ID)
	if err != nil || kept.Shut == "" {
		return err
	}
	var opened []string
	err = e.bmc(ctx, m, func(t ipmi.Target) error {
		now, err := e.HostAccess.SetHostAccess(ctx, t, true, waysShut(kept))
		opened = append(opened, now...)
		return err
	})
	failure := err
	if errors.Is(failure, ipmi.ErrUnsupported) || errors.Is(failure, ipmi.ErrLied) {
		failure = nil
	}
	return errors.Join(failure, e.BMCs.PutBMC(context.WithoutCancel(ctx), m.ID, func(b *BMC) ([]Event, error) {
		left := slices.DeleteFunc(waysShut(*b), func(way string) bool { return slices.Contains(opened, way) })
		if err == nil { // the rest is open already, or gone
			left = nil
		}
		b.Shut = strings.Join(left, ", ")
		return nil, nil
	}))
}

// seenInBand reads what the RAM disk saw. A machine may send anything: what is not understood is not known.
func seenInBand(r machine.Report) *machine.InBand {
	var seen machine.InBand
	if r.Phase == machine.Failed {
		return &machine.InBand{Why: machine.CleanText(r.Error)}
	}
	if len(r.Result) == 0 || json.Unmarshal(r.Result, &seen) != nil {
		return &machine.InBand{Why: "the RAM disk did not say"}
	}
	seen.Why = machine.CleanText(seen.Why)
	switch seen.State {
	case machine.InBandOpen, machine.InBandClosed, machine.InBandAbsent:
		return &seen
	}
	return &machine.InBand{Why: "the RAM disk did not say"}
}

// InBandText is in-band access in words.
func InBandText(b machine.InBand) string {
	text := map[machine.InBandState]string{
		machine.InBandOpen:   "in-band open: the tenant's root can reach its BMC; baseline compared at return",
		machine.InBandClosed: "in-band closed: the machine's own system cannot change its BMC",
		machine.InBandAbsent: "in-band absent: the machine's own system has no way to a BMC",
		"":                   "in-band not known; baseline compared at return",
	}[b.State]
	if b.Why != "" {
		text += " (" + b.Why + ")"
	}
	return text
}
