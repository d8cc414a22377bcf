package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/lab/fakecard"
)

// Machine is a QEMU machine of the lab. It is on while its process runs, so that a guest that shuts itself down is off.
// It is the chassis behind a simulated BMC.
type Machine struct {
	plan
	net     Network
	qemu    string
	accel   []string // QEMU's options for the processor
	starter *starter

	port serialPort

	op sync.Mutex // held through a power operation

	mu       sync.Mutex
	vm       *vm          // the running process; nil when off
	override bmctest.Boot // what the BMC was told; Device "none" for nothing
	starts   int
}

// vm is one run of a machine's process.
type vm struct {
	*process
	qmp     *qmp
	events  chan string   // from the reader of qmp to the watcher
	watched chan struct{} // closed when the watcher has ended
	wire    net.Conn      // the serial port
	quiet   chan struct{} // closed when nothing more is read from it
}

var _ bmctest.Chassis = (*Machine)(nil)

// Name is the machine's name.
func (m *Machine) Name() string { return m.plan.Name }

func (m *Machine) chassis() bmctest.Chassis { return m }

func (m *Machine) tty() *serialPort { return &m.port }

// SerialLog is the file to which the machine's serial console goes. It is appended to by every run of the machine.
func (m *Machine) SerialLog() string { return m.serialLog() }

// SystemDisk is the file behind the system disk: raw and sparse. Do not write to it while the machine is on.
func (m *Machine) SystemDisk() string { return m.systemDisk() }

// DataDisk is the file behind the data disk: raw and sparse. Do not write to it while the machine is on.
func (m *Machine) DataDisk() string { return m.dataDisk() }

// Starts counts how often the machine was switched on.
func (m *Machine) Starts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.starts
}

// PID is the process id of the machine, or 0 when it is off.
func (m *Machine) PID() int {
	if vm := m.current(); vm != nil {
		return vm.cmd.Process.Pid
	}
	return 0
}

func (m *Machine) current() *vm {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.vm != nil && m.vm.running() {
		return m.vm
	}
	return nil
}

// Identity says who the machine is.
func (m *Machine) Identity() bmctest.Identity {
	return bmctest.Identity{UUID: m.uuid, Serial: m.serial, Model: "Bareyard Lab"}
}

// Power reports whether the machine is on.
func (m *Machine) Power(context.Context) (bool, error) { return m.current() != nil, nil }

// SetPower does a power operation. A soft off presses the power button and returns; a guest that ignores it stays on, as it
// would on a real machine. A cycle or a reset of a machine that is off does nothing.
func (m *Machine) SetPower(ctx context.Context, op ipmi.Op) error {
	m.op.Lock()
	defer m.op.Unlock()
	vm := m.current()
	switch op {
	case ipmi.OpOn:
		if vm == nil {
			return m.start(ctx)
		}
	case ipmi.OpOff:
		m.stop()
	case ipmi.OpCycle:
		if vm != nil {
			m.stop()
			return m.start(ctx)
		}
	case ipmi.OpReset:
		if vm != nil {
			return vm.qmp.do(ctx, "system_reset", nil, nil)
		}
	case ipmi.OpSoft:
		if vm != nil {
			return vm.qmp.do(ctx, "system_powerdown", nil, nil)
		}
	default:
		return fmt.Errorf("set power of %s: no operation %q", m.Name(), op)
	}
	return nil
}

// PowerCut takes the power away, as a breaker would: behind the BMC's back and in the middle of whatever the guest does.
// What the guest has handed to its disks is kept, flushed or not.
func (m *Machine) PowerCut() {
	m.op.Lock()
	defer m.op.Unlock()
	m.stop()
}

// SetNextBoot overrides the boot order, once or until it is called again.
func (m *Machine) SetNextBoot(ctx context.Context, b bmctest.Boot) error {
	m.op.Lock()
	defer m.op.Unlock()
	m.mu.Lock()
	m.override = b
	m.mu.Unlock()
	if vm := m.current(); vm != nil {
		return vm.setOrder(ctx, m.order())
	}
	return nil
}

// order is the boot order as the override has it.
func (m *Machine) order() []Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.override.Device {
	case ipmi.DevicePXE:
		return first(FromNetwork, m.Order)
	case ipmi.DeviceDisk:
		return first(FromDisk, m.Order)
	}
	return m.Order
}

// consume takes back an override that was for one boot, which has begun. It reports whether there was one.
func (m *Machine) consume() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	once := m.override.Once
	if once {
		m.override = bmctest.Boot{Device: ipmi.DeviceNone}
	}
	return once
}

// start switches the machine on. It holds op.
func (m *Machine) start(ctx context.Context) error {
	m.stop() // what is left of a run that the guest ended
	vm, err := m.launch(ctx)
	if err != nil {
		return fmt.Errorf("start machine %s: %w", m.Name(), err)
	}
	m.mu.Lock()
	m.vm = vm
	m.starts++
	m.mu.Unlock()
	if m.consume() {
		// The firmware has this boot's order from the command line; what is set now counts from the next reset on.
		if err := vm.setOrder(ctx, m.order()); err != nil {
			return fmt.Errorf("start machine %s: %w", m.Name(), err)
		}
	}
	return nil
}

func (m *Machine) launch(ctx context.Context) (*vm, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make QMP socket: %w", err)
	}
	defer theirs.Close()
	// The command outlives ctx, which is for the operation alone.
	cmd := m.net.Command(context.WithoutCancel(ctx), Fabric, m.qemu, m.arguments(m.accel, m.order())...)
	wire, port, err := socketPair()
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("make serial port: %w", err)
	}
	defer port.Close()
	cmd.ExtraFiles = []*os.File{theirs, port} // become descriptors 3 and 4: qmpFD, serialFD
	if m.Cards > 0 {
		cmd.Env = append(os.Environ(), fakecard.Env()...)
	}
	proc, err := m.starter.start(cmd, m.qemuLog())
	if err != nil {
		ours.Close()
		wire.Close()
		return nil, err
	}
	vm := &vm{process: proc, events: make(chan string, 64), watched: make(chan struct{}), wire: wire, quiet: make(chan struct{})}
	theirs.Close() // so that the end of the process ends the connection
	port.Close()
	go func() { // ends with the process
		defer close(vm.quiet)
		m.port.plug(wire)
	}()
	vm.qmp, err = newQMP(ctx, ours, vm.event)
	if err != nil {
		proc.kill()
		wire.Close()
		<-vm.quiet
		return nil, fmt.Errorf("%w (QEMU said: %s)", err, tail(m.qemuLog(), 300))
	}
	go m.watch(vm)
	return vm, nil
}

// event passes an event on to the watcher, and drops it when the watcher is far behind: the reader must never wait.
func (v *vm) event(name string) {
	select {
	case v.events <- name:
	default:
	}
}

// watch ends with the machine's process. A reset uses up an override that was for one boot.
func (m *Machine) watch(v *vm) {
	defer close(v.watched)
	for {
		select {
		case <-v.qmp.done:
			return
		case name := <-v.events:
			if name == "RESET" && m.consume() {
				// An error means that the machine has gone.
				_ = v.setOrder(context.Background(), m.order())
			}
		}
	}
}

func (v *vm) setOrder(ctx context.Context, order []Device) error {
	for _, set := range reorder(order) {
		if err := v.qmp.do(ctx, "qom-set", set, nil); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the process, if there is one, and everything that belongs to it. It holds op.
func (m *Machine) stop() {
	m.mu.Lock()
	vm := m.vm
	m.mu.Unlock()
	if vm == nil {
		return
	}
	vm.kill() // until it has ended, the machine is on
	m.mu.Lock()
	m.vm = nil
	m.mu.Unlock()
	vm.qmp.close()
	<-vm.watched
	vm.wire.Close()
	<-vm.quiet
}

// socketPair returns two ends of a connection: one to use, one to hand to a child.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "qmp"), os.NewFile(uintptr(fds[1]), "qmp")
	conn, err := net.FileConn(ours) // a copy of the descriptor
	err = errors.Join(err, ours.Close())
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}
