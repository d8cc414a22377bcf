package lab

import (
	"slices"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

// TestSimulatedLife takes one machine of each protocol through an order, a reinstall and a release.
func TestSimulatedLife(t *testing.T) {
	y := newYard(t, "s", nil, MachineConfig{}, MachineConfig{BMC: Redfish})
	for _, name := range []string{"n1", "n2"} {
		o := y.place("key-" + name)
		o = y.settled(o.ID, machine.OrderActive, machine.Active)
		_, err := y.client.Reinstall(t.Context(), o.ID, "tiny", "host", false)
		y.must(err)
		y.settled(o.ID, machine.OrderActive, machine.Active)
		_, err = y.client.Act(t.Context(), o.ID, "release")
		y.must(err)
		y.settled(o.ID, machine.OrderEnded, machine.Available)
		m := y.machine(o.MachineID)
		s := y.Simulated(m.Name)
		if s.Writes() != 2 || s.Dirty() {
			t.Errorf("%s: %d writes, dirty %v", m.Name, s.Writes(), s.Dirty())
		}
		// Network, then the disk, for each install; network to erase.
		if got, want := s.Boots(), []Device{FromNetwork, FromDisk, FromNetwork, FromDisk, FromNetwork}; !slices.Equal(got, want) {
			t.Errorf("%s booted from %v, want %v", m.Name, got, want)
		}
	}
}
