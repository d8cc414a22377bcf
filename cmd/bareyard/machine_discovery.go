package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// inboxCommands are for machines that nobody has enrolled.
type inboxCommands struct {
	Discovered machineDiscovered `cmd:"" help:"List machines that network-booted and that nobody has enrolled."`
	Approve    machineApprove    `cmd:"" help:"Enrol a discovered machine."`
	Reject     machineReject     `cmd:"" help:"Send a discovered machine away: it boots from its disk."`
	Enrol      machineEnrol      `cmd:"" help:"Give the enrolment list: machines that are named before they are seen."`
	Expected   machineExpected   `cmd:"" help:"Show who is on the enrolment list and was not seen yet."`
	Export     machineExport     `cmd:"" help:"Write the machines as a list that enrol reads."`
	Trace      machineTrace      `cmd:"" help:"Show a boot as a time line, and where it stopped."`
}

type machineDiscovered struct {
	remote
	Rejected bool `help:"Those too that were rejected."`
}

// Run lists discovered machines.
func (m *machineDiscovered) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Discovered(ctx, m.Rejected)
		if err != nil {
			return err
		}
		return m.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "ID\tMAC\tMODEL\tSERIAL\tCORES\tMEMORY\tDISKS\tCARDS\tSWITCH\tBMC\tCLASS\tSEEN\tNOTE")
			for _, f := range list {
				inv := f.Inventory
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.ID, f.MAC, dash(inv.System.Model), dash(inv.Hardware.Serial), inv.Cores, memoryText(inv.Memory),
					diskSum(inv.Hardware.Disks), cardSum(inv.Hardware.Accelerators), dash(neighbourOf(inv, f.MAC)), dash(bmcOf(inv)), dash(bestClass(f)), ago(f.LastSeen), dash(note(f)))
			}
		})
	})
}

func memoryText(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
}

// diskText is a size as disks are sold: in powers of ten.
func diskText(n int64) string {
	if n < 1e12 {
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	}
	return fmt.Sprintf("%.1f TB", float64(n)/1e12)
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func diskSum(disks []machine.Disk) string {
	var total int64
	for _, d := range disks {
		total += d.Size
	}
	return fmt.Sprintf("%d, %s", len(disks), diskText(total))
}

// cardSum counts cards by kind, in the order in which they are on the bus.
func cardSum(cards []machine.Accelerator) string {
	count := map[string]int{}
	var kinds []string
	for _, a := range cards {
		id := a.Vendor + ":" + a.Device
		if count[id] == 0 {
			kinds = append(kinds, id)
		}
		count[id]++
	}
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d × %s", count[k], k)
	}
	return dash(strings.Join(kinds, ", "))
}

func neighbourOf(inv machine.Inventory, mac string) string {
	for _, p := range inv.Ports {
		if p.MAC == mac && p.Neighbour != nil {
			return strings.TrimSpace(p.Neighbour.System + " " + p.Neighbour.Port)
		}
	}
	return ""
}

func bmcOf(inv machine.Inventory) string {
	if inv.BMC == nil {
		return ""
	}
	return inv.BMC.Address
}

// bestClass is the class to propose, with a question mark when it does not fit in all.
func bestClass(f machine.Found) string {
	if len(f.Proposals) == 0 {
		return ""
	}
	if p := f.Proposals[0]; !p.Fits {
		return p.Class + "?"
	}
	return f.Proposals[0].Class
}

func note(f machine.Found) string {
	switch {
	case f.State == machine.Retired:
		return "rejected: " + f.Reason
	case f.Reason != "":
		return f.Reason
	case f.Expected != "":
		return "expected as " + f.Expected
	}
	return ""
}

func ago(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	switch d := time.Since(at); {
	case d < time.Minute:
		return "now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d d ago", d/(24*time.Hour))
	}
}

// showFound prints what was found on a machine that nobody has enrolled.
func showFound(w io.Writer, f machine.Found) {
	inv := f.Inventory
	line := func(key, format string, a ...any) {
		if s := strings.TrimSpace(fmt.Sprintf(format, a...)); s != "" {
			fmt.Fprintf(w, "%s\t%s\n", key, s)
		}
	}
	line("discovered", "%s, by port %s, last %s, seen %s", f.ID, f.MAC, f.LastSeen.Local().Format("2006-01-02 15:04:05"), count(f.Times, "time"))
	line("note", "%s", note(f))
	line("system", "%s %s", inv.System.Vendor, inv.System.Model)
	line("board", "%s", inv.System.Board)
	line("UUID", "%s", inv.Hardware.UUID)
	line("serial", "%s", inv.Hardware.Serial)
	line("firmware", "%s %s %s %s", inv.Firmware, inv.System.BIOSVendor, inv.System.BIOSVersion, inv.System.BIOSDate)
	line("CPU", "%s, %s in %s", inv.CPU, count(inv.Cores, "core"), count(max(inv.Sockets, 1), "socket"))
	line("memory", "%s", memoryText(inv.Memory))
	if b := inv.BMC; b != nil {
		line("BMC", "%s %s, firmware %s, IPMI %s", dash(b.Address), b.MAC, dash(b.Firmware), dash(b.IPMI))
	} else {
		line("BMC", "none that the machine itself reaches")
	}
	for _, p := range inv.Ports {
		line("port", "%s", portText(p))
	}
	for _, d := range inv.Hardware.Disks {
		line("disk", "%s %s %s", dash(d.Serial), diskText(d.Size), driveText(inv, d))
	}
	for _, a := range inv.Hardware.Accelerators {
		line("card", "%s %s:%s%s", a.Slot, a.Vendor, a.Device, subsystem(inv, a))
	}
	for _, p := range f.Proposals {
		fits := "fits"
		if !p.Fits {
			fits = "does not fit"
		}
		line("class", "%s %s: %s", p.Class, fits, strings.Join(p.Facts, ", "))
	}
}

func portText(p machine.PortFacts) string {
	parts := []string{p.MAC, p.Name}
	if p.Driver != "" {
		parts = append(parts, p.Driver)
	}
	switch {
	case p.Virtual:
		parts = append(parts, "not its own")
	case !p.Link:
		parts = append(parts, "no link")
	case p.Speed > 0:
		parts = append(parts, fmt.Sprintf("%d Mbit/s", p.Speed))
	}
	if p.Booted {
		parts = append(parts, "booted from")
	}
	if n := p.Neighbour; n != nil {
		to := strings.TrimSpace(n.System + " " + n.Port)
		if n.VLAN > 0 {
			to += fmt.Sprintf(" VLAN %d", n.VLAN)
		}
		parts = append(parts, "→ "+to)
	}
	return strings.Join(parts, " ")
}

func driveText(inv machine.Inventory, d machine.Disk) string {
	for _, x := range inv.Drives {
		if x.Serial == d.Serial {
			kind := x.Bus
			if x.Rotational {
				kind += ", rotating"
			}
			return strings.TrimSpace(x.Model + " " + kind)
		}
	}
	return ""
}

func subsystem(inv machine.Inventory, a machine.Accelerator) string {
	for _, c := range inv.Cards {
		if c.Slot == a.Slot && c.Subsystem != "" {
			return " (" + c.Subsystem + ")"
		}
	}
	return ""
}

// oneFound is a command about one discovered machine.
type oneFound struct {
	remote
	ID string `arg:"" help:"The discovered machine, by id or by the MAC address of a port."`
}

type machineApprove struct {
	oneFound
	Name            string `required:"" help:"Its name from now on."`
	Class           string `placeholder:"NAME" help:"What it is sold as (default: the one class that fits)."`
	Site            string `help:"Its site."`
	Rack            string `help:"Its rack."`
	BMCAddress      string `name:"bmc-address" placeholder:"ADDRESS" help:"host:port for IPMI, a URL for Redfish (default: what the BMC told the machine)."`
	BMCProtocol     string `name:"bmc-protocol" enum:"ipmi,redfish" default:"ipmi" help:"ipmi or redfish (default: ipmi)."`
	BMCUser         string `name:"bmc-user" required:"" placeholder:"NAME" help:"The BMC's user."`
	BMCPasswordFile string `name:"bmc-password-file" required:"" placeholder:"FILE" help:"File with the password; - reads it from standard input."`
	BMCCertPin      string `name:"bmc-cert-pin" placeholder:"SHA256" help:"Of the BMC's certificate (default: it is trusted as it is shown now)."`
	NoBMCCheck      bool   `name:"no-bmc-check" help:"Do not ask the BMC which machine it is in."`
	BootAddr        string `placeholder:"ADDRESS" help:"Reserved for it on the provisioning network (default: the one that it had)."`
	ProvisionMAC    string `name:"provision-mac" placeholder:"MAC" help:"The port that it boots from (default: the one that it booted from)."`
	PublicMAC       string `name:"public-mac" placeholder:"MAC" help:"The port that carries its public address (default: the other one, or the only other one with a link)."`
	ProvisionPort   string `placeholder:"PORT" help:"The switch or bridge port to which it is wired; it is closed at hand-over."`
	PublicPort      string `placeholder:"PORT" help:"Likewise."`
	SystemDisk      string `placeholder:"SERIAL" help:"The disk that takes the image (default: the smallest of 16 GiB or more)."`
	Admit           bool   `help:"Vouch for it: it becomes available without an acceptance run."`
}

// Run enrols a discovered machine.
func (m *machineApprove) Run(ctx context.Context, t *terminal) error {
	password, err := readPassword(m.BMCPasswordFile)
	if err != nil {
		return err
	}
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		class := m.Class
		if class == "" {
			if class, err = theClass(ctx, c, m.ID); err != nil {
				return err
			}
		}
		x, err := c.Approve(ctx, m.ID, api.Approval{Name: m.Name, Site: m.Site, Rack: m.Rack, Class: class,
			BMC:         api.ApprovalBMC{Protocol: m.BMCProtocol, Address: m.BMCAddress, Username: m.BMCUser, CertPin: m.BMCCertPin},
			BMCPassword: password, BootAddr: m.BootAddr, ProvisionMAC: m.ProvisionMAC, PublicMAC: m.PublicMAC, ProvisionPort: m.ProvisionPort, PublicPort: m.PublicPort,
			SystemDisk: m.SystemDisk, Admit: m.Admit, NoBMCCheck: m.NoBMCCheck})
		if err != nil {
			return err
		}
		return m.tell(t, x, "machine %s of class %s is %s%s", x.Name, x.Class, x.State, firstUse(x))
	})
}

// theClass is the one class that fits a discovered machine.
func theClass(ctx context.Context, c *client.Client, id string) (string, error) {
	f, err := c.Found(ctx, id)
	if err != nil {
		return "", err
	}
	var fits []string
	for _, p := range f.Proposals {
		if p.Fits {
			fits = append(fits, p.Class)
		}
	}
	switch len(fits) {
	case 1:
		return fits[0], nil
	case 0:
		return "", &machine.Error{Code: machine.Invalid, Field: "class", Message: "no class fits what was found on the machine", Hint: "see `bareyard machine show`, define a class with `bareyard class put`, or name one with --class"}
	}
	return "", &machine.Error{Code: machine.Invalid, Field: "class", Message: fmt.Sprintf("several classes fit the machine: %s", strings.Join(fits, ", ")), Hint: "name one with --class"}
}

type machineReject struct {
	oneFound
	Reason string `required:"" placeholder:"TEXT" help:"Why; kept in the log of events."`
	Forget bool   `help:"Forget it instead: it is discovered anew when it boots again."`
}

// Run sends a discovered machine away.
func (m *machineReject) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		if err := c.Reject(ctx, m.ID, m.Reason, m.Forget); err != nil {
			return err
		}
		what := "rejected"
		if m.Forget {
			what = "forgotten"
		}
		return m.tell(t, map[string]string{"id": m.ID, "state": what}, "%s is %s", m.ID, what)
	})
}
