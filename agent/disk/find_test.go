package disk

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
)

const mib = 1 << 20

// show puts a disk without anything behind it into sysfs.
func (r *rack) show(name, bus string, files map[string]string) {
	r.t.Helper()
	r.put("block/"+name+"/size", "2048\n")
	r.put("block/"+name+"/dev", "8:0\n")
	if bus != "" {
		target := filepath.Join(r.set.Sys, "devices", bus, name)
		if err := os.MkdirAll(target, 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(r.set.Sys, "block", name, "device")); err != nil {
			r.t.Fatal(err)
		}
	}
	for file, content := range files {
		r.put("block/"+name+"/"+file, content)
	}
}

func TestListTakesTheMachinesOwnDisks(t *testing.T) {
	r := newRack(t)
	r.show("vda", "pci0000:00/virtio1", map[string]string{"serial": "VIRT-1"})
	r.show("nvme0n1", "pci0000:00/nvme/nvme0", map[string]string{"device/serial": "  S4EWNX0R1 \n", "wwid": "eui.0025"})
	r.show("sda", "pci0000:00/ata1/host0/0:0:0:0", map[string]string{"device/vpd_pg80": "\x00\x80\x00\x0aWD-ABC\x00\x00  "})
	r.show("sdb", "pci0000:00/host1/1:0:0:0", map[string]string{"device/wwid": "naa.5000c500a1b2c3d4\n"})
	r.show("sdaa", "pci0000:00/host1/1:0:1:0", nil)
	r.show("cciss!c0d0", "pci0000:00/cciss0", map[string]string{"serial": "HP-1"})
	// and these not
	r.show("loop0", "", nil)
	r.show("md127", "", nil)
	r.show("dm-0", "", nil)
	r.show("zram0", "", nil)
	r.show("sr0", "pci0000:00/ata2/host1", map[string]string{"removable": "1"})
	r.show("sdc", "pci0000:00/usb1/1-1/host7", map[string]string{"device/wwid": "AMI Virtual HDisk"})
	r.show("sdd", "pci0000:00/host2", map[string]string{"removable": "1"})
	r.show("sde", "pci0000:00/host2", map[string]string{"ro": "1"})
	r.show("sdf", "pci0000:00/host2", map[string]string{"size": "0"})
	r.show("nvme0c0n1", "pci0000:00/nvme/nvme0", map[string]string{"hidden": "1"})
	r.show("mmcblk0boot0", "pci0000:00/mmc0", nil)

	disks, err := r.set.List()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range disks {
		got = append(got, d.Name+"="+d.Serial)
	}
	want := []string{"cciss!c0d0=HP-1", "nvme0n1=S4EWNX0R1", "sda=WD-ABC", "sdaa=", "sdb=naa.5000c500a1b2c3d4", "vda=VIRT-1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// F15: the name of a partition cannot be built, so it never is.
func TestF15PartitionsAreFoundInSysfs(t *testing.T) {
	r := newRack(t)
	for disk, part := range map[string]string{"nvme0n1": "nvme0n1p1", "mmcblk0": "mmcblk0p1", "sdaa": "sdaa1", "vda": "vda1"} {
		r.show(disk, "pci0000:00/x", map[string]string{
			part + "/partition": "1\n", part + "/start": "2048\n", part + "/size": "4096\n",
			"queue/size": "1\n", "power/control": "on\n", // folders that are none
		})
	}
	disks, err := r.set.List()
	if err != nil || len(disks) != 4 {
		t.Fatalf("List: %v, %v", disks, err)
	}
	for _, d := range disks {
		if len(d.Parts) != 1 || d.Parts[0].Start != 1*mib || d.Parts[0].Size != 2*mib {
			t.Errorf("%s: %+v", d.Name, d.Parts)
		}
	}
}

// F01: names change between boots; serial numbers do not.
func TestF01DiskIsTheOneWithTheSerialNow(t *testing.T) {
	for _, names := range [][2]string{{"sda", "sdb"}, {"sdb", "sda"}} {
		r := newRack(t)
		system := r.add(names[0], "A", 8*mib)
		data := r.add(names[1], "B", 16*mib)
		before := data.read(t, 0, 16*mib)
		if err := r.set.Wipe(t.Context(), []machine.Disk{system.Disk}); err != nil {
			t.Fatal(err)
		}
		if !allZero(system.read(t, 0, 1*mib)) {
			t.Error("the system disk was not wiped")
		}
		if !slices.Equal(data.read(t, 0, 16*mib), before) {
			t.Error("the data disk was touched")
		}
	}
}

func TestF01RefusesWhatIsNotThere(t *testing.T) {
	r := newRack(t)
	a := r.add("sda", "A", 8*mib)
	b := r.add("sdb", "B", 8*mib)
	r.add("sdc", "TWIN", 8*mib)
	r.add("sdd", "TWIN", 8*mib)
	before := a.read(t, 0, 8*mib)
	for name, want := range map[string]machine.Disk{
		"absent":       {Serial: "X", Size: 8 * mib},
		"no serial":    {Size: 8 * mib},
		"another size": {Serial: "B", Size: 9 * mib},
		"two of them":  {Serial: "TWIN", Size: 8 * mib},
		"a name":       {Serial: "sda", Size: 8 * mib},
	} {
		// The disks before it in the list must not be touched either.
		disks := []machine.Disk{a.Disk, want}
		if err := r.set.Wipe(t.Context(), disks); !agent.IsFatal(err) {
			t.Errorf("wipe, %s: %v, want a fatal error", name, err)
		}
		if _, err := r.set.Erase(t.Context(), disks, quiet); !agent.IsFatal(err) {
			t.Errorf("erase, %s: %v, want a fatal error", name, err)
		}
		if err := r.set.Configure(t.Context(), want, machine.Configure{}, nil); !agent.IsFatal(err) {
			t.Errorf("configure, %s: %v, want a fatal error", name, err)
		}
	}
	if !slices.Equal(a.read(t, 0, 8*mib), before) {
		t.Error("a disk was touched though another was refused")
	}
	if err := r.set.Wipe(t.Context(), nil); err == nil {
		t.Error("wiping no disks succeeds")
	}
	_ = b
}

// F01: between finding a disk and writing to it the name may have moved on to another disk.
func TestF01ChecksAgainOnTheOpenDisk(t *testing.T) {
	t.Run("the node is another disk", func(t *testing.T) {
		r := newRack(t)
		a := r.add("sda", "A", 8*mib)
		r.add("sdb", "B", 8*mib)
		if err := os.Rename(filepath.Join(r.set.Dev, "sdb"), filepath.Join(r.set.Dev, "sda")); err != nil {
			t.Fatal(err)
		}
		_, err := r.set.open(a.Disk, true)
		wantError(t, err, "not device")
		if !agent.IsFatal(err) {
			t.Errorf("%v is not fatal", err)
		}
	})
	t.Run("the node is a file", func(t *testing.T) {
		r := newRack(t)
		a := r.add("sda", "A", 8*mib)
		node := filepath.Join(r.set.Dev, "sda")
		if err := os.Remove(node); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(node, make([]byte, 8*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.set.open(a.Disk, true)
		wantError(t, err, "not device")
	})
	t.Run("the kernel has another size", func(t *testing.T) {
		r := newRack(t)
		a := r.add("sda", "A", 8*mib)
		r.put("block/sda/size", "8192\n")
		a.Size = 4 * mib
		_, err := r.set.open(a.Disk, true)
		wantError(t, err, "changed under us")
	})
	t.Run("somebody else holds it", func(t *testing.T) {
		r := newRack(t)
		a := r.add("sda", "A", 8*mib)
		d, err := r.set.open(a.Disk, true)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		_, err = r.set.open(a.Disk, true)
		wantError(t, err, "busy")
	})
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "S4EW", "  x\x00\xff ", "é\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if c := clean(s); c != clean(c) {
			t.Errorf("%q becomes %q, then %q", s, c, clean(c))
		}
	})
}
