package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

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
	password, err := keptPassword(filepath.Join(m.self().dir, "bmc-password"))
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
	b.record = machine.BMC{Protocol: target.Protocol, Address: target.Address, Username: target.Username, CertPin: target.CertPin}
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

func (l *Lab) simulator(m host, b *bmc) (simulator, error) {
	p := m.self()
	addr := func(port uint16) string { return netip.AddrPortFrom(p.bmcAddr, port).String() }
	log := l.log.With("machine", p.Name)
	switch p.BMC {
	case Redfish:
		cert, err := keptCertificate(filepath.Join(p.dir, "bmc-certificate.pem"), p.bmcAddr)
		if err != nil {
			return nil, err
		}
		return &bmctest.Redfish{Addr: addr(443), TLS: true, Certificate: cert, User: bmcUser, Password: b.password, Chassis: m.chassis(), Faults: b.faults, Log: log}, nil
	case OpenIPMI:
		dir := simDir(l.cfg.Dir, p.Name)
		if err := os.RemoveAll(dir); err != nil { // one that was killed left its socket
			return nil, fmt.Errorf("clear folder of ipmi_sim: %w", err)
		}
		return &bmctest.OpenIPMI{Addr: addr(623), User: bmcUser, Password: b.password, Chassis: m.chassis(), Faults: b.faults, Log: log, Dir: dir, Start: l.startInBMCs}, nil
	default:
		return &bmctest.IPMI{Addr: addr(623), User: bmcUser, Password: b.password, Chassis: m.chassis(), Faults: b.faults, Log: log}, nil
	}
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
