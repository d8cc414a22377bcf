// Package provisioner is the engine: it alone changes the state of a machine, a job or an order.
package provisioner

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/network"
)

// Store keeps the state. Each method that takes a function is one transaction: the rows are locked, the function
// changes the Work, and all of it is written together with its events and actions, or nothing is.
type Store interface {
	// OnMachine locks a machine, its active job and the order that holds it.
	OnMachine(ctx context.Context, machineID string, fn func(*Work) error) error
	// OnOrder locks an order, and its machine and that machine's active job when it has one.
	OnOrder(ctx context.Context, orderID string, fn func(*Work) error) error
	// Place inserts an order. When the project has used the key before, fn is not called and that order is
	// returned if digest, which names the content of the request, is the same; else a Conflict.
	Place(ctx context.Context, o machine.Order, key, digest string, fn func(*Work) error) (machine.Order, error)
	// Placed returns the order that the project has used the key for, if there is one: a Conflict when its digest is another.
	Placed(ctx context.Context, project, key, digest string) (o machine.Order, there bool, err error)
	// Overdue lists machines whose running job is past its due time, oldest first, at most n.
	Overdue(ctx context.Context, n int) ([]string, error)
	// Exposed lists the desired public ports of all machines, for reconciliation.
	Exposed(ctx context.Context) ([]network.Port, error)
}

// Shelf answers look-ups outside of transitions.
type Shelf interface {
	Class(ctx context.Context, name string) (machine.Class, error)
	Image(ctx context.Context, name string) (machine.Image, error)
	// ImageVersion answers what the name meant when it had this content.
	ImageVersion(ctx context.Context, name, digest string) (machine.Image, error)
	Line(ctx context.Context, name string) (network.Line, error)
	Machine(ctx context.Context, id string) (machine.Machine, error)
	Order(ctx context.Context, id string) (machine.Order, error)
}

// Tickets keeps one-time nonces and tokens, as hashes.
type Tickets interface {
	// Machine finds the machine and the running job by a MAC address of the machine.
	ByMAC(ctx context.Context, mac string) (machine.Machine, *machine.Job, error)
	// Nonce finds an unspent nonce by its hash.
	Nonce(ctx context.Context, hash []byte) (Ticket, error)
	// Token finds a token by its hash.
	Token(ctx context.Context, hash []byte) (Ticket, error)
}

// Power drives a BMC; answered by ipmi.Controller.
type Power interface {
	Power(ctx context.Context, t ipmi.Target) (ipmi.Power, error)
	SetPower(ctx context.Context, t ipmi.Target, op ipmi.Op) error
	SetNextBoot(ctx context.Context, t ipmi.Target, d ipmi.Device, uefi bool) error
	BootFrom(ctx context.Context, t ipmi.Target, d ipmi.Device, uefi bool) error
}

// Edge carries the public addresses; answered by a network driver.
type Edge interface {
	Read(ctx context.Context) ([]network.Port, error)
	Apply(ctx context.Context, set []network.Port, remove []string) error
}

// Ports opens and closes the ports that machines are wired to, and pins an open one to its machine's MAC address.
type Ports interface {
	Set(ctx context.Context, port string, open bool) error
	Pin(ctx context.Context, port, mac string) error
}

// Engine carries orders and jobs from state to state.
type Engine struct {
	Store   Store
	Shelf   Shelf
	Tickets Tickets
	Vault   Vault
	BMCs    BMCs
	Pins    Pins
	Edge    Edge
	Ports   Ports

	// The BMCs themselves. What is nil is not done, or answered with Unavailable.
	Power        Power
	Accounts     Accounts
	Memory       Memory
	Certificates Certificates
	Serial       Serial
	Baselines    Baselines
	HostAccess   HostAccess
	Care         Care // what is left out between two customers
	Drives       Drives
	Discs        Discs
	MediaURL     func(machine.Machine, machine.Job) string // where a BMC finds the disc of a boot; nil: this server serves none

	Settings BIOSSettings // these two nil: the firmware's settings are nobody's business
	Profiles BIOSProfiles

	Facts            BMCFacts    // nil: no BMC is asked what it saw, and acceptance is incomplete
	Acceptances      Acceptances // nil: there are no acceptance runs
	AcceptanceConfig AcceptanceConfig

	// Validation. Without Reports a report decides and is not kept.
	Reports    Reports
	ReportKey  ed25519.PrivateKey // signs reports; nil: they are kept unsigned
	Validation Validation
	Fleet      Fleet // what all cards reach; used by what is about profiles alone

	Calendar  Calendar // nil: nothing changes by itself
	Discovery bool     // machines that nobody has enrolled are looked at
	Inbox     Inbox    // these two only where discovery is on
	Visits    Visits
	List      EnrolmentList    // nil: none
	Identify  Identifier       // nil: no BMC is asked which machine it is in
	Boots     Boots            // nil: a job that waits for the agent does not say why
	Trace     func(trace.Line) // of the engine's own part in a boot; it must not wait. nil: none
	Directory Directory        // what the reverse DNS is to say
	Names     Names            // the name server; used by TellNames alone
	Doctor    Doctor           // the health of machines; used by Polled alone
	Prober    Prober           // nil: nobody looks whether an address is used before it is given out
	Tasks     network.Tasks    // for operators; nil: events and the log only
	Outbox    Outbox           // these two are used by TellRegistry alone
	Registry  Registry         // nil: none
	Meter     Meter            // used by Account and TakeRound alone
	Books     Books

	Agents   string     // base URL that agents and validators call, e.g. https://10.77.0.1:8443
	Images   string     // base URL of the image store on the boot listener, e.g. http://10.77.0.1:8080/images
	CA       string     // PEM of the CA that signed Agents
	Resolver netip.Addr // DNS server written into installed machines; zero for none
	BootNets []BootNet  // the provisioning networks

	// ForeignDHCP says that another server gives the machines their addresses (netboot's proxy mode): a boot file is then
	// minted for who netboot says it is, and its nonce is not bound to an address, which may change from stage to stage.
	ForeignDHCP bool

	// SeenWithin is how long a machine may take from power on to its first packet before another boot method is tried. Zero
	// means that nobody looks at the wire.
	SeenWithin time.Duration

	// ObeyWithin bounds one try of a controller step: a BMC that has not answered or obeyed by then is reported as such. Zero means 60 s. Steps
	// that read all that a BMC tells have four times as long.
	ObeyWithin time.Duration

	Plan  func(machine.JobKind) []machine.Step // nil means machine.Plan
	Lease time.Duration                        // how long a controller step may be silent before another replica takes it up; zero means 90 s
	Log   *slog.Logger                         // nil means silence

	folder   profileFolder
	watching atomic.Int64 // since when Watch has had the database, in Unix nanoseconds
}

// ErrStale refuses a report of an older attempt or of a job that is over: whoever sent it must stop and power off.
var ErrStale = errors.New("this job and attempt are over")

// ErrDenied refuses an agent: bad token or nonce, or one that is not for this machine.
var ErrDenied = errors.New("token or nonce refused")

func (e *Engine) log() *slog.Logger {
	if e.Log != nil {
		return e.Log
	}
	return slog.New(slog.DiscardHandler)
}

func (e *Engine) lease() time.Duration {
	if e.Lease > 0 {
		return e.Lease
	}
	return 90 * time.Second
}

// tryTime bounds one try of a controller step, and more is how much longer that is than most.
func (e *Engine) tryTime(s machine.Step) (within, more time.Duration) {
	within = cmp.Or(e.ObeyWithin, stepTime)
	if s.Reads {
		more = 3 * within
	}
	return within + more, more
}

func (e *Engine) plan(kind machine.JobKind) []machine.Step {
	if e.Plan != nil {
		return e.Plan(kind)
	}
	return machine.Plan(kind)
}

// step returns a step of a kind of job, its position, and the name of the one after it ("" at the end).
func (e *Engine) step(kind machine.JobKind, name machine.StepName) (s machine.Step, pos int, next machine.StepName) {
	plan := e.plan(kind)
	for i, s := range plan {
		if s.Name != name {
			continue
		}
		if i+1 < len(plan) {
			next = plan[i+1].Name
		}
		return s, i, next
	}
	return machine.Step{}, -1, ""
}
