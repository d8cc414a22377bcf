package inventory

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/machine"
)

// link makes a symbolic link.
func (tr tree) link(at, to string) {
	tr.t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Symlink(to, at); err != nil {
		tr.t.Fatal(err)
	}
}

// TestDiscover: firmware, ports with their neighbours, disks, cards and the BMC; ports that are not the machine's own are told
// apart (A25).
func TestDiscover(t *testing.T) {
	tr := newTree(t)
	for file, content := range map[string]string{"sys_vendor": "Supermicro\n", "product_name": "AS-4125GS\n", "board_vendor": "Supermicro", "board_name": "H13DSG", "bios_vendor": "AMI", "bios_version": "1.4", "bios_date": "01/02/2025"} {
		tr.put(filepath.Join(tr.Sys, "class/dmi/id", file), content)
	}
	tr.put(filepath.Join(tr.Proc, "cpuinfo"), "physical id\t: 0\ncore id\t: 0\n\nphysical id\t: 1\ncore id\t: 0\n")
	tr.port("eno1", "3c:ec:ef:00:00:01", "1", "pci0000:00/0000:01:00.0")
	tr.port("eno2", "3c:ec:ef:00:00:02", "1", "pci0000:00/0000:01:00.1/virtio3")
	tr.port("enx1", "02:00:00:0b:00:01", "1", "pci0000:00/0000:00:14.0/usb1/1-7/1-7:2.0")
	tr.port("lo", "00:00:00:00:00:00", "772", "")
	tr.put(filepath.Join(tr.Sys, "class/net/eno1/carrier"), "1\n")
	tr.put(filepath.Join(tr.Sys, "class/net/eno1/speed"), "25000\n")
	tr.put(filepath.Join(tr.Sys, "class/net/eno2/speed"), "-1\n")
	tr.link(filepath.Join(tr.Sys, "devices/pci0000:00/0000:01:00.0/driver"), filepath.Join(tr.Sys, "bus/pci/drivers/mlx5_core"))
	tr.put(filepath.Join(tr.Sys, "devices/pci0000:00/0000:03:00.0/nvme/nvme0/model"), "SAMSUNG MZQL\n")
	tr.link(filepath.Join(tr.Sys, "block/nvme0n1/device"), filepath.Join(tr.Sys, "devices/pci0000:00/0000:03:00.0/nvme/nvme0"))
	tr.put(filepath.Join(tr.Sys, "block/nvme0n1/queue/rotational"), "0\n")
	for file, content := range map[string]string{"vendor": "0x10de", "device": "0x2b85", "class": "0x030200", "subsystem_vendor": "0x1043", "subsystem_device": "0x8a2f"} {
		tr.put(filepath.Join(tr.Sys, "bus/pci/devices/0000:41:00.0", file), content+"\n")
	}
	var listened []string
	inv, err := tr.Discover(t.Context(), Beside{
		Disks: map[string]string{"D1": "nvme0n1"}, Booted: "3C:EC:EF:00:00:01",
		Neighbours: func(_ context.Context, ports []string) map[string]machine.Neighbour {
			listened = ports
			return map[string]machine.Neighbour{"eno1": {System: "leaf1", Port: "swp7"}}
		},
		BMC: func(context.Context) *machine.BMCFacts { return &machine.BMCFacts{Address: "10.98.0.112"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"eno1", "eno2"}; !slices.Equal(listened, want) {
		t.Errorf("listened on %v, want %v", listened, want)
	}
	want := machine.Inventory{Sockets: 2,
		System: machine.System{Vendor: "Supermicro", Model: "AS-4125GS", Board: "Supermicro H13DSG", BIOSVendor: "AMI", BIOSVersion: "1.4", BIOSDate: "01/02/2025"},
		Ports: []machine.PortFacts{
			{Name: "eno1", MAC: "3c:ec:ef:00:00:01", Driver: "mlx5_core", Bus: "pci", Slot: "0000:01:00.0", Speed: 25000, Link: true, Booted: true, Neighbour: &machine.Neighbour{System: "leaf1", Port: "swp7"}},
			{Name: "eno2", MAC: "3c:ec:ef:00:00:02", Bus: "virtio", Slot: "0000:01:00.1"},
			{Name: "enx1", MAC: "02:00:00:0b:00:01", Bus: "usb", Slot: "0000:00:14.0", Virtual: true},
		},
		Drives: []machine.Drive{{Serial: "D1", Name: "nvme0n1", Model: "SAMSUNG MZQL", Bus: "nvme", Size: 1 << 30}},
		Cards:  []machine.Card{{Accelerator: machine.Accelerator{Slot: "0000:41:00.0", Vendor: "10de", Device: "2b85"}, Subsystem: "1043:8a2f", Class: "030200"}},
		BMC:    &machine.BMCFacts{Address: "10.98.0.112"},
	}
	got := machine.Inventory{Sockets: inv.Sockets, System: inv.System, Ports: inv.Ports, Drives: inv.Drives, Cards: inv.Cards, BMC: inv.BMC}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(inv.Hardware.NICs) != 2 {
		t.Errorf("ports that say which machine it is: %+v", inv.Hardware.NICs)
	}
	if inv, err := newTree(t).Discover(t.Context(), Beside{}); err != nil || inv.BMC != nil || len(inv.Ports) != 0 {
		t.Errorf("a bare machine: %+v, %v", inv, err)
	}
}
