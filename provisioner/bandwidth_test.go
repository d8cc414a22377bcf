package provisioner_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

func rates(up, down int) network.Rates { return network.Rates{Up: up, Down: down} }

// brief is what matters of a change.
type brief struct {
	Kind   provisioner.ChangeKind
	State  provisioner.ChangeState
	Was    network.Rates
	Rates  network.Rates
	AtOnce bool
}

func (y *yard) changes(orderID string) []brief {
	y.t.Helper()
	list, err := y.db.Changes(y.t.Context(), orderID)
	y.must(err)
	return briefs(list)
}

func briefs(list []provisioner.Change) []brief {
	var out []brief
	for _, c := range list {
		out = append(out, brief{c.Kind, c.State, c.Was, c.Rates, c.Begins.Equal(c.Made)})
	}
	return out
}

// pass lets time go by for an order: everything that has a time becomes so much older.
func (y *yard) pass(orderID string, d time.Duration) {
	y.t.Helper()
	for _, sql := range []string{
		`UPDATE orders SET started = started - $2::interval, until = until - $2::interval, blackhole_until = blackhole_until - $2::interval, change_due = change_due - $2::interval WHERE id = $1`,
		`UPDATE bandwidth_change SET made = made - $2::interval, begins = begins - $2::interval, ends = ends - $2::interval WHERE order_id = $1`,
	} {
		_, err := y.db.Conn.Exec(y.t.Context(), sql, orderID, d)
		y.must(err)
	}
}

func (y *yard) passing(machineID string) (network.Bandwidth, network.Bandwidth, network.Mode) {
	y.mu.Lock()
	defer y.mu.Unlock()
	p := y.edge[machineID]
	return p.Up, p.Down, p.Mode
}

// settle does as Watch: what is due, and then what the edge must do.
func (y *yard) settle() {
	y.t.Helper()
	ids, err := y.db.OrdersDue(y.t.Context(), 100)
	y.must(err)
	for _, id := range ids {
		y.must(y.SettleOrder(y.t.Context(), id))
	}
	y.must(y.act(provisioner.ActPort))
}

func TestUpgradeAtOnceDowngradeAtRenewal(t *testing.T) {
	y := newYard(t)
	o := y.active(1, func(r *provisioner.Request) { r.Months = 3 })
	ctx := t.Context()

	quote, err := y.SetBandwidth(ctx, o.ID, rates(300, 300), true, "")
	y.must(err)
	if y.order(o.ID).Bandwidth != 100 || len(y.changes(o.ID)) != 0 || len(quote) != 1 {
		t.Fatalf("a quote changed something: %+v", y.changes(o.ID))
	}
	made, err := y.SetBandwidth(ctx, o.ID, rates(300, 300), false, "k1")
	y.must(err)
	if want := []brief{{provisioner.Upgrade, provisioner.ChangeActing, rates(100, 100), rates(300, 300), true}}; !cmp.Equal(briefs(made), want) {
		t.Errorf("the upgrade is %+v", made)
	}
	if r := made[0].Term; r.Months != 2 || !r.From.Equal(o.Started) || r.Left <= 0 || r.Left >= r.Of || r.Of < 27*86400e6 {
		t.Errorf("it is charged for %+v of a term of three months that has just begun", r)
	}
	again, err := y.SetBandwidth(ctx, o.ID, rates(300, 300), false, "k1")
	y.must(err)
	if !cmp.Equal(made, again) || len(y.changes(o.ID)) != 1 {
		t.Errorf("the same request again gave %+v", again)
	}
	_, err = y.SetBandwidth(ctx, o.ID, rates(200, 300), false, "k1")
	y.refused(err, machine.Conflict, "Idempotency-Key")
	y.must(y.act(provisioner.ActPort))
	if up, down, _ := y.passing(o.MachineID); up != network.Fixed(300_000) || down != up {
		t.Errorf("the edge gives %+v and %+v", up, down)
	}

	// One direction up, one down: two changes.
	made, err = y.SetBandwidth(ctx, o.ID, rates(50, 400), false, "")
	y.must(err)
	if want := []brief{{provisioner.Upgrade, provisioner.ChangeActing, rates(300, 300), rates(300, 400), true},
		{provisioner.Downgrade, provisioner.ChangeWaiting, rates(300, 400), rates(50, 400), false}}; !cmp.Equal(briefs(made), want) {
		t.Errorf("up and down: %s", cmp.Diff(want, briefs(made)))
	}
	if !made[1].Begins.Equal(y.order(o.ID).Until) || made[1].Term != (billing.Rest{}) {
		t.Errorf("the downgrade begins %s and is charged for %+v", made[1].Begins, made[1].Term)
	}
	y.must(y.act(provisioner.ActPort))
	y.settle()
	if up, down, _ := y.passing(o.MachineID); up.Kbit != 300_000 || down.Kbit != 400_000 {
		t.Errorf("before the term is over the edge gives %+v and %+v", up, down)
	}
	_, err = y.SetBandwidth(ctx, o.ID, rates(50, 400), false, "")
	y.refused(err, machine.Conflict, "bandwidth")

	// What the order has withdraws what waits.
	made, err = y.SetBandwidth(ctx, o.ID, rates(300, 400), false, "")
	y.must(err)
	if len(made) != 0 || y.changes(o.ID)[2].State != provisioner.ChangeWithdrawn || !y.order(o.ID).Network.ChangeDue.IsZero() {
		t.Errorf("withdrawn: %+v, order %+v", y.changes(o.ID), y.order(o.ID).Network)
	}
	_, err = y.SetBandwidth(ctx, o.ID, rates(300, 400), false, "")
	y.refused(err, machine.Conflict, "bandwidth")
	_, err = y.SetBandwidth(ctx, o.ID, rates(0, 0), false, "")
	y.refused(err, machine.Invalid, "bandwidth")
	_, err = y.SetBandwidth(ctx, o.ID, rates(1001, 0), false, "")
	y.refused(err, machine.Invalid, "bandwidth")
	_, err = y.SetBandwidth(ctx, o.ID, rates(0, 1001), false, "")
	y.refused(err, machine.Invalid, "bandwidth_down")

	// The end of the term comes.
	_, err = y.SetBandwidth(ctx, o.ID, rates(20, 0), false, "")
	y.must(err)
	y.pass(o.ID, 100*24*time.Hour)
	y.settle()
	if up, down, _ := y.passing(o.MachineID); up.Kbit != 20_000 || down.Kbit != 400_000 {
		t.Errorf("after the term the edge gives %+v and %+v", up, down)
	}
	got := y.order(o.ID)
	if got.Bandwidth != 20 || got.BandwidthDown != 400 || !got.Network.ChangeDue.IsZero() {
		t.Errorf("after the term the order has %+v", got)
	}
	acting := slices.DeleteFunc(y.changes(o.ID), func(b brief) bool { return b.State != provisioner.ChangeActing })
	if len(acting) != 1 || acting[0].Rates != rates(20, 400) {
		t.Errorf("in force are %+v", acting)
	}
}

func TestPacksRevertByThemselves(t *testing.T) {
	y := newYard(t)
	o := y.active(1, nil)
	ctx := t.Context()
	for _, c := range []struct {
		add   network.Rates
		days  int
		field string
	}{{rates(0, 0), 1, "bandwidth"}, {rates(-5, 10), 1, "bandwidth"}, {rates(10, 10), 0, "days"}, {rates(10, 10), 32, "days"}, {rates(901, 0), 1, "bandwidth"}, {rates(10, 10), 31, "days"}} {
		_, err := y.AddPack(ctx, o.ID, c.add, c.days, "")
		y.refused(err, machine.Invalid, c.field)
	}
	first, err := y.AddPack(ctx, o.ID, rates(200, 100), 1, "k")
	y.must(err)
	again, err := y.AddPack(ctx, o.ID, rates(200, 100), 1, "k")
	y.must(err)
	if !cmp.Equal(first, again) {
		t.Errorf("the same again is %+v", again)
	}
	_, err = y.AddPack(ctx, o.ID, rates(50, 0), 3, "")
	y.must(err)
	y.must(y.act(provisioner.ActPort))
	if up, down, _ := y.passing(o.MachineID); up.Kbit != 350_000 || down.Kbit != 200_000 {
		t.Errorf("with two packs the edge gives %+v and %+v", up, down)
	}
	_, err = y.SetBandwidth(ctx, o.ID, rates(900, 0), false, "")
	y.refused(err, machine.Conflict, "bandwidth")
	_, err = y.SetBandwidth(ctx, o.ID, rates(200, 0), false, "")
	y.must(err)

	y.pass(o.ID, 25*time.Hour)
	y.settle()
	if up, down, _ := y.passing(o.MachineID); up.Kbit != 250_000 || down.Kbit != 100_000 {
		t.Errorf("after the first pack the edge gives %+v and %+v", up, down)
	}
	y.settle()
	if got := y.order(o.ID).Network; got.ExtraUp != 50 || got.ExtraDown != 0 {
		t.Errorf("the order has %+v", got)
	}
	y.pass(o.ID, 48*time.Hour)
	y.settle()
	if up, down, _ := y.passing(o.MachineID); up.Kbit != 200_000 || down.Kbit != 100_000 {
		t.Errorf("after both the edge gives %+v and %+v", up, down)
	}
}

// TestMissedDeadlinesInTheirOrder: all servers were down for weeks. What was due in the meantime happens in the order of its
// time, and each says when.
func TestMissedDeadlinesInTheirOrder(t *testing.T) {
	y := newYard(t)
	o := y.active(1, nil)
	ctx := t.Context()
	_, err := y.AddPack(ctx, o.ID, rates(100, 100), 2, "")
	y.must(err)
	_, err = y.AddPack(ctx, o.ID, rates(50, 50), 1, "")
	y.must(err)
	_, err = y.SetBandwidth(ctx, o.ID, rates(10, 10), false, "")
	y.must(err)
	_, err = y.Blackhole(ctx, o.ID, 30*time.Hour, "flood", "")
	y.must(err)
	y.must(y.act(provisioner.ActPort))
	if _, _, mode := y.passing(o.MachineID); mode != network.Blackhole {
		t.Errorf("the port is %s", mode)
	}
	y.pass(o.ID, 40*24*time.Hour)
	y.settle()
	events, err := y.db.Events(ctx, provisioner.EventFilter{OrderID: o.ID})
	y.must(err)
	var kinds []string
	for _, ev := range events {
		if ev.Kind == "bandwidth.revert" || ev.Kind == "network.restore" || ev.Kind == "bandwidth.downgrade" && strings.Contains(ev.Text, "went") {
			kinds = append(kinds, ev.Kind)
		}
	}
	if want := []string{"bandwidth.revert", "network.restore", "bandwidth.revert", "bandwidth.downgrade"}; !slices.Equal(kinds, want) {
		t.Errorf("what was due happened as %v, want %v", kinds, want)
	}
	if up, down, mode := y.passing(o.MachineID); up.Kbit != 10_000 || down.Kbit != 10_000 || mode != network.On {
		t.Errorf("the edge gives %+v and %+v, %s", up, down, mode)
	}
}

func TestLimitAndBlackhole(t *testing.T) {
	y := newYard(t)
	ctx := t.Context()
	y.addMachine(9)
	waiting, err := y.Place(ctx, y.request(), "")
	y.must(err)
	_, err = y.Limit(ctx, waiting.ID, 1, "overdue", "")
	y.refused(err, machine.Conflict, "")
	_, err = y.Blackhole(ctx, waiting.ID, time.Hour, "", "")
	y.refused(err, machine.Conflict, "")

	o := y.active(1, nil)
	for _, d := range []time.Duration{0, -time.Hour, time.Second, 721 * time.Hour} {
		_, err := y.Blackhole(ctx, o.ID, d, "", "")
		y.refused(err, machine.Invalid, "for")
	}
	for _, rate := range []int{0, -1, 101} {
		_, err := y.Limit(ctx, o.ID, rate, "", "")
		y.refused(err, machine.Invalid, "rate")
	}
	_, err = y.Limit(ctx, o.ID, 5, "overdue", "")
	y.must(err)
	y.must(y.act(provisioner.ActPort))
	y.mu.Lock()
	p := y.edge[o.MachineID]
	y.mu.Unlock()
	if p.Mode != network.Limited || p.Limit != 5_000 {
		t.Errorf("limited port is %+v", p)
	}
	got, err := y.Blackhole(ctx, o.ID, 2*time.Hour, "flood", "")
	y.must(err)
	if left := time.Until(got.Network.BlackholeUntil); left < 119*time.Minute || left > 2*time.Hour {
		t.Errorf("null-routed until %s", got.Network.BlackholeUntil)
	}
	y.must(y.act(provisioner.ActPort))
	y.mu.Lock()
	p = y.edge[o.MachineID]
	y.mu.Unlock()
	if p.Mode != network.Blackhole || p.Then != network.Limited || !p.Until.Equal(got.Network.BlackholeUntil) {
		t.Errorf("null-routed port is %+v", p)
	}
	if err := p.Validate(); err != nil {
		t.Errorf("no edge would take it: %v", err)
	}
	y.pass(o.ID, 3*time.Hour)
	y.settle()
	if _, _, mode := y.passing(o.MachineID); mode != network.Limited {
		t.Errorf("after the null-route the port is %s, want limited again", mode)
	}
	_, err = y.Unlimit(ctx, o.ID, "")
	y.must(err)
	_, err = y.Blackhole(ctx, o.ID, time.Hour, "again", "")
	y.must(err)
	got, err = y.Restore(ctx, o.ID, "")
	y.must(err)
	if got.Network != (machine.Network{}) {
		t.Errorf("restored order has %+v", got.Network)
	}
	y.must(y.act(provisioner.ActPort))
	if up, _, mode := y.passing(o.MachineID); mode != network.On || up.Kbit != 100_000 {
		t.Errorf("restored port is %s, %+v", mode, up)
	}

	// A reinstall keeps what an operator decided; an edge that was tampered with is put right.
	_, err = y.Limit(ctx, o.ID, 1, "overdue", "")
	y.must(err)
	y.mu.Lock()
	delete(y.edge, o.MachineID)
	y.mu.Unlock()
	y.must(y.Reconcile(ctx))
	if _, _, mode := y.passing(o.MachineID); mode != network.Limited {
		t.Errorf("the repaired port is %s", mode)
	}
}

func TestBurst(t *testing.T) {
	y := newYard(t)
	y.must(y.db.PutLine(t.Context(), network.Line{Name: "bgp", Site: "lab", MinBandwidth: 10, MaxBandwidth: 1000, Models: []network.Model{network.ModelFixed, network.ModelBurst}}, time.Hour))
	y.addMachine(2)
	for _, c := range []struct {
		model     network.Model
		committed int
		field     string
	}{{"traffic", 0, "model"}, {network.ModelBurst, 200, "committed"}, {network.ModelFixed, 10, "committed"}} {
		r := y.request()
		r.Model, r.Committed = c.model, c.committed
		_, err := y.Place(t.Context(), r, "")
		y.refused(err, machine.Invalid, c.field)
	}
	_, err := y.db.Conn.Exec(t.Context(), `DELETE FROM machine_mac; DELETE FROM machine`)
	y.must(err)
	o := y.active(1, func(r *provisioner.Request) { r.Model, r.Committed = network.ModelBurst, 20 })
	if up, _, _ := y.passing(o.MachineID); up != (network.Bandwidth{Kbit: 20_000, Burst: 100_000}) {
		t.Errorf("the edge gives %+v", up)
	}
}

// TestI05ReinstallOnce: a reinstall that is asked for twice with one key begins once.
func TestI05ReinstallOnce(t *testing.T) {
	y := newYard(t)
	o := y.active(1, nil)
	first, err := y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", false, "k")
	y.must(err)
	again, err := y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", false, "k")
	y.must(err)
	if again.ID != o.ID || again.JobID != first.JobID {
		t.Errorf("the repeated reinstall is job %s, the first %s", again.JobID, first.JobID)
	}
	_, err = y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", true, "k")
	y.refused(err, machine.Conflict, "Idempotency-Key")
	_, err = y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", false, "k2")
	y.refused(err, machine.Conflict, "")
	y.must(y.db.PutImage(t.Context(), machine.Image{Name: "debian-12", Digest: strings.Repeat("ef", 32), Size: 1 << 20, BIOS: true, UEFI: true, ImageFacts: machine.ImageFacts{Architecture: machine.ARM64}}))
	if again, err = y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", false, "k"); err != nil || again.JobID != first.JobID {
		t.Errorf("the repeated reinstall after the image was changed is job %s, %v", again.JobID, err)
	}
	_, err = y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", false, "k2")
	y.refused(err, machine.Invalid, "image")
	// A refused request is not remembered: mended, it goes through with the same key.
	_, err = y.SetBandwidth(t.Context(), o.ID, rates(5000, 0), false, "k3")
	y.refused(err, machine.Invalid, "bandwidth")
	_, err = y.SetBandwidth(t.Context(), o.ID, rates(500, 0), false, "k3")
	y.must(err)
}
