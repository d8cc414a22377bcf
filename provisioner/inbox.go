package provisioner

import (
	"context"
	"net/netip"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
)

// Inbox keeps the machines that nobody has enrolled. Each method that takes a function is one transaction, as in Store.
type Inbox interface {
	// Meet locks all that share a port, or UUID and serial number, with a sighting. Two sightings never meet at once.
	Meet(ctx context.Context, seen Identity, fn func(*Meeting) error) error
	// OnFound locks a machine that nobody has enrolled.
	OnFound(ctx context.Context, id string, fn func(*Meeting) error) error
	// Found returns one, or a NotFound error.
	Found(ctx context.Context, id string) (machine.Found, error)
}

// Visits keeps the boots of machines that nobody has enrolled.
type Visits interface {
	// Standing says what is known of a port that is no enrolled machine's own.
	Standing(ctx context.Context, mac string) (Standing, error)
	// PutVisit keeps a boot; a newer one of the same port replaces it. It answers Exhausted when there are most of them already.
	PutVisit(ctx context.Context, v Visit, most int) error
	// Visit finds one by the hash of its nonce or of its token; ErrDenied when there is none.
	Visit(ctx context.Context, hash []byte) (Visit, error)
	// EndVisit forgets it.
	EndVisit(ctx context.Context, mac string) error
}

// EnrolmentList keeps machines that are named before they are seen.
type EnrolmentList interface {
	// Expect writes entries, all or none. What cannot be, it names by its line.
	Expect(ctx context.Context, list []Expectation) (ExpectResult, error)
	// Expected lists what has not been seen yet.
	Expected(ctx context.Context) ([]machine.Expected, error)
	// Unexpect takes an entry off the list.
	Unexpect(ctx context.Context, name string) error
	// Matching returns the entries that name one of the ports or the serial number, with the password of the BMC.
	Matching(ctx context.Context, macs []string, serial string) ([]Expectation, error)
}

// Identifier asks a BMC which machine it is in; answered by ipmi.Controller.
type Identifier interface {
	Inventory(ctx context.Context, t ipmi.Target) (ipmi.Inventory, error)
}

// Boots is the record of what machines asked while they booted.
type Boots interface {
	// Boots lists the boots by any of these ports, the newest first.
	Boots(ctx context.Context, macs []string) ([]trace.Boot, error)
	// AtHello lists machines whose job has waited longer for the agent.
	AtHello(ctx context.Context, longer time.Duration) ([]string, error)
}

// Standing is what is known of a port that is no enrolled machine's own.
type Standing string

// Standings.
const (
	Stranger Standing = "stranger" // never seen, or waiting in the inbox
	Rejected Standing = "rejected" // by an operator
	Stray    Standing = "stray"    // of an enrolled machine, and not on its record
	Ours     Standing = "ours"     // on an enrolled machine's record
)

// Visit is the boot of a machine that nobody has enrolled. It opens nothing but the inbox.
type Visit struct {
	MAC   string
	Addr  netip.Addr // the only address that may trade the nonce
	Nonce []byte     // hash
	Token []byte     // hash; nil until hello
}

// Meeting is what one sighting of a machine finds and leaves behind.
type Meeting struct {
	Now     time.Time
	Others  []Identity // Meet: all that share something with it
	Pending int        // Meet: how many wait in the inbox

	Found  *machine.Found    // as it is to be; Meet: nil until one is named by Load
	Ports  []string          // the MAC addresses by which it is known from now on; nil leaves them
	Drop   []string          // discoveries that turn out to be the same machine
	Alias  map[string]string // port to enrolled machine: not on its record, and never discovered again
	Enrol  *Enrolment        // it becomes a machine of ours
	Forget bool              // it is deleted

	Events  []Event
	Actions []Action

	// Load returns a discovery that Others names.
	Load func(ctx context.Context, id string) (machine.Found, error)
}

// Enrolment is a machine that is written, with what it came from.
type Enrolment struct {
	Machine  machine.Machine
	Password string // of its BMC
	Expected string // the entry of the enrolment list that is fulfilled; empty for none
}

// Expectation is an entry of the enrolment list as it comes in.
type Expectation struct {
	machine.Expected
	Password string // of its BMC
	Line     int    // where it stands in its file, to speak of it; 0: its place in the list
}

// ExpectResult counts what became of a list.
type ExpectResult struct {
	Added    int `json:"added"`
	Changed  int `json:"changed"`
	Same     int `json:"same"`     // were there already
	Enrolled int `json:"enrolled"` // are machines already
	Found    int `json:"found"`    // wait in the inbox, and are enrolled now
}

// note appends an event about a machine.
func (w *Meeting) note(machineID, kind, text string) {
	w.Events = append(w.Events, Event{At: w.Now, Kind: kind, MachineID: machineID, Text: text})
}
