package accelerator

import (
	"encoding/binary"
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
		if vendor == nvidiaVendor && strings.HasPrefix(class, "0680") { // an NVSwitch is a bridge of its own kind
			bus.Switches = append(bus.Switches, e.Name())
		}
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
			Number:    number(filepath.Join(path, "config")),
			LinkSpeed: readValue(filepath.Join(path, "current_link_speed"), "", "sysfs", linkSpeed),
			LinkWidth: readValue(filepath.Join(path, "current_link_width"), "", "sysfs", linkWidth),
			MaxSpeed:  readValue(filepath.Join(path, "max_link_speed"), "", "sysfs", linkSpeed),
			MaxWidth:  readValue(filepath.Join(path, "max_link_width"), "", "sysfs", linkWidth),
			NUMA:      readValue(filepath.Join(path, "numa_node"), "", "sysfs", integer),
			AERFatal:  readValue(filepath.Join(path, "aer_dev_fatal"), "", "sysfs", aerTotal("TOTAL_ERR_FATAL")),

			AERCorrected: readValue(filepath.Join(path, "aer_dev_correctable"), "", "sysfs", aerTotal("TOTAL_ERR_COR")),
			PortSpeed:    readValue(filepath.Join(port(path), "current_link_speed"), "", "sysfs", linkSpeed),
			PortWidth:    readValue(filepath.Join(port(path), "current_link_width"), "", "sysfs", linkWidth),
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

// number reads the device serial number from the extended configuration space (PCI Express Base Specification 7.9.3). Many cards have none, and
// whoever is not root does not see so far.
func number(path string) Value[string] {
	const first, serial, longest = 0x100, 0x0003, 4096 / 8
	space, err := os.ReadFile(path)
	if err != nil || len(space) < first+4 {
		return Unsupported[string]("sysfs")
	}
	at := first
	for range longest { // a list that goes in a circle ends too
		if at < first || at+12 > len(space) {
			break
		}
		head := binary.LittleEndian.Uint32(space[at:])
		if head == 0 || head == 0xffffffff {
			break
		}
		if head&0xffff == serial {
			n := uint64(binary.LittleEndian.Uint32(space[at+8:]))<<32 | uint64(binary.LittleEndian.Uint32(space[at+4:]))
			if n == 0 || n == 1<<64-1 {
				break
			}
			return Measured(fmt.Sprintf("%016x", n), "", "sysfs")
		}
		at = int(head >> 20)
	}
	return Unsupported[string]("sysfs")
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

// aerTotal reads the sum at the end of a file of PCIe error counters.
func aerTotal(name string) func(string) (int64, error) {
	return func(s string) (int64, error) {
		for line := range strings.Lines(s) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
				return integer(n)
			}
		}
		return 0, fmt.Errorf("no %s", name)
	}
}

// port returns the folder of the port that a device is plugged into: in sysfs a device lies in the folder of the bridge above it. Beside it lies
// nothing, for a device of the root complex itself.
func port(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return filepath.Join(path, "port")
	}
	return filepath.Dir(real)
}

// PCIeLink is one look at a card's link from both ends.
type PCIeLink struct {
	Gen, Width, PortGen, PortWidth Reading
}

// ReadLink reads a card's link as it is now; under load it is what counts.
func ReadLink(r Roots, slot string) PCIeLink {
	path := filepath.Join(r.sys(), "bus/pci/devices", slot)
	one := func(dir, name string, parse func(string) (float64, error)) Reading {
		s, err := text(filepath.Join(dir, name))
		if err != nil {
			return Missing()
		}
		v, err := parse(s)
		if err != nil {
			return Missing()
		}
		return Reading(v)
	}
	width := func(s string) (float64, error) { n, err := linkWidth(s); return float64(n), err }
	return PCIeLink{
		Gen: one(path, "current_link_speed", generation), Width: one(path, "current_link_width", width),
		PortGen: one(port(path), "current_link_speed", generation), PortWidth: one(port(path), "current_link_width", width),
	}
}

// generation reads the PCIe generation from a speed as sysfs writes it.
func generation(s string) (float64, error) {
	for i, speed := range []string{"2.5", "5", "8", "16", "32", "64", "128"} {
		if number, _, ok := strings.Cut(s, " GT/s"); ok && strings.TrimSuffix(number, ".0") == speed {
			return float64(i + 1), nil
		}
	}
	return 0, fmt.Errorf("link speed %q", printable(s))
}
