package inventory

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

// tree is a sysfs and a procfs made of files.
type tree struct {
	t *testing.T
	Source
}

func newTree(t *testing.T) tree {
	t.Helper()
	dir := t.TempDir()
	tr := tree{t, Source{Sys: filepath.Join(dir, "sys"), Proc: filepath.Join(dir, "proc"), Disks: func() ([]machine.Disk, error) {
		return []machine.Disk{{Serial: "D1", Size: 1 << 30}}, nil
	}}}
	if err := os.MkdirAll(filepath.Join(tr.Sys, "class/net"), 0o755); err != nil {
		t.Fatal(err)
	}
	return tr
}

func (tr tree) put(path, content string) {
	tr.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tr.t.Fatal(err)
	}
}

// port adds a network port; device is its place under /sys/devices, empty for a virtual one.
func (tr tree) port(name, mac, kind, device string) {
	tr.t.Helper()
	dir := filepath.Join(tr.Sys, "class/net", name)
	tr.put(filepath.Join(dir, "address"), mac+"\n")
	tr.put(filepath.Join(dir, "type"), kind+"\n")
	if device == "" {
		return
	}
	target := filepath.Join(tr.Sys, "devices", device)
	if err := os.MkdirAll(target, 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "device")); err != nil {
		tr.t.Fatal(err)
	}
}

func macs(nics []machine.NIC) (list []string) {
	for _, n := range nics {
		list = append(list, n.MAC)
	}
	return list
}

// A25: a BMC's USB port has the same address on every host, and a port whose driver failed has none.
func TestA25OnlyPhysicalPortsTakePart(t *testing.T) {
	tr := newTree(t)
	tr.port("eno1", "3C:EC:EF:00:00:02", "1", "pci0000:00/0000:01:00.0")
	tr.port("eno2", "3c:ec:ef:00:00:01", "1", "pci0000:00/0000:01:00.1")
	tr.port("enp1s0", "52:54:00:aa:00:01", "1", "pci0000:00/0000:02:00.0/virtio0") // locally administered, and real
	// and these not
	tr.port("enx0200000b0001", "02:00:00:0b:00:01", "1", "pci0000:00/0000:00:14.0/usb1/1-7/1-7:2.0")
	tr.port("eth9", "00:00:00:00:00:00", "1", "pci0000:00/0000:03:00.0")
	tr.port("eth8", "garbage", "1", "pci0000:00/0000:03:00.1")
	tr.port("eth7", "01:00:5e:00:00:01", "1", "pci0000:00/0000:03:00.2")
	tr.port("lo", "00:00:00:00:00:00", "772", "")
	tr.port("br0", "3c:ec:ef:00:00:03", "1", "")
	tr.port("ib0", "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01", "32", "pci0000:00/0000:04:00.0")
	tr.port("eno1v0", "3c:ec:ef:00:00:04", "1", "pci0000:00/0000:01:10.0")
	tr.put(filepath.Join(tr.Sys, "devices/pci0000:00/0000:01:10.0/physfn/vendor"), "0x8086\n")
	tr.port("twin", "3c:ec:ef:00:00:01", "1", "pci0000:00/0000:05:00.0")

	nics, err := tr.NICs()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"3c:ec:ef:00:00:01", "3c:ec:ef:00:00:02", "52:54:00:aa:00:01"}
	if got := macs(nics); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	// The permanent address counts, not one that somebody set.
	tr.Permanent = func(name string) net.HardwareAddr {
		switch name {
		case "eno1":
			return net.HardwareAddr{0x3c, 0xec, 0xef, 0, 0, 0x77}
		case "eno2":
			return make(net.HardwareAddr, 6) // the driver does not know
		}
		return nil
	}
	nics, err = tr.NICs()
	if got := macs(nics); err != nil || !slices.Contains(got, "3c:ec:ef:00:00:77") || slices.Contains(got, "3c:ec:ef:00:00:02") || len(got) != 3 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestRead(t *testing.T) {
	tr := newTree(t)
	tr.put(filepath.Join(tr.Sys, "class/dmi/id/product_uuid"), "4C4C4544-0042-3510-8051-B4C04F4A4D31\n")
	tr.put(filepath.Join(tr.Sys, "class/dmi/id/product_serial"), " SN\x00-1\xff \n")
	tr.put(filepath.Join(tr.Proc, "sys/kernel/osrelease"), "6.1.0-57-amd64\n")
	tr.put(filepath.Join(tr.Proc, "meminfo"), "MemTotal:         394216 kB\nMemFree: 1 kB\n")
	tr.put(filepath.Join(tr.Proc, "cpuinfo"), `processor	: 0
model name	: Some CPU @ 3 GHz
physical id	: 0
core id		: 0

processor	: 1
physical id	: 0
core id		: 0

processor	: 2
physical id	: 1
core id		: 0
model name	: Some CPU @ 3 GHz
`)
	for slot, d := range map[string][3]string{
		"0000:01:00.0": {"0x10de", "0x2b85", "0x030000"}, "0000:01:00.1": {"0x10de", "0x22e8", "0x040300"}, // a card and its audio
		"0000:02:00.0": {"0x10de", "0x2330", "0x030200"}, "0000:03:00.0": {"0x19e5", "0xd802", "0x120000"},
		"0000:04:00.0": {"0x1ded", "0x6001", "0x120000"}, "0000:05:00.0": {"0x1a03", "0x2000", "0x030000"}, // a BMC's VGA
		"0000:06:00.0": {"0x10de", "0x2b85", "garbage"}, "0000:02:00.4": {"0x10de", "0x2330", "0x030200"},
	} {
		dir := filepath.Join(tr.Sys, "bus/pci/devices", slot)
		tr.put(filepath.Join(dir, "vendor"), d[0]+"\n")
		tr.put(filepath.Join(dir, "device"), d[1]+"\n")
		tr.put(filepath.Join(dir, "class"), d[2]+"\n")
	}
	tr.put(filepath.Join(tr.Sys, "bus/pci/devices/0000:02:00.4/physfn/x"), "") // a virtual function

	inv, err := tr.Read()
	if err != nil {
		t.Fatal(err)
	}
	if h := inv.Hardware; h.UUID != "4c4c4544-0042-3510-8051-b4c04f4a4d31" || h.Serial != "SN-1" || len(h.Disks) != 1 {
		t.Errorf("hardware %+v", h)
	}
	if inv.CPU != "Some CPU @ 3 GHz" || inv.Cores != 2 || inv.Memory != 394216<<10 || inv.Firmware != machine.BIOS || inv.Kernel != "6.1.0-57-amd64" {
		t.Errorf("inventory %+v", inv)
	}
	want := []machine.Accelerator{
		{Slot: "0000:01:00.0", Vendor: "10de", Device: "2b85"}, {Slot: "0000:02:00.0", Vendor: "10de", Device: "2330"},
		{Slot: "0000:03:00.0", Vendor: "19e5", Device: "d802"}, {Slot: "0000:04:00.0", Vendor: "1ded", Device: "6001"},
	}
	if !slices.Equal(inv.Hardware.Accelerators, want) {
		t.Errorf("accelerators %+v", inv.Hardware.Accelerators)
	}
	tr.put(filepath.Join(tr.Sys, "firmware/efi/fw_platform_size"), "64\n")
	if inv, err := tr.Read(); err != nil || inv.Firmware != machine.UEFI {
		t.Errorf("firmware %s, %v", inv.Firmware, err)
	}
}

func TestReadOfABareMachine(t *testing.T) {
	tr := newTree(t)
	if inv, err := tr.Read(); err != nil || inv.Cores < 1 {
		t.Errorf("%+v, %v", inv, err)
	}
	tr.Disks = func() ([]machine.Disk, error) { return nil, errors.New("no sysfs") }
	if _, err := tr.Read(); err == nil {
		t.Error("an inventory without its disks is no error")
	}
}

func FuzzModules(f *testing.F) {
	f.Add([]byte("_SM3_"), []byte{17, 92, 0, 17})
	f.Fuzz(func(t *testing.T, entry, table []byte) {
		if n := modules(entry, table); n < 0 {
			t.Errorf("%d bytes of memory", n)
		}
	})
}
