package machine

import "time"

// System is what firmware says of itself and of the box that it is in.
type System struct {
	Vendor      string `json:"vendor,omitempty"`
	Model       string `json:"model,omitempty"`
	Board       string `json:"board,omitempty"` // vendor and name of the mainboard
	BIOSVendor  string `json:"bios_vendor,omitempty"`
	BIOSVersion string `json:"bios_version,omitempty"`
	BIOSDate    string `json:"bios_date,omitempty"` // as firmware writes it: month/day/year
}

// PortFacts is a network port as the kernel and its neighbour show it.
type PortFacts struct {
	Name      string     `json:"name"` // of the kernel, in that one boot
	MAC       string     `json:"mac"`
	Driver    string     `json:"driver,omitempty"`
	Bus       string     `json:"bus,omitempty"`   // pci, virtio, usb …
	Slot      string     `json:"slot,omitempty"`  // PCI address
	Speed     int        `json:"speed,omitempty"` // Mbit/s; 0 without a link
	Link      bool       `json:"link"`
	Booted    bool       `json:"booted,omitempty"`  // the machine booted from this port
	Virtual   bool       `json:"virtual,omitempty"` // no port of the machine's own: USB, a virtual function. Never identity
	Neighbour *Neighbour `json:"neighbour,omitempty"`
}

// Neighbour is the switch port that a port is wired to, by LLDP.
type Neighbour struct {
	System  string `json:"system,omitempty"`  // name of the switch
	Chassis string `json:"chassis,omitempty"` // its identity, usually a MAC address
	Port    string `json:"port"`
	Text    string `json:"text,omitempty"` // description of the port
	VLAN    int    `json:"vlan,omitempty"` // native VLAN, where it says one
}

// Drive is what there is to know of a disk beside its serial number and size.
type Drive struct {
	Serial     string `json:"serial"`
	Name       string `json:"name"` // of the kernel, in that one boot
	Model      string `json:"model,omitempty"`
	Bus        string `json:"bus,omitempty"` // nvme, sata, sas, virtio …
	Rotational bool   `json:"rotational,omitempty"`
	Size       int64  `json:"size"` // bytes
}

// Card is an accelerator as the PCI bus shows it.
type Card struct {
	Accelerator
	Subsystem string `json:"subsystem,omitempty"` // vendor:device of who built the card
	Class     string `json:"class,omitempty"`     // six hex digits
}

// BMCFacts is what a BMC says of itself to the machine that it sits in.
type BMCFacts struct {
	Address  string `json:"address,omitempty"` // of its network port; empty when it has none
	MAC      string `json:"mac,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	IPMI     string `json:"ipmi,omitempty"` // version of IPMI
	UUID     string `json:"uuid,omitempty"` // that it has for the machine, as it stores it
}

// Found is a machine that network-booted and that nobody has enrolled.
type Found struct {
	ID        string    `json:"id"`             // stays with the machine when it is enrolled
	State     State     `json:"state"`          // discovered, or retired when an operator has rejected it
	MAC       string    `json:"mac"`            // of the port that it booted from last
	From      string    `json:"from,omitempty"` // the address that it had then
	Inventory Inventory `json:"inventory"`
	Reason    string    `json:"reason,omitempty"`   // why it is not enrolled though a list names it, or why it was rejected
	Expected  string    `json:"expected,omitempty"` // name that the enrolment list has for it
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"`
	Times     int       `json:"times"` // how often it was seen

	Proposals []Proposal `json:"proposals,omitempty"` // classes, the best first
}

// Proposal is a class that a machine might be of.
type Proposal struct {
	Class string   `json:"class"`
	Fits  bool     `json:"fits"`
	Facts []string `json:"facts"` // what speaks for it, or what does not fit
}

// Expected is an entry of the enrolment list: a machine that is named before it is seen. The password of its BMC is kept
// apart, encrypted.
type Expected struct {
	Name       string    `json:"name"`
	MAC        string    `json:"mac,omitempty"`    // of any of its ports; one of MAC and serial is needed
	Serial     string    `json:"serial,omitempty"` // of the system
	Class      string    `json:"class"`
	Site       string    `json:"site,omitempty"`
	Rack       string    `json:"rack,omitempty"`
	BMC        BMC       `json:"bmc"`
	BootAddr   string    `json:"boot_addr,omitempty"`   // reserved on the provisioning network
	PublicMAC  string    `json:"public_mac,omitempty"`  // the port that carries the public address; empty: it is worked out
	SystemDisk string    `json:"system_disk,omitempty"` // serial number; empty: it is worked out
	Admit      bool      `json:"admit,omitempty"`       // vouch for it: straight to available
	Created    time.Time `json:"created,omitzero"`
}

// ClassFacts is what the machines of a class have beside their cards, to propose a class for a new one. Zero: it does not
// matter.
type ClassFacts struct {
	Class    string `json:"class"`
	Memory   int64  `json:"memory"`    // bytes, at least
	Disks    int    `json:"disks"`     // at least
	DiskSize int64  `json:"disk_size"` // bytes of all disks together, at least
}
