package postgres_test

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/postgres/postgrestest"
	"github.com/bareyard/bareyard/provisioner"
)

// shelfMachine enrols a machine that reports can be of.
func shelfMachine(t *testing.T, db *postgrestest.DB, n int) machine.Machine {
	t.Helper()
	if err := db.PutClass(t.Context(), machine.Class{Name: "gpu", Count: 0, Currency: "CNY"}); err != nil {
		t.Fatal(err)
	}
	m, err := db.Enroll(t.Context(), machine.Machine{Name: fmt.Sprintf("r%d", n), Site: "lab", Class: "gpu", Firmware: machine.BIOS, BootAddr: netip.AddrFrom4([4]byte{10, 77, 1, byte(n)}),
		BMC: machine.BMC{Protocol: "ipmi", Address: "10.78.1.1:623", Username: "admin"},
		Hardware: machine.Hardware{NICs: []machine.NIC{{MAC: fmt.Sprintf("02:00:5e:30:00:%02x", n), Role: machine.ProvisionNIC}},
			Disks: []machine.Disk{{Serial: fmt.Sprintf("D%d", n), Size: 1 << 30, Role: machine.SystemDisk}}}}, "secret", true)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func reportOf(serials ...string) accelerator.Report {
	r := accelerator.Report{Schema: accelerator.Schema, Taken: time.Now().UTC().Truncate(time.Second), Plan: accelerator.PlanPostboot, Outcome: accelerator.Pass,
		Checks: []accelerator.Check{{ID: "card.count", Outcome: accelerator.Pass, Action: accelerator.ActNone}}}
	for i, s := range serials {
		slot := fmt.Sprintf("0000:%02x:00.0", i+1)
		r.Cards = append(r.Cards, accelerator.CardResult{Slot: slot, Outcome: accelerator.Pass, PCI: &accelerator.PCICard{Slot: slot, Vendor: "10de", Device: "2330"},
			Card: &accelerator.Card{Index: i, Slot: slot, Serial: accelerator.Measured(s, "", "nvml"), Name: accelerator.Measured("H100", "", "nvml")}})
		r.Loads = append(r.Loads, accelerator.Load{Test: accelerator.TestBurn, Tool: "bareyard-burn", Version: "1", Slot: slot, Rate: accelerator.Measured(700.0+float64(i), "TFLOPS", "cuda")})
	}
	return r
}

// TestReportsAreKept: a report comes back as it was signed, its cards are where it saw them, and a repetition changes nothing.
func TestReportsAreKept(t *testing.T) {
	db, ctx := postgrestest.Start(t).DB(t), t.Context()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := shelfMachine(t, db, 1), shelfMachine(t, db, 2)
	k, err := provisioner.NewKept(provisioner.Verdict{ID: "r-1", MachineID: a.ID, OrderID: "o-1", Class: "gpu"}, reportOf("1650001", "1650002"), key)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.KeepReport(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	got, err := db.Report(ctx, "r-1")
	if err != nil {
		t.Fatal(err)
	}
	if got.Key != document.KeyID(public) || got.Blocks || got.Cards != 2 || got.Kept.IsZero() {
		t.Errorf("kept as %+v", got.Verdict)
	}
	if r, err := document.Verify(got.Body, public); err != nil || r.Subject.Machine != a.ID || r.Subject.Report != "r-1" {
		t.Errorf("verified as %+v, %v", r.Subject, err)
	}
	if _, err := db.Report(ctx, "r-none"); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("no such report: %v", err)
	}
	back, err := db.Background(ctx, b.ID, []string{"1650002", "1650003"})
	if err != nil || len(back.Here) != 0 || len(back.Elsewhere) != 1 || back.Elsewhere[0].Machine != "r1" || back.Elsewhere[0].OrderID != "o-1" {
		t.Errorf("background of the other machine: %+v, %v", back, err)
	}

	// A card that another machine's record has stays there; one whose place is in dispute is not recorded.
	k, err = provisioner.NewKept(provisioner.Verdict{ID: "r-2", MachineID: b.ID, Class: "gpu"}, reportOf("1650002", "1650009"), nil)
	if err != nil {
		t.Fatal(err)
	}
	k.Strays = []string{"1650009"}
	if err := db.KeepReport(ctx, k); err != nil {
		t.Fatal(err)
	}
	back, err = db.Background(ctx, a.ID, nil)
	if err != nil || len(back.Here) != 2 {
		t.Errorf("background of the first machine: %+v, %v", back, err)
	}
	list, err := db.Reports(ctx, provisioner.ReportFilter{Class: "gpu"})
	if err != nil || len(list) != 2 || list[0].ID != "r-2" {
		t.Errorf("reports: %+v, %v", list, err)
	}
	if h, ok, err := db.HandOver(ctx, "o-1", a.ID); err != nil || !ok || h.ID != "r-1" || !slices.Equal(h.Body, got.Body) {
		t.Errorf("report of hand-over: %v, %v, %+v", ok, err, h.Verdict)
	}
	if _, ok, err := db.HandOver(ctx, "o-2", a.ID); err != nil || ok {
		t.Errorf("hand-over of an order without a report: %v, %v", ok, err)
	}
}

// TestReportsAreForgotten: what is old goes with all that was looked up in it; what may still be asked for stays.
func TestReportsAreForgotten(t *testing.T) {
	db, ctx := postgrestest.Start(t).DB(t), t.Context()
	m := shelfMachine(t, db, 1)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Conn.Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.PutLine(ctx, network.Line{Name: "l", Site: "lab", MinBandwidth: 1, MaxBandwidth: 10}, time.Hour); err != nil {
		t.Fatal(err)
	}
	for id, state := range map[string]machine.OrderState{"o-1": machine.OrderEnded, "o-2": machine.OrderActive} {
		exec(`INSERT INTO orders (id, project, digest, class, image, image_digest, line, bandwidth, ssh_keys, hostname, months, price, currency, state, machine_id, started, until, bandwidth_down, model)
			VALUES ($1, 'acme', 'd', 'gpu', 'i', 'ab', 'l', 10, '{}', 'h', 1, 1, 'CNY', $2, $3, now(), now() + interval '1 month', 10, 'fixed')`, id, state, m.ID)
	}
	for i, r := range []struct {
		order string
		plan  accelerator.Plan
		days  int
	}{{"o-1", accelerator.PlanPostboot, 500}, {"o-2", accelerator.PlanPostboot, 400}, {"", accelerator.PlanHealth, 450}, {"o-1", accelerator.PlanPostboot, 350}, {"", accelerator.PlanPostboot, 10}} {
		rep := reportOf("1650001")
		rep.Plan = r.plan
		k, err := provisioner.NewKept(provisioner.Verdict{ID: fmt.Sprintf("r-%d", i), MachineID: m.ID, OrderID: r.order, Class: "gpu"}, rep, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.KeepReport(ctx, k); err != nil {
			t.Fatal(err)
		}
		exec(`UPDATE report SET kept = now() - make_interval(days => $2) WHERE id = $1`, k.ID, r.days)
	}
	for range 2 {
		if _, err := db.ForgetReports(ctx, time.Now().AddDate(0, 0, -365)); err != nil {
			t.Fatal(err)
		}
		list, err := db.Reports(ctx, provisioner.ReportFilter{MachineID: m.ID})
		ids := []string{}
		for _, v := range list {
			ids = append(ids, v.ID)
		}
		if err != nil || !slices.Equal(ids, []string{"r-4", "r-3", "r-1", "r-2"}) {
			t.Errorf("kept are %v, %v", ids, err)
		}
	}
	if c, err := db.Card(ctx, "1650001"); err != nil || len(c.Seen) != 4 || c.Now == nil {
		t.Errorf("the card was seen in %+v, %v", c.Seen, err)
	}
}

// TestSerialsThatAreNone: what vendors print on every card tells none from another.
func TestSerialsThatAreNone(t *testing.T) {
	for s, want := range map[string]bool{"1650124001234": true, "GPU-8f3a2c11-77aa-4be0-9d4e-0123456789ab": true, "N/A": false, "0": false, "0000000000000": false,
		"GPU-00000000-0000-4000-8000-2b8500000001": false, "": false, "unknown": false, "1111111111": false} {
		k := accelerator.CardResult{Card: &accelerator.Card{Serial: accelerator.Measured(s, "", "nvml")}}
		if got := provisioner.CardSerial(k) != ""; got != want {
			t.Errorf("%q tells a card from others: %v, want %v", s, got, want)
		}
	}
}
