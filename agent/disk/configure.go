package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/agent/efivar"
	"github.com/bareyard/bareyard/agent/fat"
	"github.com/bareyard/bareyard/agent/gpt"
	"github.com/bareyard/bareyard/machine"
)

const (
	seedName = "cidata" // of the partition; its file system's label is the same in upper case, which cloud-init takes too
	aligning = 1 << 20 / gpt.Sector
)

// Configure makes a written image this customer's machine: the backup partition table moves to the end of the disk (F05),
// the root partition grows into the free space (its file system is grown by the OS at first boot), a seed partition for
// cloud-init comes behind it, and under UEFI the disk becomes the first boot entry. A boot entry that cannot be set is logged
// and no failure: the removable path boots without one (F17, F19).
func (s Set) Configure(ctx context.Context, target machine.Disk, c machine.Configure, vars efivar.Vars) error {
	seed, err := fat.Encode("CIDATA", c.Seed)
	if err != nil {
		return agent.Fatal(fmt.Errorf("configure disk %s: %w", target.Serial, err))
	}
	d, err := s.open(target, true)
	if err != nil {
		return err
	}
	defer d.Close()
	table, err := s.layout(ctx, d, seed)
	if err != nil {
		return fmt.Errorf("configure disk %s: %w", target.Serial, err)
	}
	if c.Firmware != machine.UEFI {
		return nil
	}
	if err := bootEntry(vars, c.Label, table); err != nil {
		s.Log.Warn("no boot entry: the firmware has to find the disk by itself", "error", err)
	}
	return nil
}

// layout writes the partition table and the seed and returns the table.
func (s Set) layout(ctx context.Context, d *device, seed []byte) (*gpt.Table, error) {
	head := aligned(int(min(d.round(gpt.Head), d.Size)))
	if err := d.readAt(head, 0); err != nil {
		return nil, err
	}
	if d.block != gpt.Sector {
		return nil, agent.Fatal(fmt.Errorf("the disk has sectors of %d bytes", d.block))
	}
	table, err := gpt.Parse(head)
	if err != nil {
		return nil, agent.Fatal(err)
	}
	oldOff, oldN, err := table.Fit(d.Size)
	if err != nil {
		return nil, agent.Fatal(err)
	}
	part, err := s.place(table)
	if err != nil {
		return nil, agent.Fatal(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The seed first: it lies where nothing is yet. Then the tables, the backup before the primary, and last the old backup,
	// which until then was the only other copy.
	newHead, newTail := table.Encode()
	for _, w := range []struct {
		data []byte
		off  int64
	}{
		{seed, int64(part.First) * gpt.Sector},
		{newTail, d.Size - int64(len(newTail))},
		{newHead, 0},
		{make([]byte, oldN), oldOff},
	} {
		if len(w.data) == 0 {
			continue
		}
		if err := d.writeChecked(w.data, w.off); err != nil {
			return nil, err
		}
	}
	return table, d.rescan(ctx)
}

// place grows the last Linux partition and returns the seed partition behind it, which a former run may have made already.
func (s Set) place(table *gpt.Table) (gpt.Entry, error) {
	for _, e := range table.Entries() {
		if e.Name == seedName && e.Is(gpt.TypeBasicData) {
			if e.Size() < fat.Size {
				return gpt.Entry{}, fmt.Errorf("the image has a seed partition of %d bytes", e.Size())
			}
			return e, nil
		}
	}
	last, ok := table.Last()
	if !ok {
		return gpt.Entry{}, errors.New("the image has no partitions")
	}
	const size = fat.Size / gpt.Sector
	end := table.LastUsable() + 1
	if end < size+last.Last+1 {
		return gpt.Entry{}, errors.New("no room for a seed partition behind the image: it needs 17 MiB")
	}
	first := (end - size) / aligning * aligning
	if first <= last.Last {
		return gpt.Entry{}, errors.New("no room for a seed partition behind the image: it needs 17 MiB")
	}
	if last.Is(gpt.TypeLinux, gpt.TypeRootAMD64, gpt.TypeLinuxLVM, gpt.TypeLinuxHome) {
		table.Grow(last, first-1)
	} else {
		s.Log.Info("the last partition is not a Linux one: it keeps its size", "type", last.Type.String())
	}
	return table.Add(gpt.TypeBasicData, seedName, first, first+size-1)
}

// writeChecked writes data, flushes it and reads it back from the disk.
func (d *device) writeChecked(data []byte, off int64) error {
	buf := aligned(len(data))
	copy(buf, data)
	if err := d.writeAt(buf, off); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return err
	}
	clear(buf)
	if err := d.readAt(buf, off); err != nil {
		return err
	}
	if !bytes.Equal(buf, data) {
		return fmt.Errorf("read disk %s at %d: not what was written", d.Serial, off)
	}
	return nil
}

// bootEntry puts the disk first in the firmware's boot order.
func bootEntry(vars efivar.Vars, label string, table *gpt.Table) error {
	for _, e := range table.Entries() {
		if e.Is(gpt.TypeESP) {
			return efivar.BootFrom(vars, label, efivar.Partition{Number: uint32(e.Number()), First: e.First, Size: e.Last - e.First + 1, ID: e.ID})
		}
	}
	return errors.New("the image has no EFI system partition")
}
