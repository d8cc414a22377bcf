package provisioner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
)

// finishRun ends a run of which no machine waits or is being tried: machines that are slower than their peers fail, what has passed goes to stock
// where that was asked for, and the report is signed. Each part does nothing the second time.
func (e *Engine) finishRun(ctx context.Context, run machine.AcceptanceRun) error {
	members, err := e.members(ctx, run)
	if err != nil {
		return err
	}
	slow, odd := map[string][]string{}, map[string][]string{}
	for _, c := range accelerator.CompareFleet(members) {
		if c.Slot == "" && c.Slow() {
			slow[c.Machine] = append(slow[c.Machine], c.String())
		}
	}
	for _, v := range accelerator.CompareFirmware(members) {
		for _, id := range v.Machines {
			if v.Odd {
				odd[id] = append(odd[id], fmt.Sprintf("%s is %s, others in rack %s have another version", v.What, v.Version, v.Rack))
			}
		}
	}
	var errs []error
	for _, t := range run.Trials {
		errs = append(errs, e.finishTrial(ctx, run, t, slow[t.MachineID], odd[t.MachineID]))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return e.endRun(ctx, run.ID)
}

// endRun signs the report of a run of which nothing is left to do.
func (e *Engine) endRun(ctx context.Context, id string) error {
	return e.Acceptances.EndRun(ctx, id, func(r machine.AcceptanceRun) ([]byte, error) {
		doc, err := e.document(ctx, r)
		if err != nil {
			return nil, err
		}
		if len(e.ReportKey) == 0 {
			return json.Marshal(doc)
		}
		return document.SignRun(doc, e.ReportKey)
	})
}

// Checks of a machine beside its peers.
const (
	fleetRate     = "fleet.rate"
	fleetFirmware = "fleet.firmware"
)

// finishTrial adds to a machine's findings what shows only beside its peers.
func (e *Engine) finishTrial(ctx context.Context, run machine.AcceptanceRun, t machine.Trial, slow, odd []string) error {
	admits := run.Accept && t.State == machine.TrialPassed
	if len(slow) == 0 && len(odd) == 0 && !admits && !slices.ContainsFunc(t.Findings, ofFleet) {
		return nil
	}
	err := e.Acceptances.OnTrial(ctx, run.ID, t.MachineID, func(w *Work) error {
		list := slices.DeleteFunc(slices.Clone(w.Trial.Findings), ofFleet)
		for _, text := range odd {
			list = append(list, machine.Finding{Level: string(accelerator.Warn), Check: fleetFirmware, Text: clip(text)})
		}
		for _, text := range slow {
			list = append(list, machine.Finding{Level: string(accelerator.Fail), Check: fleetRate, Text: clip(text)})
		}
		w.Trial.Findings = list
		if w.Trial.State != machine.TrialPassed || w.Machine.State != machine.Accepting || w.Job != nil {
			return nil // judged already, admitted already, or somebody else's by now
		}
		if len(slow) > 0 {
			why := fmt.Sprintf("slower than its peers: %s", slow[0])
			if err := w.trialEvent(machine.TrialFail, "%s", why); err != nil {
				return err
			}
			w.Machine.Reason = fmt.Sprintf("failed acceptance run %s: %s", run.ID, why)
			return w.machineEvent(machine.Quarantine, "%s", w.Machine.Reason)
		}
		if !run.Accept {
			return nil
		}
		return e.admit(w)
	})
	if machine.CodeOf(err) == machine.Conflict {
		return nil // another run has the machine by now: what this one has found of it stands
	}
	return err
}

func ofFleet(f machine.Finding) bool { return strings.HasPrefix(f.Check, "fleet.") }

// members are the machines of a run of which there is a report.
func (e *Engine) members(ctx context.Context, run machine.AcceptanceRun) ([]accelerator.FleetMember, error) {
	reports, err := e.Acceptances.TrialReports(ctx, run.ID)
	if err != nil {
		return nil, err
	}
	var list []accelerator.FleetMember
	for _, t := range run.Trials {
		raw, ok := reports[t.MachineID]
		if !ok {
			continue
		}
		rep, err := accelerator.DecodeReport(raw)
		if err != nil {
			return nil, fmt.Errorf("read report of machine %s: %w", t.Name, err)
		}
		list = append(list, accelerator.FleetMember{Machine: t.MachineID, Name: t.Name, Rack: t.Site + "/" + t.Rack, Report: rep})
	}
	return list, nil
}

// document is the report of a run as it stands.
func (e *Engine) document(ctx context.Context, run machine.AcceptanceRun) (document.Run, error) {
	members, err := e.members(ctx, run)
	if err != nil {
		return document.Run{}, err
	}
	return document.NewRun(run, members), nil
}

// RunReport is the report of a run: form "" is JSON, signed once the run is over; ".html" a page, ".xml" JUnit.
func (e *Engine) RunReport(ctx context.Context, id, form string) ([]byte, error) {
	run, err := e.Acceptances.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	if signed, err := e.Acceptances.SignedReport(ctx, id); err != nil || form == "" && len(signed) > 0 {
		return signed, err
	}
	doc, err := e.document(ctx, run)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	switch form {
	case "":
		err = json.NewEncoder(&out).Encode(doc)
	case ".html":
		err = document.RunHTML(&out, doc)
	case ".xml":
		err = document.RunJUnit(&out, doc)
	}
	return out.Bytes(), err
}
