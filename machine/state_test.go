package machine_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

var update = flag.Bool("update", false, "rewrite golden files")

// exhaust tries every event in every state: the transition is one that is listed as legal, or it is refused as a
// Conflict that leaves the state alone and names what would be taken.
func exhaust[S, E ~string](t *testing.T, states []S, events []E, next func(S, E) (S, error), legal map[string]S) {
	t.Helper()
	for _, s := range states {
		for _, e := range events {
			key := fmt.Sprintf("%s+%s", s, e)
			got, err := next(s, e)
			want, ok := legal[key]
			switch {
			case ok && (err != nil || got != want):
				t.Errorf("%s: %s, %v; want %s", key, got, err, want)
			case !ok && (machine.CodeOf(err) != machine.Conflict || got != s):
				t.Errorf("%s: %s, %v; want it refused", key, got, err)
			}
			if err == nil && !slices.Contains(states, got) {
				t.Errorf("%s leads to %q, which is no state", key, got)
			}
			delete(legal, key)
		}
	}
	for key := range legal {
		t.Errorf("%s names no state or event", key)
	}
}

func TestMachineTransitions(t *testing.T) {
	exhaust(t, machine.States(), machine.Events(), machine.Next, map[string]machine.State{
		"discovered+enroll": machine.Enrolled, "discovered+retire": machine.Retired,
		"enrolled+accept": machine.Accepting, "enrolled+admit": machine.Available, "enrolled+park": machine.Maintenance, "enrolled+retire": machine.Retired,
		"accepting+enroll": machine.Enrolled, "accepting+admit": machine.Available, "accepting+reclaim": machine.Reclaiming, "accepting+quarantine": machine.Quarantined, "accepting+park": machine.Maintenance,
		"available+accept": machine.Accepting, "available+reserve": machine.Reserved, "available+designate": machine.Pool,
		"available+quarantine": machine.Quarantined, "available+park": machine.Maintenance, "available+retire": machine.Retired,
		"reserved+provision": machine.Provisioning, "reserved+unreserve": machine.Available, "reserved+quarantine": machine.Quarantined,
		"provisioning+hand-over": machine.Active, "provisioning+reclaim": machine.Reclaiming, "provisioning+quarantine": machine.Quarantined, "provisioning+park": machine.Maintenance,
		"active+provision": machine.Provisioning, "active+reclaim": machine.Reclaiming, "active+quarantine": machine.Quarantined, "active+park": machine.Maintenance,
		"reclaiming+reclaimed": machine.Available, "reclaiming+quarantine": machine.Quarantined,
		"pool+reclaim": machine.Reclaiming, "pool+quarantine": machine.Quarantined, "pool+park": machine.Maintenance,
		"maintenance+provision": machine.Provisioning, "maintenance+unpark": machine.Active, "maintenance+reclaim": machine.Reclaiming,
		"maintenance+quarantine": machine.Quarantined, "maintenance+retire": machine.Retired,
		"quarantined+accept": machine.Accepting, "quarantined+reclaim": machine.Reclaiming, "quarantined+park": machine.Maintenance, "quarantined+retire": machine.Retired,
	})
}

func TestOrderTransitions(t *testing.T) {
	exhaust(t, machine.OrderStates(), machine.OrderEvents(), machine.NextOrder, map[string]machine.OrderState{
		"placed+start": machine.OrderProvisioning, "placed+cancel": machine.OrderCancelled, "placed+fail": machine.OrderFailed,
		"provisioning+move": machine.OrderPlaced, "provisioning+hand-over": machine.OrderActive, "provisioning+cancel": machine.OrderCancelled, "provisioning+fail": machine.OrderFailed,
		"active+expire": machine.OrderExpired, "active+renew": machine.OrderActive, "active+end": machine.OrderEnded,
		"expired+renew": machine.OrderActive, "expired+end": machine.OrderEnded,
	})
}

func TestJobTransitions(t *testing.T) {
	exhaust(t, machine.JobStates(), machine.JobEvents(), machine.NextJob, map[string]machine.JobState{
		"running+advance": machine.JobRunning, "running+retry": machine.JobRunning, "running+reboot": machine.JobRunning, "running+succeed": machine.JobSucceeded,
		"running+fail": machine.JobFailed, "running+cancel": machine.JobCancelled,
	})
}

func TestAcceptanceTransitions(t *testing.T) {
	exhaust(t, machine.RunStates(), machine.RunEvents(), machine.NextRun, map[string]machine.RunState{
		"running+finish": machine.RunFinished, "running+cancel": machine.RunCancelled, "running+reopen": machine.RunUnderWay,
		"finished+reopen": machine.RunUnderWay, "cancelled+reopen": machine.RunUnderWay, "cancelled+cancel": machine.RunCancelled, "cancelled+finish": machine.RunCancelled,
	})
	exhaust(t, machine.TrialStates(), machine.TrialEvents(), machine.NextTrial, map[string]machine.TrialState{
		"waiting+start": machine.TrialRunning, "waiting+leave": machine.TrialIncomplete, "waiting+cancel": machine.TrialCancelled,
		"running+pass": machine.TrialPassed, "running+fail": machine.TrialFailed, "running+leave": machine.TrialIncomplete, "running+cancel": machine.TrialCancelled,
		"passed+retry": machine.TrialWaiting, "passed+fail": machine.TrialFailed,
		"failed+retry": machine.TrialWaiting, "incomplete+retry": machine.TrialWaiting, "cancelled+retry": machine.TrialWaiting,
	})
}

// TestAcceptancePlan: what is left out is filled in, and what cannot be carried out is refused by its stage.
func TestAcceptancePlan(t *testing.T) {
	if p := machine.HourlyPlan(24); p.Check() != nil || p.Load() < 24*time.Hour || p.Whole() < p.Load() {
		t.Errorf("24 hours: %+v, %v", p, p.Check())
	}
	for field, spoil := range map[string]func(*machine.AcceptancePlan){
		"plan.sanity.load":       func(p *machine.AcceptancePlan) { p.Sanity.Load = 1 },
		"plan.validation.load":   func(p *machine.AcceptancePlan) { p.Validation.Load = 1 },
		"plan.performance.limit": func(p *machine.AcceptancePlan) { p.Performance.Limit = machine.Span(31 * time.Hour) },
		"plan.stress.load":       func(p *machine.AcceptancePlan) { p.Stress.Load = machine.Span(25 * time.Hour) },
		"plan.silence":           func(p *machine.AcceptancePlan) { p.Silence = 1 },
		"plan.stress.limit":      func(p *machine.AcceptancePlan) { p.Stress.Limit = machine.Span(time.Minute) },
	} {
		p := machine.HourlyPlan(4)
		spoil(&p)
		var me *machine.Error
		if err := p.Check(); !errors.As(err, &me) || me.Code != machine.Invalid || me.Field != field || me.Hint == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestNothingToStockUnproven: no way leads to available but through a wipe, an acceptance or a reservation that touched nothing.
func TestNothingToStockUnproven(t *testing.T) {
	proven := []machine.Event{machine.Reclaimed, machine.Admit, machine.Unreserve}
	for _, s := range machine.States() {
		for _, e := range machine.Events() {
			if n, err := machine.Next(s, e); err == nil && n == machine.Available && !slices.Contains(proven, e) {
				t.Errorf("%s becomes available by %s", s, e)
			}
		}
	}
}

// TestPlans: every step has a deadline and an actor, names no step twice, and no plan writes before it has looked.
func TestPlans(t *testing.T) {
	for _, kind := range machine.JobKinds() {
		seen := map[machine.StepName]bool{}
		for _, s := range machine.Plan(kind) {
			if s.Deadline <= 0 || s.Actor == "" || seen[s.Name] || s.Actor == machine.Controller && s.Tries < 1 {
				t.Errorf("%s: step %+v", kind, s)
			}
			if s.Destructive && (!seen[machine.StepInventory] || !seen[machine.StepIsolate]) {
				t.Errorf("%s: %s writes before the machine was isolated and looked at", kind, s.Name)
			}
			seen[s.Name] = true
		}
	}
}

func TestStatesDocument(t *testing.T) {
	const file = "../docs/states.md"
	if *update {
		if err := os.WriteFile(file, []byte(machine.Diagrams()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != machine.Diagrams() {
		t.Error("docs/states.md is not what the transition functions say; run go test ./machine -update")
	}
}

func TestCheckRecord(t *testing.T) {
	good := func() machine.Machine {
		return machine.Machine{Name: "n1", Firmware: machine.BIOS, BMC: machine.BMC{Protocol: "ipmi", Address: "10.0.0.1:623"},
			BootAddr: netip.MustParseAddr("10.0.0.9"), Hardware: machine.Hardware{
				NICs:  []machine.NIC{{MAC: "52:54:00:00:00:01", Role: machine.ProvisionNIC}, {MAC: "52:54:00:00:00:02", Role: machine.PublicNIC}},
				Disks: []machine.Disk{{Serial: "a", Size: 1, Role: machine.SystemDisk}}}}
	}
	if err := machine.CheckRecord(good()); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*machine.Machine){
		"name":                   func(m *machine.Machine) { m.Name = "../x" },
		"firmware":               func(m *machine.Machine) { m.Firmware = "" },
		"bmc.protocol":           func(m *machine.Machine) { m.BMC.Protocol = "telnet" },
		"bmc.address":            func(m *machine.Machine) { m.BMC.Address = "" },
		"bmc.ipmi":               func(m *machine.Machine) { m.BMC.IPMI = "10.0.0.1" },
		"bmc.cert_pin":           func(m *machine.Machine) { m.BMC.CertPin = "abc" },
		"boot":                   func(m *machine.Machine) { m.Boot = machine.BootMedia },
		"boot_addr":              func(m *machine.Machine) { m.BootAddr = netip.MustParseAddr("::1") },
		"hardware.nics[0].mac":   func(m *machine.Machine) { m.Hardware.NICs[0].MAC = "00:00:00:00:00:00" },
		"hardware.nics[1].mac":   func(m *machine.Machine) { m.Hardware.NICs[1].MAC = m.Hardware.NICs[0].MAC },
		"hardware.nics":          func(m *machine.Machine) { m.Hardware.NICs = m.Hardware.NICs[:1] },
		"hardware.disks":         func(m *machine.Machine) { m.Hardware.Disks[0].Role = machine.DataDisk },
		"hardware.disks[0]":      func(m *machine.Machine) { m.Hardware.Disks[0].Serial = "" },
		"hardware.disks[0].role": func(m *machine.Machine) { m.Hardware.Disks[0].Role = "swap" },
	} {
		m := good()
		spoil(&m)
		var me *machine.Error
		if err := machine.CheckRecord(m); !errors.As(err, &me) || me.Field != field || me.Hint == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestK05AddressHoldsNoCredentials: an address is shown and logged, so it may not be a place for a password.
func TestK05AddressHoldsNoCredentials(t *testing.T) {
	for _, b := range []machine.BMC{
		{Protocol: "redfish", Address: "https://root:calvin@10.0.0.1"}, {Protocol: "ipmi", Address: "root:calvin@10.0.0.1:623"},
		{Protocol: "redfish", Address: "https://10.0.0.1", IPMI: "root:calvin@10.0.0.1"}, {Protocol: "redfish", Address: "10.0.0.1"},
	} {
		m := machine.Machine{Name: "n1", Firmware: machine.BIOS, BMC: b}
		if err := machine.CheckRecord(m); err == nil || !strings.Contains(err.Error(), "address of") || strings.Contains(err.Error(), "calvin") {
			t.Errorf("%s: %v", b.Protocol, err)
		}
	}
}
