package provisioner_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// yardBMC is what the BMCs of a yard tell.
type yardBMC struct {
	mu     sync.Mutex
	log    map[string][]ipmi.Event // by BMC address
	bios   map[string]string
	broken map[string]error
	mute   map[string]bool // does not answer at all
	at     time.Time       // that their clocks tell; zero: they are not set
}

func (b *yardBMC) Health(ctx context.Context, t ipmi.Target) (ipmi.Health, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mute[t.Address] {
		<-ctx.Done()
		return ipmi.Health{}, ipmi.ErrUnreachable
	}
	return ipmi.Health{Readings: []ipmi.Reading{{Name: "PSU1", Kind: ipmi.PowerSupply, State: ipmi.OK}, {Name: "FAN1", Kind: ipmi.Fan, Value: 9000, Known: true, Unit: "RPM", State: ipmi.OK}}}, b.broken[t.Address]
}

func (b *yardBMC) Inventory(_ context.Context, t ipmi.Target) (ipmi.Inventory, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return ipmi.Inventory{BIOSVersion: b.bios[t.Address], BMCVersion: "1.2"}, b.broken[t.Address]
}

// Events takes as its cursor how many entries were read.
func (b *yardBMC) Events(_ context.Context, t ipmi.Target, cursor string) (ipmi.EventPage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	if cursor != "" {
		if _, err := fmt.Sscan(cursor, &n); err != nil {
			return ipmi.EventPage{}, err
		}
	}
	return ipmi.EventPage{Events: b.log[t.Address][n:], Cursor: fmt.Sprint(len(b.log[t.Address]))}, b.broken[t.Address]
}

func (b *yardBMC) add(m machine.Machine, severity ipmi.Severity, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log[m.BMC.Address] = append(b.log[m.BMC.Address], ipmi.Event{At: b.at, Severity: severity, Sensor: "P1_DIMM_A1", Message: text})
}

// newAcceptance is a yard with machines of one rack, an image that brings the driver, and BMCs.
func newAcceptance(t *testing.T, machines int) (*yard, *yardBMC, []machine.Machine) {
	y := newYard(t)
	b := &yardBMC{log: map[string][]ipmi.Event{}, bios: map[string]string{}, broken: map[string]error{}, mute: map[string]bool{}}
	y.Facts, y.Acceptances = b, y.db
	_, key, err := ed25519.GenerateKey(nil)
	y.must(err)
	y.ReportKey = key
	y.must(y.db.PutImage(t.Context(), machine.Image{Name: "acceptance", Digest: strings.Repeat("cd", 32), Size: 800 << 20, DefaultUser: "root", BIOS: true, UEFI: true, Driver: true}))
	var list []machine.Machine
	for i := range machines {
		m := y.addMachine(i + 1)
		b.add(m, ipmi.Critical, "an old fault, from the factory")
		b.bios[m.BMC.Address] = "2.1"
		list = append(list, m)
	}
	return y, b, list
}

func (y *yard) begin(change func(*provisioner.RunRequest), names ...string) machine.AcceptanceRun {
	y.t.Helper()
	r := provisioner.RunRequest{Machines: names, AcceptanceTerms: machine.AcceptanceTerms{Image: "acceptance", Plan: machine.HourlyPlan(1)}}
	if change != nil {
		change(&r)
	}
	run, _, err := y.BeginRun(y.t.Context(), r)
	y.must(err)
	return run
}

func (y *yard) run(id string) machine.AcceptanceRun {
	y.t.Helper()
	run, err := y.db.Run(y.t.Context(), id)
	y.must(err)
	return run
}

func (y *yard) tend() {
	y.t.Helper()
	y.must(y.TendRuns(y.t.Context()))
}

// toTrial takes a machine that a run has started to where its validator is told to try it.
func (y *yard) toTrial(machineID string) *ram {
	y.t.Helper()
	r, seed := y.firstBoot(machineID)
	if strings.Contains(seed["network-config"], "public") || strings.Contains(seed["user-data"], "ssh-") {
		y.t.Errorf("the acceptance image is reached from outside:\n%s%s", seed["network-config"], seed["user-data"])
	}
	if r.last.Step != machine.StepAccept || r.last.Acceptance == nil || r.last.Expect == nil {
		y.t.Fatalf("the validator is told %+v, want to try its machine", r.last)
	}
	return r
}

// trialReport is what a validator sends of a machine whose two cards reach a rate.
func trialReport(m machine.Machine, tflops float64, bad ...accelerator.Check) accelerator.Report {
	r := accelerator.Report{Schema: accelerator.Schema, Taken: time.Now(), Plan: accelerator.PlanAcceptance, Stages: accelerator.Stages(), Seconds: 3600,
		Checks: append([]accelerator.Check{{ID: "load.burn", Outcome: accelerator.Pass, Required: true, Action: accelerator.ActNone}}, bad...), Drivers: []accelerator.DriverNote{}}
	for _, id := range []string{"host.power", "host.fans", "host.sel"} {
		r.Checks = append(r.Checks, accelerator.Check{ID: id, Outcome: accelerator.Skip, Required: true, Action: accelerator.ActNone, Summary: "the BMC was not asked"})
	}
	r.Outcome = accelerator.Pass
	for _, a := range m.Hardware.Accelerators {
		k := accelerator.CardResult{Slot: a.Slot, Outcome: accelerator.Pass, PCI: &accelerator.PCICard{Slot: a.Slot, Vendor: a.Vendor, Device: a.Device},
			Card: &accelerator.Card{Slot: a.Slot, Serial: accelerator.Measured("S-"+m.Name+a.Slot, "", "nvml"), VBIOS: accelerator.Measured("98.02", "", "nvml")}}
		for _, c := range bad {
			k.Outcome, k.Problems = accelerator.Worse(k.Outcome, c.Outcome), append(k.Problems, c.ID+": "+c.Summary)
		}
		r.Cards = append(r.Cards, k)
		r.Loads = append(r.Loads, accelerator.Load{Test: accelerator.TestBurn, Tool: "bareyard-burn", Version: "1", Slot: a.Slot, Rate: accelerator.Measured(tflops, "TFLOPS", "cuda")})
	}
	return r
}

// finish sends the report and lets the server judge it.
func (r *ram) finish(rep accelerator.Report) {
	r.y.t.Helper()
	in, err := r.report(machine.Report{Step: machine.StepAccept, Phase: machine.Done, Result: encode(rep)})
	r.y.must(err)
	if in.Do != machine.DoFinish {
		r.y.t.Errorf("after the report the validator is told %+v", in)
	}
	r.y.turn(r.m.ID)
}

func trialOf(run machine.AcceptanceRun, m machine.Machine) machine.Trial {
	return run.Trials[slices.IndexFunc(run.Trials, func(t machine.Trial) bool { return t.MachineID == m.ID })]
}

func TestAcceptanceRun(t *testing.T) {
	y, b, ms := newAcceptance(t, 5)
	b.bios[ms[4].BMC.Address] = "2.0" // differs from the others of its rack
	run := y.begin(func(r *provisioner.RunRequest) { r.Accept = true }, "n1", "n2", "n3", "n4", "n5")
	for _, m := range ms {
		if got := y.machine(m.ID); got.State != machine.Accepting {
			t.Fatalf("machine %s is %s once a run holds it", m.Name, got.State)
		}
	}
	if _, err := y.Place(t.Context(), y.request(), ""); machine.CodeOf(err) != machine.Exhausted {
		t.Fatalf("an order while all machines are held: %v", err)
	}
	y.tend()
	rams := map[string]*ram{}
	for _, m := range ms {
		rams[m.Name] = y.toTrial(m.ID)
	}

	// Progress is seen while it is on its way.
	_, err := rams["n3"].report(machine.Report{Step: machine.StepAccept, Phase: machine.Working, Progress: machine.Progress{
		Burn: machine.Burn{Stage: "stress", Done: 600, Total: 3600, Hottest: 84, Worst: strings.Repeat("\x1b[2J", 3) + "load.thermal"}}})
	y.must(err)
	if now := trialOf(y.run(run.ID), ms[2]).Now; now == nil || now.Step != machine.StepAccept || now.Progress.Burn.Hottest != 84 || strings.Contains(now.Progress.Burn.Worst, "\x1b") {
		t.Errorf("progress is kept as %+v", now)
	}

	rams["n1"].finish(trialReport(ms[0], 150))
	rams["n2"].finish(trialReport(ms[1], 150, accelerator.Check{ID: "load.memory", Outcome: accelerator.Fail, Required: true, Summary: "12 wrong words", Action: accelerator.ActReplace}))
	rams["n5"].finish(trialReport(ms[4], 151))
	b.add(ms[3], ipmi.Critical, "uncorrectable memory error")
	rams["n4"].finish(trialReport(ms[3], 152))
	// n3 falls silent, and its BMC has seen why.
	b.add(ms[2], ipmi.Critical, "power supply lost input")
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE job SET due = now() - interval '1 s', seen_at = now() - interval '3 min' WHERE machine_id = $1 AND state = 'running'`, ms[2].ID)
	y.must(err)
	y.must(y.Expire(t.Context(), ms[2].ID))
	y.turn(ms[2].ID)

	y.tend()
	got := y.run(run.ID)
	if got.State != machine.RunFinished || got.Finished.IsZero() {
		t.Fatalf("run is %s", got.State)
	}
	for i, want := range []struct {
		state machine.TrialState
		says  string // in its reason or its findings
		is    machine.State
	}{
		{machine.TrialPassed, "", machine.Reclaiming},
		{machine.TrialFailed, "12 wrong words", machine.Quarantined},
		{machine.TrialFailed, "stage stress, after 10m0s of 1h0m0s, hottest card 84 °C); the BMC saw P1_DIMM_A1: power supply lost input", machine.Quarantined},
		{machine.TrialFailed, "uncorrectable memory error", machine.Quarantined},
		{machine.TrialPassed, "BIOS is 2.0, others in rack lab/ have another version", machine.Reclaiming},
	} {
		tr, m := trialOf(got, ms[i]), y.machine(ms[i].ID)
		if text := tr.Reason + fmt.Sprint(tr.Findings) + m.Reason; tr.State != want.state || m.State != want.is || !strings.Contains(text, want.says) {
			t.Errorf("%s is %s and %s, want %s and %s with %q; it says\n%s", m.Name, tr.State, m.State, want.state, want.is, want.says, text)
		}
		if strings.Contains(fmt.Sprint(tr), "from the factory") {
			t.Errorf("%s is blamed for what its BMC had logged before: %+v", tr.Name, tr)
		}
	}
	if f := trialOf(got, ms[1]).Findings; len(f) == 0 || f[0].Action != "replace" || f[0].Part != ms[1].Hardware.Accelerators[0].Slot || f[0].Serial == "" {
		t.Errorf("findings of n2 are %+v", f)
	}

	// Each machine's report is with the others: signed, under its run, with the rates and cards of the machine; so is that of the one that sent none.
	for i, want := range []string{"", "load.memory: 12 wrong words", "plan.answer: the machine sent no report", "host.sel: ", ""} {
		k := y.newest(provisioner.ReportFilter{MachineID: ms[i].ID, RunID: run.ID, Plan: accelerator.PlanAcceptance})
		r, err := document.Verify(k.Body, y.ReportKey.Public().(ed25519.PublicKey))
		if err != nil || k.Blocks != (want != "") || !strings.HasPrefix(k.Reason, want) || r.Subject.Name != ms[i].Name || r.BMC == nil || len(r.BMC.Firmware) == 0 {
			t.Errorf("kept of %s: %v, %q, want %q; subject %+v", ms[i].Name, err, k.Reason, want, r.Subject)
		}
	}
	card, err := y.db.Card(t.Context(), "S-n1"+ms[0].Hardware.Accelerators[0].Slot)
	if err != nil || card.Now == nil || card.Now.Machine != "n1" || len(card.Seen) != 1 {
		t.Errorf("a card of n1 is on record as %+v, %v", card, err)
	}

	// What is signed names every machine and every card, and no bit of it can be changed.
	signed, err := y.db.SignedReport(t.Context(), run.ID)
	y.must(err)
	doc, err := document.VerifyRun(signed, y.ReportKey.Public().(ed25519.PublicKey))
	if err != nil || doc.Passed != 2 || doc.Failed != 3 || len(doc.Machines) != 5 || len(doc.Machines[0].Cards) != 2 || len(doc.Firmware) != 2 {
		t.Errorf("signed report: %v, %d passed, %d failed, firmware %+v", err, doc.Passed, doc.Failed, doc.Firmware)
	}
	if _, err := document.VerifyRun([]byte(strings.Replace(string(signed), `"failed":3`, `"failed":0`, 1)), y.ReportKey.Public().(ed25519.PublicKey)); err == nil {
		t.Error("a report that was changed verifies")
	}
	// What has passed is wiped, and then in stock.
	y.turn(ms[0].ID)
	y.bootAgent(ms[0].ID).until()
	y.turn(ms[0].ID)
	if m := y.machine(ms[0].ID); m.State != machine.Available || m.Reason != "" {
		t.Errorf("n1 is %s (%s) after its wipe", m.State, m.Reason)
	}
}

// TestAcceptanceByTheServersClock: what a BMC logs during a trial counts, and what it had logged before does not, whatever the clocks of the machine and
// of its BMC say.
func TestAcceptanceByTheServersClock(t *testing.T) {
	y, b, ms := newAcceptance(t, 4)
	run := y.begin(nil, "n1", "n2", "n3", "n4")
	y.tend()
	for i, c := range []struct {
		machine, bmc time.Duration
		blamed       bool
	}{{-8 * time.Hour, 8 * time.Hour, true}, {8 * time.Hour, -8 * time.Hour, true}, {8 * time.Hour, 8 * time.Hour, true}, {-8 * time.Hour, 0, false}} {
		ram := y.toTrial(ms[i].ID)
		if b.at = time.Now().Add(c.bmc); c.blamed {
			b.add(ms[i], ipmi.Critical, "uncorrectable memory error")
		}
		ram.finish(at(c.machine, 3600, trialReport(ms[i], 150)))
		want := machine.TrialPassed
		if c.blamed {
			want = machine.TrialFailed
		}
		if tr := trialOf(y.run(run.ID), ms[i]); tr.State != want {
			t.Errorf("machine's clock off by %s, its BMC's by %s: %s: %s %+v", c.machine, c.bmc, tr.State, tr.Reason, tr.Findings)
		}
	}
}

// TestAcceptanceOfStragglers: a machine that is slow as a whole passes alone and fails beside its peers, before it is admitted.
func TestAcceptanceOfStragglers(t *testing.T) {
	y, _, ms := newAcceptance(t, 4)
	run := y.begin(func(r *provisioner.RunRequest) { r.Accept = true }, "n1", "n2", "n3", "n4")
	y.tend()
	for i, rate := range []float64{150, 151, 140, 149} {
		y.toTrial(ms[i].ID).finish(trialReport(ms[i], rate))
	}
	if s := trialOf(y.run(run.ID), ms[2]).State; s != machine.TrialPassed || y.machine(ms[2].ID).State != machine.Accepting {
		t.Fatalf("n3 is %s before its peers are done", s)
	}
	y.tend()
	got := y.run(run.ID)
	slow := trialOf(got, ms[2])
	if slow.State != machine.TrialFailed || y.machine(ms[2].ID).State != machine.Quarantined || !strings.Contains(slow.Reason, "94 % of the median of 4 machines") {
		t.Errorf("n3 is %s: %s", slow.State, slow.Reason)
	}
	if y.machine(ms[0].ID).State != machine.Reclaiming {
		t.Errorf("n1 is %s", y.machine(ms[0].ID).State)
	}
}

// TestAcceptanceRefuses: what is rented or at work is not touched, and the answer names it.
func TestAcceptanceRefuses(t *testing.T) {
	y, _, ms := newAcceptance(t, 3)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	rented := y.machine(o.MachineID)
	ask := func(change func(*provisioner.RunRequest)) (machine.AcceptanceRun, []provisioner.Left, error) {
		r := provisioner.RunRequest{Site: "lab", AcceptanceTerms: machine.AcceptanceTerms{Image: "acceptance", Plan: machine.HourlyPlan(1)}}
		change(&r)
		return y.BeginRun(t.Context(), r)
	}
	for name, c := range map[string]struct {
		change func(*provisioner.RunRequest)
		code   machine.Code
		says   string
	}{
		"a site with a rented machine": {func(*provisioner.RunRequest) {}, machine.Conflict, "1 of 3 machines cannot be tried: " + rented.Name + " is reserved and rented (order " + o.ID + ")"},
		"a rented machine":             {func(r *provisioner.RunRequest) { r.Site, r.Machines = "", []string{rented.Name} }, machine.Conflict, rented.Name + " is reserved"},
		"an unknown machine":           {func(r *provisioner.RunRequest) { r.Site, r.Machines = "", []string{"x"} }, machine.NotFound, `no machine "x"`},
		"an unknown rack":              {func(r *provisioner.RunRequest) { r.Site, r.Racks = "", []string{"r9"} }, machine.NotFound, `rack "r9"`},
		"nothing":                      {func(r *provisioner.RunRequest) { r.Site = "" }, machine.Invalid, "name either"},
		"both":                         {func(r *provisioner.RunRequest) { r.Machines = []string{"n1"} }, machine.Invalid, "name either"},
		"no image":                     {func(r *provisioner.RunRequest) { r.Image = "" }, machine.Invalid, "no acceptance image"},
		"an image without drivers":     {func(r *provisioner.RunRequest) { r.Image = "debian-12" }, machine.Conflict, "brings no driver"},
		"a plan out of bounds":         {func(r *provisioner.RunRequest) { r.Plan.Stress.Load = machine.Span(48 * time.Hour) }, machine.Invalid, "stage stress"},
		"more power than there is":     {func(r *provisioner.RunRequest) { r.RackWatts = 1000 }, machine.Conflict, "draws up to 2.6 kW, and rack  bears 1.0 kW"},
	} {
		if _, _, err := ask(c.change); machine.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, m := range ms {
		if got := y.machine(m.ID); got.State == machine.Accepting {
			t.Errorf("%s is held by a run that was refused", m.Name)
		}
	}
	run, left, err := ask(func(r *provisioner.RunRequest) { r.SkipBusy = true })
	if err != nil || len(run.Trials) != 2 || len(left) != 1 || left[0].Name != rented.Name {
		t.Errorf("without the rented one: %d machines, left out %+v, %v", len(run.Trials), left, err)
	}
	if _, _, err := ask(func(r *provisioner.RunRequest) { r.Site, r.Machines = "", []string{run.Trials[0].Name} }); err == nil || !strings.Contains(err.Error(), "is in another acceptance run") {
		t.Errorf("a machine in two runs: %v", err)
	}
	if err := y.Move(t.Context(), run.Trials[0].MachineID, machine.Admit, "let me"); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("a machine of a run is admitted past it: %v", err)
	}
}

// TestAcceptanceCancelAndRetry: what was not touched is as it was; what was touched is wiped, or held; and a machine can be tried again.
func TestAcceptanceCancelAndRetry(t *testing.T) {
	y, b, ms := newAcceptance(t, 4)
	y.must(y.Move(t.Context(), ms[1].ID, machine.Quarantine, "smells of smoke"))
	run := y.begin(func(r *provisioner.RunRequest) { r.Parallel = 1 }, "n1", "n2", "n3", "n4")
	y.tend()
	y.tend() // says what the others wait for
	if tr := trialOf(y.run(run.ID), ms[1]); tr.State != machine.TrialWaiting || !strings.Contains(tr.Reason, "1 at a time") {
		t.Errorf("n2 is %s: %s", tr.State, tr.Reason)
	}
	r := y.toTrial(ms[0].ID)
	y.must(y.Move(t.Context(), ms[3].ID, machine.Park, "a fan is loud")) // behind the run's back
	y.must(y.CancelRun(t.Context(), run.ID, "", "the power is off tonight"))
	for i, want := range []machine.State{machine.Reclaiming, machine.Quarantined, machine.Available, machine.Maintenance} {
		if m := y.machine(ms[i].ID); m.State != want {
			t.Errorf("%s is %s (%s), want %s", m.Name, m.State, m.Reason, want)
		}
	}
	if m := y.machine(ms[1].ID); m.Reason != "smells of smoke" {
		t.Errorf("n2 is quarantined because %q", m.Reason)
	}
	if in, err := r.report(machine.Report{Step: machine.StepAccept, Phase: machine.Working}); err == nil || in.Do != machine.DoPowerOff {
		t.Errorf("a validator whose run was called off is told %+v, %v", in, err)
	}
	y.tend()
	if s := y.run(run.ID).State; s != machine.RunCancelled {
		t.Errorf("run is %s", s)
	}

	// n3 is tried again, and cannot be booted: nobody knows.
	y.must(y.RetryTrial(t.Context(), run.ID, "n3"))
	if err := y.RetryTrial(t.Context(), run.ID, "n3"); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("a second retry: %v", err)
	}
	b.mu.Lock()
	b.broken[ms[2].BMC.Address] = ipmi.ErrCredentials
	b.mu.Unlock()
	y.tend()
	y.turn(ms[2].ID)
	if tr, m := trialOf(y.run(run.ID), ms[2]), y.machine(ms[2].ID); tr.State != machine.TrialIncomplete || tr.Try != 2 || m.State != machine.Quarantined {
		t.Errorf("n3 is %s at try %d and %s: %s", tr.State, tr.Try, m.State, tr.Reason)
	}
	// And once more, and passes; nobody asked to admit it by itself.
	b.mu.Lock()
	b.broken[ms[2].BMC.Address] = nil
	b.mu.Unlock()
	y.must(y.RetryTrial(t.Context(), run.ID, "n3"))
	y.tend()
	y.toTrial(ms[2].ID).finish(trialReport(ms[2], 150))
	y.tend()
	if got := y.run(run.ID); got.State != machine.RunFinished || trialOf(got, ms[2]).State != machine.TrialPassed || y.machine(ms[2].ID).State != machine.Accepting {
		t.Errorf("run is %s, n3 %s and %s", got.State, trialOf(got, ms[2]).State, y.machine(ms[2].ID).State)
	}
	if _, err := y.AdmitRun(t.Context(), run.ID, "n2"); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("a machine that was not tried is admitted: %v", err)
	}
	names, err := y.AdmitRun(t.Context(), run.ID, "")
	if err != nil || !slices.Equal(names, []string{"n3"}) || y.machine(ms[2].ID).State != machine.Reclaiming {
		t.Errorf("admitted %v, %v", names, err)
	}
}

// TestNextTrials: a breaker is not tripped, whoever draws the power.
func TestNextTrials(t *testing.T) {
	now := time.Now()
	trial := func(name, rack string, state machine.TrialState, ago time.Duration) machine.Trial {
		tr := machine.Trial{MachineID: name, Site: "s", Rack: rack, State: state, Watts: 6000}
		if state != machine.TrialWaiting {
			tr.Started = now.Add(-ago)
		}
		return tr
	}
	for name, c := range map[string]struct {
		run    machine.AcceptanceRun
		load   map[string]int
		budget int
		start  []string
		waits  string // for what the first that waits does
	}{
		"no bound": {machine.AcceptanceRun{Trials: []machine.Trial{trial("a", "1", machine.TrialWaiting, 0), trial("b", "1", machine.TrialWaiting, 0)}}, map[string]int{}, 0, []string{"a", "b"}, ""},
		"the rack bears two": {machine.AcceptanceRun{Trials: []machine.Trial{trial("a", "1", machine.TrialWaiting, 0), trial("b", "1", machine.TrialWaiting, 0), trial("c", "1", machine.TrialWaiting, 0), trial("d", "2", machine.TrialWaiting, 0)}},
			map[string]int{}, 13000, []string{"a", "b", "d"}, "rack 1 bears 13.0 kW, up to 12.0 kW are drawn"},
		"tenants draw too": {machine.AcceptanceRun{Trials: []machine.Trial{trial("a", "1", machine.TrialWaiting, 0)}}, map[string]int{"s/1": 8000}, 13000, nil, "up to 8.0 kW are drawn"},
		"two at a time": {machine.AcceptanceRun{AcceptanceTerms: machine.AcceptanceTerms{Parallel: 2}, Trials: []machine.Trial{trial("a", "1", machine.TrialRunning, time.Hour), trial("b", "1", machine.TrialWaiting, 0), trial("c", "1", machine.TrialWaiting, 0)}},
			map[string]int{}, 0, []string{"b"}, "2 at a time"},
		"one start a minute in a rack": {machine.AcceptanceRun{AcceptanceTerms: machine.AcceptanceTerms{Stagger: machine.Span(time.Minute)}, Trials: []machine.Trial{trial("a", "1", machine.TrialRunning, 20*time.Second), trial("b", "1", machine.TrialWaiting, 0), trial("c", "2", machine.TrialWaiting, 0), trial("d", "2", machine.TrialWaiting, 0)}},
			map[string]int{}, 0, []string{"c"}, "one start in 1m0s in rack 1"},
		"one that failed at once still counts": {machine.AcceptanceRun{AcceptanceTerms: machine.AcceptanceTerms{Stagger: machine.Span(time.Minute)}, Trials: []machine.Trial{trial("a", "1", machine.TrialFailed, 20*time.Second), trial("b", "1", machine.TrialWaiting, 0)}},
			map[string]int{}, 0, nil, "one start in 1m0s"},
	} {
		start, why := provisioner.NextTrials(c.run, c.load, func(machine.Trial) int { return c.budget }, now)
		waits := ""
		for _, tr := range c.run.Trials {
			if why[tr.MachineID] != "" {
				waits = why[tr.MachineID]
				break
			}
		}
		if !slices.Equal(start, c.start) || !strings.Contains(waits, c.waits) || c.waits == "" && waits != "" {
			t.Errorf("%s: starts %v, waits %q; want %v, %q", name, start, waits, c.start, c.waits)
		}
	}
}

// TestAcceptanceReportKeepsItsForm: what is signed today can be read tomorrow.
func TestAcceptanceReportKeepsItsForm(t *testing.T) {
	raw, err := json.Marshal(document.NewRun(machine.AcceptanceRun{ID: "ar-1", State: machine.RunUnderWay}, nil))
	if err != nil || !strings.HasPrefix(string(raw), `{"schema":"bareyard.acceptance/1","id":"ar-1","state":"running"`) {
		t.Errorf("%s, %v", raw, err)
	}
}
