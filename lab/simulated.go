package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
)

// Simulated is a machine without QEMU, for crash tests and for fleets: it stands behind a real BMC, asks the real boot server
// over HTTP as iPXE would, runs the real agent with hands that write nowhere, and then talks as the installed system does.
//
// What it does not show: DHCP and TFTP, a real disk, cloud-init, and that a closed port keeps a machine out. Its traffic comes
// from its own address, but through one interface that all simulated machines share; its ports exist on the switches, so that
// the port driver has something to close, and carry nothing. What is on its disks is forgotten with the lab's process.
type Simulated struct {
	plan
	net    Network
	log    *slog.Logger
	memory *bmctest.Memory
	port   serialPort

	disc  func() string // URL of what is in its BMC's CD drive; nil where there is no such drive
	leave func(string)  // puts something there

	power sync.Mutex // held through a change of power

	mu      sync.Mutex
	life    *life   // what power began; nil when off
	undead  []*life // what the loss of power did not end
	trouble Trouble
	disk    content
	writes  int      // images written from the first byte to the last
	boots   []Device // what each boot came to: FromNetwork is the agent
}

// content is what is on the disks.
type content struct {
	image  string            // digest of what the system disk holds; "" for nothing that boots
	seed   map[string]string // of the installed system; nil when there is none
	phoned bool              // the installed system has been through its first boot
	dirty  bool              // something of a customer is on one of the disks
}

// Trouble is what goes wrong on a simulated machine. The zero value is a good day.
type Trouble struct {
	FailWrites  int               // this many further writes fail half-way
	LostCards   int               // cards that have fallen off the bus since the agent looked
	MuteAt      machine.StepName  // the agent that comes to this step hangs there, cut off from the network; once
	WrongMemory int               // the card, counted from 1, whose memory reads back something else when the machine is tried
	LoseCard    int               // the card that falls off the bus under stress
	HangAt      accelerator.Stage // the stage of an acceptance in the middle of which the system hangs
	Undead      bool              // and lives on when the BMC takes the power, until Reconnect: a BMC that lies
}

// life is one time between power on and power off.
type life struct {
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it runs any more
	err    error         // how it ended; read it after done
	addr   netip.Addr    // the machine's own

	mute atomic.Bool // cut off from the network
}

func newSimulated(p plan, n Network, log *slog.Logger) *Simulated {
	s := &Simulated{plan: p, net: n, log: log.With("machine", p.Name)}
	s.memory = bmctest.NewMemory(bmctest.Identity{UUID: p.uuid, Serial: p.serial, Model: "Bareyard Lab"})
	s.memory.OnPower = s.onPower
	return s
}

// Name is the machine's name.
func (s *Simulated) Name() string { return s.plan.Name }

func (s *Simulated) chassis() bmctest.Chassis { return s.memory }

func (s *Simulated) tty() *serialPort { return &s.port }

// print puts a line on the serial port.
func (s *Simulated) print(format string, a ...any) { s.port.say(fmt.Appendf(nil, format+"\r\n", a...)) }

// Trouble changes what goes wrong.
func (s *Simulated) Trouble(change func(*Trouble)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.trouble)
}

// Writes counts the images that were written to the system disk.
func (s *Simulated) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Boots lists what each boot came to: FromNetwork is the agent.
func (s *Simulated) Boots() []Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Device(nil), s.boots...)
}

// Dirty reports whether something of a customer is on the disks.
func (s *Simulated) Dirty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.dirty
}

// PowerCut takes the power away, as a breaker would: behind the BMC's back, and from what a lying BMC had left running.
func (s *Simulated) PowerCut() {
	s.power.Lock()
	defer s.power.Unlock()
	s.mu.Lock()
	s.memory.Force(false)
	ended := s.undead
	if s.life != nil {
		ended = append(ended, s.life)
	}
	s.life, s.undead = nil, nil
	s.mu.Unlock()
	for _, l := range ended {
		l.end()
	}
}

// errNobody says that no life of the machine is cut off.
var errNobody = errors.New("nobody to reconnect")

// Reconnect gives the network back to the agent that Trouble.MuteAt cut off and Trouble.Undead kept alive, waits until it has
// ended, and returns how.
func (s *Simulated) Reconnect(ctx context.Context) error {
	s.mu.Lock()
	if len(s.undead) == 0 {
		s.mu.Unlock()
		return errNobody
	}
	l := s.undead[0]
	s.undead = s.undead[1:]
	s.mu.Unlock()
	l.mute.Store(false)
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		l.end()
		return ctx.Err()
	}
}

// onPower begins or ends a life. The BMC calls it, once at a time; nothing of the old life runs when it returns.
func (s *Simulated) onPower(on bool, boot bmctest.Boot) {
	s.power.Lock()
	defer s.power.Unlock()
	s.mu.Lock()
	// The agent may have switched itself off between the BMC's decision and this.
	s.memory.Force(on)
	old := s.life
	s.life = nil
	if old != nil && old.mute.Load() && s.trouble.Undead {
		s.undead = append(s.undead, old)
		old = nil
	}
	s.mu.Unlock()
	if old != nil {
		old.end()
	}
	if !on {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{ctx: ctx, cancel: cancel, done: make(chan struct{}), addr: s.bootAddr}
	s.mu.Lock()
	s.life = l
	s.mu.Unlock()
	go func() { // ends with the life
		defer close(l.done)
		defer cancel()
		l.err = s.live(l, s.bootsFirst(boot))
		s.shutDown(l)
	}()
}

// shutDown is the end of a life by its own hand. It does nothing to a life that has ended already.
func (s *Simulated) shutDown(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == l {
		s.life = nil
		s.memory.Force(false)
	}
}

func (l *life) end() {
	l.cancel()
	<-l.done
}

// bootsFirst is the device that firmware tries first.
func (s *Simulated) bootsFirst(boot bmctest.Boot) Device {
	switch boot.Device {
	case ipmi.DevicePXE:
		return FromNetwork
	case ipmi.DeviceDisk:
		return FromDisk
	case ipmi.DeviceMedia:
		if s.disc != nil && s.disc() != "" {
			return FromDisc
		}
	}
	return s.Order[0]
}

// live is a boot and what follows from it. It returns when the machine switches itself off, or with the context's error when
// the power is taken.
func (s *Simulated) live(l *life, first Device) error {
	s.print("%s: firmware starts", s.Name())
	if !pause(l.ctx, s.BootTime) {
		return l.ctx.Err()
	}
	if first == FromNetwork && s.Unknown {
		give, err := s.lease(l)
		if err != nil {
			s.log.Info("no address", "err", err)
			<-l.ctx.Done()
			return l.ctx.Err()
		}
		defer give()
	}
	s.print("%s: boots from %s", s.Name(), first)
	if load := map[Device]func(*life) ([]byte, error){FromNetwork: s.loadAgent, FromDisc: s.loadDisc}[first]; load != nil {
		archive, err := load(l)
		if err != nil {
			s.log.Info("no boot", "from", first, "err", err)
		}
		if archive != nil {
			s.booted(first)
			return s.runAgent(l, archive)
		}
	}
	s.booted(FromDisk)
	logout := s.login()
	defer logout()
	if err := s.runOS(l); err != nil && l.ctx.Err() == nil {
		s.log.Info("the installed system has a problem", "err", err)
	}
	<-l.ctx.Done() // a machine without a system stays on, too
	return l.ctx.Err()
}

func (s *Simulated) booted(d Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boots = append(s.boots, d)
}

// login is the installed system's end of the serial port: it echoes what is typed, as a login prompt does.
func (s *Simulated) login() (logout func()) {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() { // ends when the pipe is closed
		defer close(done)
		s.port.plug(struct {
			io.Reader
			io.Writer
		}{r, w})
	}()
	s.print("%s login:", s.Name())
	return func() {
		r.Close()
		<-done
	}
}
