package provisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/bareyard/bareyard/machine"
)

// BootWindow reports whether a machine may load the agent now: its job waits for the agent to say hello. Outside of it
// a machine that boots from the network gets "boot from disk", whatever its firmware thinks.
func BootWindow(j *machine.Job) bool {
	return j != nil && j.State == machine.JobRunning && (j.Step == machine.StepPowerOn || j.Step == machine.StepHello)
}

// BootFile is the content of the per-boot archive: what the agent needs to say hello.
type BootFile struct {
	Server string `json:"server"`
	CA     string `json:"ca"`
	Nonce  string `json:"nonce"`
	MAC    string `json:"mac"`
}

// MintBoot makes the boot file of a machine in its boot window, with a fresh one-time nonce that only the machine's
// reserved address may trade. It answers ErrDenied outside the window or to another address.
func (e *Engine) MintBoot(ctx context.Context, mac string, from netip.Addr) ([]byte, error) {
	m, _, err := e.Tickets.ByMAC(ctx, mac)
	if machine.CodeOf(err) == machine.NotFound && e.Discovery {
		return e.mintVisit(ctx, mac, from)
	}
	if err != nil {
		return nil, err
	}
	addr := m.BootAddr
	if e.ForeignDHCP {
		addr = netip.Addr{}
	} else if from.Unmap() != addr {
		return nil, fmt.Errorf("boot archive of machine %s asked for from %s: %w", m.Name, from, ErrDenied)
	}
	secret, hash := newSecret()
	err = e.Store.OnMachine(ctx, m.ID, func(w *Work) error {
		if !BootWindow(w.Job) {
			return fmt.Errorf("boot archive of machine %s outside its boot window: %w", m.Name, ErrDenied)
		}
		w.Spend = append(w.Spend, Ticket{Hash: hash, Role: NonceRole, MachineID: m.ID, JobID: w.Job.ID, Attempt: w.Job.Attempt, Addr: addr})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(BootFile{Server: e.Agents, CA: e.CA, Nonce: secret, MAC: mac})
}
