package provisioner

import (
	"context"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// FencePower switches a machine off as a fence does.
func (e *Engine) FencePower(ctx context.Context, m machine.Machine) error {
	return e.bmc(ctx, m, func(t ipmi.Target) error { return e.Power.SetPower(ctx, t, ipmi.OpOff) })
}

// NextTrials picks the machines of a run that may start now.
var NextTrials = nextTrials

// Sweep looks once what is overdue.
func (e *Engine) Sweep(ctx context.Context) error { return e.sweep(ctx) }

// EjectLeft takes out the discs that jobs left, once.
func (e *Engine) EjectLeft(ctx context.Context) error { return e.ejectLeft(ctx) }
