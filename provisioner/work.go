package provisioner

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Work is what one transition sees and leaves: a machine, its active job and the order that holds it, all locked.
type Work struct {
	Now     time.Time        // of the database, the same for all that the transition writes
	Machine *machine.Machine // nil for an order without a machine
	Job     *machine.Job     // nil when the machine has no active job
	Order   *machine.Order   // nil when nobody holds the machine
	Stock   Stock            // what only the database can pick
	Seen    Sighting         // of the machine on the provisioning network since it was switched on
	Moves   Moves            // addresses that come and go
	Terms   Terms            // what the order has agreed on
	Trial   *machine.Trial   // nil when no acceptance run holds the machine

	Events  []Event         // appended to the event log
	Actions []Action        // enqueued
	Past    *machine.Job    // a job that this transition ended and replaced
	NewJob  bool            // Job was started by this transition
	Unsee   bool            // the machine is about to be switched on: what was seen of it before does not count
	InBand  *machine.InBand // what the RAM disk saw when it tried to change the BMC; nil: it did not try
	Spend   []Ticket        // nonces and tokens to write
	Charges []Charge
	Kept    []Kept // validation reports to keep
	Reopen  bool   // the run that Trial is of is under way again
	Erased  []KeptErasure
}

// Stock picks machines and addresses inside the transaction, so that no two orders get the same one.
type Stock interface {
	// Machine locks an available machine. It answers an Exhausted error when there is none, an Invalid one when no machine
	// of the class could ever take the image.
	Machine(ctx context.Context, p Pick) (*machine.Machine, error)
	// Examined locks a machine that was in stock and is being examined, with the job that does it; nil when there is none.
	Examined(ctx context.Context, p Pick) (*machine.Machine, *machine.Job, error)
	// Addresses takes the longest idle addresses of a line for an order, all that are wanted or none.
	Addresses(ctx context.Context, w Want, orderID string) ([]netip.Prefix, error)
	// FreeAddresses returns all addresses of an order; none is given to anybody else before its cool-down is over, unless it
	// was never used.
	FreeAddresses(ctx context.Context, orderID string, used bool) error
	// Line reads a line. Inside a transaction it is asked here and not of the shelf, which needs a connection of its own: orders that
	// hold one each would wait for another for ever.
	Line(ctx context.Context, name string) (network.Line, error)
}

// Pick says which machine is looked for.
type Pick struct {
	Class  string
	Site   string // of the line: its addresses are routed there
	Line   string // for the message
	Image  machine.Image
	Except []string // ids of machines that failed the order
}

// Want says which addresses are looked for.
type Want struct {
	Line   string
	Family int // 4 or 6
	Count  int
}

// Moves takes single addresses off an order. An address that leaves stays the order's until the edge has let go of it.
type Moves interface {
	// Leave marks an address of an order as leaving, for another order or, with next "", for the stock.
	Leave(ctx context.Context, orderID string, p netip.Prefix, next string) error
	// Leaving locks an address that leaves an order and says for whom.
	Leaving(ctx context.Context, orderID string, p netip.Prefix) (next string, ok bool, err error)
	// Pass gives an address that leaves to another order, or, with next "", into its cool-down.
	Pass(ctx context.Context, orderID string, p netip.Prefix, next string) error
	// Unproven lists the addresses of an order of which nobody knows yet whether somebody else uses them.
	Unproven(ctx context.Context, orderID string) ([]netip.Prefix, error)
	// Prove says that it is known.
	Prove(ctx context.Context, orderID string, ps []netip.Prefix) error
	// Spoil takes an address from an order and out of stock, because somebody else uses it: a MAC address, or "". Any other belief
	// than SetAside and PutBack leaves it as it is.
	Spoil(ctx context.Context, orderID string, p netip.Prefix, by, note string) (Belief, error)
}

// Belief is what becomes of an address at which somebody answered.
type Belief string

// Beliefs in an answer.
const (
	SetAside      Belief = "set-aside"       // believed
	AnswersForAll Belief = "answers-for-all" // he was found at several addresses already: the answer is false
	PutBack       Belief = "put-back"        // so much of the line is in conflict that no more is set aside: it is in stock again, for whoever comes last
	TooManyAside  Belief = "too-many-aside"  // and the order has put back so many that a person must look first
)

// Event is one line of the log of what happened.
type Event struct {
	ID        int64            `json:"id"`
	At        time.Time        `json:"at"`
	Kind      string           `json:"kind"` // e.g. machine.reserve, job.advance, order.hand-over, note
	MachineID string           `json:"machine_id,omitempty"`
	OrderID   string           `json:"order_id,omitempty"`
	JobID     string           `json:"job_id,omitempty"`
	Attempt   int              `json:"attempt,omitempty"`
	Step      machine.StepName `json:"step,omitempty"`
	Text      string           `json:"text"` // in plain words
}

// Charge is an amount owed for one period of an order; the pair (order, From) is unique.
type Charge struct {
	OrderID  string
	From, To time.Time
	Amount   int64 // integer minor units
	Currency string
}

// Ticket is a nonce or token bound to a job's attempt; only the hash of the secret is kept.
type Ticket struct {
	Hash      []byte
	Role      Role
	MachineID string
	JobID     string
	Attempt   int
	Addr      netip.Addr // nonces: the only address that may trade it; zero: any, where addresses are another server's to give
	Parent    []byte     // tokens of agents: the nonce it was traded for
	Used      bool       // tokens: a report has come with it
}

// Role says what a ticket opens.
type Role string

// Roles of tickets.
const (
	NonceRole Role = "nonce" // a boot: to be traded for an agent token
	AgentRole Role = "agent" // the RAM disk
	OSRole    Role = "os"    // the validator in the installed OS
)

// ActionKind says what an action does.
type ActionKind string

// Kinds of action.
const (
	ActStep  ActionKind = "step"  // carry out the controller step that the job is at
	ActPlace ActionKind = "place" // find another machine for an order
	ActFence ActionKind = "fence" // withdraw the public address, close the port, power off
	ActPort  ActionKind = "port"  // make the edge as the machine's order says now
	ActLeave ActionKind = "leave" // take an address off a machine, and then out of its order
	ActProbe ActionKind = "probe" // look whether somebody uses addresses that an order has got
	ActEnrol ActionKind = "enrol" // enrol a discovered machine, if the enrolment list names it
)

// Action is work outside the database, enqueued by the transition that calls for it.
type Action struct {
	Kind      ActionKind    `json:"kind"`
	MachineID string        `json:"machine_id,omitempty"`
	OrderID   string        `json:"order_id,omitempty"`
	JobID     string        `json:"job_id,omitempty"`
	Turn      int           `json:"turn,omitempty"`
	After     time.Duration `json:"after,omitempty"`
	Address   netip.Prefix  `json:"address,omitzero"`

	Try    int           `json:"try,omitempty"`    // of a probe: how many came to nothing before
	Longer time.Duration `json:"longer,omitempty"` // than others it may take
	Slow   bool          `json:"slow,omitempty"`   // its BMC was silent: it waits among others of that sort, and keeps nobody else waiting
}

// machineEvent moves the machine.
func (w *Work) machineEvent(e machine.Event, format string, a ...any) error {
	next, err := machine.Next(w.Machine.State, e)
	if err != nil {
		return fmt.Errorf("move machine %s: %w", w.Machine.Name, err)
	}
	w.Machine.State = next
	w.note("machine."+string(e), format, a...)
	return nil
}

// orderEvent moves the order.
func (w *Work) orderEvent(e machine.OrderEvent, format string, a ...any) error {
	next, err := machine.NextOrder(w.Order.State, e)
	if err != nil {
		return fmt.Errorf("move order %s: %w", w.Order.ID, err)
	}
	w.Order.State = next
	w.note("order."+string(e), format, a...)
	return nil
}

// jobEvent moves the job.
func (w *Work) jobEvent(e machine.JobEvent, format string, a ...any) error {
	next, err := machine.NextJob(w.Job.State, e)
	if err != nil {
		return fmt.Errorf("move job %s: %w", w.Job.ID, err)
	}
	w.Job.State = next
	if next != machine.JobRunning {
		w.Job.Finished = w.Now
		w.Machine.JobID = ""
	}
	w.note("job."+string(e), format, a...)
	return nil
}

// tellOperators appends an event about the machine and its job that no customer reads.
func (w *Work) tellOperators(kind, text string) {
	ev := Event{At: w.Now, Kind: kind, MachineID: w.Machine.ID, Text: clip(text)}
	if w.Job != nil {
		ev.JobID, ev.Attempt, ev.Step = w.Job.ID, w.Job.Attempt, w.Job.Step
	}
	w.Events = append(w.Events, ev)
}

// note appends an event that concerns everything the Work holds.
func (w *Work) note(kind, format string, a ...any) {
	ev := Event{At: w.Now, Kind: kind, Text: fmt.Sprintf(format, a...)}
	if w.Machine != nil {
		ev.MachineID = w.Machine.ID
	}
	if w.Order != nil {
		ev.OrderID = w.Order.ID
	}
	if w.Job != nil {
		ev.JobID, ev.Attempt, ev.Step = w.Job.ID, w.Job.Attempt, w.Job.Step
	}
	w.Events = append(w.Events, ev)
}
