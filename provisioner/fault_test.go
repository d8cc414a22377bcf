package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// walk carries an order's first job up to the given step, and returns the agent if it is there.
func (y *yard) walk(machineID string, to machine.StepName) *ram {
	y.t.Helper()
	at := func() machine.StepName { return y.job(y.machine(machineID).JobID).Step }
	var r *ram
	var seed map[string]string
	for range 60 {
		if at() == to {
			return r
		}
		step, _, _ := machine.StepOf(machine.ProvisionJob, at())
		switch {
		case step.Actor == machine.Controller:
			j := y.job(y.machine(machineID).JobID)
			y.must(y.Act(y.t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: machineID, JobID: j.ID, Turn: j.Turn}))
		case at() == machine.StepHello:
			r = y.bootAgent(machineID)
		case at() == machine.StepFirstBoot:
			r.becomeOS(seed)
			_, err := r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Done})
			y.must(err)
		case at() == machine.StepValidate:
			_, err := r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
			y.must(err)
			r.do()
		default:
			if r.last.Configure != nil {
				seed = r.last.Configure.Seed
			}
			r.do()
		}
	}
	y.t.Fatalf("the job does not come to %s", to)
	return nil
}

// TestI09CancelAtEveryStep: wherever it is called off, the order has one terminal state, is charged nothing, and the
// machine comes back only through a proven wipe (or untouched).
func TestI09CancelAtEveryStep(t *testing.T) {
	for _, step := range machine.Plan(machine.ProvisionJob) {
		t.Run(string(step.Name), func(t *testing.T) {
			y := newYard(t)
			m := y.addMachine(1)
			o, err := y.Place(t.Context(), y.request(), "")
			y.must(err)
			r := y.walk(m.ID, step.Name)
			for range 2 { // a double cancel changes nothing more
				o, err = y.Cancel(t.Context(), o.ID)
				y.must(err)
			}
			if o.State != machine.OrderCancelled {
				t.Fatalf("order is %s", o.State)
			}
			if r != nil {
				in, err := r.report(machine.Report{Step: step.Name, Phase: machine.Done})
				if !errors.Is(err, provisioner.ErrStale) || in.Do != machine.DoPowerOff {
					t.Errorf("late report gets %+v, %v; want to power off", in, err)
				}
			}
			if step.Name != machine.StepIsolate { // nothing touched before the first action
				if got := y.machine(m.ID).State; got != machine.Reclaiming {
					t.Fatalf("machine is %s", got)
				}
				y.turn(m.ID)
				y.bootAgent(m.ID).until()
				y.turn(m.ID)
			}
			if got := y.machine(m.ID); got.State != machine.Available || got.OrderID != "" {
				t.Errorf("machine is %s, held by %q", got.State, got.OrderID)
			}
			if n := y.count(`SELECT count(*) FROM charge`); n != 0 {
				t.Errorf("%d charges for a cancelled order", n)
			}
			if _, exposed := y.edge[m.ID]; exposed {
				t.Error("the public address is still carried")
			}
		})
	}
}

func (y *yard) count(sql string) int {
	y.t.Helper()
	var n int
	y.must(y.db.Conn.QueryRow(y.t.Context(), sql).Scan(&n))
	return n
}

// TestLateReportOfOlderAttempt: an agent that comes back after its attempt was given up must stop and power off.
func TestLateReportOfOlderAttempt(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	old := y.walk(m.ID, machine.StepWrite)
	y.silence(m.ID)
	y.must(y.Expire(t.Context(), m.ID))
	j := y.job(y.machine(m.ID).JobID)
	if j.Attempt != 2 || j.Step != machine.StepIsolate {
		t.Fatalf("after silence the job is at attempt %d, %s", j.Attempt, j.Step)
	}
	if in, err := old.report(machine.Report{Step: machine.StepWrite, Phase: machine.Done}); !errors.Is(err, provisioner.ErrStale) || in.Do != machine.DoPowerOff {
		t.Errorf("late report gets %+v, %v", in, err)
	}
	y.install(m.ID)
	if y.machine(m.ID).State != machine.Active {
		t.Errorf("machine is %s", y.machine(m.ID).State)
	}
}

// silence puts the due time of a machine's job into the past, as if nobody had been heard of for long.
func (y *yard) silence(machineID string) {
	y.t.Helper()
	_, err := y.db.Conn.Exec(y.t.Context(), `UPDATE job SET due = now() - interval '1 second' WHERE machine_id = $1 AND state = 'running'`, machineID)
	y.must(err)
}

// TestControllerDies: a step that a dead server left is taken up again, and the dead server's own action does nothing.
func TestControllerDies(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.walk(m.ID, machine.StepPowerOff)
	before := y.job(y.machine(m.ID).JobID)
	y.silence(m.ID)
	y.must(y.Expire(t.Context(), m.ID))
	after := y.job(before.ID)
	if after.Attempt != 1 || after.Turn != before.Turn+1 {
		t.Fatalf("job went from turn %d to %d, attempt %d", before.Turn, after.Turn, after.Attempt)
	}
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: m.ID, JobID: before.ID, Turn: before.Turn}))
	if got := y.job(before.ID); got.Step != machine.StepPowerOff {
		t.Errorf("the dead server's action moved the job to %s", got.Step)
	}
}

// TestLostCard: a machine that fails validation is quarantined with the reason, and the order gets another machine.
func TestLostCard(t *testing.T) {
	y := newYard(t)
	bad, good := y.addMachine(1), y.addMachine(2)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	r := y.walk(bad.ID, machine.StepValidate)
	_, err = r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	_, err = r.report(machine.Report{Step: machine.StepValidate, Phase: machine.Done, Result: encode(accelerator.Report{Schema: accelerator.Schema,
		Outcome: accelerator.Fail, Checks: []accelerator.Check{{ID: "card.count", Outcome: accelerator.Fail, Required: true, Summary: "1 of 2 cards"}}})})
	y.must(err)
	y.turn(bad.ID)
	if got := y.machine(bad.ID); got.State != machine.Quarantined || got.OrderID != "" || got.Public {
		t.Fatalf("bad machine is %+v", got)
	}
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActFence, MachineID: bad.ID}))
	if y.power[bad.BMC.Address] != ipmi.Off || len(y.edge) != 0 || y.ports["p1"] {
		t.Error("the bad machine is not fenced")
	}
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActPlace, OrderID: o.ID}))
	y.install(good.ID)
	if got := y.order(o.ID); got.State != machine.OrderActive || got.MachineID != good.ID || got.Address != o.Address {
		t.Errorf("order is %+v", got)
	}
	y.must(y.Return(t.Context(), bad.ID))
	y.turn(bad.ID)
	y.bootAgent(bad.ID).until()
	y.turn(bad.ID)
	if got := y.machine(bad.ID).State; got != machine.Available {
		t.Errorf("returned machine is %s", got)
	}
}

// TestNoOtherMachine: the order fails with the reason when there is no other machine of the class.
func TestNoOtherMachine(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.walk(m.ID, machine.StepNextBoot)
	y.fail[m.BMC.Address] = fmt.Errorf("log in to BMC %s: %w", m.BMC.Address, ipmi.ErrCredentials)
	y.turn(m.ID)
	if got := y.machine(m.ID); got.State != machine.Maintenance {
		t.Errorf("machine with a BMC that refuses the password is %s", got.State)
	}
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActPlace, OrderID: o.ID}))
	got := y.order(o.ID)
	if got.State != machine.OrderFailed || got.Reason == "" {
		t.Errorf("order is %s: %q", got.State, got.Reason)
	}
	if n := y.count(`SELECT count(*) FROM address WHERE order_id IS NOT NULL`); n != 0 {
		t.Errorf("%d addresses still held", n)
	}
}

// TestFailedWipe: a disk that cannot be proven clean quarantines the machine.
func TestFailedWipe(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(m.ID)
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(m.ID)
	r := y.bootAgent(m.ID)
	r.do()
	r.do()
	r.do()
	if r.last.Step != machine.StepProve {
		t.Fatalf("agent is at %s", r.last.Step)
	}
	proofs := []machine.Erasure{{Serial: "SYS1", Sampled: 1 << 20, Clean: true}, {Serial: "DAT1", Sampled: 1 << 20, Clean: false, Detail: "byte 4096 is not zero"}}
	_, err = r.report(machine.Report{Step: machine.StepProve, Phase: machine.Done, Result: encode(proofs)})
	y.must(err)
	if got := y.machine(m.ID); got.State != machine.Quarantined || got.Reason == "" {
		t.Errorf("machine is %s (%s)", got.State, got.Reason)
	}
	y.certified(provisioner.ErasureFilter{OrderID: o.ID}, "DAT1 not erased  by zeroout: byte 4096 is not zero", "SYS1 erased  by zeroout: ")
}

// TestTwoOrdersForTheLastMachine: one wins, the others are told that it is sold out.
func TestTwoOrdersForTheLastMachine(t *testing.T) {
	y := newYard(t)
	y.addMachine(1)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() { _, errs[i] = y.Place(context.Background(), y.request(), "") })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case machine.CodeOf(err) != machine.Exhausted:
			t.Errorf("loser is told: %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d orders won", won)
	}
	if n := y.count(`SELECT count(*) FROM address WHERE order_id IS NOT NULL`); n != 1 {
		t.Errorf("%d addresses held, want 1", n)
	}
}

// TestI05Idempotency: the same key returns the same order; the same key with another content is refused.
func TestI05Idempotency(t *testing.T) {
	y := newYard(t)
	y.addMachine(1)
	y.addMachine(2)
	var ids []string
	for range 3 {
		o, err := y.Place(t.Context(), y.request(), "key-1")
		y.must(err)
		ids = append(ids, o.ID)
	}
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("one key made the orders %v", ids)
	}
	r := y.request()
	r.Bandwidth = 200
	if _, err := y.Place(t.Context(), r, "key-1"); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("the key with another content: %v", err)
	}
	y.must(y.db.PutImage(t.Context(), machine.Image{Name: "debian-12", Digest: strings.Repeat("ef", 32), Size: 1 << 20, BIOS: true, UEFI: true, ImageFacts: machine.ImageFacts{Architecture: machine.ARM64}}))
	if o, err := y.Place(t.Context(), y.request(), "key-1"); err != nil || o.ID != ids[0] {
		t.Errorf("the same key after the image was changed: %s, %v", o.ID, err)
	}
	if _, err := y.Place(t.Context(), y.request(), "key-2"); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("another key after the image was changed: %v", err)
	}
	if _, err := y.Place(t.Context(), r, "key-1"); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("the key with another content after the image was changed: %v", err)
	}
}

// TestK03NonceIsBound: a nonce is traded only by its machine's address, in its attempt, and not after use.
func TestK03NonceIsBound(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	nic, _ := m.Hardware.NICByRole(machine.ProvisionNIC)
	if _, err := y.MintBoot(t.Context(), nic.MAC, m.BootAddr); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("boot archive without a job: %v", err)
	}
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	if _, err := y.MintBoot(t.Context(), nic.MAC, m.BootAddr.Next()); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("boot archive from a neighbour: %v", err)
	}
	r := y.bootAgent(m.ID)
	hello := machine.Hello{Nonce: r.nonce, MACs: []string{nic.MAC}}
	if _, err := y.Hello(t.Context(), hello, m.BootAddr.Next()); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("hello from a neighbour: %v", err)
	}
	again, err := y.Hello(t.Context(), hello, m.BootAddr) // the answer was lost
	y.must(err)
	if _, err := r.report(machine.Report{Step: machine.StepInventory, Phase: machine.Working}); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("the lost token still works: %v", err)
	}
	r.token = again.Token
	r.do()
	if _, err := y.Hello(t.Context(), hello, m.BootAddr); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("hello with a spent nonce: %v", err)
	}
	if _, err := y.MintBoot(t.Context(), nic.MAC, m.BootAddr); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("boot archive after hello: %v", err)
	}
}

// TestReconcile: the edge is put right when it carries what it should not, or not what it should.
func TestReconcile(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(m.ID)
	want := y.edge[m.ID]
	delete(y.edge, m.ID)
	y.edge["stranger"] = network.Port{Machine: "stranger"}
	y.must(y.Reconcile(t.Context()))
	if len(y.edge) != 1 || !y.edge[m.ID].Equal(want) {
		t.Errorf("edge carries %+v", y.edge)
	}
}

// TestBadRequests: each is refused with the field and a hint, and holds nothing.
func TestBadRequests(t *testing.T) {
	y := newYard(t)
	y.addMachine(1)
	for field, change := range map[string]func(*provisioner.Request){
		"bandwidth": func(r *provisioner.Request) { r.Bandwidth = 5000 },
		"ssh_keys":  func(r *provisioner.Request) { r.SSHKeys = []string{"ssh-ed25519 nonsense"} },
		"hostname":  func(r *provisioner.Request) { r.Hostname = "-bad" },
		"months":    func(r *provisioner.Request) { r.Months = 99 },
		"class":     func(r *provisioner.Request) { r.Class = "none" },
		"image":     func(r *provisioner.Request) { r.Image = "none" },
		"line":      func(r *provisioner.Request) { r.Line = "none" },
	} {
		r := y.request()
		change(&r)
		_, err := y.Place(t.Context(), r, "")
		var me *machine.Error
		if !errors.As(err, &me) || me.Hint == "" || me.Code != machine.Invalid && me.Code != machine.NotFound {
			t.Errorf("%s: %v", field, err)
		}
	}
	y.must(y.db.PutImage(t.Context(), machine.Image{Name: "huge", Digest: "cd", Size: 1 << 50, BIOS: true}))
	r := y.request()
	r.Image = "huge"
	if _, err := y.Place(t.Context(), r, ""); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("image larger than every disk: %v", err)
	}
	if n := y.count(`SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d orders were written", n)
	}
}
