package accelerator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// ReadHost reads the machine around the cards.
func ReadHost(r Roots) Host {
	h := Host{
		CPU:     readValue(filepath.Join(r.proc(), "cpuinfo"), "", "proc", cpuModel),
		Cores:   readValue(filepath.Join(r.proc(), "cpuinfo"), "", "proc", cpuCount),
		Memory:  readValue(filepath.Join(r.proc(), "meminfo"), "bytes", "proc", memTotal),
		Kernel:  readValue(filepath.Join(r.proc(), "sys/kernel/osrelease"), "", "proc", func(s string) (string, error) { return printable(s), nil }),
		Nouveau: nouveauLoaded(r),
		Disks:   []HostDisk{}, NICs: []HostNIC{}, EDAC: []EDAC{},

		Present:   readValue(filepath.Join(r.sys(), "devices/system/cpu/present"), "", "sysfs", line),
		Online:    readValue(filepath.Join(r.sys(), "devices/system/cpu/online"), "", "sysfs", line),
		Throttles: cpuThrottles(filepath.Join(r.sys(), "devices/system/cpu")),
		Cmdline:   readValue(filepath.Join(r.proc(), "cmdline"), "", "proc", line),
		Clock:     readClock(),
		FabricMgr: fabricManager(r), FabricSays: fabricLog(r),
	}
	note := func(err error) {
		if err != nil {
			h.Errors = append(h.Errors, err.Error())
		}
	}
	var err error
	h.Disks, err = readDisks(filepath.Join(r.sys(), "block"), r.dev())
	note(err)
	h.NICs, err = readNICs(filepath.Join(r.sys(), "class/net"))
	note(err)
	h.EDAC, err = readEDAC(filepath.Join(r.sys(), "devices/system/edac/mc"))
	note(err)
	h.Fabrics, err = readFabric(filepath.Join(r.sys(), "class/infiniband"))
	note(err)
	return h
}

func nouveauLoaded(r Roots) Value[bool] {
	if _, err := os.Stat(filepath.Join(r.sys(), "module")); err != nil {
		return Unreadable[bool]("sysfs", reason(err))
	}
	_, err := os.Stat(filepath.Join(r.sys(), "module/nouveau"))
	return Measured(err == nil, "", "sysfs")
}

// readDisks reads the disks that have a device behind them: no loop, RAM, device-mapper or md disks, no drives without a medium.
func readDisks(dir, dev string) ([]HostDisk, error) {
	out := []HostDisk{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, fmt.Errorf("read disks: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(filepath.Join(path, "device")); err != nil || strings.HasPrefix(e.Name(), "sr") {
			continue
		}
		if hidden, err := text(filepath.Join(path, "hidden")); err == nil && hidden == "1" {
			continue // one path of a multipath NVMe namespace
		}
		d := HostDisk{Name: e.Name(), Serial: diskSerial(path, filepath.Join(dev, e.Name())), Size: readValue(filepath.Join(path, "size"), "bytes", "sysfs", sectors)}
		if d.Size.Known() && d.Size.Value == 0 {
			continue
		}
		out = append(out, d)
	}
	return out, nil
}

// diskSerial finds the serial number where the disk's kind keeps it: virtio and NVMe, SCSI and SATA (vital product data page 0x80, whose first
// four bytes are a header), ATA by ioctl; a disk without one goes by its world-wide name. The RAM disk's agent, whose record this is compared
// with, goes the same way.
func diskSerial(path, node string) Value[string] {
	for _, name := range []string{"serial", "device/serial"} {
		if s, err := text(filepath.Join(path, name)); err == nil && serial(s) != "" {
			return Measured(serial(s), "", "sysfs")
		}
	}
	if page, err := os.ReadFile(filepath.Join(path, "device/vpd_pg80")); err == nil && len(page) > 4 && serial(string(page[4:])) != "" {
		return Measured(serial(string(page[4:])), "", "sysfs")
	}
	if s := serial(ataSerial(node)); s != "" {
		return Measured(s, "", "ioctl")
	}
	for _, name := range []string{"wwid", "device/wwid"} {
		if s, err := text(filepath.Join(path, name)); err == nil && serial(s) != "" {
			return Measured(serial(s), "", "sysfs")
		}
	}
	return Unsupported[string]("sysfs")
}

// serial keeps what is printable of a serial number, without the blanks that pad it.
func serial(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s))
}

// hdioGetIdentity is HDIO_GET_IDENTITY of linux/hdreg.h: the ATA IDENTIFY block, strings in reading order.
const hdioGetIdentity = 0x030d

// ataSerial asks an ATA disk for its serial number, words 10 to 19 of IDENTIFY; "" when it is not one.
func ataSerial(node string) string {
	fd, err := syscall.Open(node, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer syscall.Close(fd)
	var id [512]byte
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), hdioGetIdentity, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return ""
	}
	return string(id[20:40])
}

func sectors(s string) (int64, error) {
	n, err := integer(s)
	return n * 512, err // the kernel counts 512-byte sectors whatever the disk's own
}

// readNICs reads the physical Ethernet ports: those with a device of their own behind them.
func readNICs(dir string) ([]HostNIC, error) {
	out := []HostNIC{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, fmt.Errorf("read ports: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(filepath.Join(path, "device")); err != nil {
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, "device/physfn")); err == nil {
			continue
		}
		if kind, err := text(filepath.Join(path, "type")); err == nil && kind != "1" { // ARPHRD_ETHER
			continue
		}
		mac := readValue(filepath.Join(path, "bonding_slave/perm_hwaddr"), "", "sysfs", macAddress) // a bond gives its ports one address
		if !mac.Known() {
			mac = readValue(filepath.Join(path, "address"), "", "sysfs", macAddress)
		}
		out = append(out, HostNIC{
			Name: e.Name(), MAC: mac,
			Carrier: readValue(filepath.Join(path, "carrier"), "", "sysfs", func(s string) (bool, error) { return s == "1", nil }),
			Speed:   readValue(filepath.Join(path, "speed"), "Mbit/s", "sysfs", portSpeed),
		})
	}
	return out, nil
}

func macAddress(s string) (string, error) {
	if len(s) != 17 {
		return "", fmt.Errorf("not a MAC address: %q", printable(s))
	}
	return strings.ToLower(s), nil
}

func portSpeed(s string) (int64, error) {
	n, err := integer(s)
	if err == nil && n < 0 { // -1 while the link is down
		return 0, fmt.Errorf("unknown")
	}
	return n, err
}

func readEDAC(dir string) ([]EDAC, error) {
	out := []EDAC{}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read memory controllers: %w", err)
	}
	for _, e := range entries {
		if len(e.Name()) > 2 && strings.HasPrefix(e.Name(), "mc") {
			path := filepath.Join(dir, e.Name())
			out = append(out, EDAC{
				Name:        e.Name(),
				Uncorrected: readValue(filepath.Join(path, "ue_count"), "", "sysfs", integer),
				Corrected:   readValue(filepath.Join(path, "ce_count"), "", "sysfs", integer),
			})
		}
	}
	return out, nil
}

func cpuModel(s string) (string, error) {
	for line := range strings.Lines(s) {
		if key, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return printable(strings.TrimSpace(v)), nil
		}
	}
	return "", errors.New("no model name")
}

func cpuCount(s string) (int64, error) {
	n := int64(0)
	for line := range strings.Lines(s) {
		if key, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "processor" {
			n++
		}
	}
	return n, nil
}

func memTotal(s string) (int64, error) {
	for line := range strings.Lines(s) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, err := integer(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")))
			return n << 10, err
		}
	}
	return 0, errors.New("no MemTotal")
}
