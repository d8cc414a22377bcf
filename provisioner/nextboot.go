package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// A BMC's word that the next boot is from the network counts for nothing: the machine's own packets do. Where none comes, the
// BMC's next method is tried, and the one that worked is remembered with the machine.

// Sighting is a sign of a machine on the provisioning network: a hint, never a transition.
type Sighting struct {
	At   time.Time
	What string // e.g. "DISCOVER pxe"
}

// unseenBoot acts on a machine that should have been seen by now: it gets the rest of its time if it was, and another boot if
// it was not.
func (e *Engine) unseenBoot(ctx context.Context, w *Work, why string) error {
	step, _, _ := e.step(w.Job.Kind, w.Job.Step)
	if e.SeenWithin <= 0 || !w.Seen.At.IsZero() || byMedia(w.Machine, w.Job) {
		w.Job.Due = w.Job.StepAt.Add(step.Deadline)
		return nil
	}
	w.Job.Boots++
	if w.Job.Boots >= mediaAfter && !w.Job.Media && e.offersMedia(w.Machine) {
		w.Job.Media = true
		if err := w.jobEvent(machine.JobReboot, "not seen on the provisioning network after %d starts; started again, from virtual media", w.Job.Boots); err != nil {
			return err
		}
		w.Job.Step = machine.StepPowerOff
		e.enter(w)
		return nil
	}
	if w.Job.Boots >= machine.MaxBoots {
		return e.failAttempt(ctx, w, true, fmt.Sprintf("not seen on the provisioning network after %d starts, each with the next boot set in another way: "+
			"the BMC of %s ignores the boot override, or its port, its cable or the network boot in its firmware's settings is wrong", w.Job.Boots, w.Machine.Name)+why)
	}
	if err := w.jobEvent(machine.JobReboot, "not seen on the provisioning network within %s of its power on; started again, with the next boot set in another way", e.SeenWithin); err != nil {
		return err
	}
	w.Job.Step = machine.StepPowerOff
	e.enter(w)
	return nil
}

// bootIgnored tells what is known of a BMC that the boot it was last asked for did not come about. It does nothing when that was
// told already.
func (e *Engine) bootIgnored(ctx context.Context, m machine.Machine, t ipmi.Target) {
	if e.Memory == nil || e.Memory.Known(t).Set == "" {
		return
	}
	method := e.Memory.Known(t).Set
	e.Memory.BootSeen(t, false)
	e.noteFault(ctx, m, "bmc.boot", "the BMC of %s took a next boot by method %q, and the machine was not seen on the provisioning network after it", m.Name, method)
}

// bootSeen remembers the method by which a machine came. What cannot be kept is found out again.
func (e *Engine) bootSeen(ctx context.Context, m machine.Machine) {
	if e.Memory == nil || e.BMCs == nil {
		return
	}
	before, err := e.BMCs.Knowledge(ctx, m.ID)
	if err == nil {
		t := Secrets{Username: m.BMC.Username}.target(m, "")
		e.Memory.Learn(t, before)
		e.Memory.BootSeen(t, true)
		now := e.Memory.Known(t)
		if sameKnowledge(now, before) {
			return
		}
		var events []Event
		if now.Boot != before.Boot && len(now.Ignored) > 0 {
			events = append(events, Event{Kind: "bmc.boot", Text: fmt.Sprintf("%s boots from the network by method %q, which is remembered; its BMC ignores %s", m.Name, now.Boot, ignored(now))})
		}
		err = e.BMCs.PutKnowledge(ctx, m.ID, now, events...)
	}
	if err != nil {
		e.log().Warn("boot method of a BMC not kept", "machine", m.Name, "err", err)
	}
}

// ignored lists the methods that a BMC was seen to ignore.
func ignored(k ipmi.Knowledge) string {
	var list []string
	for method, n := range k.Ignored {
		list = append(list, fmt.Sprintf("%q (%d times)", method, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
