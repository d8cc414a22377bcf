package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// drives is the CD drive of the one machine of a test, and what is asked of it. How real BMCs take discs is in ipmi and in the lab.
type drives struct {
	disc      string
	stuck     error  // what an eject answers without doing it
	meanwhile func() // happens after an eject; may be nil
}

func (d *drives) InsertMedia(_ context.Context, _ ipmi.Target, image string) (ipmi.Media, error) {
	if d.disc != "" {
		return ipmi.Media{}, ipmi.ErrBusy
	}
	d.disc = image
	return ipmi.Media{Image: image, Inserted: true}, nil
}

func (d *drives) EjectMedia(context.Context, ipmi.Target) error {
	if d.stuck == nil {
		d.disc = ""
	}
	if d.meanwhile != nil {
		d.meanwhile()
	}
	return d.stuck
}

// byDisc makes a machine of the yard one that boots from virtual media.
func (y *yard) byDisc(n int, road machine.Boot) (machine.Machine, *drives) {
	y.t.Helper()
	m := y.addMachine(n)
	_, err := y.db.Conn.Exec(y.t.Context(), `UPDATE machine SET boot = $2, bmc = bmc || '{"protocol": "redfish"}' WHERE id = $1`, m.ID, road)
	y.must(err)
	d := &drives{}
	y.Drives, y.Discs = d, y.db
	y.MediaURL = func(m machine.Machine, j machine.Job) string {
		return fmt.Sprintf("http://10.98.0.1/%s.%d.%d", j.ID, j.Attempt, j.Try)
	}
	return y.machine(m.ID), d
}

// TestDiscIsTakenOut: a machine boots by the disc of its attempt, whose boot file is good for that attempt alone; no step towards the
// tenant goes on while the disc cannot be taken out, and what a dead server left is taken out by another.
func TestDiscIsTakenOut(t *testing.T) {
	y := newYard(t)
	m, d := y.byDisc(1, machine.BootMedia)
	d.disc = "http://192.0.2.1/somebody-elses.iso"
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	j := y.job(y.machine(m.ID).JobID)
	if j.Step != machine.StepHello || !strings.Contains(d.disc, j.ID) || y.boot[m.BMC.Address] != ipmi.DeviceMedia {
		t.Fatalf("at %s with %q in the drive, next boot %s", j.Step, d.disc, y.boot[m.BMC.Address])
	}
	if _, err := y.MintDisc(t.Context(), m.ID, j.ID, j.Attempt+1); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("the disc of another attempt: %v", err)
	}
	file, err := y.MintDisc(t.Context(), m.ID, j.ID, j.Attempt)
	if err != nil || !strings.Contains(string(file), m.Hardware.NICs[0].MAC) {
		t.Errorf("boot file %s, %v", file, err)
	}

	_, err = y.db.Conn.Exec(t.Context(), `UPDATE job SET step = 'boot-disk' WHERE id = $1`, j.ID)
	y.must(err)
	d.stuck = ipmi.ErrLied
	act := func() {
		now := y.job(j.ID)
		y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: m.ID, JobID: j.ID, Turn: now.Turn}))
	}
	act()
	if now := y.job(j.ID); now.Step != machine.StepBootDisk || now.Try != 2 {
		t.Errorf("with the disc stuck in the drive the job is at %s, try %d", now.Step, now.Try)
	}
	d.stuck = nil
	act()
	if now := y.job(j.ID); now.Step != machine.StepFirstBoot || d.disc != "" {
		t.Errorf("the job is at %s with %q in the drive", now.Step, d.disc)
	}
	if _, err := y.MintDisc(t.Context(), m.ID, j.ID, j.Attempt); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("outside the boot window: %v", err)
	}

	// A server put one in and died; its job is over.
	d.disc = "http://10.98.0.1/left"
	y.must(y.db.PutDisc(t.Context(), m.ID, d.disc))
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE machine SET job_id = '' WHERE id = $1`, m.ID)
	y.must(err)
	y.must(y.EjectLeft(t.Context()))
	if left, err := y.db.DiscsLeft(t.Context()); err != nil || len(left) != 0 || d.disc != "" {
		t.Errorf("%q is left in the drive, %v, %v", d.disc, left, err)
	}

	// While one takes the old disc out, another server puts in that of the next boot: of that one somebody must know.
	next := "http://10.98.0.1/next"
	y.must(y.db.PutDisc(t.Context(), m.ID, "http://10.98.0.1/left"))
	d.meanwhile = func() { y.must(y.db.PutDisc(t.Context(), m.ID, next)) }
	y.must(y.EjectLeft(t.Context()))
	if known, err := y.db.Disc(t.Context(), m.ID); err != nil || known != next {
		t.Errorf("%q is known to be in the drive, %v", known, err)
	}
}

// TestMediaIsTried: a machine that is not seen on the wire after two starts is started from virtual media, and the events say so.
func TestMediaIsTried(t *testing.T) {
	y := newYard(t)
	m, d := y.byDisc(1, machine.BootNetwork)
	y.SeenWithin = time.Minute
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	for range 2 {
		y.turn(m.ID)
		if d.disc != "" {
			t.Fatalf("%q is in the drive before the network was tried", d.disc)
		}
		_, err := y.db.Conn.Exec(t.Context(), `UPDATE job SET due = now() - interval '1 s' WHERE machine_id = $1`, m.ID)
		y.must(err)
		y.must(y.Expire(t.Context(), m.ID))
	}
	y.turn(m.ID)
	j := y.job(y.machine(m.ID).JobID)
	if j.Step != machine.StepHello || !j.Media || d.disc == "" || time.Until(j.Due) < 10*time.Minute {
		t.Errorf("at %s by media %v with %q in the drive, due in %s", j.Step, j.Media, d.disc, time.Until(j.Due))
	}
	if got := y.events(m.ID, "job.reboot"); !strings.Contains(got, "after 2 starts; started again, from virtual media") {
		t.Errorf("told as %q", got)
	}
	if err := y.SetRoad(t.Context(), m.ID, machine.BootMedia); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("another road while a job is at work: %v", err)
	}
}

// TestStuckDiscAfterTheWipe: a disc that does not come out of a machine that is wiped keeps it out of stock, switched off, and has nothing erased again.
func TestStuckDiscAfterTheWipe(t *testing.T) {
	y := newYard(t)
	m, d := y.byDisc(1, machine.BootNetwork)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(m.ID)
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(m.ID)
	r := y.bootAgent(m.ID)
	d.disc, d.stuck = "http://10.98.0.1/left", ipmi.ErrBusy
	y.must(y.db.PutDisc(t.Context(), m.ID, d.disc))
	r.until()
	id := y.machine(m.ID).JobID
	y.turn(m.ID)
	j, got := y.job(id), y.machine(m.ID)
	if j.State != machine.JobSucceeded || j.Attempt != 1 || got.State != machine.Quarantined || !strings.Contains(got.Reason, "a disc is left in its virtual drive") {
		t.Errorf("the job is %s in attempt %d at %s, the machine %s: %s", j.State, j.Attempt, j.Step, got.State, got.Reason)
	}
	if y.power[m.BMC.Address] != ipmi.Off {
		t.Error("the machine is on")
	}
}

// TestStuckDiscOfAFencedMachine: the power of a fenced machine is cut once, and not again for a disc that stays; that goes on being ejected.
func TestStuckDiscOfAFencedMachine(t *testing.T) {
	y := newYard(t)
	m, d := y.byDisc(1, machine.BootNetwork)
	d.disc, d.stuck = "http://10.98.0.1/left", ipmi.ErrBusy
	y.must(y.db.PutDisc(t.Context(), m.ID, d.disc))
	y.must(y.Move(t.Context(), m.ID, machine.Quarantine, "smells of smoke"))
	y.power[m.BMC.Address] = ipmi.On
	if err := y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActFence, MachineID: m.ID}); err != nil || y.power[m.BMC.Address] != ipmi.Off {
		t.Errorf("fenced: %v, and it is %s", err, y.power[m.BMC.Address])
	}
	y.power[m.BMC.Address] = ipmi.On // somebody looks for the fault
	if err := y.EjectLeft(t.Context()); !errors.Is(err, ipmi.ErrBusy) {
		t.Errorf("the disc that stays: %v", err)
	}
	d.stuck = nil
	y.must(y.EjectLeft(t.Context()))
	if d.disc != "" || y.power[m.BMC.Address] != ipmi.On {
		t.Errorf("%q is in the drive, and the machine is %s", d.disc, y.power[m.BMC.Address])
	}
}
