package lab

import (
	"context"
	"errors"
	"slices"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
)

// hands do as the agent is told, write nowhere, and remember what would be on the disks.
type hands struct {
	*Simulated
	life *life
}

var _ agent.Hands = (*hands)(nil)

// errHalfWay is what Trouble.FailWrites brings.
var errHalfWay = errors.New("write image: the disk stopped answering half-way")

// Identity implements agent.Hands.
func (h *hands) Identity(context.Context) (machine.Hello, error) {
	return machine.Hello{UUID: h.uuid, Serial: h.serial, MACs: []string{h.provMAC, h.pubMAC}}, nil
}

// Do implements agent.Hands.
func (h *hands) Do(ctx context.Context, in machine.Instruction, progress func(done, total int64)) (any, error) {
	h.print("%s: agent: %s", h.Name(), in.Step)
	if h.goesMute(in.Step) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	switch in.Step {
	case machine.StepInventory:
		found := h.record().Hardware
		found.Accelerators = found.Accelerators[:max(0, len(found.Accelerators)-h.Absent)]
		return machine.Inventory{Hardware: found, CPU: "simulated", Cores: 1, Memory: int64(h.Memory) << 20, Firmware: h.Firmware, Kernel: "simulated"}, nil
	case machine.StepInBand:
		return machine.InBand{State: machine.InBandAbsent, Why: "simulated"}, nil
	case machine.StepExamine:
		f := h.facts(h.Absent)
		f.RAMDisk, f.Driver = true, nil
		return f, nil
	case machine.StepDiscover:
		return h.discovered(), nil
	case machine.StepWipe, machine.StepEraseAll:
		return h.erase(in.Disks), nil
	case machine.StepProve:
		h.mu.Lock()
		defer h.mu.Unlock()
		return proofs(in.Disks, !h.disk.dirty), nil
	case machine.StepWrite:
		return nil, h.write(ctx, in.Image, progress)
	case machine.StepVerify:
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.disk.image != in.Image.Digest {
			return nil, errors.New("verify image: the disk does not hold it")
		}
	case machine.StepConfigure:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.disk.seed, h.disk.phoned, h.disk.dirty = in.Configure.Seed, false, true
	}
	return nil, nil
}

// goesMute cuts the machine off when that is its trouble at this step.
func (h *hands) goesMute(at machine.StepName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trouble.MuteAt != at {
		return false
	}
	h.trouble.MuteAt = ""
	h.life.mute.Store(true)
	return true
}

// erase forgets what is on disks, and what is a customer's once all of them are erased.
func (h *hands) erase(disks []machine.Disk) []machine.Erasure {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(disks, func(d machine.Disk) bool { return d.Role == machine.SystemDisk }) {
		h.disk.image, h.disk.seed = "", nil
	}
	if len(disks) == len(h.record().Hardware.Disks) {
		h.disk.dirty = false
	}
	return proofs(disks, !h.disk.dirty)
}

// write takes its time, without a lock, and stops when it is told to.
func (h *hands) write(ctx context.Context, image *machine.ImageRef, progress func(done, total int64)) error {
	const parts, part = 8, 1 << 20
	h.mu.Lock()
	h.disk.image, h.disk.seed, h.disk.dirty = "", nil, true
	fails := h.trouble.FailWrites > 0
	if fails {
		h.trouble.FailWrites--
	}
	h.mu.Unlock()
	for i := range int64(parts) {
		if fails && i == parts/2 {
			return errHalfWay
		}
		if !pause(ctx, h.WriteTime/parts) {
			return ctx.Err()
		}
		progress((i+1)*part, parts*part)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil { // nothing is written once the power is off
		return ctx.Err()
	}
	h.disk.image = image.Digest
	h.writes++
	return nil
}

func proofs(disks []machine.Disk, clean bool) []machine.Erasure {
	var list []machine.Erasure
	for _, d := range disks {
		list = append(list, machine.Erasure{Serial: d.Serial, Size: d.Size, Method: "simulated", Level: machine.Clear, Sampled: d.Size, Clean: clean})
	}
	return list
}
