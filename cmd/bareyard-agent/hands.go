package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/agent/disk"
	"github.com/bareyard/bareyard/agent/efivar"
	"github.com/bareyard/bareyard/agent/inventory"
	"github.com/bareyard/bareyard/machine"
)

// hands does the steps on this machine. It is agent.Hands.
type hands struct {
	found     <-chan struct{} // closed when the drivers of all disks are loaded
	disks     disk.Set
	inventory inventory.Source
	vars      efivar.Vars
	booted    string // MAC address of the port that the machine booted from
	drivers   *drivers
	log       *slog.Logger
	erased    map[string]machine.Erasure // by serial: how a disk was erased in this boot, for the proof; used by one step at a time
}

// Identity says which machine this is.
func (h *hands) Identity(context.Context) (machine.Hello, error) {
	nics, err := h.inventory.NICs()
	if err != nil {
		return machine.Hello{}, err
	}
	var hello machine.Hello
	hello.UUID, hello.Serial = h.inventory.Identity()
	for _, n := range nics {
		hello.MACs = append(hello.MACs, n.MAC)
	}
	return hello, nil
}

// Do carries out a step.
func (h *hands) Do(ctx context.Context, in machine.Instruction, progress func(done, total int64)) (any, error) {
	select {
	case <-h.found:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch in.Step {
	case machine.StepInventory:
		return h.inventory.Read()
	case machine.StepDiscover:
		return h.discover(ctx)
	case machine.StepInBand:
		return h.tryBMC(ctx), nil
	case machine.StepExamine:
		return examine(ctx), nil
	case machine.StepWipe:
		return nil, h.disks.Wipe(ctx, in.Disks)
	case machine.StepEraseAll:
		erased, err := h.disks.Erase(ctx, in.Disks, progress)
		for _, e := range erased {
			h.erased[e.Serial] = e
		}
		return result(erased), err
	case machine.StepProve:
		proved, err := h.disks.Prove(ctx, in.Disks, progress)
		for i := range proved {
			e := h.erased[proved[i].Serial]
			proved[i].Model, proved[i].Method, proved[i].Level, proved[i].Lacks = e.Model, e.Method, e.Level, e.Lacks
		}
		return result(proved), err
	}
	if in.Target == nil {
		return nil, agent.Fatal(fmt.Errorf("do step %s: no target named", in.Step))
	}
	switch {
	case in.Step == machine.StepWrite && in.Image != nil:
		return nil, h.disks.Write(ctx, *in.Target, *in.Image, progress)
	case in.Step == machine.StepVerify && in.Image != nil:
		return nil, h.disks.Verify(ctx, *in.Target, *in.Image, progress)
	case in.Step == machine.StepConfigure && in.Configure != nil:
		return nil, h.disks.Configure(ctx, *in.Target, *in.Configure, h.vars)
	case in.Step == machine.StepWrite, in.Step == machine.StepVerify, in.Step == machine.StepConfigure:
		return nil, agent.Fatal(fmt.Errorf("do step %s: no image or configuration given", in.Step))
	}
	return nil, agent.Fatal(errors.New("do step " + string(in.Step) + ": not a step of this agent"))
}

// result keeps an empty list from being reported as a result.
func result(list []machine.Erasure) any {
	if len(list) == 0 {
		return nil
	}
	return list
}
