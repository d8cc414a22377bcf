package provisioner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestF13ImageIsPinned: an order whose machine fails goes on with the content that it was placed with, and with what that asks of a machine,
// whatever was imported under the same name since.
func TestF13ImageIsPinned(t *testing.T) {
	y := newYard(t)
	bad, good := y.addMachine(1), y.addMachine(2)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	before := y.job(o.JobID)
	y.must(y.db.PutImage(t.Context(), machine.Image{Name: "debian-12", Digest: strings.Repeat("ef", 32), Size: 1 << 40, UEFI: true, Driver: true}))
	y.fail[bad.BMC.Address] = ipmi.ErrLocked
	y.turn(bad.ID)
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActPlace, OrderID: o.ID}))
	got := y.order(o.ID)
	if got.MachineID != good.ID || got.ImageDigest != o.ImageDigest {
		t.Fatalf("order is %s on %q with %.8s: %s", got.State, got.MachineID, got.ImageDigest, got.Reason)
	}
	if j := y.job(got.JobID); j.ImageDigest != before.ImageDigest || j.Driver {
		t.Errorf("the second machine is to get %.8s, driver %t", j.ImageDigest, j.Driver)
	}
	if _, err := y.Place(t.Context(), y.request(), ""); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("a new order takes the new content, which no machine can hold: %v", err)
	}
}

// TestImageFactsBindOrders: what no machine of the class can take, or who may not have it, is refused before anything is held.
func TestImageFactsBindOrders(t *testing.T) {
	y := newYard(t)
	y.addMachine(1) // its system disk has 4 GiB
	image := machine.Image{Name: "picky", Digest: strings.Repeat("cd", 32), Size: 1 << 20, BIOS: true, UEFI: true}
	order := func(project string, f machine.ImageFacts) error {
		t.Helper()
		image.ImageFacts = f
		y.must(y.db.PutImage(t.Context(), image))
		r := y.request()
		r.Project, r.Image = project, image.Name
		_, err := y.Place(t.Context(), r, "")
		return err
	}
	for word, try := range map[string]machine.ImageFacts{
		"is for arm64":                          {Architecture: machine.ARM64},
		"needs 4294967297 bytes of system disk": {MinDisk: 4<<30 + 1},
		`no image "picky"`:                      {Visibility: machine.ForProjects, Projects: []string{"other"}},
	} {
		var e *machine.Error
		if err := order("p", try); !errors.As(err, &e) || !strings.Contains(e.Message, word) || e.Hint == "" {
			t.Errorf("%v, want an error with %q", err, word)
		}
	}
	if n := y.count(`SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM address WHERE order_id IS NOT NULL) + (SELECT count(*) FROM machine WHERE state <> 'available')`); n != 0 {
		t.Errorf("%d orders, addresses or machines are held", n)
	}
	if err := order("other", machine.ImageFacts{MinDisk: 4 << 30, Visibility: machine.ForProjects, Projects: []string{"other"}}); err != nil {
		t.Errorf("the project that it is for: %v", err)
	}
}
