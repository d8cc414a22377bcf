package lab

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
)

// BMCKind says what stands in for a machine's BMC.
type BMCKind string

// Kinds of BMC.
const (
	IPMI     BMCKind = "ipmi"     // go-ipmi's BMC
	OpenIPMI BMCKind = "ipmi-sim" // OpenIPMI's ipmi_sim, an independent second opinion
	Redfish  BMCKind = "redfish"  // over TLS with a self-signed certificate
)

// Device is something that firmware can boot from.
type Device string

// Boot devices.
const (
	FromNetwork Device = "network"
	FromDisk    Device = "disk"
	FromDisc    Device = "disc" // simulated: what the BMC inserts; only by an override
)

// Bus is how disks are attached.
type Bus string

// Buses.
const (
	Virtio Bus = "virtio"
	NVMe   Bus = "nvme"
)

// Config describes a lab. A zero field takes the default that its comment ends with.
type Config struct {
	Name     string          // names the namespaces, so that labs can stand side by side; up to 16 small letters and digits; by
	Dir      string          // disks, logs, the server's data; /var/lib/bareyard-lab
	Machines []MachineConfig // DefaultMachines()
	Server   *ServerConfig   // the controller that runs in the lab; none
	QEMU     string          // the emulator; qemu-system-x86_64 from the path
	Log      *slog.Logger    `json:"-"` // silence
}

// MachineConfig describes a machine. A zero field takes the default that its comment ends with.
type MachineConfig struct {
	Name       string           // up to 10 small letters and digits; n1, n2, …
	Firmware   machine.Firmware // bios
	BMC        BMCKind          // ipmi
	Vendor     bmctest.Vendor   // redfish: whose service the BMC resembles; one that follows the standard
	Simulated  bool             // no QEMU: see Simulated; its BMC is ipmi or redfish; false
	InBand     bool             // its own system reaches its BMC, which is ipmi; QEMU; false
	Media      bool             // simulated, redfish: its record says that it boots from virtual media; false
	NoPXE      bool             // simulated: nothing boots from the network; false
	Password   string           // of its BMC when it is first made; a random one
	Unknown    bool             // not among the machines that Stock tells the server of: it is to be discovered; false
	BootTime   time.Duration    // simulated: from power on to the first packet; 0
	WriteTime  time.Duration    // simulated: how long an image takes to write; 0
	Order      []Device         // persistent boot order; network, disk: the worst case, every boot asks the controller first
	Bus        Bus              // virtio
	Cards      int              // fake accelerators, up to 8; 0
	Absent     int              // how many of the cards have failed: recorded in the inventory, gone from the bus; 0
	Class      string           // what it is sold as; lab, or rtx5090x8 with eight cards
	Memory     int              // MiB; 512 under BIOS, 1024 under UEFI
	SystemSize int64            // bytes; 4 GiB
	DataSize   int64            // bytes; 1 GiB
}

// ServerConfig describes the controller that a lab runs. A zero field takes the default that its comment ends with.
type ServerConfig struct {
	Binary     string         // the bareyard program; this program
	Kernel     string         // build/kernel/vmlinuz
	RAMDisk    string         // build/ramdisk/ramdisk.cpio.zst
	KernelArgs string         // more arguments for the RAM disk's kernel; console on the serial port
	Validator  string         // bin/bareyard-validate
	Record     string         // kept of each job's console, e.g. 1MiB; nothing
	Disc       string         // the disc for machines that boot from virtual media; none
	Discovery  bool           // look at machines that nobody has enrolled; false
	Extra      map[string]any // more keys of the server's configuration; these win
	Env        []string       // more variables of its environment, NAME=value
	Restart    time.Duration  // pause before it is started again after it died; 1 s, or 5 s when it died within 5 s of its start
}

// DefaultMachines is the lab that bareyard lab up builds: one machine for each kind of BMC.
func DefaultMachines() []MachineConfig {
	return []MachineConfig{
		{Name: "n1", Firmware: machine.BIOS, BMC: IPMI},
		{Name: "n2", Firmware: machine.BIOS, BMC: OpenIPMI},
		{Name: "n3", Firmware: machine.UEFI, BMC: Redfish},
	}
}

const maxName = 16

// maxMachines keeps addresses on their networks: machine i has 10.77.0.(10+i) and 10.78.0.(10+i).
const maxMachines = 200

// withDefaults returns the configuration with every field set, or says which is wrong.
func (c Config) withDefaults() (Config, error) {
	c.Name = cmp.Or(c.Name, "by")
	c.Dir = cmp.Or(c.Dir, DefaultDir)
	c.QEMU = cmp.Or(c.QEMU, "qemu-system-x86_64")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if !validWord(c.Name, maxName) {
		return c, invalid("name", "lab name %q is not up to %d small letters and digits", c.Name, maxName)
	}
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return c, fmt.Errorf("find state directory: %w", err)
	}
	if len(c.Machines) == 0 {
		c.Machines = DefaultMachines()
	}
	if len(c.Machines) > maxMachines {
		return c, invalid("machines", "%d machines, at most %d", len(c.Machines), maxMachines)
	}
	machines := make([]MachineConfig, len(c.Machines))
	seen := make(map[string]bool)
	for i, m := range c.Machines {
		m.Name = cmp.Or(m.Name, fmt.Sprintf("n%d", i+1))
		if seen[m.Name] {
			return c, invalid("machines", "two machines are called %s", m.Name)
		}
		seen[m.Name] = true
		if machines[i], err = m.withDefaults(); err != nil {
			return c, err
		}
	}
	c.Machines = machines
	sockets := []string{filepath.Join(c.Dir, controlSocket), filepath.Join(c.Dir, serverSocket)}
	for _, m := range machines {
		if m.BMC == OpenIPMI || m.InBand {
			sockets = append(sockets, filepath.Join(simDir(c.Dir, m.Name), simSocket))
		}
	}
	for _, path := range sockets {
		if len(path) > maxSocketPath {
			return c, invalid("dir", "socket path %s is longer than %d bytes: choose a shorter directory", path, maxSocketPath)
		}
	}
	if c.Server != nil {
		s, err := c.Server.withDefaults()
		if err != nil {
			return c, err
		}
		c.Server = &s
	}
	return c, nil
}

func (m MachineConfig) withDefaults() (MachineConfig, error) {
	m.Firmware = cmp.Or(m.Firmware, machine.BIOS)
	m.BMC = cmp.Or(m.BMC, IPMI)
	m.Bus = cmp.Or(m.Bus, Virtio)
	m.SystemSize = cmp.Or(m.SystemSize, 4<<30)
	m.DataSize = cmp.Or(m.DataSize, 1<<30)
	if len(m.Order) == 0 {
		m.Order = []Device{FromNetwork, FromDisk}
	}
	if m.Memory == 0 {
		m.Memory = 512
		if m.Firmware == machine.UEFI {
			m.Memory = 1024
		}
	}
	if m.Class == "" {
		m.Class = "lab"
		if m.Cards > 0 {
			m.Class = fmt.Sprintf("rtx5090x%d", m.Cards)
		}
	}
	wrong := func(format string, args ...any) (MachineConfig, error) {
		return m, invalid("machines", "machine %s: %s", m.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case !validWord(m.Name, 10):
		return wrong("the name is not up to 10 small letters and digits")
	case m.Firmware != machine.BIOS && m.Firmware != machine.UEFI:
		return wrong("firmware %q is neither bios nor uefi", m.Firmware)
	case m.BMC != IPMI && m.BMC != OpenIPMI && m.BMC != Redfish:
		return wrong("BMC %q is none of ipmi, ipmi-sim, redfish", m.BMC)
	case m.Simulated && m.BMC == OpenIPMI:
		return wrong("a simulated machine does not stand behind ipmi_sim: choose ipmi or redfish")
	case m.InBand && (m.Simulated || m.BMC != IPMI):
		return wrong("a way from inside to the BMC is for QEMU machines with BMC ipmi")
	case (m.Media || m.NoPXE) && !m.Simulated || m.Media && m.BMC != Redfish:
		return wrong("virtual media is for simulated machines with BMC redfish")
	case m.Bus != Virtio && m.Bus != NVMe:
		return wrong("bus %q is neither virtio nor nvme", m.Bus)
	case m.Cards < 0 || m.Cards > 8 || m.Absent < 0 || m.Absent > m.Cards:
		return wrong("%d cards of which %d absent", m.Cards, m.Absent)
	case m.Memory < 128 || m.SystemSize < 1<<20 || m.DataSize < 1<<20:
		return wrong("less than 128 MiB of memory or 1 MiB of disk")
	case m.SystemSize%512 != 0 || m.DataSize%512 != 0:
		return wrong("a disk is not a whole number of sectors")
	}
	for i, d := range m.Order {
		if d != FromNetwork && d != FromDisk || i > 0 && d == m.Order[0] {
			return wrong("boot order %q", m.Order)
		}
	}
	return m, nil
}

// validWord reports whether s can be part of the name of a namespace or an interface.
func validWord(s string, longest int) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return s != "" && len(s) <= longest
}

func invalid(field, format string, args ...any) error {
	return &machine.Error{Code: machine.Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}
