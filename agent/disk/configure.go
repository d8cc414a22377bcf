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
	"github.com/bareyard/bareyard/agent/mbr"
	"github.com/bareyard/bareyard/machine"
)

const (
	seedName = "cidata" // of the partition; its file system's label is the same in upper case, which cloud-init takes too
	aligning = 1 << 20 / gpt.Sector

	seedSectors = fat.Size / gpt.Sector
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
	esp, err := s.layout(ctx, d, seed)
	if err != nil {
		return fmt.Errorf("configure disk %s: %w", target.Serial, err)
	}
	if c.Firmware != machine.UEFI {
		return nil
	}
	if esp == nil {
		err = errors.New("the image has no EFI system partition in a GPT")
	} else {
		err = efivar.BootFrom(vars, c.Label, *esp)
	}
	if err != nil {
		s.Log.Warn("no boot entry: the firmware has to find the disk by itself", "error", err)
	}
	return nil
}

// plan is how a disk is to be laid out.
type plan struct {
	seed   int64             // where the seed partition begins, bytes
	writes []stretch         // what to write for it, in this order
	esp    *efivar.Partition // nil: none that a boot entry could name
}

// stretch is data and where it goes, in bytes.
type stretch struct {
	data []byte
	off  int64
}

// layout writes the partition table and the seed and returns the EFI system partition.
func (s Set) layout(ctx context.Context, d *device, seed []byte) (*efivar.Partition, error) {
	if d.block != gpt.Sector {
		return nil, agent.Fatal(fmt.Errorf("the disk has sectors of %d bytes", d.block))
	}
	head := aligned(int(min(gpt.Head, d.Size)))
	if err := d.readAt(head, 0); err != nil {
		return nil, err
	}
	p, err := s.planGPT(head, d.Size)
	if errors.Is(err, gpt.ErrNone) {
		p, err = s.planMBR(head, d.Size)
	}
	if err != nil {
		return nil, agent.Fatal(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The seed first: it lies where nothing is yet.
	for _, w := range append([]stretch{{seed, p.seed}}, p.writes...) {
		if len(w.data) == 0 {
			continue
		}
		if err := d.writeChecked(w.data, w.off); err != nil {
			return nil, err
		}
	}
	return p.esp, d.rescan(ctx)
}

// planGPT plans a disk with a GUID partition table.
func (s Set) planGPT(head []byte, size int64) (plan, error) {
	table, err := gpt.Parse(head)
	if err != nil {
		return plan{}, err
	}
	oldOff, oldN, err := table.Fit(size)
	if err != nil {
		return plan{}, err
	}
	part, err := s.placeGPT(table)
	if err != nil {
		return plan{}, err
	}
	// The backup before the primary, so that one is whole at any moment; last the old backup, which until then is the other one.
	newHead, newTail := table.Encode()
	p := plan{seed: int64(part.First) * gpt.Sector, writes: []stretch{{newTail, size - int64(len(newTail))}, {newHead, 0}, {make([]byte, oldN), oldOff}}}
	for _, e := range table.Entries() {
		if e.Is(gpt.TypeESP) {
			p.esp = &efivar.Partition{Number: uint32(e.Number()), First: e.First, Size: e.Last - e.First + 1, ID: e.ID}
			break
		}
	}
	return p, nil
}

// placeGPT grows the last partition and returns the seed partition behind it, which a former run may have made already.
func (s Set) placeGPT(table *gpt.Table) (gpt.Entry, error) {
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
	first, err := seedPlace(last.Last+1, table.LastUsable()+1)
	if err != nil {
		return gpt.Entry{}, err
	}
	if last.Is(gpt.TypeLinux, gpt.TypeRootAMD64, gpt.TypeLinuxLVM, gpt.TypeLinuxHome) {
		table.Grow(last, first-1)
	} else {
		s.Log.Info("the last partition is not a Linux one: it keeps its size", "type", last.Type.String())
	}
	return table.Add(gpt.TypeBasicData, seedName, first, first+seedSectors-1)
}

// planMBR plans a disk with a partition table of the old kind, which sees no more than its first 2 TiB.
func (s Set) planMBR(head []byte, size int64) (plan, error) {
	table, err := mbr.Parse(head)
	if err != nil {
		return plan{}, err
	}
	entries := table.Entries()
	last := entries[len(entries)-1]
	if last.Type != mbr.FAT16LBA || last.Size != seedSectors { // otherwise a former run has made it
		number, ok := table.Free()
		if !ok {
			return plan{}, errors.New("no room for a seed partition: the image has four primary partitions")
		}
		first, err := seedPlace(last.First+last.Size, min(uint64(size/mbr.Sector), 1<<32))
		if err != nil {
			return plan{}, err
		}
		if last.Type == mbr.Linux || last.Type == mbr.LinuxLVM {
			last.Size = first - last.First
			if err := table.Set(last); err != nil {
				return plan{}, err
			}
		} else {
			s.Log.Info("the last partition is not a Linux one: it keeps its size", "type", last.Type)
		}
		last = mbr.Entry{Number: number, Type: mbr.FAT16LBA, First: first, Size: seedSectors}
		if err := table.Set(last); err != nil {
			return plan{}, err
		}
	}
	return plan{seed: int64(last.First) * mbr.Sector, writes: []stretch{{table.Encode(), 0}}}, nil
}

// seedPlace returns the first sector of a seed partition as far back as it goes between the end of the last partition and the end
// of what is usable.
func seedPlace(from, end uint64) (uint64, error) {
	first := (end - min(end, seedSectors)) / aligning * aligning
	if end < seedSectors || first < from {
		return 0, errors.New("no room for a seed partition behind the image: it needs 17 MiB")
	}
	return first, nil
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
