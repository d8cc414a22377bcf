package inventory

import (
	"bufio"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

// Beside is what a machine is asked beside its kernel's files when nobody has enrolled it. What is nil is left out.
type Beside struct {
	Disks      map[string]string                                                      // the kernel's names of the disks by their serial numbers
	Booted     string                                                                 // MAC address of the port that it booted from
	Neighbours func(ctx context.Context, ports []string) map[string]machine.Neighbour // by the kernel's name of the port
	BMC        func(ctx context.Context) *machine.BMCFacts
}

// Discover returns the inventory with all that an operator wants to know of a machine that he has not enrolled. It takes as long
// as Neighbours listens.
func (s Source) Discover(ctx context.Context, b Beside) (machine.Inventory, error) {
	inv, err := s.Read()
	if err != nil {
		return inv, err
	}
	heard := make(chan map[string]machine.Neighbour, 1)
	names := s.wired()
	go func() { // ends with Neighbours
		if b.Neighbours == nil || len(names) == 0 {
			heard <- nil
			return
		}
		heard <- b.Neighbours(ctx, names)
	}()
	inv.System, inv.Sockets = s.system(), s.sockets()
	inv.Drives, inv.Cards = s.drives(inv.Hardware.Disks, b.Disks), s.cards(inv.Hardware.Accelerators)
	if b.BMC != nil {
		inv.BMC = b.BMC(ctx)
	}
	neighbours := <-heard
	inv.Ports = s.ports(inv.Hardware.NICs) // now: a link takes seconds to come up
	for i := range inv.Ports {
		p := &inv.Ports[i]
		p.Booted = strings.EqualFold(p.MAC, b.Booted)
		if n, ok := neighbours[p.Name]; ok {
			p.Neighbour = &n
		}
	}
	return inv, nil
}

// system reads what firmware says of itself and of the box.
func (s Source) system() machine.System {
	dmi := filepath.Join(s.Sys, "class/dmi/id")
	return machine.System{Vendor: text(dmi, "sys_vendor"), Model: text(dmi, "product_name"), Board: strings.TrimSpace(text(dmi, "board_vendor") + " " + text(dmi, "board_name")),
		BIOSVendor: text(dmi, "bios_vendor"), BIOSVersion: text(dmi, "bios_version"), BIOSDate: text(dmi, "bios_date")}
}

// sockets counts processors.
func (s Source) sockets() int {
	f, err := os.Open(filepath.Join(s.Proc, "cpuinfo"))
	if err != nil {
		return 0
	}
	defer f.Close()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "physical id" {
			seen[strings.TrimSpace(value)] = true
		}
	}
	return max(len(seen), 1)
}

// wired lists the kernel's names of Ethernet ports with a device of the machine's own behind them.
func (s Source) wired() []string {
	var names []string
	for _, p := range s.ports(nil) {
		if !p.Virtual {
			names = append(names, p.Name)
		}
	}
	return names
}

// ports lists Ethernet ports with a device behind them, those too that take no part in identity (A25); own are those that do.
func (s Source) ports(own []machine.NIC) []machine.PortFacts {
	dir := filepath.Join(s.Sys, "class/net")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var ports []machine.PortFacts
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		device, err := filepath.EvalSymlinks(filepath.Join(at, "device"))
		if err != nil || text(at, "type") != "1" { // ARPHRD_ETHER
			continue
		}
		p := machine.PortFacts{Name: e.Name(), MAC: s.macOf(e.Name()), Slot: slotOf(device), Bus: busOf(device), Link: text(at, "carrier") == "1"}
		if driver, err := filepath.EvalSymlinks(filepath.Join(device, "driver")); err == nil {
			p.Driver = filepath.Base(driver)
		}
		if speed, err := strconv.Atoi(text(at, "speed")); err == nil && p.Link && speed > 0 {
			p.Speed = speed
		}
		_, virtual := os.Lstat(filepath.Join(at, "device", "physfn"))
		p.Virtual = p.Bus == "usb" || virtual == nil || own != nil && !slices.ContainsFunc(own, func(n machine.NIC) bool { return n.MAC == p.MAC })
		ports = append(ports, p)
	}
	return ports
}

// macOf returns a port's permanent address, or the one that it has where the driver knows no other.
func (s Source) macOf(name string) string {
	if s.Permanent != nil {
		if mac := machine.PortMAC(s.Permanent(name).String()); mac != "" {
			return mac
		}
	}
	mac, err := net.ParseMAC(text(filepath.Join(s.Sys, "class/net", name), "address"))
	if err != nil {
		return ""
	}
	return mac.String()
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// slotOf returns the last PCI address on the way to a device.
func slotOf(device string) string {
	parts := strings.Split(device, "/")
	for i := len(parts) - 1; i >= 0; i-- {
		if pciAddress.MatchString(parts[i]) {
			return parts[i]
		}
	}
	return ""
}

// busOf says how a device is attached: its last bus counts.
func busOf(device string) string {
	switch {
	case strings.Contains(device, "/usb"):
		return "usb"
	case strings.Contains(device, "/virtio"):
		return "virtio"
	case strings.Contains(device, "/nvme"):
		return "nvme"
	case strings.Contains(device, "/ata"):
		return "sata"
	case strings.Contains(device, "/end_device-"), strings.Contains(device, "/sas"):
		return "sas"
	case slotOf(device) != "":
		return "pci"
	}
	return ""
}

// drives says what there is to know of the machine's disks beside serial number and size.
func (s Source) drives(disks []machine.Disk, names map[string]string) []machine.Drive {
	dir := filepath.Join(s.Sys, "block")
	var drives []machine.Drive
	for _, d := range disks {
		name, ok := names[d.Serial]
		if !ok {
			continue
		}
		at := filepath.Join(dir, name)
		x := machine.Drive{Serial: d.Serial, Size: d.Size, Name: name, Model: text(at, "device/model"), Rotational: text(at, "queue/rotational") == "1"}
		if device, err := filepath.EvalSymlinks(filepath.Join(at, "device")); err == nil {
			x.Bus = busOf(device)
		}
		drives = append(drives, x)
	}
	return drives
}

// cards says who built the accelerators.
func (s Source) cards(found []machine.Accelerator) []machine.Card {
	var cards []machine.Card
	for _, a := range found {
		at := filepath.Join(s.Sys, "bus/pci/devices", a.Slot)
		c := machine.Card{Accelerator: a, Class: hexText(at, "class", 6)}
		vendor, device := hexText(at, "subsystem_vendor", 4), hexText(at, "subsystem_device", 4)
		if vendor != "" && device != "" {
			c.Subsystem = vendor + ":" + device
		}
		cards = append(cards, c)
	}
	return cards
}
