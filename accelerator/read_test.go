package accelerator

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// fakeRoots writes files of a fake sysfs and procfs; a name that ends in "->" is a link.
func fakeRoots(t *testing.T, files map[string]string) Roots {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path, isLink := strings.CutSuffix(filepath.Join(dir, name), "->")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if isLink {
			err = os.Symlink(content, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return Roots{Sys: filepath.Join(dir, "sys"), Proc: filepath.Join(dir, "proc"), Kmsg: filepath.Join(dir, "kmsg"), Dev: filepath.Join(dir, "dev")}
}

// pciFiles are the files of one PCI function.
func pciFiles(slot, vendor, device, class string) map[string]string {
	d := "sys/bus/pci/devices/" + slot + "/"
	return map[string]string{
		d + "vendor": "0x" + vendor + "\n", d + "device": "0x" + device + "\n", d + "class": "0x" + class + "\n",
		d + "subsystem_vendor": "0x10de\n", d + "subsystem_device": "0x198b\n", d + "config": "\xde\x10\x85\x2b\x00\x00",
		d + "numa_node": "1\n", d + "current_link_speed": "2.5 GT/s PCIe\n", d + "current_link_width": "16\n",
		d + "max_link_speed": "32.0 GT/s PCIe\n", d + "max_link_width": "16\n",
		d + "aer_dev_fatal": "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1\n", d + "driver->": "../../../bus/pci/drivers/nvidia",
	}
}

func merge(maps ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

func TestReadPCI(t *testing.T) {
	lost := pciFiles("0000:06:00.0", "10de", "2b85", "030000")
	lost["sys/bus/pci/devices/0000:06:00.0/config"] = "\xff\xff\xff\xff\xff\xff"
	lost["sys/bus/pci/devices/0000:06:00.0/current_link_speed"] = "Unknown\n"
	lost["sys/bus/pci/devices/0000:06:00.0/current_link_width"] = "63\n"
	delete(lost, "sys/bus/pci/devices/0000:06:00.0/driver->")
	delete(lost, "sys/bus/pci/devices/0000:06:00.0/aer_dev_fatal")
	vf := pciFiles("0000:07:00.1", "10de", "2b85", "030200")
	vf["sys/bus/pci/devices/0000:07:00.1/physfn->"] = "../0000:07:00.0"
	r := fakeRoots(t, merge(
		pciFiles("0000:05:00.0", "10de", "2b85", "030000"), lost, vf,
		pciFiles("0000:05:00.1", "10de", "22e8", "040300"), // its sound function
		pciFiles("0000:08:00.0", "1a03", "2000", "030000"), // a BMC's screen
		pciFiles("0000:09:00.0", "19e5", "1711", "030000"), // another BMC's screen
		pciFiles("0000:0a:00.0", "19e5", "d802", "120000"),
		pciFiles("0000:0b:00.0", "10de", "22a3", "068000"), // NVSwitch
	))
	bus := ReadPCI(r)
	if bus.Error != "" || len(bus.Cards) != 3 {
		t.Fatalf("%d cards, %s", len(bus.Cards), bus.Error)
	}
	want := PCICard{
		Slot: "0000:05:00.0", Vendor: "10de", Device: "2b85", Subsystem: "10de:198b", Class: "030000", Driver: "nvidia",
		Answers: Measured(true, "", "sysfs"), LinkSpeed: Measured("2.5 GT/s PCIe", "", "sysfs"), LinkWidth: Measured(int64(16), "", "sysfs"),
		MaxSpeed: Measured("32.0 GT/s PCIe", "", "sysfs"), MaxWidth: Measured(int64(16), "", "sysfs"),
		NUMA: Measured(int64(1), "", "sysfs"), AERFatal: Measured(int64(1), "", "sysfs"), Number: Unsupported[string]("sysfs"),
		AERCorrected: Unsupported[int64]("sysfs"), PortSpeed: Unsupported[string]("sysfs"), PortWidth: Unsupported[int64]("sysfs"),
	}
	if !reflect.DeepEqual(bus.Cards[0], want) {
		t.Errorf("got  %+v\nwant %+v", bus.Cards[0], want)
	}
	// H03: what a lost card still shows must not be taken for a link.
	l := bus.Cards[1]
	if !l.Answers.Known() || l.Answers.Value || l.LinkSpeed.Known() || l.LinkWidth.Known() || l.Driver != "" || l.AERFatal.Supported {
		t.Errorf("the lost card: %+v", l)
	}
	if bus.Cards[2].ID() != "19e5:d802" {
		t.Errorf("third card is %s", bus.Cards[2].ID())
	}
	if bus = ReadPCI(Roots{Sys: "/nowhere"}); bus.Error == "" {
		t.Error("a missing bus is no error")
	}
}

func TestReadHost(t *testing.T) {
	r := fakeRoots(t, map[string]string{
		"proc/cpuinfo":              "processor\t: 0\nmodel name\t: Fake CPU\nprocessor\t: 1\nmodel name\t: Fake CPU\n",
		"proc/meminfo":              "MemTotal:       1048576 kB\nMemFree: 5 kB\n",
		"proc/sys/kernel/osrelease": "6.1.0-29-cloud-amd64\n",
		"sys/module/nvme/refcnt":    "1",

		"sys/block/nvme0n1/size": "2000\n", "sys/block/nvme0n1/device/serial": "S6Z1 \n", "sys/block/nvme0n1/hidden": "0",
		"sys/block/nvme0c0n1/size": "2000\n", "sys/block/nvme0c0n1/device/serial": "S6Z1", "sys/block/nvme0c0n1/hidden": "1",
		"sys/block/sda/size": "4000\n", "sys/block/sda/device/vpd_pg80": "\x00\x80\x00\x08  WD-1234",
		"sys/block/vda/size": "8\n", "sys/block/vda/serial": "lab-disk", "sys/block/vda/device/x": "",
		"sys/block/sdb/size": "0\n", "sys/block/sdb/device/x": "", // a card reader without a card
		"sys/block/sr0/size": "100\n", "sys/block/sr0/device/x": "",
		"sys/block/loop0/size": "100\n", "sys/block/sdc/size": "1\n", "sys/block/sdc/device/wwid": "t10.ATA \x01 X1\n",

		"sys/class/net/eno1/address": "02:AA:00:00:00:01\n", "sys/class/net/eno1/device/x": "", "sys/class/net/eno1/type": "1\n", "sys/class/net/eno1/carrier": "1\n", "sys/class/net/eno1/speed": "25000\n",
		"sys/class/net/eno2/address": "02:aa:00:00:00:01\n", "sys/class/net/eno2/device/x": "", "sys/class/net/eno2/type": "1\n", "sys/class/net/eno2/bonding_slave/perm_hwaddr": "02:aa:00:00:00:02\n", "sys/class/net/eno2/speed": "-1\n",
		"sys/class/net/lo/address": "00:00:00:00:00:00\n", "sys/class/net/bond0/address": "02:aa:00:00:00:01",
		"sys/class/net/ib0/address": "80:00", "sys/class/net/ib0/device/x": "", "sys/class/net/ib0/type": "32\n",

		"sys/devices/system/edac/mc/mc0/ue_count": "0\n", "sys/devices/system/edac/mc/mc0/ce_count": "7\n", "sys/devices/system/edac/mc/mc/x": "",
		"sys/devices/system/cpu/present": "0-3\n", "sys/devices/system/cpu/online": "0-2\n",
		"sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4\n", "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "4\n",
		"sys/devices/system/cpu/cpufreq/x": "", "proc/cmdline": "root=LABEL=root ro quiet\n",
		"proc/1/comm": "systemd\n", "proc/77/comm": "nv-fabricmanage\n", "proc/net/x": "",
		"log/fabricmanager.log": strings.Repeat("x\n", 100000) + "[Nov 30 2026 11:00:00] [ERROR] [tid 7] fabric manager NVIDIA GPU driver interface version 550.90.07 don't match with driver version 550.107.02. Please update\n[INFO] fine\n",

		"sys/class/infiniband/mlx5_0/board_id": "MT_0000000838\n", "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", "sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
		"sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n", "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
		"sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "2\n", "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "1\n",
		"sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n", "sys/class/infiniband/mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",

		"kmsg": "5,0,0,-;Linux version 6.1\n",
	})
	r.Log = filepath.Join(filepath.Dir(r.Kmsg), "log")
	h := ReadHost(r)
	if h.Clock.Now.IsZero() || h.Clock.Synced.Error != "" && h.Clock.Synced.Known() {
		t.Errorf("%+v", h.Clock)
	}
	want := Host{
		CPU: Measured("Fake CPU", "", "proc"), Cores: Measured(int64(2), "", "proc"), Memory: Measured(int64(1<<30), "bytes", "proc"),
		Kernel: Measured("6.1.0-29-cloud-amd64", "", "proc"), Nouveau: Measured(false, "", "sysfs"),
		Disks: []HostDisk{
			{Name: "nvme0n1", Serial: Measured("S6Z1", "", "sysfs"), Size: Measured(int64(1024000), "bytes", "sysfs")},
			{Name: "sda", Serial: Measured("WD-1234", "", "sysfs"), Size: Measured(int64(2048000), "bytes", "sysfs")},
			{Name: "sdc", Serial: Measured("t10.ATA  X1", "", "sysfs"), Size: Measured(int64(512), "bytes", "sysfs")},
			{Name: "vda", Serial: Measured("lab-disk", "", "sysfs"), Size: Measured(int64(4096), "bytes", "sysfs")},
		},
		NICs: []HostNIC{
			{Name: "eno1", MAC: Measured("02:aa:00:00:00:01", "", "sysfs"), Carrier: Measured(true, "", "sysfs"), Speed: Measured(int64(25000), "Mbit/s", "sysfs")},
			{Name: "eno2", MAC: Measured("02:aa:00:00:00:02", "", "sysfs"), Carrier: Unsupported[bool]("sysfs"), Speed: Unreadable[int64]("sysfs", "unknown")},
		},
		EDAC:    []EDAC{{Name: "mc0", Uncorrected: Measured(int64(0), "", "sysfs"), Corrected: Measured(int64(7), "", "sysfs")}},
		Present: Measured("0-3", "", "sysfs"), Online: Measured("0-2", "", "sysfs"), Throttles: Measured(int64(4), "", "sysfs"),
		Cmdline: Measured("root=LABEL=root ro quiet", "", "proc"), Clock: h.Clock, FabricMgr: Measured("running", "", "proc"),
		FabricSays: []string{"[Nov 30 2026 11:00:00] [ERROR] [tid 7] fabric manager NVIDIA GPU driver interface version 550.90.07 don't match with driver version 550.107.02. Please update"},
		Fabrics: []FabricPort{
			{Name: "mlx5_0/1", Layer: Measured("InfiniBand", "", "sysfs"), State: Measured("active", "", "sysfs"), Rate: Measured(int64(400), "Gbit/s", "sysfs"), Model: Measured("MT_0000000838", "", "sysfs"),
				Symbol: Measured(int64(2), "", "sysfs"), Downed: Measured(int64(1), "", "sysfs"), Physical: Measured("linkup", "", "sysfs")},
			{Name: "mlx5_1/1", Layer: Unsupported[string]("sysfs"), State: Measured("down", "", "sysfs"), Rate: Measured(int64(2), "Gbit/s", "sysfs"), Model: Unsupported[string]("sysfs"),
				Symbol: Unsupported[int64]("sysfs"), Downed: Unsupported[int64]("sysfs"), Physical: Unsupported[string]("sysfs")},
		},
	}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got  %+v\nwant %+v", h, want)
	}
	if log := ReadKernelLog(r); log.Error != "" || log.Records != 1 {
		t.Errorf("log %+v", log)
	}
	if h = ReadHost(Roots{Sys: "/nowhere", Proc: "/nowhere"}); len(h.Errors) != 2 || h.Memory.Known() || h.Nouveau.Known() {
		t.Errorf("a machine without sysfs: %+v", h)
	}
	if log := ReadKernelLog(Roots{Kmsg: "/nowhere"}); log.Error == "" {
		t.Error("a missing log is no error")
	}
}

// The real /dev/kmsg gives one record for each read, refuses small buffers and never ends.
func TestReadRealKernelLog(t *testing.T) {
	log := ReadKernelLog(Roots{})
	if os.Geteuid() != 0 {
		t.Skip("only root may read /dev/kmsg")
	}
	if log.Error != "" {
		if _, err := os.ReadFile("/proc/kmsg"); err != nil {
			t.Skipf("no kernel log in this sandbox: %s", log.Error)
		}
		t.Errorf("real log: %s", log.Error)
	}
	t.Logf("%d records, %d missed", log.Records, log.Missed)
}
