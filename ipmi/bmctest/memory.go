package bmctest

import (
	"context"
	"fmt"
	"sync"

	"github.com/bareyard/bareyard/ipmi"
)

// Memory is a chassis in memory. Power changes are instant; what takes time is a matter of Faults.
type Memory struct {
	// OnPower is called after each change, in order, without a lock held: on with what the host now boots, or off with a
	// zero Boot. A cycle and a reset make an off and an on. Set it before the first use.
	OnPower func(on bool, b Boot)

	identity Identity
	mu       sync.Mutex
	on       bool
	next     Boot
	starts   []Boot
	ops      []ipmi.Op
}

// NewMemory returns a chassis that is off.
func NewMemory(id Identity) *Memory {
	return &Memory{identity: id, next: Boot{Device: ipmi.DeviceNone}}
}

// Identity says who the machine is.
func (m *Memory) Identity() Identity { return m.identity }

// Power reports whether the host is on.
func (m *Memory) Power(context.Context) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on, nil
}

// SetPower does op at once. A cycle or a reset of a host that is off does nothing, as on most real machines.
func (m *Memory) SetPower(_ context.Context, op ipmi.Op) error {
	m.mu.Lock()
	m.ops = append(m.ops, op)
	var events []bool
	switch op {
	case ipmi.OpOn:
		if !m.on {
			events = []bool{true}
		}
	case ipmi.OpOff, ipmi.OpSoft:
		if m.on {
			events = []bool{false}
		}
	case ipmi.OpCycle, ipmi.OpReset:
		if m.on {
			events = []bool{false, true}
		}
	default:
		m.mu.Unlock()
		return fmt.Errorf("set power: no such operation %q", op)
	}
	boots := make([]Boot, len(events))
	for i, on := range events {
		m.on = on
		if on {
			boots[i] = m.next
			m.starts = append(m.starts, m.next)
			if m.next.Once {
				m.next = Boot{Device: ipmi.DeviceNone}
			}
		}
	}
	hook := m.OnPower
	m.mu.Unlock()
	if hook != nil {
		for i, on := range events {
			hook(on, boots[i])
		}
	}
	return nil
}

// SetNextBoot sets what the host boots next.
func (m *Memory) SetNextBoot(_ context.Context, b Boot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = b
	return nil
}

// Force sets the power state as a mains failure or a hand at the button would: without an operation and without OnPower.
func (m *Memory) Force(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on = on
}

// NextBoot is the override that the next start will see.
func (m *Memory) NextBoot() Boot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

// Starts lists what the host booted at each start so far.
func (m *Memory) Starts() []Boot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Boot(nil), m.starts...)
}

// Ops lists the power operations that arrived so far.
func (m *Memory) Ops() []ipmi.Op {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]ipmi.Op(nil), m.ops...)
}
