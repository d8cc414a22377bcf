package provisioner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Secrets are the passwords that a BMC may take.
type Secrets struct {
	Username string
	Current  string
	Next     string    // handed to the BMC, or about to be, and not yet seen to work; "" while no change is under way
	Rotated  time.Time // when Current was last changed and seen to work
}

// Vault keeps the passwords of BMCs, sealed. None of its errors and events holds one.
type Vault interface {
	Secrets(ctx context.Context, machineID string) (Secrets, error)
	// Propose keeps a new password beside the current one and returns it; or the one that was proposed earlier, if a change
	// was cut short.
	Propose(ctx context.Context, machineID, password string) (string, error)
	// Promote makes the proposed password the current one, and forgets the old one.
	Promote(ctx context.Context, machineID, password string) error
	// Withdraw forgets the proposed password, which does not hold.
	Withdraw(ctx context.Context, machineID, password string) error
	// Replace sets what an operator says that the user and the password are.
	Replace(ctx context.Context, machineID, username, password string) error
}

// Accounts changes the passwords of BMCs; answered by ipmi.Controller.
type Accounts interface {
	SetPassword(ctx context.Context, t ipmi.Target, name, password string) error
	// Check logs in once, reads the power state and logs out.
	Check(ctx context.Context, t ipmi.Target) error
}

// Memory is what was found out about BMCs, in a server's memory; answered by ipmi.Controller.
type Memory interface {
	Learn(t ipmi.Target, k ipmi.Knowledge)
	Known(t ipmi.Target) ipmi.Knowledge
	BootSeen(t ipmi.Target, seen bool)
}

// BMCs keeps what is known of the machines' BMCs beside how to reach them.
type BMCs interface {
	BMC(ctx context.Context, machineID string) (BMC, error)
	// PutBMC writes back what fn changes, but for the knowledge, under the row's lock, with the events.
	PutBMC(ctx context.Context, machineID string, fn func(*BMC) ([]Event, error)) error
	Knowledge(ctx context.Context, machineID string) (ipmi.Knowledge, error)
	PutKnowledge(ctx context.Context, machineID string, k ipmi.Knowledge, events ...Event) error
}

// BMC is what is known of a machine's BMC beside how to reach it. It holds no password.
type BMC struct {
	Rotated     time.Time       `json:"rotated,omitzero"`      // when its password was last changed and seen to work
	Rotating    bool            `json:"rotating"`              // a change of its password is under way, or was cut short
	Knowledge   ipmi.Knowledge  `json:"knowledge"`             // what it does its own way
	InBand      InBand          `json:"in_band"`               // whether the machine's own system reaches it, as the RAM disk saw it
	Baseline    *ipmi.Baseline  `json:"baseline,omitempty"`    // at the last hand-over, or as an operator accepted it
	Found       *ipmi.Baseline  `json:"found,omitempty"`       // as it was when it was last compared
	Compared    time.Time       `json:"compared,omitzero"`     // when it was last found to be as in the baseline, after a customer had the machine
	Shut        string          `json:"shut,omitempty"`        // the machine's own ways to its BMC that were shut at the last installation, and read back so
	Inventory   *ipmi.Inventory `json:"inventory,omitempty"`   // models, firmware, network
	InventoryAt time.Time       `json:"inventory_at,omitzero"` //
	BIOSUntil   time.Time       `json:"bios_until,omitzero"`   // BIOS settings were asked for and must hold by then
}

// InBand is whether a machine's own system can change its BMC.
type InBand struct {
	State machine.InBandState `json:"state,omitempty"`
	Why   string              `json:"why,omitempty"`
	At    time.Time           `json:"at,omitzero"`
}

// target says how to reach a machine's BMC with a password.
func (s Secrets) target(m machine.Machine, password string) ipmi.Target {
	return ipmi.Target{Name: m.Name, Protocol: m.BMC.Protocol, Address: m.BMC.Address, Username: s.Username, Password: password, Proven: s.Rotated,
		CertPin: m.BMC.CertPin, IPMIAddress: m.BMC.IPMI}
}

// bmc calls fn with the machine's BMC and its decrypted password, which lives no longer than the call. Where the BMC refuses the password and
// a change of it is under way, or came about meanwhile, fn is called again with the other one; it must bear that.
func (e *Engine) bmc(ctx context.Context, m machine.Machine, fn func(ipmi.Target) error) error {
	tried := map[string]bool{}
	var refused error
	for {
		s, err := e.Vault.Secrets(ctx, m.ID)
		if err != nil {
			return fmt.Errorf("read BMC password: %w", err)
		}
		password, left := s.untried(tried)
		if !left {
			return discreet(m, refused)
		}
		tried[password] = true
		t := s.target(m, password)
		err = e.remembering(ctx, m, t, func() error { return fn(t) })
		if !refusedLogin(err) {
			return discreet(m, err)
		}
		refused = err
	}
}

// untried returns the password to try next, if there is one.
func (s Secrets) untried(tried map[string]bool) (string, bool) {
	if !tried[s.Current] {
		return s.Current, true
	}
	return s.Next, s.Next != "" && !tried[s.Next]
}

// remembering runs fn with what was found out about the BMC so far, and keeps what is found out.
func (e *Engine) remembering(ctx context.Context, m machine.Machine, t ipmi.Target, fn func() error) error {
	if e.Memory == nil || e.BMCs == nil {
		return fn()
	}
	kept, err := e.BMCs.Knowledge(ctx, m.ID)
	if err != nil {
		return err
	}
	e.Memory.Learn(t, kept)
	err = fn()
	if known := e.Memory.Known(t); !sameKnowledge(known, kept) {
		keep := e.BMCs.PutKnowledge(context.WithoutCancel(ctx), m.ID, known)
		if keep != nil { // it is found out again
			e.log().Warn("knowledge of a BMC not kept", "machine", m.Name, "err", keep)
		}
	}
	return err
}

// bmcFault is a BMC's failure under the name of its machine: orders, jobs and events are read by customers, and where BMCs are is
// none of their business.
type bmcFault struct {
	text string
	err  error
}

func (f *bmcFault) Error() string { return f.text }
func (f *bmcFault) Unwrap() error { return f.err }

func discreet(m machine.Machine, err error) error {
	if known := (*bmcFault)(nil); err == nil || errors.As(err, &known) {
		return err
	}
	text := err.Error()
	for _, address := range []string{m.BMC.Address, m.BMC.IPMI} {
		if address == "" {
			continue
		}
		text = strings.ReplaceAll(text, " at "+address, "")
		text = strings.ReplaceAll(text, address, "of "+m.Name)
	}
	if untrusted(err) {
		text += fmt.Sprintf("; if its certificate was changed on purpose: bareyard machine bmc trust %s", m.Name)
	}
	return &bmcFault{text: text, err: err}
}

// sameKnowledge compares by what would be kept.
func sameKnowledge(a, b ipmi.Knowledge) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
