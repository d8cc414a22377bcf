package lab

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/bareyard/bareyard/lab/fakecard"
	"github.com/bareyard/bareyard/machine"
)

// plan is everything that follows from a machine's configuration and its place in the lab.
type plan struct {
	MachineConfig

	dir      string     // its own state: disks, logs, firmware variables
	bootAddr netip.Addr // reserved on the provisioning network
	bmcAddr  netip.Addr
	provMAC  string
	pubMAC   string
	provTap  string // its port on br-prov
	pubTap   string // its port on br-pub
	uuid     string
	serial   string
}

func planMachines(c Config) []plan {
	plans := make([]plan, len(c.Machines))
	for i, m := range c.Machines {
		n := byte(i + 1)
		plans[i] = plan{
			MachineConfig: m,
			dir:           filepath.Join(c.Dir, "machines", m.Name),
			bootAddr:      hostAddr(ProvisionNet, 10+n),
			bmcAddr:       hostAddr(BMCNet, 10+n),
			provMAC:       fmt.Sprintf("52:54:00:0b:%02x:01", n), // 52:54:00 is QEMU's
			pubMAC:        fmt.Sprintf("52:54:00:0b:%02x:02", n),
			provTap:       m.Name + "-prov",
			pubTap:        m.Name + "-pub",
			uuid:          uuidOf(c.Name + "/" + m.Name),
			serial:        fmt.Sprintf("LAB-%s-%s", c.Name, m.Name),
		}
	}
	return plans
}

func hostAddr(p netip.Prefix, n byte) netip.Addr {
	a := p.Addr().As4()
	a[3] += n
	return netip.AddrFrom4(a)
}

// uuidOf makes a UUID out of a name (version 8 of RFC 9562), so that a machine keeps its own.
func uuidOf(name string) string {
	b := sha256.Sum256([]byte("bareyard lab " + name))
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// self is the plan that a machine is built on.
func (p plan) self() plan { return p }

func (p plan) systemSerial() string { return p.Name + "-system" }
func (p plan) dataSerial() string   { return p.Name + "-data" }

// systemDisk and dataDisk are the files behind the disks: raw and sparse, so that a test can look into them.
func (p plan) systemDisk() string { return filepath.Join(p.dir, "system.img") }
func (p plan) dataDisk() string   { return filepath.Join(p.dir, "data.img") }

func (p plan) serialLog() string { return filepath.Join(p.dir, "serial.log") }
func (p plan) qemuLog() string   { return filepath.Join(p.dir, "qemu.log") }
func (p plan) hostSocket() string {
	return filepath.Join(simDir(filepath.Dir(filepath.Dir(p.dir)), p.Name), "host.sock")
}
func (p plan) vars() string { return filepath.Join(p.dir, "efivars.fd") }

// record is what an operator enrols: the machine as it was sold, absent cards included.
func (p plan) record() machine.Machine {
	var cards []machine.Accelerator
	for i := range p.Cards {
		// Firmware numbers the buses behind root ports in their order.
		cards = append(cards, machine.Accelerator{Slot: fmt.Sprintf("0000:%02x:00.0", i+1), Vendor: fakecard.Vendor, Device: fakecard.Device})
	}
	return machine.Machine{
		Name:     p.Name,
		Site:     "lab",
		Rack:     "r1",
		Class:    p.Class,
		Firmware: p.Firmware,
		Boot:     map[bool]machine.Boot{true: machine.BootMedia}[p.Media],
		BootAddr: p.bootAddr,
		Hardware: machine.Hardware{
			UUID:   p.uuid,
			Serial: p.serial,
			NICs: []machine.NIC{
				{MAC: p.provMAC, Role: machine.ProvisionNIC, Port: p.provTap},
				{MAC: p.pubMAC, Role: machine.PublicNIC, Port: p.pubTap},
			},
			Disks: []machine.Disk{
				{Serial: p.systemSerial(), Size: p.SystemSize, Role: machine.SystemDisk},
				{Serial: p.dataSerial(), Size: p.DataSize, Role: machine.DataDisk},
			},
			Accelerators: cards,
		},
	}
}
