package provisioner

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Approve enrols a discovered machine with what an operator adds. Its BMC is asked first which machine it is in.
func (e *Engine) Approve(ctx context.Context, id string, a Approval) (machine.Machine, error) {
	return e.approve(ctx, id, a, "")
}

// approve is Approve, on the word of an operator or of an entry of the enrolment list.
func (e *Engine) approve(ctx context.Context, id string, a Approval, expected string) (machine.Machine, error) {
	if e.Inbox == nil {
		return machine.Machine{}, noInbox()
	}
	f, err := e.Inbox.Found(ctx, id)
	if err != nil {
		return machine.Machine{}, err
	}
	class, err := e.Shelf.Class(ctx, a.Class)
	if err != nil {
		return machine.Machine{}, err
	}
	m, err := e.judgeRecord(f, a, class)
	if err != nil {
		return m, err
	}
	if m, err = e.FirstUse(ctx, m); err != nil {
		return m, err
	}
	a.BMC = m.BMC
	identity := "its BMC was not asked which machine it is in"
	if !a.SkipCheck && e.Identify != nil {
		if identity, err = e.checkBMC(ctx, m, a.BMCPassword, f.Inventory); err != nil {
			return m, err
		}
	}
	err = e.Inbox.OnFound(ctx, id, func(w *Meeting) error {
		if m, err = e.judgeRecord(*w.Found, a, class); err != nil { // it may have been seen again since
			return err
		}
		text := "approved by an operator as " + m.Name
		if expected != "" {
			text = "named " + expected + " by the enrolment list"
		}
		if a.Admit {
			if m.State, err = machine.Next(m.State, machine.Admit); err != nil {
				return err
			}
			text += ", and vouched for"
		}
		w.Enrol = &Enrolment{Machine: m, Password: a.BMCPassword, Expected: expected}
		w.note(id, "machine.enroll", text+"; "+identity)
		return nil
	})
	return m, err
}

func noInbox() error {
	return &machine.Error{Code: machine.Conflict, Message: "discovery is off", Hint: "turn it on with boot.discovery in the server's configuration"}
}

// judgeRecord makes the record that a discovered machine would have, in the state after its enrolment.
func (e *Engine) judgeRecord(f machine.Found, a Approval, class machine.Class) (machine.Machine, error) {
	next, err := machine.Next(f.State, machine.Enroll)
	if err != nil {
		return machine.Machine{}, fmt.Errorf("approve machine %s: %w", f.ID, err)
	}
	m, err := Record(f, a)
	if err != nil {
		return m, err
	}
	m.State = next
	return m, machine.CheckCards(m.Hardware, class)
}

// identifyTime bounds the question to a BMC which machine it is in.
const identifyTime = 45 * time.Second

// checkBMC asks a BMC which machine it is in, and refuses one that names another. It returns what was found out.
func (e *Engine) checkBMC(ctx context.Context, m machine.Machine, password string, inv machine.Inventory) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTime)
	defer cancel()
	got, err := e.Identify.Inventory(ctx, ipmi.Target{Protocol: m.BMC.Protocol, Address: m.BMC.Address, Username: m.BMC.Username, Password: password, CertPin: m.BMC.CertPin})
	switch {
	case errors.Is(err, ipmi.ErrUnsupported):
		return "its BMC does not tell which machine it is in", nil
	case errors.Is(err, ipmi.ErrCredentials), errors.Is(err, ipmi.ErrLocked):
		return "", &machine.Error{Code: machine.Invalid, Field: "bmc_password", Message: fmt.Sprintf("the BMC at %s: %v", m.BMC.Address, err), Hint: "correct user and password"}
	case errors.Is(err, ipmi.ErrUntrusted):
		return "", &machine.Error{Code: machine.Invalid, Field: "bmc.cert_pin", Message: fmt.Sprintf("the BMC at %s: %v", m.BMC.Address, err), Hint: "give the SHA-256 of its certificate"}
	case err != nil:
		return "", &machine.Error{Code: machine.Unavailable, Field: "bmc.address", Message: fmt.Sprintf("the BMC at %s: %v", m.BMC.Address, err),
			Hint: "correct its address, or approve without asking it (--no-bmc-check)"}
	}
	if inv.BMC != nil && inv.BMC.MAC != "" && slices.ContainsFunc(got.LAN, func(l ipmi.LAN) bool { return strings.EqualFold(l.MAC, inv.BMC.MAC) }) {
		return "its BMC is the one that the machine itself speaks to, " + inv.BMC.MAC, nil
	}
	switch agreement(Identity{UUID: got.UUID, Serial: got.Serial}, Identity{UUID: inv.Hardware.UUID, Serial: inv.Hardware.Serial}) {
	case -1:
		return "", &machine.Error{Code: machine.Conflict, Field: "bmc.address",
			Message: fmt.Sprintf("the BMC at %s is another machine's: it says UUID %s, serial %s; this machine says UUID %s, serial %s",
				m.BMC.Address, orNone(got.UUID), orNone(got.Serial), orNone(inv.Hardware.UUID), orNone(inv.Hardware.Serial)),
			Hint: "find the right BMC; --no-bmc-check enrols it all the same"}
	case 0:
		return "its BMC does not tell which machine it is in", nil
	}
	return "its BMC names this machine", nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Reject sends a discovered machine away: it gets "boot from disk" from now on. Forgotten, it is discovered anew when it
// boots again.
func (e *Engine) Reject(ctx context.Context, id, reason string, forget bool) error {
	if e.Inbox == nil {
		return noInbox()
	}
	return e.Inbox.OnFound(ctx, id, func(w *Meeting) error {
		if forget {
			w.Forget = true
			w.note(id, "machine.forget", "forgotten: "+reason)
			return nil
		}
		next, err := machine.Next(w.Found.State, machine.Retire)
		if err != nil {
			return fmt.Errorf("reject machine %s: %w", id, err)
		}
		w.Found.State, w.Found.Reason = next, reason
		w.note(id, "machine.retire", "rejected: "+reason)
		return nil
	})
}

// enrolTries is how often a discovered machine is enrolled by the list before its BMC is given up, a minute apart. The next
// sighting begins anew.
const enrolTries = 10

// actEnrol enrols a discovered machine when the enrolment list names it. What is in the way is put into its reason.
func (e *Engine) actEnrol(ctx context.Context, a Action) error {
	if e.List == nil || e.Inbox == nil {
		return nil
	}
	f, err := e.Inbox.Found(ctx, a.MachineID)
	if machine.CodeOf(err) == machine.NotFound || err == nil && f.State != machine.Discovered {
		return nil // enrolled, forgotten or rejected meanwhile
	}
	if err != nil {
		return err
	}
	var macs []string
	for _, n := range f.Inventory.Hardware.NICs {
		macs = append(macs, n.MAC)
	}
	entries, err := e.List.Matching(ctx, macs, machine.SerialKey(f.Inventory.Hardware.Serial))
	if err != nil || len(entries) == 0 {
		return err
	}
	err = e.byList(ctx, f, entries)
	if err == nil || machine.CodeOf(err) == "" {
		return err
	}
	return e.Inbox.OnFound(ctx, f.ID, func(w *Meeting) error {
		w.Found.Reason = fmt.Sprintf("the enrolment list names it %s, and it was not enrolled: %v", entries[0].Name, err)
		w.note(f.ID, "machine.enroll-failed", w.Found.Reason)
		if machine.CodeOf(err) == machine.Unavailable && a.Turn < enrolTries {
			w.Actions = append(w.Actions, Action{Kind: ActEnrol, MachineID: f.ID, Turn: a.Turn + 1, After: time.Minute})
		}
		return nil
	})
}

// byList enrols a machine by the entries that match it, which must be one.
func (e *Engine) byList(ctx context.Context, f machine.Found, entries []Expectation) error {
	x := entries[0]
	if len(entries) > 1 {
		return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("the entries %s and %s both name it", x.Name, entries[1].Name), Hint: "correct the list"}
	}
	have, want := machine.SerialKey(f.Inventory.Hardware.Serial), machine.SerialKey(x.Serial)
	if x.MAC != "" && !f.Inventory.Hardware.HasMAC(x.MAC) || want != "" && have != "" && want != have {
		return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("the entry %s has port %s and serial number %s, the machine has serial number %s", x.Name, orNone(x.MAC), orNone(x.Serial), orNone(f.Inventory.Hardware.Serial)),
			Hint: "correct the list"}
	}
	a := Approval{Name: x.Name, Site: x.Site, Rack: x.Rack, Class: x.Class, BMC: x.BMC, BMCPassword: x.Password, PublicMAC: x.PublicMAC, SystemDisk: x.SystemDisk, Admit: x.Admit}
	if x.BootAddr != "" {
		addr, err := netip.ParseAddr(x.BootAddr)
		if err != nil {
			return &machine.Error{Code: machine.Invalid, Field: "boot_addr", Message: fmt.Sprintf("%q is not an address", x.BootAddr), Hint: "correct the list"}
		}
		a.BootAddr = addr
	}
	_, err := e.approve(ctx, f.ID, a, x.Name)
	return err
}
