package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/postgres/postgrestest"
	"github.com/bareyard/bareyard/provisioner"
)

// TestFleet: each card counts once, with what it reached last; the slow ones are named; and the profile that is made of the rest judges the next card.
func TestFleet(t *testing.T) {
	db, ctx := postgrestest.Start(t).DB(t), t.Context()
	keep := func(id string, m machine.Machine, rates ...float64) {
		t.Helper()
		var serials []string
		for i := range rates {
			serials = append(serials, fmt.Sprintf("165%s%03d", m.Name, i))
		}
		r := reportOf(serials...)
		for i, rate := range rates {
			r.Loads[i].Rate.Value = rate
			if rate < 600 {
				r.Cards[i].Outcome = accelerator.Fail
			}
		}
		k, err := provisioner.NewKept(provisioner.Verdict{ID: id, MachineID: m.ID, Class: "gpu"}, r, nil)
		if err == nil {
			err = db.KeepReport(ctx, k)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	e := &provisioner.Engine{Fleet: db}
	if _, err := e.Calibrate(ctx, "H100 SXM5 80 GB", 8, time.Now()); machine.CodeOf(err) != machine.NotFound && machine.CodeOf(err) != machine.Conflict {
		t.Errorf("calibration of nothing: %v", err)
	}
	a, b, c, gone := shelfMachine(t, db, 1), shelfMachine(t, db, 2), shelfMachine(t, db, 3), shelfMachine(t, db, 4)
	keep("r-a1", a, 100, 100, 100, 100) // before its cooling was mended
	keep("r-a2", a, 700, 702, 698, 701)
	keep("r-b1", b, 699, 700, 550, 703)
	keep("r-c1", c, 640, 641, 639, 642) // slow as a whole
	keep("r-d1", gone, 1, 1, 1, 1)
	if _, err := db.Conn.Exec(ctx, `UPDATE machine SET state = 'retired' WHERE id = $1`, gone.ID); err != nil {
		t.Fatal(err)
	}

	list, err := e.FleetBaselines(ctx, "10DE:2330")
	if err != nil || len(list) != 1 {
		t.Fatalf("baselines: %+v, %v", list, err)
	}
	base := list[0]
	if base.Cards != 12 || base.Machines != 3 || base.Median != 698.5 || base.P5 != 550 || base.P95 != 703 || base.Spread <= 0 {
		t.Errorf("the fleet reaches %+v", base)
	}
	var slow []string
	for _, s := range base.Slow {
		slow = append(slow, fmt.Sprintf("%s %s %d %g %s", s.Machine, s.Serial, s.Cards, s.Rate, s.Report))
	}
	if got, want := strings.Join(slow, ", "), "r2 165r2002 1 550 r-b1, r3  4 640.5 r-c1"; got != want {
		t.Errorf("slow are %s, want %s", got, want)
	}

	made, err := e.Calibrate(ctx, "10de:2330", 8, time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "h100.yaml"), []byte(made.Text), 0o600); err != nil {
		t.Fatal(err)
	}
	profiles, err := accelerator.ReadProfiles(dir)
	if err != nil {
		t.Fatalf("what was made is not read: %v\n%s", err, made.Text)
	}
	p, _ := accelerator.Rules{Profiles: profiles}.Profile("10de:2330", "")
	l, ok := p.Limit(accelerator.TestBurn, "bareyard-burn", "1")
	if !ok || l.Cards != 11 || l.Median != 699 || l.Status != accelerator.Calibrated || l.Source != "fleet, 11 cards, 2026-12-01" || l.Min <= 550 || l.Min >= 699 {
		t.Errorf("the limit is %+v", l)
	}
	if !p.LinkWidth.Judges() {
		t.Error("what was published of the card is gone")
	}
	if _, err := e.Calibrate(ctx, "10de:2330", 12, time.Now()); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("calibration from 11 of 12 cards: %v", err)
	}

	// Once more, with the file in use: it takes its place.
	e.Validation.Profiles = dir
	made, err = e.Calibrate(ctx, "10de:2330", 8, time.Now())
	if err != nil || len(made.Notes) == 0 || !strings.Contains(made.Notes[0], "it replaces profile") || !strings.Contains(made.Text, "revision: 2") || strings.Count(made.Text, "bareyard-burn") != 1 {
		t.Errorf("calibrated again: %v, %+v", err, made)
	}
	kinds, err := e.CardProfiles(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		if k.File == dir+"/h100.yaml" && (k.Own != 1 || k.Cards != 16) {
			t.Errorf("the made profile is listed as %+v", k)
		}
	}
}
