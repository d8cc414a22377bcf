package accelerator

import (
	"fmt"
	"time"
)

// Value is one measured value with all that is needed to judge it, or the reason why there is none.
type Value[T any] struct {
	Value     T      `json:"value"`
	Unit      string `json:"unit,omitempty"`  // bytes, W, °C, GT/s; "" for counts and names
	Supported bool   `json:"supported"`       // false: this card or driver has no such value ("N/A")
	Source    string `json:"source"`          // nvml, sysfs, proc, kmsg
	Error     string `json:"error,omitempty"` // why it could not be read although it should be there
}

// Measured returns a value that was read.
func Measured[T any](v T, unit, source string) Value[T] {
	return Value[T]{Value: v, Unit: unit, Supported: true, Source: source}
}

// Unsupported returns the value that a card or driver does not have.
func Unsupported[T any](source string) Value[T] { return Value[T]{Source: source} }

// Unreadable returns the value that should be there and could not be read.
func Unreadable[T any](source, why string) Value[T] {
	return Value[T]{Supported: true, Source: source, Error: why}
}

// Known reports whether there is a value to judge.
func (v Value[T]) Known() bool { return v.Supported && v.Error == "" }

// String returns the value with its unit, "n/a" where there is none and "?" where it could not be read.
func (v Value[T]) String() string {
	switch {
	case v.Error != "":
		return "?"
	case !v.Supported:
		return "n/a"
	case v.Unit == "":
		return fmt.Sprint(v.Value)
	}
	return fmt.Sprint(v.Value, " ", v.Unit)
}

// Facts is everything that was read from one machine at one moment. Judge draws its conclusions from it and from nothing else.
type Facts struct {
	Taken  time.Time `json:"taken"`
	PCI    Bus       `json:"pci"`
	Driver []Driver  `json:"drivers"` // one for each vendor whose cards were looked for
	Log    KernelLog `json:"log"`
	Host   Host      `json:"host"`

	RAMDisk bool `json:"ram_disk,omitempty"` // the RAM disk looked, which has no driver for the cards: the bus alone can be judged

	// What a plan with a load adds. The fields above are then as they were after it.
	Plan      Plan        `json:"plan,omitempty"`
	Stages    []Stage     `json:"stages,omitempty"`  // of an acceptance that were gone through
	Overrun   Stage       `json:"overrun,omitempty"` // that did not end in its time
	Seconds   float64     `json:"seconds,omitempty"` // of load
	Asked     float64     `json:"asked,omitempty"`   // seconds of load that were asked for
	Before    *Snapshot   `json:"before,omitempty"`
	Loads     []Load      `json:"loads,omitempty"`
	Series    []Series    `json:"series,omitempty"`
	Diagnoses []Diagnosis `json:"diagnoses,omitempty"`
	BMC       *BMC        `json:"bmc,omitempty"` // nil: nobody asked it
}

// Bus is what the PCI bus shows.
type Bus struct {
	Cards    []PCICard `json:"cards"`              // by slot
	Switches []string  `json:"switches,omitempty"` // slots of NVSwitches: cards behind them need a fabric manager
	Error    string    `json:"error,omitempty"`    // why the bus could not be read
}

// PCICard is an accelerator as sysfs shows it.
type PCICard struct {
	Slot      string `json:"slot"`      // 0000:05:00.0
	Vendor    string `json:"vendor"`    // 10de
	Device    string `json:"device"`    // 2b85
	Subsystem string `json:"subsystem"` // vendor:device of the board maker
	Class     string `json:"class"`     // 030200
	Driver    string `json:"driver"`    // kernel driver that holds it, "" for none

	Answers   Value[bool]   `json:"answers"`    // false: its configuration space reads all ones
	LinkSpeed Value[string] `json:"link_speed"` // now; idle cards train down, so it is recorded and not judged
	LinkWidth Value[int64]  `json:"link_width"` // lanes now
	MaxSpeed  Value[string] `json:"max_speed"`
	MaxWidth  Value[int64]  `json:"max_width"`
	NUMA      Value[int64]  `json:"numa"`            // node, -1 for none
	AERFatal  Value[int64]  `json:"aer_fatal"`       // errors since boot
	Number    Value[string] `json:"number,omitzero"` // serial number in its configuration space, where the maker put one there

	AERCorrected Value[int64]  `json:"aer_corrected,omitzero"` // errors since boot that the link mended by itself
	PortSpeed    Value[string] `json:"port_speed,omitzero"`    // of the port that the card is plugged into
	PortWidth    Value[int64]  `json:"port_width,omitzero"`
}

// ID returns vendor:device.
func (c PCICard) ID() string { return c.Vendor + ":" + c.Device }

// FaultKind classes what went wrong when a driver or a card was asked.
type FaultKind string

// Kinds of fault.
const (
	FaultAbsent  FaultKind = "absent"  // the driver's library is not installed
	FaultRefused FaultKind = "refused" // the driver answered with an error
	FaultLost    FaultKind = "lost"    // the driver says that the card is gone from the bus
	FaultCrash   FaultKind = "crash"   // asking killed the process that asked
	FaultHang    FaultKind = "hang"    // no answer in time
	FaultSymbol  FaultKind = "symbol"  // the library lacks a function that we cannot do without
	FaultProbe   FaultKind = "probe"   // the probe itself could not be run or was not understood
)

// Fault is why a driver or a card did not answer.
type Fault struct {
	Kind   FaultKind `json:"kind"`
	During string    `json:"during,omitempty"` // the call under way
	Detail string    `json:"detail"`
}

func (f *Fault) String() string {
	if f.During == "" {
		return string(f.Kind) + ": " + f.Detail
	}
	return string(f.Kind) + " in " + f.During + ": " + f.Detail
}

// Driver is what one vendor's driver says.
type Driver struct {
	Vendor  string        `json:"vendor"` // PCI vendor, four hex digits
	Fault   *Fault        `json:"fault,omitempty"`
	Version Value[string] `json:"version"`
	Count   Value[int64]  `json:"count"` // cards, as the driver counts them
	Cards   []Card        `json:"cards"` // by index; a card that does not answer is here with its fault
}

// Card is an accelerator as its driver describes it.
type Card struct {
	Index int    `json:"index"`
	Slot  string `json:"slot"` // "" when it could not be learned
	Fault *Fault `json:"fault,omitempty"`

	Name   Value[string] `json:"name"`
	Serial Value[string] `json:"serial"`
	UUID   Value[string] `json:"uuid"`
	VBIOS  Value[string] `json:"vbios"`
	ID     Value[string] `json:"id"` // PCI vendor:device
	Memory Value[int64]  `json:"memory"`

	ECC             Value[bool]  `json:"ecc"`         // on now
	ECCPending      Value[bool]  `json:"ecc_pending"` // on after the next reset
	Uncorrected     Value[int64] `json:"uncorrected"` // memory errors since the driver was loaded
	UncorrectedEver Value[int64] `json:"uncorrected_ever"`
	RemapPending    Value[bool]  `json:"remap_pending"`
	RemapFailed     Value[bool]  `json:"remap_failed"`
	RemappedRows    Value[int64] `json:"remapped_rows"` // because of uncorrected errors

	Recovery    Value[string] `json:"recovery"` // what the driver asks for: none, reset, reboot, drain, …
	MIG         Value[bool]   `json:"mig"`
	ComputeMode Value[string] `json:"compute_mode"`

	LinkGen   Value[int64] `json:"link_gen"`
	LinkWidth Value[int64] `json:"link_width"`
	MaxGen    Value[int64] `json:"max_gen"`
	MaxWidth  Value[int64] `json:"max_width"`

	Temperature  Value[int64] `json:"temperature"`
	Power        Value[int64] `json:"power"`
	PowerLimit   Value[int64] `json:"power_limit"`   // enforced
	PowerDefault Value[int64] `json:"power_default"` // as it left the factory

	Board       Value[string] `json:"board,omitzero"`        // part number
	Firmware    Value[string] `json:"firmware,omitzero"`     // of the card's own processor, where it is not the VBIOS
	Health      Value[string] `json:"health,omitzero"`       // in the vendor's words, where it has some
	InfoROM     Value[bool]   `json:"inforom,omitzero"`      // valid
	Corrected   Value[int64]  `json:"corrected,omitzero"`    // memory errors since the driver was loaded
	Banks       Value[int64]  `json:"banks_spent,omitzero"`  // memory banks without a spare row left
	Persistence Value[bool]   `json:"persistence,omitzero"`  // the driver keeps the card started
	Processes   Value[int64]  `json:"processes,omitzero"`    // that use the card
	Replays     Value[int64]  `json:"pcie_replays,omitzero"` // packets sent again over PCIe
	Links       []Link        `json:"links,omitempty"`       // NVLink, HCCS, ICN
	Fabric      Value[string] `json:"fabric,omitzero"`       // completed, in progress, or what went wrong
	Slowdown    Value[int64]  `json:"slowdown,omitzero"`     // °C at which it throttles
	NetLink     Value[string] `json:"network_link,omitzero"` // Ascend: the card's own port, UP or DOWN
	NetHealth   Value[string] `json:"network_health,omitzero"`
}

// Link is a link between cards.
type Link struct {
	Index  int          `json:"index"`
	Active Value[bool]  `json:"active"`
	Errors Value[int64] `json:"errors"`
}

// Host is the machine around the cards.
type Host struct {
	CPU     Value[string] `json:"cpu"`
	Cores   Value[int64]  `json:"cores"` // logical
	Memory  Value[int64]  `json:"memory"`
	Kernel  Value[string] `json:"kernel"`
	Nouveau Value[bool]   `json:"nouveau"` // the module is loaded
	Disks   []HostDisk    `json:"disks"`
	NICs    []HostNIC     `json:"nics"`
	EDAC    []EDAC        `json:"edac"` // empty without ECC memory or its kernel driver
	Errors  []string      `json:"errors,omitempty"`

	Present    Value[string] `json:"cpus_present,omitzero"` // as the kernel writes lists: 0-63
	Online     Value[string] `json:"cpus_online,omitzero"`
	Throttles  Value[int64]  `json:"cpu_throttles,omitzero"` // times that a processor package throttled itself
	Cmdline    Value[string] `json:"cmdline,omitzero"`
	Clock      Clock         `json:"clock,omitzero"`
	Fabrics    []FabricPort  `json:"fabric_ports,omitempty"` // InfiniBand and RoCE
	FabricMgr  Value[string] `json:"fabric_manager,omitzero"`
	FabricSays []string      `json:"fabric_manager_says,omitempty"` // lines of its log that name a fault
}

// Clock is the machine's clock.
type Clock struct {
	Now    time.Time      `json:"now"`
	Synced Value[bool]    `json:"synced"` // the kernel is told so by a time service
	Error  Value[float64] `json:"error"`  // estimate of the service, seconds
}

// FabricPort is a port of an InfiniBand or RoCE adapter.
type FabricPort struct {
	Name     string        `json:"name"`   // mlx5_0/1
	Layer    Value[string] `json:"layer"`  // InfiniBand, Ethernet
	State    Value[string] `json:"state"`  // active, init, down
	Rate     Value[int64]  `json:"rate"`   // Gbit/s
	Model    Value[string] `json:"model"`  // board, to compare like with like
	Symbol   Value[int64]  `json:"symbol"` // errors
	Downed   Value[int64]  `json:"downed"` // times that the link went down
	Physical Value[string] `json:"physical"`
}

// HostDisk is a disk as the kernel shows it.
type HostDisk struct {
	Name   string        `json:"name"`
	Serial Value[string] `json:"serial"`
	Size   Value[int64]  `json:"size"`
	SMART  *SMART        `json:"smart,omitempty"` // nil: the disk was not asked
}

// SMART is what a disk says of its own health.
type SMART struct {
	Source      string       `json:"source"`          // nvme, smartctl
	Error       string       `json:"error,omitempty"` // why it could not be asked
	Passed      Value[bool]  `json:"passed"`
	Warning     Value[int64] `json:"warning"` // NVMe: critical warning bits
	Spare       Value[int64] `json:"spare"`   // per cent left
	SpareLeast  Value[int64] `json:"spare_least"`
	Used        Value[int64] `json:"used"` // per cent of its life, may go beyond 100
	MediaErrors Value[int64] `json:"media_errors"`
	Pending     Value[int64] `json:"pending"`     // ATA: sectors that could not be read
	Temperature Value[int64] `json:"temperature"` // °C
	Hours       Value[int64] `json:"hours"`
	Written     Value[int64] `json:"written"` // bytes
}

// HostNIC is a physical network port.
type HostNIC struct {
	Name    string        `json:"name"`
	MAC     Value[string] `json:"mac"`     // permanent, lower case
	Carrier Value[bool]   `json:"carrier"` // unreadable while the port is down
	Speed   Value[int64]  `json:"speed"`   // Mbit/s
}

// EDAC is a memory controller's error counts since boot.
type EDAC struct {
	Name        string       `json:"name"`
	Uncorrected Value[int64] `json:"uncorrected"`
	Corrected   Value[int64] `json:"corrected"`
}
