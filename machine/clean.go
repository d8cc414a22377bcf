package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
)

// Bounds on the inventory of a machine that nobody vouches for.
const (
	MaxInventory = 256 << 10 // bytes of JSON
	maxNICs      = 64
	maxDisks     = 512
	maxCards     = 64
	maxText      = 128     // bytes of a name or a version
	maxDisk      = 1 << 60 // bytes
	maxMemory    = 1 << 50 // bytes
	maxCores     = 1 << 16
)

var (
	pciSlot = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	hex4    = regexp.MustCompile(`^[0-9a-f]{4}$`)
	hex4x2  = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)
	hex6    = regexp.MustCompile(`^[0-9a-f]{6}$`)
)

// ReadInventory reads the inventory of a machine that nobody vouches for. Anybody on the network may have sent it: what
// cannot be true is an Invalid error that names the field, and what could not be shown is taken out.
func ReadInventory(raw []byte) (Inventory, error) {
	var inv Inventory
	if len(raw) > MaxInventory {
		return inv, wrongInventory("inventory", "%d bytes are more than %d", len(raw), MaxInventory)
	}
	if err := uniqueKeys(raw); err != nil {
		return inv, wrongInventory("inventory", "%v", err)
	}
	if err := json.Unmarshal(raw, &inv); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return inv, wrongInventory(kind.Field, "%s cannot be a JSON %s", kind.Field, kind.Value)
		}
		return inv, wrongInventory("inventory", "it is not JSON")
	}
	if err := inv.check(); err != nil {
		return Inventory{}, err
	}
	inv.clean()
	return inv, nil
}

func wrongInventory(field, format string, a ...any) error {
	return &Error{Code: Invalid, Field: field, Message: "inventory refused: " + fmt.Sprintf(format, a...)}
}

// uniqueKeys refuses an object that has a key twice: two readers would believe two things.
func uniqueKeys(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	type level struct {
		keys map[string]bool // nil for an array
		key  bool            // the next token is a key
	}
	var stack []level
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.New("it is not JSON")
		}
		if t == json.Delim('}') || t == json.Delim(']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if n := len(stack); n > 0 && stack[n-1].keys != nil {
			top := &stack[n-1]
			if name, ok := t.(string); ok && top.key {
				if top.keys[strings.ToLower(name)] { // encoding/json does not mind the case
					return fmt.Errorf("it has the key %.32q twice", name)
				}
				top.keys[strings.ToLower(name)] = true
				top.key = false
				continue
			}
			top.key = true
		}
		switch t {
		case json.Delim('{'):
			stack = append(stack, level{keys: map[string]bool{}, key: true})
		case json.Delim('['):
			stack = append(stack, level{})
		}
		if len(stack) > 16 {
			return errors.New("it is nested too deeply")
		}
	}
}

// check refuses numbers and lists that no machine has.
func (inv *Inventory) check() error {
	h := inv.Hardware
	for _, l := range []struct {
		field    string
		have, at int
	}{
		{"hardware.nics", len(h.NICs), maxNICs}, {"hardware.disks", len(h.Disks), maxDisks}, {"hardware.accelerators", len(h.Accelerators), maxCards},
		{"ports", len(inv.Ports), 2 * maxNICs}, {"drives", len(inv.Drives), maxDisks}, {"cards", len(inv.Cards), maxCards},
	} {
		if l.have > l.at {
			return wrongInventory(l.field, "%d %s are more than %d", l.have, l.field, l.at)
		}
	}
	if inv.Memory < 0 || inv.Memory > maxMemory {
		return wrongInventory("memory", "no machine has %d bytes of memory", inv.Memory)
	}
	if inv.Cores < 0 || inv.Cores > maxCores || inv.Sockets < 0 || inv.Sockets > maxCores {
		return wrongInventory("cores", "no machine has %d cores in %d sockets", inv.Cores, inv.Sockets)
	}
	if inv.Firmware != BIOS && inv.Firmware != UEFI {
		return wrongInventory("firmware", "firmware is neither bios nor uefi")
	}
	for i, d := range h.Disks {
		if d.Size <= 0 || d.Size > maxDisk {
			return wrongInventory(fmt.Sprintf("hardware.disks[%d].size", i), "no disk has %d bytes", d.Size)
		}
	}
	seen := map[string]bool{}
	for i, a := range h.Accelerators {
		if !pciSlot.MatchString(a.Slot) || !hex4.MatchString(a.Vendor) || !hex4.MatchString(a.Device) {
			return wrongInventory(fmt.Sprintf("hardware.accelerators[%d]", i), "slot %.32q, vendor %.8q, device %.8q are no card on a PCI bus", a.Slot, a.Vendor, a.Device)
		}
		if seen[a.Slot] {
			return wrongInventory(fmt.Sprintf("hardware.accelerators[%d].slot", i), "two cards are in slot %s", a.Slot)
		}
		seen[a.Slot] = true
	}
	for i, d := range inv.Drives {
		if d.Size < 0 || d.Size > maxDisk {
			return wrongInventory(fmt.Sprintf("drives[%d].size", i), "no disk has %d bytes", d.Size)
		}
	}
	return nil
}

// clean takes out what could not be shown, and what takes no part in identity (A25): MAC addresses that are none, and those
// of ports that are not the machine's own.
func (inv *Inventory) clean() {
	for _, s := range []*string{&inv.CPU, &inv.Kernel, &inv.System.Vendor, &inv.System.Model, &inv.System.Board, &inv.System.BIOSVendor,
		&inv.System.BIOSVersion, &inv.System.BIOSDate, &inv.Hardware.Serial} {
		*s = CleanText(*s)
	}
	if inv.Hardware.UUID = strings.ToLower(strings.TrimSpace(inv.Hardware.UUID)); !uuidForm.MatchString(inv.Hardware.UUID) {
		inv.Hardware.UUID = ""
	}
	notOwn := map[string]bool{}
	for i := range inv.Ports {
		p := &inv.Ports[i]
		for _, s := range []*string{&p.Name, &p.Driver, &p.Bus} {
			*s = CleanText(*s)
		}
		if !pciSlot.MatchString(p.Slot) {
			p.Slot = ""
		}
		p.MAC = PortMAC(p.MAC)
		p.Speed = min(max(p.Speed, 0), 10_000_000)
		if p.Virtual = p.Virtual || p.Bus == "usb" || usbDriver(p.Driver); p.Virtual {
			notOwn[p.MAC] = true
		}
		if n := p.Neighbour; n != nil {
			for _, s := range []*string{&n.System, &n.Chassis, &n.Port, &n.Text} {
				*s = CleanText(*s)
			}
			n.VLAN = min(max(n.VLAN, 0), 4094)
		}
	}
	inv.Hardware.NICs = ownNICs(inv.Hardware.NICs, notOwn)
	for i := range inv.Hardware.Disks {
		d := &inv.Hardware.Disks[i]
		d.Serial, d.Role = CleanText(d.Serial), ""
	}
	for i := range inv.Drives {
		d := &inv.Drives[i]
		for _, s := range []*string{&d.Serial, &d.Name, &d.Model, &d.Bus} {
			*s = CleanText(*s)
		}
	}
	cards := inv.Cards[:0]
	for _, c := range inv.Cards {
		if !pciSlot.MatchString(c.Slot) || !hex4.MatchString(c.Vendor) || !hex4.MatchString(c.Device) {
			continue
		}
		if !hex4x2.MatchString(c.Subsystem) {
			c.Subsystem = ""
		}
		if !hex6.MatchString(c.Class) {
			c.Class = ""
		}
		cards = append(cards, c)
	}
	inv.Cards = cards
	if b := inv.BMC; b != nil {
		if a, err := netip.ParseAddr(b.Address); err != nil || a.IsUnspecified() || a.Zone() != "" {
			b.Address = ""
		}
		b.MAC, b.Firmware, b.IPMI = PortMAC(b.MAC), CleanText(b.Firmware), CleanText(b.IPMI)
		if b.UUID = strings.ToLower(b.UUID); !uuidForm.MatchString(b.UUID) {
			b.UUID = ""
		}
	}
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// usbDriver reports whether a driver is that of a port on USB: a BMC's has the same address on every host.
func usbDriver(name string) bool {
	switch name {
	case "cdc_ether", "cdc_ncm", "cdc_eem", "cdc_subset", "rndis_host", "usbnet":
		return true
	}
	return false
}

// ownNICs returns the ports that say which machine it is, each once.
func ownNICs(nics []NIC, notOwn map[string]bool) []NIC {
	var own []NIC
	seen := map[string]bool{"": true}
	for _, n := range nics {
		mac := PortMAC(n.MAC)
		if seen[mac] || notOwn[mac] {
			continue
		}
		seen[mac] = true
		own = append(own, NIC{MAC: mac})
	}
	return own
}

// PortMAC returns the address of a port in lower case with colons, or "" for what is none: zero, a group, not Ethernet.
func PortMAC(s string) string {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return ""
	}
	return mac.String()
}

// CleanText returns what can be shown of a text that a machine sent: printable ASCII, at most 128 bytes, without spaces at
// either end.
func CleanText(s string) string {
	if len(s) > 4*maxText {
		s = s[:4*maxText]
	}
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s))
	if len(s) > maxText {
		s = strings.TrimSpace(s[:maxText])
	}
	return s
}
