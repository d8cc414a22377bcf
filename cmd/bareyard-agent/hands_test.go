package main

import (
	"context"
	"errors"
	"testing"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
)

func TestHandsRefuseWhatTheyCannotDo(t *testing.T) {
	found := make(chan struct{})
	close(found)
	h := &hands{found: found}
	disk := &machine.Disk{Serial: "A"}
	for name, in := range map[string]machine.Instruction{
		"no target":           {Step: machine.StepWrite},
		"no image":            {Step: machine.StepWrite, Target: disk},
		"no image to compare": {Step: machine.StepVerify, Target: disk},
		"no configuration":    {Step: machine.StepConfigure, Target: disk},
		"another's step":      {Step: machine.StepValidate, Target: disk},
		"no step":             {Target: disk},
	} {
		if _, err := h.Do(t.Context(), in, func(int64, int64) {}); !agent.IsFatal(err) {
			t.Errorf("%s: %v, want a fatal error", name, err)
		}
	}
}

func TestHandsWaitForTheDisks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := (&hands{found: make(chan struct{})}).Do(ctx, machine.Instruction{Step: machine.StepWipe}, func(int64, int64) {})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("do: %v", err)
	}
}
