package machine

import (
	"encoding/hex"
	"fmt"
	"net"
	"regexp"
	"strings"
)

var machineName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

func bad(field, hint, format string, a ...any) error {
	return &Error{Code: Invalid, Field: field, Message: fmt.Sprintf(format, a...), Hint: hint}
}

// CheckName refuses what cannot be the name of a machine.
func CheckName(name string) error {
	if !machineName.MatchString(name) {
		return bad("name", "use lower-case letters, digits, dots and hyphens", "machine name %q is not valid", name)
	}
	return nil
}

// CheckBMC refuses a BMC that could not be reached, and one whose address holds a password.
func CheckBMC(b BMC) error {
	if b.Protocol != "ipmi" && b.Protocol != "redfish" {
		return bad("bmc.protocol", "say ipmi or redfish", "BMC protocol %q is not known", b.Protocol)
	}
	if b.Address == "" {
		return bad("bmc.address", "give host:port for IPMI, a URL for Redfish", "the BMC has no address")
	}
	for field, address := range map[string]string{"bmc.address": b.Address, "bmc.ipmi": b.IPMI} {
		if strings.ContainsAny(address, "@ \t\r\n") { // an address is shown and logged
			return bad(field, "give the address alone; the user goes into bmc.username and the password into bmc_password", "the address of the BMC holds more than an address")
		}
	}
	if b.Protocol == "redfish" && !strings.HasPrefix(b.Address, "https://") && !strings.HasPrefix(b.Address, "http://") {
		return bad("bmc.address", "write it as https://10.98.0.112", "the address of a Redfish BMC is not a URL")
	}
	if b.Protocol == "ipmi" && b.IPMI != "" {
		return bad("bmc.ipmi", "leave it out: it is for Redfish BMCs that speak IPMI too", "the BMC speaks IPMI already")
	}
	if pin := strings.ReplaceAll(b.CertPin, ":", ""); pin != "" {
		if raw, err := hex.DecodeString(pin); err != nil || len(raw) != 32 {
			return bad("bmc.cert_pin", "write its SHA-256 as 64 hex digits, or leave it out: what the BMC shows at enrolment is trusted then", "the certificate pin is not a SHA-256")
		}
	}
	return nil
}

// CheckRecord refuses a record that a job could not be run on, and names the field.
func CheckRecord(m Machine) error {
	if err := CheckName(m.Name); err != nil {
		return err
	}
	if m.Firmware != BIOS && m.Firmware != UEFI {
		return bad("firmware", "say bios or uefi", "firmware %q is not known", m.Firmware)
	}
	if err := CheckBMC(m.BMC); err != nil {
		return err
	}
	if m.Boot != BootNetwork && m.Boot != BootMedia {
		return bad("boot", "say virtual-media, or leave it out", "boot %q is not known", m.Boot)
	}
	if m.Boot == BootMedia && m.BMC.Protocol != "redfish" {
		return bad("boot", "use a Redfish address for the BMC, or boot from the network", "virtual media needs a BMC that speaks Redfish")
	}
	if !m.BootAddr.Is4() {
		return bad("boot_addr", "give a free IPv4 address of the provisioning network", "the machine has no address on the provisioning network")
	}
	seen := map[string]bool{}
	for i, n := range m.Hardware.NICs {
		mac, err := net.ParseMAC(n.MAC)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() != n.MAC || strings.Trim(n.MAC, "0:") == "" {
			return bad(fmt.Sprintf("hardware.nics[%d].mac", i), "write it as 52:54:00:12:34:56, lower case", "MAC address %q is not one of a port", n.MAC)
		}
		if seen[n.MAC] {
			return bad(fmt.Sprintf("hardware.nics[%d].mac", i), "each port has its own", "MAC address %s is there twice", n.MAC)
		}
		seen[n.MAC] = true
	}
	for _, role := range []NICRole{ProvisionNIC, PublicNIC} {
		if _, ok := m.Hardware.NICByRole(role); !ok {
			return bad("hardware.nics", "record one port with role provision and one with role public", "no port has the role %s", role)
		}
	}
	systems := 0
	for i, d := range m.Hardware.Disks {
		if d.Serial == "" || d.Size <= 0 || seen["disk "+d.Serial] {
			return bad(fmt.Sprintf("hardware.disks[%d]", i), "a disk needs a serial number of its own and a size in bytes", "disk %q cannot be told from others", d.Serial)
		}
		seen["disk "+d.Serial] = true
		if d.Role == SystemDisk {
			systems++
		} else if d.Role != DataDisk {
			return bad(fmt.Sprintf("hardware.disks[%d].role", i), "say system or data", "disk role %q is not known", d.Role)
		}
	}
	if systems != 1 {
		return bad("hardware.disks", "give exactly one disk the role system", "%d disks have the role system", systems)
	}
	return nil
}

// CheckCards refuses a record that does not have the cards that its class promises.
func CheckCards(h Hardware, c Class) error {
	if len(h.Accelerators) != c.Count {
		return &Error{Code: Invalid, Field: "hardware.accelerators", Message: fmt.Sprintf("%d cards are recorded, class %s has %d", len(h.Accelerators), c.Name, c.Count),
			Hint: "record every card with its slot, or choose another class"}
	}
	for i, a := range h.Accelerators {
		if id := a.Vendor + ":" + a.Device; id != c.Accelerator {
			return &Error{Code: Invalid, Field: fmt.Sprintf("hardware.accelerators[%d]", i), Message: fmt.Sprintf("card %s is %s, class %s has %s", a.Slot, id, c.Name, c.Accelerator),
				Hint: "correct the record, or choose another class"}
		}
	}
	return nil
}
