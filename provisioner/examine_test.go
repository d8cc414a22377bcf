package provisioner_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// examined boots the RAM disk of a machine whose job wants to look at it, lets it tell what change makes of the truth, and the server judge.
func (y *yard) examined(machineID string, change func(*accelerator.Facts)) *ram {
	y.t.Helper()
	y.turn(machineID)
	r := y.bootAgent(machineID)
	if r.last.Step != machine.StepExamine {
		y.t.Fatalf("the agent is told %+v, want to examine", r.last)
	}
	f := seenFrom(r.m.Hardware)
	if change != nil {
		change(&f)
	}
	_, err := r.report(machine.Report{Step: machine.StepExamine, Phase: machine.Done, Result: encode(f)})
	y.must(err)
	r.goOn()
	return r
}

func badDisk(f *accelerator.Facts) {
	f.Host.Disks[0].SMART = &accelerator.SMART{Source: "nvme", Passed: accelerator.Measured(false, "", "nvme"), Warning: accelerator.Measured(int64(4), "", "nvme")}
}

// TestStockIsExamined: a healthy machine is back in stock, powered off; one with a failing disk leaves the stock with the reason; one in quarantine that
// passes stays until an operator returns it.
func TestStockIsExamined(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Examine(t.Context(), m.ID)
	y.must(err)
	if _, err := y.Examine(t.Context(), m.ID); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("twice at once: %v", err)
	}
	y.examined(m.ID, nil)
	k := y.newest(provisioner.ReportFilter{MachineID: m.ID})
	if got := y.machine(m.ID); got.State != machine.Available || got.PortOpen || y.ports["p1"] || k.Plan != accelerator.PlanHealth || k.Outcome != accelerator.Pass {
		t.Errorf("healthy machine is %+v; report %s: %+v", got, k.Outcome, k.Report.Checks)
	}

	_, err = y.Examine(t.Context(), m.ID)
	y.must(err)
	y.examined(m.ID, badDisk)
	if got := y.machine(m.ID); got.State != machine.Quarantined || !strings.Contains(got.Reason, "host.smart") {
		t.Errorf("machine with a failing disk is %s: %s", got.State, got.Reason)
	}

	_, err = y.Examine(t.Context(), m.ID)
	y.must(err)
	y.examined(m.ID, nil)
	if got := y.machine(m.ID); got.State != machine.Quarantined || !strings.Contains(got.Reason, "passed plan health") {
		t.Errorf("machine that passed again is %s: %s", got.State, got.Reason)
	}
	y.must(y.Return(t.Context(), m.ID))
	y.examined(m.ID, nil).until()
	y.turn(m.ID)
	if got := y.machine(m.ID); got.State != machine.Available || got.Reason != "" {
		t.Errorf("returned machine is %s: %s", got.State, got.Reason)
	}
}

// TestOrderInterruptsExamination: a machine that is only being looked at is not sold out; an order takes it, and what the examination had begun is over.
func TestOrderInterruptsExamination(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	y.Validation.HealthEvery = time.Hour
	y.must(y.ExamineStock(t.Context()))
	if got := y.machine(m.ID).State; got != machine.Available {
		t.Fatalf("fresh machine is %s", got)
	}
	_, err := y.db.Conn.Exec(t.Context(), `UPDATE machine SET updated = now() - interval '2 hours'`)
	y.must(err)
	y.must(y.ExamineStock(t.Context()))
	y.must(y.ExamineStock(t.Context()))
	y.turn(m.ID)
	r := y.bootAgent(m.ID)
	classes, err := y.db.Classes(t.Context())
	y.must(err)
	if classes[0].Available != 1 {
		t.Errorf("%d available while it is examined", classes[0].Available)
	}
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	if in, err := r.report(machine.Report{Step: machine.StepExamine, Phase: machine.Done, Result: encode(seenFrom(m.Hardware))}); err == nil || in.Do != machine.DoPowerOff {
		t.Errorf("the examination goes on: %+v, %v", in, err)
	}
	y.install(m.ID)
	if got := y.order(o.ID); got.State != machine.OrderActive || got.MachineID != m.ID {
		t.Errorf("order is %s: %s", got.State, got.Reason)
	}

	// Called off before anything was done, the machine must not stay open in its RAM disk.
	n := y.addMachine(2)
	_, err = y.Examine(t.Context(), n.ID)
	y.must(err)
	y.turn(n.ID)
	y.bootAgent(n.ID)
	o, err = y.Place(t.Context(), y.request(), "")
	y.must(err)
	_, err = y.Cancel(t.Context(), o.ID)
	y.must(err)
	if got := y.power[n.BMC.Address]; got != ipmi.On {
		t.Errorf("the machine in its RAM disk is %s", got)
	}
	y.must(y.act(provisioner.ActFence))
	if got := y.power[n.BMC.Address]; got != ipmi.Off {
		t.Errorf("the machine is %s, back in stock", got)
	}
	if got := y.machine(n.ID); got.State != machine.Available || got.PortOpen || y.ports["p2"] {
		t.Errorf("machine is %s, its port open: %v, %v", got.State, got.PortOpen, y.ports["p2"])
	}
}

// TestNoFalseSoldOutAtTheEndOfAnExamination: a machine that comes back to stock while an order looks for one is found.
func TestNoFalseSoldOutAtTheEndOfAnExamination(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Examine(t.Context(), m.ID)
	y.must(err)
	tx, err := y.db.Conn.Begin(t.Context())
	y.must(err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	for _, sql := range []string{`UPDATE job SET state = 'succeeded', finished = now() WHERE machine_id = $1`, `UPDATE machine SET state = 'available', job_id = '' WHERE id = $1`} {
		_, err := tx.Exec(t.Context(), sql, m.ID)
		y.must(err)
	}
	placed := make(chan error, 1)
	go func() {
		_, err := y.Place(t.Context(), y.request(), "")
		placed <- err
	}()
	for end := time.Now().Add(20 * time.Second); y.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0; {
		if time.Now().After(end) {
			t.Fatal("the order does not come to wait for the machine")
		}
	}
	y.must(tx.Commit(t.Context()))
	if err := <-placed; err != nil {
		t.Errorf("the order is told: %v", err)
	}
}

// TestReturnIsCompared: what changed since hand-over is found before the wipe and held against the order that had the machine; the wipe comes about all the
// same, and the machine is kept out of stock. What the RAM disk cannot see is held against nobody.
func TestReturnIsCompared(t *testing.T) {
	for _, plan := range []accelerator.Plan{accelerator.PlanPostboot, accelerator.PlanHealth} {
		t.Run(string(plan), func(t *testing.T) { returnIsCompared(t, plan) })
	}
}

func returnIsCompared(t *testing.T, plan accelerator.Plan) {
	y := newYard(t)
	y.Validation.Plan = plan
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	handover := found("165000001", "165000002")
	handover.Plan = plan
	for i := range handover.Cards {
		handover.Cards[i].PCI.Number = accelerator.Measured([]string{"00000000000000aa", "00000000000000bb"}[i], "", "sysfs")
	}
	handover.Host.NICs = []accelerator.HostNIC{{Name: "ib0", MAC: accelerator.Measured("02:00:5e:99:00:01", "", "sysfs")}} // the RAM disk has no driver for it
	y.validated(m.ID, handover)
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.examined(m.ID, func(f *accelerator.Facts) {
		f.PCI.Cards[0].Number = accelerator.Measured("00000000000000aa", "", "sysfs")
		f.PCI.Cards[1].Number = accelerator.Measured("00000000000000cc", "", "sysfs")
	}).until()
	y.turn(m.ID)
	k := y.newest(provisioner.ReportFilter{MachineID: m.ID})
	if k.Plan != accelerator.PlanReturn || k.OrderID != o.ID || len(k.Report.Changes) != 1 || k.Report.Changes[0].Kind != accelerator.ChangeExchanged || k.Report.Changes[0].Part != "0000:02:00.0" {
		t.Errorf("report of the return: %+v, changes %+v", k.Verdict, k.Report.Changes)
	}
	got := y.machine(m.ID)
	if got.State != machine.Quarantined || got.OrderID != "" || !strings.Contains(got.Reason, "return.compare") || !strings.Contains(got.Reason, k.ID) {
		t.Errorf("machine is %s: %s", got.State, got.Reason)
	}
	events, err := y.db.Events(t.Context(), provisioner.EventFilter{MachineID: m.ID})
	y.must(err)
	if !slices.ContainsFunc(events, func(e provisioner.Event) bool { return e.Kind == "disk.prove" }) {
		t.Error("it was not wiped")
	}
	// Operators read what keeps it out of stock; its customer, who reads the events of his order, that it is.
	ofMachine := func(e provisioner.Event) bool { return e.Kind == "machine.finding" && strings.Contains(e.Text, k.ID) }
	ofOrder := func(e provisioner.Event) bool {
		return e.Kind == "machine.quarantine" && strings.HasSuffix(e.Text, "kept out of stock")
	}
	if !slices.ContainsFunc(events, ofMachine) || !slices.ContainsFunc(events, ofOrder) {
		t.Errorf("events of the machine: %+v", events)
	}
	events, err = y.db.Events(t.Context(), provisioner.EventFilter{OrderID: o.ID})
	y.must(err)
	if slices.ContainsFunc(events, ofMachine) || !slices.ContainsFunc(events, ofOrder) {
		t.Errorf("events of the order: %+v", events)
	}
	if n := y.count(`SELECT count(*) FROM address WHERE order_id IS NOT NULL`); n != 0 {
		t.Errorf("%d addresses still held", n)
	}
}

// TestWaiver: a waiver lets its check of its card pass until it is over, and is told in the report; it holds for nothing else.
func TestWaiver(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	w, err := provisioner.NewWaiver(provisioner.Waiver{MachineID: m.ID, Check: "host.smart", Who: "li", Why: "disk is replaced on Friday", Until: time.Now().Add(time.Hour)}, time.Now())
	y.must(err)
	y.must(y.db.PutWaiver(t.Context(), w))
	_, err = y.Examine(t.Context(), m.ID)
	y.must(err)
	y.examined(m.ID, badDisk)
	k := y.newest(provisioner.ReportFilter{MachineID: m.ID})
	if c := check(t, k.Report, "host.smart"); c.Outcome != accelerator.Fail || !strings.Contains(c.Waived, "by li until") || k.Blocks || k.Outcome != accelerator.Warn {
		t.Errorf("waived: %+v, %+v", c, k.Verdict)
	}
	if got := y.machine(m.ID).State; got != machine.Available {
		t.Errorf("machine is %s", got)
	}
	y.must(y.db.WithdrawWaiver(t.Context(), w.ID, "li"))
	if err := y.db.WithdrawWaiver(t.Context(), w.ID, "li"); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("withdrawn twice: %v", err)
	}
	_, err = y.Examine(t.Context(), m.ID)
	y.must(err)
	y.examined(m.ID, badDisk)
	if got := y.machine(m.ID).State; got != machine.Quarantined {
		t.Errorf("without the waiver the machine is %s", got)
	}
	if n := y.count(`SELECT count(*) FROM event WHERE kind LIKE 'waiver.%'`); n != 2 {
		t.Errorf("%d events tell of the waiver", n)
	}
	for field, bad := range map[string]provisioner.Waiver{
		"check": {Check: "card.count", Who: "li", Why: "long enough", Until: time.Now().Add(time.Hour)},
		"who":   {Check: "card.ecc", Why: "long enough", Until: time.Now().Add(time.Hour)},
		"why":   {Check: "card.ecc", Who: "li", Until: time.Now().Add(time.Hour)},
		"until": {Check: "card.ecc", Who: "li", Why: "long enough", Until: time.Now().Add(-time.Hour)},
	} {
		if _, err := provisioner.NewWaiver(bad, time.Now()); machine.CodeOf(err) != machine.Invalid {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestBrokenProfiles: a mistake in the operator's folder of profiles quarantines nothing. Machines are judged by the last set without one, as their
// validators are, and operators are told; customers are not.
func TestBrokenProfiles(t *testing.T) {
	y := newYard(t)
	m, dir := y.addMachine(1), t.TempDir()
	file := filepath.Join(dir, "ours.yml")
	write := func(text string) { y.must(os.WriteFile(file, []byte(text), 0o644)) }
	const good = "schema: bareyard.profile/1\nprofiles: [{name: ours, revision: 7, match: [{device: \"10de:2b85\"}]}]\n"
	write(good)
	y.Validation.Profiles = dir
	y.must(y.ReadProfiles())
	for name, spoil := range map[string]func(){
		"a slip of the pen": func() { write("schema: bareyard.profile/1\nprofiles: [{nam: ours}]\n") },
		"an empty file":     func() { write("") },
		"no folder":         func() { y.must(os.Rename(dir, dir+"-gone")) },
	} {
		spoil()
		_, err := y.Examine(t.Context(), m.ID)
		y.must(err)
		y.examined(m.ID, nil)
		k := y.newest(provisioner.ReportFilter{MachineID: m.ID})
		if len(k.Report.Profiles) != 1 || k.Report.Profiles[0].Revision != 7 || y.machine(m.ID).State != machine.Available {
			t.Errorf("%s: judged by %+v, the machine is %s: %s", name, k.Report.Profiles, y.machine(m.ID).State, y.machine(m.ID).Reason)
		}
		if n := y.count(`SELECT count(*) FROM event WHERE kind = 'validation.profiles' AND text LIKE '%` + filepath.Base(dir) + `%' AND order_id = ''`); n != 1 {
			t.Errorf("%s: %d events tell of it", name, n)
		}
		if _, err := os.Stat(dir); err != nil {
			y.must(os.Rename(dir+"-gone", dir))
		}
		write(good)
		y.must(y.ReadProfiles())
		_, err = y.db.Conn.Exec(t.Context(), `DELETE FROM event`)
		y.must(err)
	}
	write("nonsense")
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	ram := y.walk(m.ID, machine.StepValidate)
	_, err = ram.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	if ram.last.Validate == nil || ram.last.Validate.Profiles["ours.yml"] != good {
		t.Errorf("the validator is told %+v", ram.last.Validate)
	}
}

// TestRetestAfterPostboot: a machine that failed its validation after an installation can be looked at again, waived by name and for a while, and come
// back to stock through a wipe; the waiver holds for the next customer's validation, and is in his report.
func TestRetestAfterPostboot(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	ecc := accelerator.Check{ID: "card.ecc", Outcome: accelerator.Fail, Required: true, Summary: "uncorrected errors", Evidence: []string{"0000:01:00.0: 3 uncorrected"}}
	bad := found("165000001", "165000002").With(ecc)
	y.validated(m.ID, bad)
	quarantined := func(says ...string) {
		t.Helper()
		got := y.machine(m.ID)
		if got.State != machine.Quarantined || got.OrderID != "" {
			t.Errorf("machine is %s: %s", got.State, got.Reason)
		}
		for _, text := range says {
			if strings.Count(got.Reason, text) != 1 {
				t.Errorf("the reason is %q, want %q once", got.Reason, text)
			}
		}
	}
	quarantined("provision job failed at judge: card.ecc")

	// Again and again: what it is in quarantine for is not forgotten, nor told twice.
	for range 3 {
		_, err = y.Examine(t.Context(), m.ID)
		y.must(err)
		y.examined(m.ID, nil)
		quarantined("it passed plan health", "provision job failed at judge: card.ecc")
	}
	for range 2 {
		_, err = y.Examine(t.Context(), m.ID)
		y.must(err)
		y.examined(m.ID, badDisk)
		quarantined("examine job failed at judge: host.smart", "provision job failed at judge: card.ecc")
	}

	w, err := provisioner.NewWaiver(provisioner.Waiver{MachineID: m.ID, Check: "card.ecc", Card: "165000001", Who: "li", Why: "the maker says that it may be used", Until: time.Now().Add(time.Hour)}, time.Now())
	y.must(err)
	y.must(y.db.PutWaiver(t.Context(), w))
	y.must(y.Return(t.Context(), m.ID))
	y.examined(m.ID, nil).until()
	y.turn(m.ID)
	if got := y.machine(m.ID); got.State != machine.Available || got.Reason != "" {
		t.Fatalf("returned machine is %s: %s", got.State, got.Reason)
	}
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.validated(m.ID, bad)
	k := y.newest(provisioner.ReportFilter{OrderID: o.ID})
	if c := check(t, k.Report, "card.ecc"); y.order(o.ID).State != machine.OrderActive || k.Blocks || !strings.Contains(c.Waived, "by li until") {
		t.Errorf("order is %s, its report %+v", y.order(o.ID).State, c)
	}
	for kind, n := range map[string]int{"waiver.make": 1, "machine.accept": 5, "machine.reclaim": 1} {
		if got := y.count(`SELECT count(*) FROM event WHERE kind = '` + kind + `' AND machine_id = '` + m.ID + `'`); got != n {
			t.Errorf("%d events %s, want %d", got, kind, n)
		}
	}
}
