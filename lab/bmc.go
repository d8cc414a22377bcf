package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
)

const (
	bmcUser    = "admin"
	simulators = "sim"          // folder of everything that ipmi_sim writes
	simSocket  = "chassis.sock" // what bmctest.OpenIPMI calls it
)

// simulator is what the BMCs of ipmi/bmctest have in common.
type simulator interface {
	Listen() (string, error)
	Run(ctx context.Context) error
	Target() ipmi.Target
}

// twoRoads is a BMC that speaks Redfish, and IPMI for its serial console.
type twoRoads struct {
	web     *bmctest.Redfish
	console *bmctest.IPMI
}

// Listen implements simulator.
func (t twoRoads) Listen() (string, error) {
	if _, err := t.console.Listen(); err != nil {
		return "", err
	}
	return t.web.Listen()
}

// Run implements simulator.
func (t twoRoads) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.console.Run(ctx) })
	g.Go(func() error { return t.web.Run(ctx) })
	return g.Wait()
}

// Target implements simulator.
func (t twoRoads) Target() ipmi.Target {
	target := t.web.Target()
	target.IPMIAddress = t.console.Target().Address
	return target
}

// bmc is a running BMC.
type bmc struct {
	record   machine.BMC
	password string
	faults   *bmctest.Faults
	cancel   context.CancelFunc
	done     chan error
}

// startBMC starts the BMC of a machine at its address. It runs on a thread inside the namespace, so that a process which it
// starts is there too.
func (l *Lab) startBMC(ctx context.Context, m host) (*bmc, error) {
	password, err := keptPassword(passwordFile(m), m.self().Password)
	if err != nil {
		return nil, err
	}
	b := &bmc{password: password, faults: &bmctest.Faults{}, done: make(chan error, 1)}
	sim, err := l.simulator(m, b)
	if err != nil {
		return nil, err
	}
	if err := l.Enter(BMCs, func() error { _, err := sim.Listen(); return err }); err != nil {
		return nil, err
	}
	target := sim.Target()
	b.record = machine.BMC{Protocol: target.Protocol, Address: target.Address, Username: target.Username, CertPin: target.CertPin, IPMI: target.IPMIAddress}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.cancel = cancel
	go func() {
		err := l.Enter(BMCs, func() error { return sim.Run(run) })
		if err != nil {
			err = fmt.Errorf("run BMC of %s: %w", m.self().Name, err)
			if run.Err() == nil {
				l.log.Error("BMC ended", "machine", m.self().Name, "err", err)
			}
		}
		b.done <- err
	}()
	return b, nil
}

func passwordFile(m host) string { return filepath.Join(m.self().dir, "bmc-password") }

func (l *Lab) simulator(m host, b *bmc) (simulator, error) {
	p := m.self()
	// The server changes it when a machine comes back; the BMC has it still when the lab is started again.
	changed := func(user, password string) {
		if user != bmcUser {
			return
		}
		if err := os.WriteFile(passwordFile(m), []byte(password+"\n"), 0o600); err != nil {
			l.log.Error("password of a BMC not kept", "machine", p.Name, "err", err)
		}
	}
	addr := func(port uint16) string { return netip.AddrPortFrom(p.bmcAddr, port).String() }
	log := l.log.With("machine", p.Name)
	switch p.BMC {
	case Redfish:
		board := bmctest.NewBoard()
		// The serial console comes by IPMI, as on many a Redfish BMC, with the same accounts.
		console := &bmctest.IPMI{Addr: addr(623), User: bmcUser, Password: b.password, Chassis: m.chassis(), Board: board, Faults: b.faults, Log: log, Console: m.tty().open}
		cert, err := keptCertificate(filepath.Join(p.dir, "bmc-certificate.pem"), p.bmcAddr)
		if err != nil {
			return nil, err
		}
		web := &bmctest.Redfish{Addr: addr(443), TLS: true, Vendor: p.Vendor, Certificate: cert, User: bmcUser, Password: b.password, Chassis: m.chassis(), Board: board, Faults: b.faults, Log: log,
			OnPassword: func(user, password string) {
				changed(user, password)
				if err := console.SetPassword(user, password); err != nil {
					log.Error("password not carried over to IPMI", "err", err)
				}
			}}
		if s, ok := m.(*Simulated); ok {
			s.disc, s.leave = web.Disc, web.Leave
		}
		return twoRoads{web, console}, nil
	case OpenIPMI:
		dir := simDir(l.cfg.Dir, p.Name)
		if err := os.RemoveAll(dir); err != nil { // one that was killed left its socket
			return nil, fmt.Errorf("clear folder of ipmi_sim: %w", err)
		}
		return &bmctest.OpenIPMI{Addr: addr(623), User: bmcUser, Password: b.password, Chassis: m.chassis(), Faults: b.faults, Log: log, Dir: dir, Start: l.startInBMCs, Console: m.tty().open}, nil
	default:
		sim := &bmctest.IPMI{Addr: addr(623), User: bmcUser, Password: b.password, Chassis: m.chassis(), Faults: b.faults, Log: log, Console: m.tty().open, OnPassword: changed}
		if p.InBand {
			if err := inBand(sim, p); err != nil {
				return nil, err
			}
		}
		return sim, nil
	}
}

// inBand gives a machine's own system a way to its BMC, which then says its address to it.
func inBand(sim *bmctest.IPMI, p plan) error {
	path := p.hostSocket()
	if err := os.RemoveAll(path); err != nil { // one that was killed left it
		return fmt.Errorf("clear socket of the host: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder of the BMC: %w", err)
	}
	var err error
	if sim.InBand, err = net.Listen("unix", path); err != nil {
		return fmt.Errorf("listen for the host: %w", err)
	}
	sim.Board = bmctest.NewBoard()
	sim.Board.SetLAN(ipmi.LAN{ID: "1", MAC: "52:54:00:bc" + p.provMAC[11:], Address: netip.PrefixFrom(p.bmcAddr, BMCNet.Bits()), Source: "static"})
	return nil
}

// simDir is where the ipmi_sim of a machine has its files. It holds a socket, so its path is short.
func simDir(dir, name string) string { return filepath.Join(dir, simulators, name) }

// startInBMCs starts a command of a BMC in the BMCs' namespace, to die with this process.
func (l *Lab) startInBMCs(cmd *exec.Cmd) error {
	inside := l.Command(context.Background(), BMCs, cmd.Path, cmd.Args[1:]...)
	if inside.Err != nil {
		return inside.Err
	}
	cmd.Path, cmd.Args = inside.Path, inside.Args
	cmd.SysProcAttr = childAttr()
	return l.starter.do(cmd.Start)
}

func (b *bmc) close() error {
	b.cancel()
	return <-b.done
}

// Faults makes the BMC of a machine misbehave.
func (l *Lab) Faults(name string) *bmctest.Faults {
	for i, h := range l.hosts {
		if h.self().Name == name {
			return l.bmcs[i].faults
		}
	}
	return nil
}
