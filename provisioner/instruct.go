package provisioner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/bareyard/bareyard/machine"
)

// instruct says what whoever has the role must do now. For a destructive step it checks, under the lock that the
// step starts with, that the machine belongs to this job and the job to an order in the right state.
func (e *Engine) instruct(w *Work, role Role) (machine.Instruction, error) {
	step, pos, _ := e.step(w.Job.Kind, w.Job.Step)
	if roleOf(step.Actor) != role {
		if role == OSRole && (w.Job.Step == machine.StepBaseline || w.Job.Step == machine.StepHandOver || w.Job.Step == machine.StepVerdict) {
			return machine.Instruction{Do: machine.DoFinish}, nil
		}
		_, mine, _ := e.step(w.Job.Kind, machine.StepFirstBoot)
		if role == AgentRole && mine >= 0 && pos >= mine {
			return machine.Instruction{Do: machine.DoPowerOff}, nil // the disk boots now: the RAM disk has no business here
		}
		return machine.Instruction{Do: machine.DoWait}, nil
	}
	in := machine.Instruction{Do: machine.DoStep, Step: step.Name}
	if step.Destructive {
		if err := e.owns(w); err != nil {
			return machine.Instruction{}, err
		}
	}
	switch step.Name {
	case machine.StepWipe:
		in.Disks = wipeDisks(w)
	case machine.StepEraseAll, machine.StepProve:
		in.Disks = w.Machine.Hardware.Disks
	case machine.StepWrite, machine.StepVerify:
		in.Image = &machine.ImageRef{URL: e.Images, Digest: w.Job.ImageDigest}
	case machine.StepConfigure:
		c, err := e.configure(w)
		if err != nil {
			return machine.Instruction{}, err
		}
		in.Configure = c
	case machine.StepAccept:
		in.Expect = expect(w.Machine.Hardware)
		if w.Job.Acceptance == nil {
			return machine.Instruction{}, fmt.Errorf("instruct machine %s: the acceptance has no plan", w.Machine.Name)
		}
		in.Acceptance = &w.Job.Acceptance.Plan
	case machine.StepValidate:
		in.Expect = expect(w.Machine.Hardware)
		in.Expect.NoDriver = !w.Job.Driver
		in.Validate = e.validate()
	}
	if slices.Contains([]machine.StepName{machine.StepWrite, machine.StepVerify, machine.StepConfigure}, step.Name) {
		d, ok := w.Machine.Hardware.SystemDisk()
		if !ok {
			return machine.Instruction{}, fmt.Errorf("instruct machine %s: no system disk on record", w.Machine.Name)
		}
		in.Target = &d
	}
	if step.Destructive && w.Job.Progress == (machine.Progress{}) {
		w.note("step.begin", "%s begins on %s", step.Name, serials(in))
	}
	return in, nil
}

var errNotOwner = errors.New("the machine is not this job's to write to")

func (e *Engine) owns(w *Work) error {
	state, order := machine.Provisioning, []machine.OrderState{machine.OrderProvisioning}
	switch w.Job.Kind {
	case machine.AcceptanceJob:
		if w.Machine.State != machine.Accepting || w.Machine.JobID != w.Job.ID || w.Order != nil || w.Trial == nil || w.Trial.JobID != w.Job.ID {
			return errNotOwner
		}
		return nil
	case machine.ReinstallJob:
		order = []machine.OrderState{machine.OrderActive}
	case machine.ReclaimJob:
		state, order = machine.Reclaiming, []machine.OrderState{machine.OrderEnded, machine.OrderCancelled, machine.OrderFailed}
	}
	if w.Machine.State != state || w.Machine.JobID != w.Job.ID {
		return errNotOwner
	}
	if w.Order == nil && w.Job.Kind == machine.ReclaimJob {
		return nil
	}
	if w.Order == nil || w.Order.MachineID != w.Machine.ID || !slices.Contains(order, w.Order.State) {
		return errNotOwner
	}
	return nil
}

// wipeDisks are the disks that a job may clear: all of them for a new customer, else the system disk alone.
func wipeDisks(w *Work) []machine.Disk {
	if w.Job.WipeData {
		return w.Machine.Hardware.Disks
	}
	var disks []machine.Disk
	for _, d := range w.Machine.Hardware.Disks {
		if d.Role == machine.SystemDisk {
			disks = append(disks, d)
		}
	}
	return disks
}

func expect(h machine.Hardware) *machine.Expect {
	x := &machine.Expect{Accelerators: h.Accelerators, Disks: h.Disks, Count: len(h.Accelerators)}
	if len(h.Accelerators) > 0 {
		x.CardID = h.Accelerators[0].Vendor + ":" + h.Accelerators[0].Device
	}
	for _, n := range h.NICs {
		x.MACs = append(x.MACs, n.MAC)
	}
	return x
}

func serials(in machine.Instruction) string {
	if in.Target != nil {
		return in.Target.Serial
	}
	s := ""
	for i, d := range in.Disks {
		if i > 0 {
			s += ", "
		}
		s += d.Serial
	}
	return s
}
