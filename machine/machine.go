// Package machine holds the nouns of Bareyard and the pure rules by which machines, orders and jobs change state.
package machine

import (
	"net/netip"
	"strings"
	"time"
)

// Firmware is how a machine's firmware boots.
type Firmware string

// Firmware kinds.
const (
	BIOS Firmware = "bios"
	UEFI Firmware = "uefi"
)

// Boot is how the RAM disk gets to a machine.
type Boot string

// Roads of the RAM disk.
const (
	BootNetwork Boot = ""              // PXE or UEFI HTTP, by the port that is wired to the provisioning network
	BootMedia   Boot = "virtual-media" // an image that the BMC inserts as a CD, where there is no PXE
)

// Machine is one physical server.
type Machine struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"` // unique, chosen by the operator
	Site     string   `json:"site"`
	Rack     string   `json:"rack"`
	Class    string   `json:"class"` // what it is sold as
	State    State    `json:"state"`
	Reason   string   `json:"reason,omitempty"` // why it is quarantined or in maintenance, in words
	Firmware Firmware `json:"firmware"`
	Boot     Boot     `json:"boot,omitempty"`
	Hardware Hardware `json:"hardware"` // the record that an inventory is checked against
	BMC      BMC      `json:"bmc"`

	BootAddr netip.Addr `json:"boot_addr"`          // reserved address on the provisioning network
	OrderID  string     `json:"order_id,omitempty"` // the order that holds the machine; never cleared by power-off
	JobID    string     `json:"job_id,omitempty"`   // the active job
	Public   bool       `json:"public"`             // wanted: the edge carries its public address
	PortOpen bool       `json:"port_open"`          // wanted: its provisioning port is open
	Parked   bool       `json:"parked,omitempty"`   // in maintenance by an operator's word, and not by a job that failed: he alone gives it back
	Created  time.Time  `json:"created"`
	Updated  time.Time  `json:"updated"`
}

// BMC says how to reach a machine's baseboard management controller. Credentials are kept apart, encrypted.
type BMC struct {
	Protocol string `json:"protocol"` // "ipmi" or "redfish"
	Address  string `json:"address"`  // host:port for IPMI, base URL for Redfish
	Username string `json:"username"`
	CertPin  string `json:"cert_pin,omitempty"` // SHA-256 of the BMC's certificate, hex; Redfish over TLS
	PinHow   string `json:"pin_how,omitempty"`  // who vouches for it: "first-use", it was shown at enrolment, or "operator"
	IPMI     string `json:"ipmi,omitempty"`     // where a Redfish BMC speaks IPMI too, as host:port, with the same user: its serial console
}

// Hardware is what a machine is made of.
type Hardware struct {
	UUID         string        `json:"uuid"`   // SMBIOS UUID in canonical lower case
	Serial       string        `json:"serial"` // SMBIOS system serial number
	NICs         []NIC         `json:"nics"`
	Disks        []Disk        `json:"disks"`
	Accelerators []Accelerator `json:"accelerators,omitempty"`
}

// NICRole says what a port is wired to.
type NICRole string

// Roles of a port.
const (
	ProvisionNIC NICRole = "provision" // boots; closed while a customer holds the machine
	PublicNIC    NICRole = "public"    // carries the fixed public address
)

// NIC is a network port, identified by its permanent MAC address.
type NIC struct {
	MAC  string  `json:"mac"` // lower case, colons
	Role NICRole `json:"role"`
	Port string  `json:"port,omitempty"` // the switch or bridge port it is wired to
}

// DiskRole says what a disk is for.
type DiskRole string

// Roles of a disk.
const (
	SystemDisk DiskRole = "system" // takes the image
	DataDisk   DiskRole = "data"   // kept through a reinstall unless the customer asks otherwise
)

// Disk is a disk, identified by its serial number: kernel names change between boots.
type Disk struct {
	Serial string   `json:"serial"`
	Size   int64    `json:"size"` // bytes
	Role   DiskRole `json:"role"`
}

// Accelerator is a card, as the PCI bus shows it.
type Accelerator struct {
	Slot   string `json:"slot"`   // PCI address, e.g. 0000:05:00.0
	Vendor string `json:"vendor"` // four hex digits, e.g. 10de
	Device string `json:"device"` // four hex digits, e.g. 2b85
}

// NICByRole returns the machine's first port of a role.
func (h Hardware) NICByRole(role NICRole) (NIC, bool) {
	for _, n := range h.NICs {
		if n.Role == role {
			return n, true
		}
	}
	return NIC{}, false
}

// HasMAC reports whether a port of the machine has this MAC address.
func (h Hardware) HasMAC(mac string) bool {
	for _, n := range h.NICs {
		if strings.EqualFold(n.MAC, mac) {
			return true
		}
	}
	return false
}

// SystemDisk returns the disk that takes the image.
func (h Hardware) SystemDisk() (Disk, bool) {
	for _, d := range h.Disks {
		if d.Role == SystemDisk {
			return d, true
		}
	}
	return Disk{}, false
}

// Class is what is sold: machines of one class are interchangeable.
type Class struct {
	Name         string `json:"name"` // e.g. rtx5090x8
	Description  string `json:"description"`
	Accelerator  string `json:"accelerator,omitempty"` // PCI vendor:device, e.g. 10de:2b85
	Count        int    `json:"count"`                 // how many cards
	MonthlyPrice int64  `json:"monthly_price"`         // integer minor units
	Currency     string `json:"currency"`              // ISO 4217
}
