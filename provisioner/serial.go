package provisioner

import (
	"context"
	"errors"
	"fmt"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner/console"
)

// Serial opens serial consoles; answered by ipmi.Controller.
type Serial interface {
	OpenConsole(ctx context.Context, t ipmi.Target, o ipmi.ConsoleOptions) (*ipmi.Console, error)
}

// OpenConsole opens the serial console of a machine: it is console.Hub's way to the BMCs.
func (e *Engine) OpenConsole(ctx context.Context, machineID string, takeOver bool) (console.Line, error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return nil, err
	}
	if e.Serial == nil {
		return nil, unsupportedConsole(m, ipmi.ErrUnsupported)
	}
	var line *ipmi.Console
	err = e.bmc(ctx, m, func(t ipmi.Target) (err error) {
		line, err = e.Serial.OpenConsole(ctx, t, ipmi.ConsoleOptions{TakeOver: takeOver})
		return err
	})
	switch {
	case err == nil:
		return line, nil
	case errors.Is(err, ipmi.ErrTaken):
		return nil, &bmcProblem{err: err, known: machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("somebody else has the console of %s open at its BMC", m.Name),
			Hint: "wait, or end their session: an operator may give --take-over"}}
	case errors.Is(err, ipmi.ErrUnsupported):
		return nil, unsupportedConsole(m, err)
	}
	return nil, &bmcProblem{err: err, known: machine.Error{Code: machine.Unavailable, Message: err.Error(), Hint: "try again in a minute"}}
}

func unsupportedConsole(m machine.Machine, err error) error {
	hint := "the BMC does not offer serial over LAN to us"
	if m.BMC.Protocol == ipmi.Redfish && m.BMC.IPMI == "" {
		hint = "Redfish has no serial console: if the BMC speaks IPMI too, record bmc.ipmi as its host:port"
	}
	return &bmcProblem{err: err, known: machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("machine %s has no serial console for us", m.Name), Hint: hint}}
}

// bmcProblem is an error for users that is still the BMC's.
type bmcProblem struct {
	known machine.Error
	err   error
}

func (p *bmcProblem) Error() string   { return p.known.Message }
func (p *bmcProblem) Unwrap() []error { return []error{&p.known, p.err} }

// NoteConsole notes that somebody opened a machine's console.
func (e *Engine) NoteConsole(ctx context.Context, machineID, who string, write bool) error {
	return e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		how := "to look at it"
		if write {
			how = "to type on it"
		}
		w.note("console.open", "%s opened the serial console of %s %s", who, w.Machine.Name, how)
		return nil
	})
}
