package accelerator

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// IsAccelerator reports whether a PCI function with this vendor and class (six hex digits) is an accelerator.
//
// 0302 is a 3D controller and 12xx a processing accelerator, whoever made them. 0300 is a graphics card, which makes it an accelerator only
// from the vendors whose graphics cards compute: the BMCs of many servers (ASPEED, Matrox, Huawei) are 0300 too.
func IsAccelerator(vendor, class string) bool {
	switch {
	case strings.HasPrefix(class, "0302"), strings.HasPrefix(class, "12"):
		return true
	case strings.HasPrefix(class, "0300"):
		return vendor == nvidiaVendor || vendor == "1ded"
	}
	return false
}

// ReadPCI reads the accelerators that the PCI bus shows. Virtual functions are not cards.
func ReadPCI(r Roots) Bus {
	bus := Bus{Cards: []PCICard{}}
	dir := filepath.Join(r.sys(), "bus/pci/devices")
	entries, err := os.ReadDir(dir) // by name, which is by address
	if err != nil {
		bus.Error = "read " + dir + ": " + reason(err)
		return bus
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		vendor, device, class := hexFile(path, "vendor"), hexFile(path, "device"), hexFile(path, "class")
		if !IsAccelerator(vendor, class) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, "physfn")); err == nil {
			continue
		}
		bus.Cards = append(bus.Cards, PCICard{
			Slot: e.Name(), Vendor: vendor, Device: device, Class: class,
			Subsystem: hexFile(path, "subsystem_vendor") + ":" + hexFile(path, "subsystem_device"),
			Driver:    linkName(filepath.Join(path, "driver")),
			Answers:   answers(filepath.Join(path, "config")),
			LinkSpeed: readValue(filepath.Join(path, "current_link_speed"), "", "sysfs", linkSpeed),
			LinkWidth: readValue(filepath.Join(path, "current_link_width"), "", "sysfs", linkWidth),
			MaxSpeed:  readValue(filepath.Join(path, "max_link_speed"), "", "sysfs", linkSpeed),
			MaxWidth:  readValue(filepath.Join(path, "max_link_width"), "", "sysfs", linkWidth),
			NUMA:      readValue(filepath.Join(path, "numa_node"), "", "sysfs", integer),
			AERFatal:  readValue(filepath.Join(path, "aer_dev_fatal"), "", "sysfs", aerTotal),
		})
	}
	return bus
}

// hexFile reads a number like 0x10de without its 0x; "" when it cannot be read.
func hexFile(dir, name string) string {
	s, err := text(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(s, "0x"))
}

func linkName(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// answers asks the card itself: sysfs keeps vendor and device of a card that is long gone, its configuration space then reads all ones.
func answers(path string) Value[bool] {
	f, err := os.Open(path)
	if err != nil {
		return Unreadable[bool]("sysfs", reason(err))
	}
	defer f.Close()
	var id [4]byte
	if _, err := io.ReadFull(f, id[:]); err != nil {
		return Unreadable[bool]("sysfs", reason(err))
	}
	return Measured(id != [4]byte{0xff, 0xff, 0xff, 0xff}, "", "sysfs")
}

// linkSpeed reads "32.0 GT/s PCIe"; a lost card has "Unknown", or a generation that was never made.
func linkSpeed(s string) (string, error) {
	number, _, ok := strings.Cut(s, " GT/s")
	if _, err := strconv.ParseFloat(number, 64); !ok || err != nil {
		return "", fmt.Errorf("link speed %q", printable(s))
	}
	return s, nil
}

func linkWidth(s string) (int64, error) {
	switch s {
	case "1", "2", "4", "8", "12", "16", "32":
		return integer(s)
	}
	return 0, fmt.Errorf("link width %q", printable(s)) // 0, or 63 and 255 of all ones
}

func integer(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("not a number: %q", printable(s))
	}
	return n, nil
}

func aerTotal(s string) (int64, error) {
	for line := range strings.Lines(s) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "TOTAL_ERR_FATAL "); ok {
			return integer(n)
		}
	}
	return 0, fmt.Errorf("no TOTAL_ERR_FATAL")
}
