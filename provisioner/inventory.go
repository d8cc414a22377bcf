package provisioner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

// CheckInventory holds what the agent found against the record and names the first thing that is not as recorded.
// More disks or ports than recorded are a difference too: an unknown disk may be somebody's.
func CheckInventory(record machine.Hardware, found machine.Inventory) error {
	h := found.Hardware
	if record.UUID != "" && !strings.EqualFold(record.UUID, h.UUID) && !machine.SameUUID(record.UUID, h.UUID) {
		return fmt.Errorf("this is another machine: UUID %s, on record %s", h.UUID, record.UUID)
	}
	if record.Serial != "" && h.Serial != "" && record.Serial != h.Serial {
		return fmt.Errorf("this is another machine: serial %s, on record %s", h.Serial, record.Serial)
	}
	for _, n := range record.NICs {
		if !h.HasMAC(n.MAC) {
			return fmt.Errorf("port %s (%s) is missing", n.MAC, n.Role)
		}
	}
	for _, d := range record.Disks {
		i := slices.IndexFunc(h.Disks, func(x machine.Disk) bool { return x.Serial == d.Serial })
		switch {
		case i < 0:
			return fmt.Errorf("disk %s (%s) is missing", d.Serial, d.Role)
		case h.Disks[i].Size != d.Size:
			return fmt.Errorf("disk %s has %d bytes, on record %d", d.Serial, h.Disks[i].Size, d.Size)
		}
	}
	for i, d := range h.Disks {
		if !slices.ContainsFunc(record.Disks, func(x machine.Disk) bool { return x.Serial == d.Serial }) {
			return fmt.Errorf("disk %s is not on record", d.Serial)
		}
		if slices.ContainsFunc(h.Disks[:i], func(x machine.Disk) bool { return x.Serial == d.Serial }) {
			return fmt.Errorf("two disks have the serial %s", d.Serial)
		}
	}
	for _, a := range record.Accelerators {
		if !slices.ContainsFunc(h.Accelerators, func(x machine.Accelerator) bool {
			return x.Vendor == a.Vendor && x.Device == a.Device && x.Slot == a.Slot
		}) {
			return fmt.Errorf("card %s:%s in slot %s is missing (%d of %d cards found)", a.Vendor, a.Device, a.Slot, len(h.Accelerators), len(record.Accelerators))
		}
	}
	return nil
}
