package bmctest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/hal/mock"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/server"
	"github.com/bougou/go-ipmi/pkg/types"
	"github.com/bougou/go-ipmi/pkg/vmproto"
	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/ipmi"
)

// IPMI is a BMC that speaks IPMI 2.0 over UDP with cipher suites 3 and 17. Set the fields before the first method call.
type IPMI struct {
	Addr     string // host:port to bind; port 0 takes a free one
	User     string
	Password string // at most 20 bytes
	Chassis  Chassis
	Board    *Board // nil is a new one
	Faults   *Faults
	Log      *slog.Logger
	// Console opens the host's serial port, once at a time; nil is a BMC without console.
	Console func(ctx context.Context) (io.ReadWriteCloser, error)
	// InBand is where the host's own interface to the BMC connects, as QEMU's ipmi-bmc-extern does; nil is a host without one. Run closes it.
	InBand net.Listener
	// OnPassword is told of each new password of an account that came by IPMI, before the answer.
	OnPassword func(user, password string)
	Now        func() time.Time // the clock of the 60 s after which boot flags expire; nil is the real one

	once  sync.Once
	err   error
	conn  *ipmiConn
	bmc   *bmc.BMC
	front *front

	mu        sync.Mutex
	noClear   byte    // boot option parameter 3
	flags     [5]byte // boot option parameter 5
	flagsSet  time.Time
	expired   bool // the flags expired, and the chassis was not told yet
	community string
	begun     map[uint32]uint32 // sessions by the client's ID for them
	ids       []uint32          // of the sessions that were opened
	opened    int
	closed    int
	most      int
}

// Listen binds the address and returns it. Run does it where nobody did.
func (b *IPMI) Listen() (string, error) {
	b.once.Do(func() { b.err = b.listen() })
	if b.err != nil {
		return "", b.err
	}
	return b.conn.LocalAddr().String(), nil
}

func (b *IPMI) listen() error {
	addr, err := net.ResolveUDPAddr("udp", b.Addr)
	if err != nil {
		return fmt.Errorf("resolve %s: %w", b.Addr, err)
	}
	udp, err := net.ListenUDP("udp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	id := b.Chassis.Identity()
	var guid [16]byte
	raw, _ := hex.DecodeString(strings.ReplaceAll(id.UUID, "-", ""))
	copy(guid[:], raw)
	if b.Board == nil {
		b.Board = NewBoard()
	}
	parts := mock.New()
	if b.Console != nil {
		parts.SetConsole(serialPort(b.Console))
	}
	inventory, err := fru(id)
	if err != nil {
		_ = udp.Close()
		return err
	}
	b.bmc = bmc.New(bmc.DeviceInfo{DeviceID: 0x20, DeviceRevision: 1, FirmwareMajor: 1, FirmwareMinor: 0x11, IPMIVersion: 0x02, AdditionalDeviceSupport: 0x81},
		guid, hardware{parts, boardStore{b.Board, inventory}}, bmc.WithV15Disabled())
	b.bmc.Users = bmc.NewUserStore(bmc.WithMaxUsers(userSlots))
	if err := b.bmc.Users.Update(1, func(u *bmc.User) error { u.Enabled = false; return nil }); err != nil {
		return fmt.Errorf("disable the nameless user: %w", err)
	}
	user, err := b.bmc.Users.Add(2, b.User)
	if err != nil {
		_ = udp.Close()
		return fmt.Errorf("add user: %w", err)
	}
	user.SetPassword([]byte(b.Password))
	user.Enabled = true
	user.ChannelAccess[1] = bmc.UserChannelAccess{MaxPrivilege: bmc.PrivilegeLevelAdministrator, Enabled: true}
	b.front = newFront(b.Chassis, b.Faults, b.Log)
	b.front.done = b.booted
	b.begun = map[uint32]uint32{}
	b.conn = &ipmiConn{UDPConn: udp, owner: b}
	return nil
}

// Run serves until ctx ends, and then returns nil.
func (b *IPMI) Run(ctx context.Context) error {
	if _, err := b.Listen(); err != nil {
		return err
	}
	reg := handlers.NewRegistry()
	reg.Use(b.count)
	handlers.RegisterAllHandlers(reg)
	reg.RegisterFunc(types.CommandGetChassisStatus, b.chassisStatus)
	reg.RegisterFunc(types.CommandChassisControl, b.chassisControl)
	reg.RegisterFunc(types.CommandSetSystemBootOptions, b.setBootOption)
	reg.RegisterFunc(types.CommandGetSystemBootOptions, b.getBootOption)
	plain := handlers.NewRegistry()
	handlers.RegisterAllHandlers(plain)
	reg.RegisterFunc(types.CommandGetSessionInfo, b.sessionInfo(plain))
	reg.RegisterFunc(types.CommandCloseSession, b.closeSession(plain))
	b.registerUsers(reg, plain)
	b.registerStorage(reg)
	reg.RegisterFunc(types.CommandGetLanConfigParam, b.lanConfig(plain))
	srv := server.NewServer(b.bmc, b.conn, server.WithHandlerRegistry(reg))
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	g.Go(func() error { return b.front.run(ctx) })
	if b.InBand != nil {
		g.Go(func() error {
			return serveInBand(ctx, vmproto.NewVMServer(b.bmc, vmproto.WithVMHandlerRegistry(reg)), b.InBand)
		})
	}
	g.Go(func() error {
		if err := srv.Serve(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("serve IPMI: %w", err)
		}
		return nil
	})
	return g.Wait()
}

// serveInBand serves the host until ctx ends, and then returns nil.
func serveInBand(ctx context.Context, srv *vmproto.VMServer, host net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = host.Close() })
	defer stop()
	if err := srv.Serve(ctx, host); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve host: %w", err)
	}
	return nil
}

// Target says how to reach this BMC. Call it after Listen.
func (b *IPMI) Target() ipmi.Target {
	addr, _ := b.Listen()
	return ipmi.Target{Protocol: ipmi.IPMI, Address: addr, Username: b.User, Password: b.Password}
}

// Logins counts the attempts to log in so far: RAKP 1 messages.
func (b *IPMI) Logins() int { return int(b.conn.logins.Load()) }

// Refusals counts the requests for a session that were refused for their cipher suite.
func (b *IPMI) Refusals() int { return int(b.conn.refused.Load()) }

// Sessions counts the sessions that were opened and those that were closed by their client.
func (b *IPMI) Sessions() (opened, closed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened, b.closed
}

// MostSessions is the largest number of sessions that were open at once.
func (b *IPMI) MostSessions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

// BootFlags is boot option parameter 5 as a client would read it now.
func (b *IPMI) BootFlags() [5]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire()
	return b.flags
}

// count notes sessions that their client closes, and hides the suite list when told to.
func (b *IPMI) count(next handlers.Handler) handlers.Handler {
	return handlers.HandlerFunc(func(ctx context.Context, h *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		if h.Command.ID == types.CommandGetChannelCipherSuites.ID && h.Command.NetFn == types.CommandGetChannelCipherSuites.NetFn && b.Faults.Now().NoSuiteList {
			return nil, types.CodeInvalidCommand, nil
		}
		if h.Session == nil && h.Channel != nil && h.Channel.Number == systemInterface && !b.Board.HostAccess() && changes(h.Command.Name) {
			return nil, types.CodeInsufficientPrivilege, nil
		}
		data, cc, err := next.Handle(ctx, h, req)
		if h.Command.ID == types.CommandCloseSession.ID && h.Command.NetFn == types.CommandCloseSession.NetFn && cc == types.CodeOK {
			b.mu.Lock()
			b.closed++
			b.mu.Unlock()
		}
		return data, cc, err
	})
}

// systemInterface is the channel by which the host comes.
const systemInterface = 0x0f

// changes reports whether a command is more than a question.
func changes(name string) bool { return !strings.HasPrefix(name, "Get ") }

func (b *IPMI) now() time.Time {
	if b.Now != nil {
		return b.Now()
	}
	return time.Now()
}
