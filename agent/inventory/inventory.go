// Package inventory says what a machine is made of, as its kernel shows it.
package inventory

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/bareyard/bareyard/machine"
	"github.com/u-root/u-root/pkg/smbios"
)

// Source is where to look.
type Source struct {
	Sys       string                             // sysfs, usually /sys
	Proc      string                             // procfs, usually /proc
	Disks     func() ([]machine.Disk, error)     // the machine's own disks
	Permanent func(name string) net.HardwareAddr // the permanent address of a port, nil if unknown; nil: take the current one
}

// Read returns the inventory. What is missing in it could not be found; only disks and ports that cannot be listed are an error.
func (s Source) Read() (machine.Inventory, error) {
	inv := machine.Inventory{Firmware: machine.BIOS, Memory: s.memory(), Kernel: text(s.Proc, "sys/kernel/osrelease")}
	inv.CPU, inv.Cores = s.cpu()
	if _, err := os.Stat(filepath.Join(s.Sys, "firmware/efi")); err == nil {
		inv.Firmware = machine.UEFI
	}
	inv.Hardware.UUID, inv.Hardware.Serial = s.Identity()
	var err error
	if inv.Hardware.NICs, err = s.NICs(); err != nil {
		return machine.Inventory{}, err
	}
	if inv.Hardware.Disks, err = s.Disks(); err != nil {
		return machine.Inventory{}, err
	}
	if inv.Hardware.Accelerators, err = s.accelerators(); err != nil {
		return machine.Inventory{}, err
	}
	return inv, nil
}

// Identity returns the SMBIOS UUID in canonical lower case, with the byte order of each SMBIOS version put right by the
// kernel, and the serial number of the system.
func (s Source) Identity() (uuid, serial string) {
	dmi := filepath.Join(s.Sys, "class/dmi/id")
	return strings.ToLower(text(dmi, "product_uuid")), text(dmi, "product_serial")
}

// NICs returns the physical network ports, by MAC address. Left out is what takes no part in identity (A25): ports without
// a device, on USB (a BMC's virtual port has the same address on every host), virtual functions, InfiniBand, and ports
// whose driver has no address.
func (s Source) NICs() ([]machine.NIC, error) {
	dir := filepath.Join(s.Sys, "class/net")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list network ports: %w", err)
	}
	const ethernet = "1" // ARPHRD_ETHER
	seen := map[string]bool{}
	var nics []machine.NIC
	for _, e := range entries {
		port := filepath.Join(dir, e.Name())
		device, err := filepath.EvalSymlinks(filepath.Join(port, "device"))
		if err != nil || strings.Contains(device, "/usb") || text(port, "type") != ethernet {
			continue
		}
		if _, err := os.Lstat(filepath.Join(device, "physfn")); err == nil {
			continue
		}
		mac, err := net.ParseMAC(text(port, "address"))
		if s.Permanent != nil {
			if p := s.Permanent(e.Name()); len(p) == 6 && !bytes.Equal(p, make([]byte, 6)) {
				mac, err = p, nil
			}
		}
		if err != nil || len(mac) != 6 || bytes.Equal(mac, make([]byte, 6)) || mac[0]&1 == 1 || seen[mac.String()] {
			continue
		}
		seen[mac.String()] = true
		nics = append(nics, machine.NIC{MAC: mac.String()})
	}
	slices.SortFunc(nics, func(a, b machine.NIC) int { return strings.Compare(a.MAC, b.MAC) })
	return nics, nil
}

// accelerators returns the cards on the PCI bus, by slot: 3D and display controllers and processing accelerators of the
// vendors whose cards we know (NVIDIA 10de, Alibaba T-Head 1ded, Huawei 19e5). A BMC's VGA is of other vendors.
func (s Source) accelerators() ([]machine.Accelerator, error) {
	dir := filepath.Join(s.Sys, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil // no PCI at all
	}
	if err != nil {
		return nil, fmt.Errorf("list PCI devices: %w", err)
	}
	var cards []machine.Accelerator
	for _, e := range entries {
		device := filepath.Join(dir, e.Name())
		vendor, class := hexText(device, "vendor", 4), hexText(device, "class", 6)
		if !slices.Contains([]string{"10de", "1ded", "19e5"}, vendor) || len(class) != 6 || !slices.Contains([]string{"0300", "0302", "1200"}, class[:4]) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(device, "physfn")); err == nil {
			continue // a virtual function
		}
		cards = append(cards, machine.Accelerator{Slot: e.Name(), Vendor: vendor, Device: hexText(device, "device", 4)})
	}
	return cards, nil
}

// cpu returns the model and the number of cores, not threads.
func (s Source) cpu() (model string, cores int) {
	raw, err := os.ReadFile(filepath.Join(s.Proc, "cpuinfo"))
	if err != nil {
		return "", runtime.NumCPU()
	}
	seen := map[string]bool{}
	var socket string
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "model name":
			model = value
		case "physical id":
			socket = value
		case "core id":
			seen[socket+"/"+value] = true
		}
	}
	if len(seen) == 0 {
		return model, runtime.NumCPU()
	}
	return model, len(seen)
}

// memory returns what the memory modules add up to, by SMBIOS: it does not change with the kernel, as MemTotal does, which
// is taken where SMBIOS says nothing.
func (s Source) memory() int64 {
	entry, err1 := os.ReadFile(filepath.Join(s.Sys, "firmware/dmi/tables/smbios_entry_point"))
	table, err2 := os.ReadFile(filepath.Join(s.Sys, "firmware/dmi/tables/DMI"))
	if err1 == nil && err2 == nil {
		if n := modules(entry, table); n > 0 {
			return n
		}
	}
	f, err := os.Open(filepath.Join(s.Proc, "meminfo"))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 1 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 52)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// modules adds up the memory devices of an SMBIOS table; 0 when it cannot be read.
func modules(entry, table []byte) (total int64) {
	info, err := smbios.ParseInfo(entry, table)
	if err != nil {
		return 0
	}
	devices, err := info.GetMemoryDevices()
	if err != nil {
		return 0
	}
	for _, d := range devices {
		if n := int64(d.GetSizeBytes()); d.Size != 0xffff && n > 0 && n < 1<<50 { // 0xffff: unknown
			total += n
		}
	}
	return total
}

// hexText returns a file of sysfs like 0x10de as its n digits, or "".
func hexText(dir, file string, n int) string {
	s, ok := strings.CutPrefix(text(dir, file), "0x")
	if !ok || len(s) != n {
		return ""
	}
	return strings.ToLower(s)
}

// text returns the printable ASCII of a one-line file, or "".
func text(dir, file string) string {
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, string(raw)))
}
