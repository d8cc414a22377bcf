package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/lab/fakecard"
	"github.com/bareyard/bareyard/machine"
)

// DefaultDir is where a lab keeps its state.
const DefaultDir = "/var/lib/bareyard-lab"

// Lab is a running virtual data centre. It owns its namespaces, machines, BMCs and controller: Close ends them all, and they
// die with this process.
type Lab struct {
	Network // the lab's namespaces

	cfg     Config
	log     *slog.Logger
	owner   net.Listener // held for as long as the lab's name is ours
	starter *starter
	hosts   []host  // in the order of the configuration
	bmcs    []*bmc  // of each host
	server  *server // nil without one
}

// host is what stands behind a BMC: a *Machine or a *Simulated.
type host interface {
	self() plan
	chassis() bmctest.Chassis
	tty() *serialPort
	// PowerCut takes the power away behind the BMC's back; nothing of the machine runs any more when it returns.
	PowerCut()
}

// Record is a machine for an operator to enrol, with the password of its BMC.
type Record struct {
	Machine  machine.Machine `json:"machine"`
	Password string          `json:"password"`
	Unknown  bool            `json:"unknown,omitempty"` // Stock leaves it out
}

// Start brings up a lab with all machines off. ctx bounds the start alone. What a lab of the same name left behind when it
// was killed is removed first; while one is running, the error is a Conflict. It needs root, and the programs that
// Requirements lists.
func Start(ctx context.Context, cfg Config) (_ *Lab, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := requirements(cfg); err != nil {
		return nil, err
	}
	owner, err := own(cfg.Name)
	if err != nil {
		return nil, err
	}
	l := &Lab{Network: Network(cfg.Name), cfg: cfg, log: cfg.Log, owner: owner, starter: newStarter()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := l.clean(); err != nil {
		return nil, fmt.Errorf("remove what an earlier lab left: %w", err)
	}
	plans := planMachines(cfg)
	if err := l.wire(plans); err != nil {
		return nil, err
	}
	cards, err := cardEmulator(ctx, cfg)
	if err != nil {
		return nil, err
	}
	var accel []string
	if slices.ContainsFunc(plans, func(p plan) bool { return !p.Simulated }) {
		accel = acceleration(ctx, cfg.QEMU, l.log)
	}
	for _, p := range plans {
		if err := p.prepare(); err != nil {
			return nil, err
		}
		h := l.build(p, cards, accel)
		l.hosts = append(l.hosts, h)
		b, err := l.startBMC(ctx, h)
		if err != nil {
			return nil, fmt.Errorf("start BMC of %s: %w", p.Name, err)
		}
		l.bmcs = append(l.bmcs, b)
	}
	if cfg.Server != nil {
		if l.server, err = l.startServer(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// build makes a machine, which is off; cards is the emulator for one with cards, accel its options for the processor.
func (l *Lab) build(p plan, cards string, accel []string) host {
	switch {
	case p.Simulated:
		return newSimulated(p, l.Network, l.log)
	case p.Cards > 0:
		return &Machine{plan: p, net: l.Network, qemu: cards, accel: accel, starter: l.starter}
	}
	return &Machine{plan: p, net: l.Network, qemu: l.cfg.QEMU, accel: accel, starter: l.starter}
}

// cardEmulator makes the emulator whose edu device is a card, when a machine has cards.
func cardEmulator(ctx context.Context, cfg Config) (string, error) {
	if !slices.ContainsFunc(cfg.Machines, func(m MachineConfig) bool { return m.Cards > 0 && !m.Simulated }) {
		return "", nil
	}
	original, err := exec.LookPath(cfg.QEMU)
	if err != nil {
		return "", fmt.Errorf("make fake cards: %w", err)
	}
	// Patch wants the program itself, which Debian may have behind a link.
	if original, err = filepath.EvalSymlinks(original); err != nil {
		return "", fmt.Errorf("make fake cards: %w", err)
	}
	path := filepath.Join(cfg.Dir, "qemu-with-cards")
	if err := fakecard.Patch(ctx, original, path); err != nil {
		return "", fmt.Errorf("make fake cards: %w", err)
	}
	return path, nil
}

// own takes the lab's name for this process. The kernel gives it back when the process ends, however it ends; so whatever
// exists under a name that can be taken belongs to nobody.
func own(name string) (net.Listener, error) {
	l, err := net.Listen("unix", "@bareyard-lab-"+name)
	if err != nil {
		return nil, &machine.Error{
			Code:    machine.Conflict,
			Message: fmt.Sprintf("a lab called %s is running", name),
			Hint:    "take it down first, or give this one another name",
		}
	}
	return l, nil
}

// Machine returns the QEMU machine of that name, or nil.
func (l *Lab) Machine(name string) *Machine {
	m, _ := l.host(name).(*Machine)
	return m
}

// Simulated returns the simulated machine of that name, or nil.
func (l *Lab) Simulated(name string) *Simulated {
	s, _ := l.host(name).(*Simulated)
	return s
}

// host returns the machine of that name, or nil.
func (l *Lab) host(name string) host {
	for _, h := range l.hosts {
		if h.self().Name == name {
			return h
		}
	}
	return nil
}

// Machines returns the QEMU machines in the order of the configuration.
func (l *Lab) Machines() []*Machine {
	var list []*Machine
	for _, h := range l.hosts {
		if m, ok := h.(*Machine); ok {
			list = append(list, m)
		}
	}
	return list
}

// Inventory lists the machines as an operator enrols them.
func (l *Lab) Inventory() []Record {
	records := make([]Record, len(l.hosts))
	for i, h := range l.hosts {
		records[i] = Record{Machine: h.self().record(), Password: l.bmcs[i].password, Unknown: h.self().Unknown}
		records[i].Machine.BMC = l.bmcs[i].record
	}
	return records
}

// Close ends the controller, the machines and the BMCs, in this order, and removes the namespaces. Disks and logs stay.
func (l *Lab) Close() error {
	if l.owner == nil {
		return nil
	}
	var errs []error
	if l.server != nil {
		l.server.close()
	}
	for _, h := range l.hosts {
		h.PowerCut()
	}
	for _, b := range l.bmcs {
		b.cancel() // each takes a while, and they need not wait for each other
	}
	for _, b := range l.bmcs {
		errs = append(errs, b.close())
	}
	// A BMC's last command may have switched a machine on again.
	for _, h := range l.hosts {
		h.PowerCut()
	}
	errs = append(errs, l.clean())
	l.starter.close()
	errs = append(errs, l.owner.Close())
	l.owner = nil
	return errors.Join(errs...)
}

// Check says what is wrong with the configuration, or what this box lacks for it: root, programs, files.
func (c Config) Check() error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	return requirements(c)
}

// requirements says which programs or files are missing, and what brings them.
func requirements(cfg Config) error {
	if os.Geteuid() != 0 {
		return &machine.Error{Code: machine.Invalid, Message: "a lab needs root: it makes network namespaces"}
	}
	if cfg.Server != nil {
		if err := cfg.Server.missing(); err != nil {
			return err
		}
	}
	need := map[string]string{"nsenter": "util-linux"}
	for _, m := range cfg.Machines {
		if m.Simulated {
			continue
		}
		need[cfg.QEMU] = "qemu-system-x86"
		if m.BMC == OpenIPMI {
			need["ipmi_sim"], need["curl"] = "openipmi", "curl"
		}
		if m.Firmware == machine.UEFI {
			need[ovmfCode], need[ovmfVars] = "ovmf", "ovmf"
		}
	}
	for program, pkg := range need {
		if err := find(program); err != nil {
			return &machine.Error{
				Code:    machine.Unavailable,
				Message: fmt.Sprintf("%s is not there", program),
				Hint:    "apt-get install " + pkg,
			}
		}
	}
	return nil
}

func find(program string) error {
	if filepath.IsAbs(program) {
		_, err := os.Stat(program)
		return err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH") + ":/usr/sbin:/sbin") {
		if _, err := os.Stat(filepath.Join(dir, program)); err == nil {
			return nil
		}
	}
	return fs.ErrNotExist
}
