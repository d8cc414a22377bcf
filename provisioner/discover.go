package provisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
)

// Bounds on machines that nobody has enrolled. Anybody can make up as many as he likes.
const (
	maxPending = 256 // in the inbox
	maxVisits  = 512 // booting now
)

// Discovers reports whether a port boots the agent though it is no enrolled machine's: discovery is on, and nobody has said
// that it shall not. known is false for a port that we have no business with.
func (e *Engine) Discovers(ctx context.Context, mac string) (agent, known bool, err error) {
	if !e.Discovery {
		return false, false, nil
	}
	s, err := e.Visits.Standing(ctx, mac)
	if err != nil {
		return false, false, err
	}
	return s == Stranger, s != Ours, nil
}

// mintVisit makes the boot file of a machine that nobody has enrolled. What it holds opens the inbox and nothing else.
func (e *Engine) mintVisit(ctx context.Context, mac string, from netip.Addr) ([]byte, error) {
	agent, _, err := e.Discovers(ctx, mac)
	if err != nil {
		return nil, err
	}
	if !agent {
		return nil, fmt.Errorf("boot archive of port %s: %w", mac, ErrDenied)
	}
	secret, hash := newSecret()
	err = e.Visits.PutVisit(ctx, Visit{MAC: mac, Addr: from.Unmap(), Nonce: hash}, maxVisits)
	if machine.CodeOf(err) == machine.Exhausted {
		e.log().Warn("too many machines are being discovered at once, one is sent away", "mac", mac)
		return nil, fmt.Errorf("boot archive of port %s: %w: %w", mac, ErrDenied, err)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(BootFile{Server: e.Agents, CA: e.CA, Nonce: secret, MAC: mac})
}

// helloStranger trades the nonce of a discovery for its token. An enrolled machine that booted by a port which is not on its
// record is sent back to its disk.
func (e *Engine) helloStranger(ctx context.Context, v Visit, h machine.Hello, from netip.Addr) (machine.Welcome, error) {
	line := trace.Line{MAC: v.MAC, From: from, Proto: trace.Agent, Asked: trace.AskedHello}
	if from != v.Addr {
		e.traced(line, trace.Refused, fmt.Sprintf("it came from %s, its boot from %s", from, v.Addr))
		return machine.Welcome{}, fmt.Errorf("hello from %s: %w", from, ErrDenied)
	}
	seen := Identity{UUID: machine.CleanText(h.UUID), Serial: machine.CleanText(h.Serial), Boot: v.MAC}
	for _, mac := range h.MACs[:min(len(h.MACs), 64)] {
		if mac = machine.PortMAC(mac); mac != "" {
			seen.MACs = append(seen.MACs, mac)
		}
	}
	stray := false
	err := e.Inbox.Meet(ctx, seen, func(w *Meeting) error {
		r := Resolve(seen, w.Others)
		if stray = r.Known; stray {
			strayed(w, r.ID, v.MAC)
		}
		return nil
	})
	if err != nil {
		return machine.Welcome{}, err
	}
	secret, hash := newSecret()
	v.Token = hash
	if err := e.Visits.PutVisit(ctx, v, maxVisits); err != nil {
		return machine.Welcome{}, err
	}
	e.traced(line, trace.Answered, "")
	in := machine.Instruction{Do: machine.DoStep, Step: machine.StepDiscover}
	if stray {
		in = machine.Instruction{Do: machine.DoReboot}
	}
	return machine.Welcome{Token: secret, Instruction: in}, nil
}

// strayed notes that an enrolled machine booted by a port that is not on its record: from now on that port gets "boot from
// disk" like the others.
func strayed(w *Meeting, machineID, mac string) {
	w.Alias = map[string]string{mac: machineID}
	w.note(machineID, "machine.stray", fmt.Sprintf("it booted from the network by port %s, which is not on its record; sent back to its disk", mac))
}

// reportStranger takes in what the agent found on a machine that nobody has enrolled, and powers it off.
func (e *Engine) reportStranger(ctx context.Context, v Visit, r machine.Report) (machine.Instruction, error) {
	off := machine.Instruction{Do: machine.DoPowerOff}
	line := trace.Line{MAC: v.MAC, From: v.Addr, Proto: trace.Agent, Asked: trace.AskedReport}
	switch {
	case r.Step != machine.StepDiscover, r.Phase == machine.Idle:
		return machine.Instruction{Do: machine.DoStep, Step: machine.StepDiscover}, nil
	case r.Phase == machine.Working:
		return machine.Instruction{Do: machine.DoContinue, Step: machine.StepDiscover}, nil
	case r.Phase == machine.Failed:
		e.traced(line, trace.Failed, clip(r.Error))
		return off, e.Visits.EndVisit(ctx, v.MAC)
	}
	inv, err := machine.ReadInventory(r.Result)
	if err != nil {
		e.traced(line, trace.Refused, err.Error())
		return machine.Instruction{}, err
	}
	in, err := e.sight(ctx, v, inv)
	if err != nil {
		e.traced(line, trace.Refused, err.Error())
		return machine.Instruction{}, err
	}
	e.traced(line, trace.Answered, "")
	return in, e.Visits.EndVisit(ctx, v.MAC)
}

// sight puts a sighting into the inbox.
func (e *Engine) sight(ctx context.Context, v Visit, inv machine.Inventory) (machine.Instruction, error) {
	off := machine.Instruction{Do: machine.DoPowerOff}
	seen := Identity{UUID: inv.Hardware.UUID, Serial: inv.Hardware.Serial, Boot: v.MAC}
	for _, n := range inv.Hardware.NICs {
		seen.MACs = append(seen.MACs, n.MAC)
	}
	err := e.Inbox.Meet(ctx, seen, func(w *Meeting) error {
		r := Resolve(seen, w.Others)
		if r.Doubt != "" {
			return &machine.Error{Code: machine.Conflict, Message: "which machine this is cannot be told: " + r.Doubt,
				Hint: "correct the record of the machine that is named, or retire it"}
		}
		if r.Known {
			strayed(w, r.ID, v.MAC)
			off = machine.Instruction{Do: machine.DoReboot}
			return nil
		}
		ports := slices.DeleteFunc(slices.Clone(seen.MACs), func(mac string) bool { return slices.Contains(r.Leave, mac) })
		inv.Hardware.NICs = slices.DeleteFunc(inv.Hardware.NICs, func(n machine.NIC) bool { return slices.Contains(r.Leave, n.MAC) })
		f, err := e.found(ctx, w, r)
		if err != nil {
			return err
		}
		f.MAC, f.From, f.Inventory, f.LastSeen = v.MAC, v.Addr.String(), inv, w.Now
		f.Times++
		if !slices.Contains(ports, v.MAC) && !slices.Contains(r.Leave, v.MAC) {
			ports = append(ports, v.MAC)
		}
		w.Found, w.Ports, w.Drop = &f, ports, r.Same
		if len(r.Leave) > 0 {
			w.note(f.ID, "discovery.shared", "ports left out, because another machine shows them too: "+strings.Join(r.Leave, ", "))
		}
		w.note(f.ID, "machine.discover", fmt.Sprintf("seen by port %s: %s", v.MAC, Describe(inv)))
		w.Actions = append(w.Actions, Action{Kind: ActEnrol, MachineID: f.ID, Turn: 1})
		return nil
	})
	return off, err
}

// found returns the discovery that a sighting is of, or a new one.
func (e *Engine) found(ctx context.Context, w *Meeting, r Resolution) (machine.Found, error) {
	if r.ID != "" {
		return w.Load(ctx, r.ID)
	}
	if w.Pending >= maxPending {
		return machine.Found{}, &machine.Error{Code: machine.Exhausted, Message: fmt.Sprintf("%d machines wait in the inbox already, and no more are taken", w.Pending),
			Hint: "approve or reject some: bareyard machine discovered"}
	}
	return machine.Found{ID: NewID("m"), State: machine.Discovered, FirstSeen: w.Now}, nil
}

// Describe is a machine in one line.
func Describe(inv machine.Inventory) string {
	parts := []string{}
	add := func(format string, a ...any) { parts = append(parts, fmt.Sprintf(format, a...)) }
	if s := strings.TrimSpace(inv.System.Vendor + " " + inv.System.Model); s != "" {
		add("%s", s)
	}
	if inv.Cores > 0 {
		add("%s", plural(inv.Cores, "core"))
	}
	if inv.Memory > 0 {
		add("%s memory", bytesText(inv.Memory))
	}
	if n := len(inv.Hardware.Disks); n > 0 {
		var total int64
		for _, d := range inv.Hardware.Disks {
			total += d.Size
		}
		add("%s, %s", plural(n, "disk"), bytesText(total))
	}
	for _, id := range slices.Sorted(maps.Keys(cards(inv))) {
		add("%d × %s", cards(inv)[id], id)
	}
	add("%s", plural(len(inv.Hardware.NICs), "port"))
	return strings.Join(parts, ", ")
}

// cards counts accelerators by PCI vendor:device.
func cards(inv machine.Inventory) map[string]int {
	n := map[string]int{}
	for _, a := range inv.Hardware.Accelerators {
		n[a.Vendor+":"+a.Device]++
	}
	return n
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// bytesText is a size for people: memory and disks of a class are told apart by it, no more.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i, f := 0, float64(n)
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}

// traced hands a line of our own to the boot trace.
func (e *Engine) traced(l trace.Line, outcome trace.Outcome, why string) {
	if e.Trace == nil {
		return
	}
	l.At, l.Outcome, l.Why = time.Now(), outcome, why
	if l.Got = string(outcome); why != "" {
		l.Got += ": " + why
	}
	e.Trace(l)
}
