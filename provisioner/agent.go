package provisioner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// Hello trades the nonce of a boot for the token of its job and attempt. The nonce is spent with the first report that
// carries the token; until then the same boot may ask again, because an answer can be lost.
func (e *Engine) Hello(ctx context.Context, h machine.Hello, from netip.Addr) (machine.Welcome, error) {
	from = from.Unmap()
	nonce, err := e.Tickets.Nonce(ctx, hashOf(h.Nonce))
	if errors.Is(err, ErrDenied) && e.Discovery {
		v, err := e.Visits.Visit(ctx, hashOf(h.Nonce))
		if err == nil && bytes.Equal(v.Nonce, hashOf(h.Nonce)) {
			return e.helloStranger(ctx, v, h, from)
		}
		if err != nil && !errors.Is(err, ErrDenied) {
			return machine.Welcome{}, err
		}
	}
	if err != nil {
		e.traceHello("", from, err)
		return machine.Welcome{}, err
	}
	if nonce.Addr.IsValid() && from != nonce.Addr {
		err := fmt.Errorf("hello from %s: %w", from, ErrDenied)
		e.traceHello("", from, err)
		return machine.Welcome{}, err
	}
	var welcome machine.Welcome
	var m machine.Machine
	port := ""
	err = e.Store.OnMachine(ctx, nonce.MachineID, func(w *Work) error {
		if nic, ok := w.Machine.Hardware.NICByRole(machine.ProvisionNIC); ok {
			port = nic.MAC
		}
		if !holds(w, nonce) {
			return ErrStale
		}
		if !slices.ContainsFunc(h.MACs, w.Machine.Hardware.HasMAC) {
			return fmt.Errorf("hello of machine %s without one of its ports: %w", w.Machine.Name, ErrDenied)
		}
		again := false
		switch w.Job.Step {
		case machine.StepPowerOn: // it was faster than the BMC's word for it
			if err := e.advance(ctx, w); err != nil {
				return err
			}
		case machine.StepHello:
		default:
			if _, _, first := e.step(w.Job.Kind, machine.StepHello); w.Job.Step != first {
				return ErrStale
			}
			again = true
		}
		secret, hash := newSecret()
		welcome.Token = secret
		w.Spend = append(w.Spend, Ticket{Hash: hash, Role: AgentRole, MachineID: w.Machine.ID, JobID: w.Job.ID, Attempt: w.Job.Attempt, Parent: hashOf(h.Nonce)})
		if !again {
			if err := e.advance(ctx, w); err != nil {
				return err
			}
		}
		welcome.Instruction, err = e.instruct(w, AgentRole)
		m = *w.Machine
		return err
	})
	if err == nil {
		e.bootSeen(ctx, m)
	}
	e.traceHello(port, from, err)
	return welcome, err
}

// holds reports whether a ticket is for the job and attempt that have the machine now.
func holds(w *Work, t Ticket) bool {
	return w.Job != nil && w.Job.ID == t.JobID && w.Job.Attempt == t.Attempt && w.Job.State == machine.JobRunning && w.Machine.JobID == w.Job.ID
}

// Report takes in what the agent or the validator says and answers with what to do. It answers ErrStale when the job
// or attempt is over: the sender must stop and power off.
func (e *Engine) Report(ctx context.Context, token string, r machine.Report) (machine.Instruction, error) {
	ticket, err := e.Tickets.Token(ctx, hashOf(token))
	if errors.Is(err, ErrDenied) && e.Discovery {
		v, err := e.Visits.Visit(ctx, hashOf(token))
		if err == nil && bytes.Equal(v.Token, hashOf(token)) {
			return e.reportStranger(ctx, v, r)
		}
		if err != nil && !errors.Is(err, ErrDenied) {
			return machine.Instruction{}, err
		}
	}
	if err != nil {
		return machine.Instruction{}, err
	}
	var answer machine.Instruction
	stale := false
	err = e.Store.OnMachine(ctx, ticket.MachineID, func(w *Work) error {
		if w.Job == nil || w.Job.ID != ticket.JobID {
			return ErrStale // long over: whoever has kept the token must not fill the log with it
		}
		if !holds(w, ticket) {
			w.note("report.stale", "late report of attempt %d about %.32q refused", ticket.Attempt, r.Step)
			stale = true
			return nil
		}
		if !ticket.Used {
			w.Spend = append(w.Spend, Ticket{Hash: ticket.Hash, Used: true, Parent: ticket.Parent})
		}
		answer, err = e.hear(ctx, w, ticket.Role, r)
		return err
	})
	if stale || errors.Is(err, ErrStale) {
		return machine.Instruction{Do: machine.DoPowerOff}, ErrStale
	}
	return answer, err
}

// hear is Report under the lock. A report about a step that is over is a repetition: it changes nothing and gets the
// present instruction.
func (e *Engine) hear(ctx context.Context, w *Work, role Role, r machine.Report) (machine.Instruction, error) {
	if role == OSRole && r.Step == machine.StepFirstBoot && r.Phase == machine.Done && w.Job.Step == machine.StepBootDisk {
		if err := e.advance(ctx, w); err != nil { // the OS is up: so the power cycle came about
			return machine.Instruction{}, err
		}
	}
	step, _, _ := e.step(w.Job.Kind, w.Job.Step)
	if r.Step != w.Job.Step || roleOf(step.Actor) != role {
		return e.instruct(w, role)
	}
	e.seen(w)
	switch r.Phase {
	case machine.Working:
		w.Job.Progress = bounded(r.Progress)
		return machine.Instruction{Do: machine.DoContinue, Step: w.Job.Step}, nil
	case machine.Done:
		return e.stepDone(ctx, w, role, r)
	case machine.Failed:
		if r.Step == machine.StepInBand { // what cannot be tried is not known, and no reason to turn a machine away
			r.Result = nil
			return e.stepDone(ctx, w, role, r)
		}
		if r.Step == machine.StepEraseAll || r.Step == machine.StepProve {
			if err := e.certify(w, r); err != nil {
				return machine.Instruction{}, err
			}
		}
		if err := e.failAttempt(ctx, w, r.Fatal, clip(r.Error)); err != nil {
			return machine.Instruction{}, err
		}
		return machine.Instruction{Do: machine.DoPowerOff}, nil
	}
	return e.instruct(w, role)
}

// stepDone holds the result of a step against what it must be, and goes on or gives up.
func (e *Engine) stepDone(ctx context.Context, w *Work, role Role, r machine.Report) (machine.Instruction, error) {
	failure, fatal := e.judge(w, r)
	if failure != nil {
		if err := e.failAttempt(ctx, w, fatal, clip(failure.Error())); err != nil {
			return machine.Instruction{}, err
		}
		if role == OSRole {
			return machine.Instruction{Do: machine.DoFinish}, nil // the fence powers it off
		}
		return machine.Instruction{Do: machine.DoPowerOff}, nil
	}
	if err := e.advance(ctx, w); err != nil {
		return machine.Instruction{}, err
	}
	return e.instruct(w, role)
}

// judge says what is wrong with the result of a step, and whether another attempt cannot help.
func (e *Engine) judge(w *Work, r machine.Report) (failure error, fatal bool) {
	switch r.Step {
	case machine.StepInventory:
		var inv machine.Inventory
		if err := json.Unmarshal(r.Result, &inv); err != nil {
			return fmt.Errorf("read inventory: %w", err), false
		}
		return CheckInventory(w.Machine.Hardware, inv), true
	case machine.StepInBand:
		w.InBand = seenInBand(r)
		w.Events = append(w.Events, Event{At: w.Now, Kind: "bmc.in-band", MachineID: w.Machine.ID, Text: InBandText(*w.InBand)}) // for operators alone
	case machine.StepExamine:
		if _, err := accelerator.DecodeFacts(r.Result); err != nil {
			return fmt.Errorf("read what the RAM disk saw: %w", err), false
		}
		w.Job.Result = r.Result // step judge decides
	case machine.StepEraseAll, machine.StepProve:
		var proofs []machine.Erasure
		if err := json.Unmarshal(r.Result, &proofs); err != nil {
			return fmt.Errorf("read erasure result: %w", err), false
		}
		if err := e.certify(w, r); err != nil {
			return err, false
		}
		if err := checkErasures(w.Machine.Hardware.Disks, proofs, r.Step == machine.StepProve); err != nil {
			return err, r.Step == machine.StepProve
		}
		w.Job.Result = r.Result
		w.note("disk."+string(r.Step), "%s", describeErasures(proofs))
	case machine.StepAccept:
		if _, err := accelerator.DecodeReport(r.Result); err != nil {
			return fmt.Errorf("read acceptance report: %w", err), true
		}
		w.Job.Result = r.Result // judged once the BMC has been asked
	case machine.StepValidate:
		if _, err := accelerator.DecodeReport(r.Result); err != nil {
			return fmt.Errorf("read validation report: %w", err), false
		}
		w.Job.Result = r.Result // step judge decides
	}
	return nil, false
}

func checkErasures(disks []machine.Disk, proofs []machine.Erasure, proof bool) error {
	for _, d := range disks {
		i := slices.IndexFunc(proofs, func(p machine.Erasure) bool { return p.Serial == d.Serial })
		if i < 0 {
			return fmt.Errorf("disk %s is not in the erasure result", d.Serial)
		}
		if p := proofs[i]; proof && (!p.Clean || p.Sampled <= 0) {
			return fmt.Errorf("disk %s is not proven clean: %s", d.Serial, p.Detail)
		}
	}
	return nil
}

func describeErasures(proofs []machine.Erasure) string {
	var parts []string
	for _, p := range proofs {
		text := fmt.Sprintf("disk %s: %s", p.Serial, p.Method)
		if p.Sampled > 0 {
			text += fmt.Sprintf(", %d bytes read back", p.Sampled)
		}
		if p.Level == machine.Clear && len(p.Lacks) > 0 {
			text += fmt.Sprintf(" (%s)", strings.Join(p.Lacks, "; "))
		}
		parts = append(parts, text)
	}
	return clip(strings.Join(parts, "; "))
}

func roleOf(a machine.Actor) Role {
	switch a {
	case machine.Agent:
		return AgentRole
	case machine.InstalledOS:
		return OSRole
	}
	return ""
}

// bounded makes a machine's word for its progress fit to be shown.
func bounded(p machine.Progress) machine.Progress {
	p.Total = min(max(p.Total, 0), 1<<56)
	p.Done = min(max(p.Done, 0), p.Total)
	p.Rate = max(p.Rate, 0)
	p.Burn.Stage, p.Burn.Worst = clip(p.Burn.Stage), clip(p.Burn.Worst)
	p.Burn.Done, p.Burn.Total = max(p.Burn.Done, 0), max(p.Burn.Total, 0)
	return p
}

// clip bounds a text that comes from a machine.
func clip(s string) string {
	const most = 2000
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s), "?")
}

// MayFetchValidator refuses whoever does not show the token of an installed OS whose job and attempt are on.
func (e *Engine) MayFetchValidator(ctx context.Context, token string) error {
	t, err := e.Tickets.Token(ctx, hashOf(token))
	if err != nil {
		return err
	}
	if t.Role != OSRole {
		return ErrDenied
	}
	return e.Store.OnMachine(ctx, t.MachineID, func(w *Work) error {
		if !holds(w, t) {
			return ErrStale
		}
		return nil
	})
}
