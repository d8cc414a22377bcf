package provisioner

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

// Propose lists the classes that a machine might be of, the best first: those that fit, then those that have its cards and
// miss something, with what they miss.
func Propose(inv machine.Inventory, classes []machine.Class, facts map[string]machine.ClassFacts) []machine.Proposal {
	type ranked struct {
		machine.Proposal
		matched int
		memory  int64
	}
	have := cards(inv)
	var list []ranked
	for _, c := range classes {
		p := ranked{Proposal: machine.Proposal{Class: c.Name, Fits: true}}
		say := func(fits bool, format string, a ...any) {
			p.Facts = append(p.Facts, fmt.Sprintf(format, a...))
			if p.Fits = p.Fits && fits; fits {
				p.matched++
			}
		}
		switch n := have[c.Accelerator]; {
		case c.Count == 0 && len(have) == 0:
			say(true, "no cards")
		case c.Count == 0 || n == 0:
			continue // another kind of machine altogether
		case len(have) > 1:
			say(false, "%d kinds of cards, the class has one", len(have))
		case n != c.Count:
			say(false, "%d of %d cards %s", n, c.Count, c.Accelerator)
		default:
			say(true, "%d cards %s", n, c.Accelerator)
		}
		f := facts[c.Name]
		if f.Memory > 0 {
			// what the firmware keeps for itself, where SMBIOS says nothing of the modules
			say(inv.Memory >= f.Memory-f.Memory/20, "%s of memory, at least %s", bytesText(inv.Memory), bytesText(f.Memory))
			p.memory = f.Memory
		}
		if f.Disks > 0 {
			say(len(inv.Hardware.Disks) >= f.Disks, "%s, at least %d", plural(len(inv.Hardware.Disks), "disk"), f.Disks)
		}
		if f.DiskSize > 0 {
			total := diskTotal(inv)
			say(total >= f.DiskSize, "%s of disk, at least %s", bytesText(total), bytesText(f.DiskSize))
		}
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		if a.Fits != b.Fits {
			if a.Fits {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.matched, a.matched), cmp.Compare(b.memory, a.memory), cmp.Compare(a.Class, b.Class))
	})
	var out []machine.Proposal
	for _, p := range list {
		out = append(out, p.Proposal)
	}
	return out
}

func diskTotal(inv machine.Inventory) (total int64) {
	for _, d := range inv.Hardware.Disks {
		total += d.Size
	}
	return total
}

// Approval is what an operator adds to what was found on a machine. What he leaves out is worked out.
type Approval struct {
	Name        string
	Site        string
	Rack        string
	Class       string
	BMC         machine.BMC
	BMCPassword string
	BootAddr    netip.Addr // not valid: the address that it had when it was seen

	ProvisionMAC  string // empty: the port that it booted from
	PublicMAC     string // empty: the other port, or the only other one with a link
	ProvisionPort string // the switch or bridge port that it is wired to; empty: nobody closes it
	PublicPort    string
	SystemDisk    string // serial number; empty: the smallest of 16 GiB or more, or else the largest

	Admit     bool // vouch for it: straight to available
	SkipCheck bool // do not ask the BMC which machine it is in
}

const smallestSystem = 16 << 30 // bytes

// Record makes the record of a machine out of what was found on it and what an operator says.
func Record(f machine.Found, a Approval) (machine.Machine, error) {
	inv := f.Inventory
	m := machine.Machine{ID: f.ID, Name: a.Name, Site: a.Site, Rack: a.Rack, Class: a.Class, State: machine.Discovered, Firmware: inv.Firmware,
		Hardware: inv.Hardware, BMC: a.BMC, BootAddr: a.BootAddr}
	if !m.BootAddr.IsValid() {
		m.BootAddr, _ = netip.ParseAddr(f.From) // CheckRecord says what to do where there is none
	}
	m.BMC.Protocol = cmp.Or(m.BMC.Protocol, "ipmi")
	m.BMC.Address = bmcAddress(m.BMC, inv.BMC)
	var err error
	if m.Hardware.NICs, err = roles(f, a); err != nil {
		return m, err
	}
	if m.Hardware.Disks, err = diskRoles(inv.Hardware.Disks, a.SystemDisk); err != nil {
		return m, err
	}
	return m, machine.CheckRecord(m)
}

// bmcAddress writes an address as the protocol has it, and takes the one that the BMC itself told when none is given.
func bmcAddress(b machine.BMC, found *machine.BMCFacts) string {
	address := b.Address
	if address == "" && found != nil {
		address = found.Address
	}
	bare, err := netip.ParseAddr(address)
	switch {
	case address == "":
		return ""
	case b.Protocol == "ipmi" && err == nil:
		return net.JoinHostPort(bare.String(), "623")
	case b.Protocol == "ipmi" && !strings.Contains(address, ":"):
		return address + ":623"
	case b.Protocol == "redfish" && err == nil && bare.Is6():
		return "https://[" + bare.String() + "]"
	case b.Protocol == "redfish" && !strings.Contains(address, "://"):
		return "https://" + address
	}
	return address
}

// roles says which ports the machine boots from and which carries its public address.
func roles(f machine.Found, a Approval) ([]machine.NIC, error) {
	nics := slices.Clone(f.Inventory.Hardware.NICs)
	links := map[string]bool{}
	for _, p := range f.Inventory.Ports {
		links[p.MAC] = p.Link
	}
	provision := cmp.Or(strings.ToLower(a.ProvisionMAC), f.MAC)
	public := strings.ToLower(a.PublicMAC)
	if public == "" {
		var other, linked []string
		for _, n := range nics {
			if n.MAC == provision {
				continue
			}
			other = append(other, n.MAC)
			if links[n.MAC] {
				linked = append(linked, n.MAC)
			}
		}
		switch {
		case len(other) == 1:
			public = other[0]
		case len(linked) == 1:
			public = linked[0]
		case len(other) == 0:
			return nil, &machine.Error{Code: machine.Invalid, Field: "public_mac", Message: "it has no port beside the one that it boots from",
				Hint: "a machine needs a second port for its public address"}
		default:
			return nil, &machine.Error{Code: machine.Invalid, Field: "public_mac", Message: fmt.Sprintf("which port carries the public address cannot be told: %s", strings.Join(other, ", ")),
				Hint: "name it with --public-mac; `bareyard machine show` has their neighbours"}
		}
	}
	for _, role := range []struct {
		field, mac, port string
		role             machine.NICRole
	}{{"provision_mac", provision, a.ProvisionPort, machine.ProvisionNIC}, {"public_mac", public, a.PublicPort, machine.PublicNIC}} {
		i := slices.IndexFunc(nics, func(n machine.NIC) bool { return n.MAC == role.mac })
		if i < 0 {
			return nil, &machine.Error{Code: machine.Invalid, Field: role.field, Message: fmt.Sprintf("it has no port %s of its own", role.mac), Hint: "see `bareyard machine show` for its ports"}
		}
		if nics[i].Role != "" {
			return nil, &machine.Error{Code: machine.Invalid, Field: role.field, Message: fmt.Sprintf("port %s cannot do both", role.mac), Hint: "name another port"}
		}
		nics[i].Role, nics[i].Port = role.role, role.port
	}
	return nics, nil
}

// diskRoles says which disk takes the image.
func diskRoles(found []machine.Disk, system string) ([]machine.Disk, error) {
	disks := slices.Clone(found)
	best := -1
	for i, d := range disks {
		disks[i].Role = machine.DataDisk
		switch {
		case system != "":
			if d.Serial == system {
				best = i
			}
		case best < 0:
			best = i
		case d.Size >= smallestSystem && (disks[best].Size < smallestSystem || d.Size < disks[best].Size):
			best = i
		case d.Size < smallestSystem && disks[best].Size < d.Size:
			best = i
		}
	}
	if best < 0 {
		if system == "" {
			return nil, &machine.Error{Code: machine.Invalid, Field: "system_disk", Message: "it has no disk that takes a system", Hint: "put one in, and let it be discovered again"}
		}
		return nil, &machine.Error{Code: machine.Invalid, Field: "system_disk", Message: fmt.Sprintf("it has no disk %q", system), Hint: "see `bareyard machine show` for the serial numbers of its disks"}
	}
	disks[best].Role = machine.SystemDisk
	return disks, nil
}
