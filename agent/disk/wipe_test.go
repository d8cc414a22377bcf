package disk

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// probe returns what blkid finds on a device or file.
func probe(t *testing.T, path string, args ...string) string {
	t.Helper()
	tool, err := exec.LookPath("blkid")
	if err != nil {
		t.Fatalf("%v: apt-get install util-linux", err)
	}
	out, err := exec.Command(tool, append([]string{"-p", "-o", "export"}, append(args, path)...)...).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && !(ok && exit.ExitCode() == 2) { // 2: nothing found
		t.Fatalf("blkid: %v\n%s", err, out)
	}
	return string(out)
}

// mdSuper makes an md superblock of version 1.x that blkid and the kernel take: linux/raid/md_p.h.
func mdSuper(sector uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, 4096)
	le.PutUint32(b, 0xa92b4efc)
	le.PutUint32(b[4:], 1) // major version
	copy(b[16:32], "0123456789abcdef")
	copy(b[32:], "host:9")
	le.PutUint32(b[72:], 1)      // level
	le.PutUint64(b[80:], 1<<14)  // size
	le.PutUint32(b[92:], 2)      // disks
	le.PutUint64(b[136:], 1<<14) // data size
	le.PutUint64(b[144:], sector)
	le.PutUint32(b[220:], 2) // max_dev
	var sum uint64
	for i := 0; i < 256+2*2; i += 4 {
		sum += uint64(le.Uint32(b[i:]))
	}
	le.PutUint32(b[216:], uint32(sum)+uint32(sum>>32))
	return b
}

// F03: superblocks at the end survive an image that is shorter than the disk, unless they are wiped, on partitions too.
func TestF03NothingComesBackAfterAWipe(t *testing.T) {
	r := newRack(t)
	const size = 64 * mib
	l := r.add("sda", "A", size)
	r.part(l, "sda1", 1, 1*mib, 20*mib)
	r.part(l, "sda2", 2, 21*mib, 30*mib)
	end := func(from, n int64) int64 { return from + (n-8192)/4096*4096 }
	l.write(t, mdSuper(uint64(end(0, size)/512)), end(0, size))
	l.write(t, mdSuper(uint64(end(0, 20*mib)/512)), 1*mib+end(0, 20*mib)) // of the partition
	l.write(t, mdSuper(8), 21*mib+4096)                                   // 1.2, at the start of the other
	l.write(t, []byte("\x30\xd6\x58\x01"), 64*1024)                       // noise in the middle of nowhere
	for _, at := range []struct{ off, n int64 }{{0, size}, {1 * mib, 20 * mib}, {21 * mib, 30 * mib}} {
		if out := probe(t, l.dev, "-O", fmt.Sprint(at.off), "-S", fmt.Sprint(at.n)); !strings.Contains(out, "linux_raid_member") {
			t.Fatalf("the input is wrong: blkid finds at %d\n%s", at.off, out)
		}
	}
	if err := r.set.Wipe(t.Context(), []machine.Disk{l.Disk}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct{ off, n int64 }{{0, size}, {1 * mib, 20 * mib}, {21 * mib, 30 * mib}} {
		if out := probe(t, l.dev, "-O", fmt.Sprint(at.off), "-S", fmt.Sprint(at.n)); strings.Contains(out, "TYPE") {
			t.Errorf("blkid still finds at %d\n%s", at.off, out)
		}
		if !allZero(l.read(t, at.off, mib)) || !allZero(l.read(t, at.off+at.n-mib, mib)) {
			t.Errorf("the ends of %d+%d are not zero", at.off, at.n)
		}
	}
}

// A damaged table may claim partitions beyond the disk: they must not lead the wipe out of it, nor make it fail.
func TestWipeWithImpossiblePartitions(t *testing.T) {
	r := newRack(t)
	l := r.add("sda", "A", 16*mib)
	r.put("block/sda/sda1/partition", "1\n")
	r.put("block/sda/sda1/start", "34\n")
	r.put("block/sda/sda1/size", "99999999\n")
	r.put("block/sda/sda2/partition", "2\n")
	r.put("block/sda/sda2/start", "99999999\n")
	r.put("block/sda/sda2/size", "8\n")
	if err := r.set.Wipe(t.Context(), []machine.Disk{l.Disk}); err != nil {
		t.Fatal(err)
	}
}

func TestWipeOfTinyDisks(t *testing.T) {
	for _, size := range []int64{512 * 1024, mib, 5 * mib, 8*mib + 512} {
		r := newRack(t)
		l := r.add("sda", "A", size)
		if err := r.set.Wipe(t.Context(), []machine.Disk{l.Disk}); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if !allZero(l.read(t, 0, min(size, mib))) || !allZero(l.read(t, max(0, size-mib), min(size, mib))) {
			t.Errorf("%d bytes: ends not zero", size)
		}
	}
}

// The kernel's own stack on a disk is taken down from the top: here md on a partition with LVM on it, in a sysfs of files.
func TestReleaseTakesDownFromTheTop(t *testing.T) {
	r := newRack(t)
	r.show("sda", "pci0000:00/x", map[string]string{"sda1/partition": "1\n", "sda1/start": "8\n", "sda1/size": "8\n"})
	r.put("block/sda/sda1/holders/md127/size", "1")
	r.put("block/md127/md/array_state", "clean")
	disks, err := r.set.List()
	if err != nil {
		t.Fatal(err)
	}
	// The link stays, for nothing is behind this sysfs: that must be noticed, after the array was told to stop.
	wantError(t, r.set.release(disks[0]), "md127 stays")
	if state, _ := os.ReadFile(filepath.Join(r.set.Sys, "block/md127/md/array_state")); string(state) != "clear" {
		t.Errorf("the array is %q", state)
	}
	// With something unknown on top the array is not touched.
	r.put("block/md127/md/array_state", "clean")
	r.put("block/md127/holders/drbd0/size", "1")
	r.put("block/drbd0/size", "1")
	wantError(t, r.set.release(disks[0]), "drbd0")
	if state, _ := os.ReadFile(filepath.Join(r.set.Sys, "block/md127/md/array_state")); string(state) != "clean" {
		t.Errorf("the array is %q though its holder stays", state)
	}
}

func TestEraseAndProve(t *testing.T) {
	r := newRack(t)
	a := r.add("sda", "A", 40*mib)
	b := r.add("sdb", "B", 24*mib+512)
	disks := []machine.Disk{a.Disk, b.Disk}

	proof, err := r.set.Prove(t.Context(), disks, quiet)
	wantError(t, err, "data is left")
	if len(proof) != 2 || proof[0].Clean || proof[1].Clean || proof[0].Detail == "" {
		t.Errorf("proof of dirty disks: %+v", proof)
	}
	var last, total int64
	erased, err := r.set.Erase(t.Context(), disks, func(d, n int64) { last, total = d, n })
	if err != nil {
		t.Fatal(err)
	}
	if last != total || total != 2*(a.Size+b.Size) {
		t.Errorf("progress ends at %d of %d", last, total)
	}
	if len(erased) != 2 || !strings.Contains(erased[0].Method, "zeroout") || erased[1].Serial != "B" {
		t.Errorf("erased: %+v", erased)
	}
	for _, l := range []*loop{a, b} {
		if !allZero(l.read(t, 0, l.Size)) {
			t.Errorf("%s is not all zero", l.Serial)
		}
	}
	proof, err = r.set.Prove(t.Context(), disks, quiet)
	if err != nil || !proof[0].Clean || proof[0].Sampled != a.Size || proof[1].Sampled != b.Size {
		t.Errorf("proof: %+v, %v", proof, err)
	}
	// One byte, anywhere in a small disk.
	b.write(t, []byte{1}, 20*mib+77)
	proof, err = r.set.Prove(t.Context(), disks, quiet)
	wantError(t, err, "disk B: data is left")
	if !proof[0].Clean || proof[1].Clean {
		t.Errorf("proof: %+v", proof)
	}
}

func TestEraseStopsWhenToldTo(t *testing.T) {
	r := newRack(t)
	l := r.add("sda", "A", 70*mib)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := r.set.Erase(ctx, []machine.Disk{l.Disk}, stopAfter(cancel, 1))
	if err == nil || ctx.Err() == nil || agent.IsFatal(err) {
		t.Errorf("erase: %v", err)
	}
}

func TestOverwriteWritesEveryByte(t *testing.T) {
	r := newRack(t)
	l := r.add("sda", "A", 9*mib+512)
	d, err := r.set.open(l.Disk, true)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var wrote int64
	if err := d.overwrite(t.Context(), 0, l.Size, func(n int64) { wrote += n }); err != nil || wrote != l.Size {
		t.Fatalf("overwrite: %d, %v", wrote, err)
	}
	if !allZero(l.read(t, 0, l.Size)) {
		t.Error("not all zero")
	}
}

func TestSamples(t *testing.T) {
	for _, size := range []int64{512, sampleAll, sampleAll + 512, 3 << 30, 3<<30 + 512, 8001563222016, 16 << 40} {
		spans := samples(size)
		at := int64(0)
		for _, s := range spans {
			if s.off < at || s.n <= 0 || s.off+s.n > size || s.off%512 != 0 || s.n%512 != 0 {
				t.Fatalf("size %d: %+v after %d", size, s, at)
			}
			at = s.off + s.n
		}
		if spans[0].off != 0 || at != size {
			t.Errorf("size %d: samples from %d to %d", size, spans[0].off, at)
		}
		if n := total(spans); size > sampleAll && n < 66*mib || size <= sampleAll && n != size {
			t.Errorf("size %d: %d bytes sampled", size, n)
		}
	}
}

func TestAllZero(t *testing.T) {
	for n := range 40 {
		b := aligned(n)
		if !allZero(b) {
			t.Errorf("%d zeros are not zero", n)
		}
		for i := range b {
			b[i] = 1
			if allZero(b) {
				t.Errorf("byte %d of %d goes unnoticed", i, n)
			}
			b[i] = 0
		}
	}
}

func TestAligned(t *testing.T) {
	r := newRack(t)
	l := r.add("sda", "A", mib)
	f, err := os.OpenFile(l.dev, unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{512, 4096, 5 * 512} {
		if _, err := f.ReadAt(aligned(n), 0); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
