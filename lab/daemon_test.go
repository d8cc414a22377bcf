package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// TestDaemon kills a lab's process in the middle of its work. Its children die with it; the next lab removes the rest, finds
// the machines as they were, and goes without a trace.
func TestDaemon(t *testing.T) {
	needRoot(t)
	cfg := Config{
		Name:     testName(t, "d"),
		Dir:      t.TempDir(),
		Machines: []MachineConfig{{Name: "a"}, {Name: "b", BMC: OpenIPMI}, {Name: "c", BMC: Redfish}},
		Server:   fakeServer(t),
	}
	n := Network(cfg.Name)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		if err := Down(context.Background(), cfg.Dir, false); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, cfg.Name, cfg.Dir)
	})
	first, err := Up(ctx, cfg.Dir, daemon(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(cfg.Dir)
	was, err := client.Inventory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(was) != 3 || was[1].Machine.BMC.Protocol != "ipmi" || was[2].Machine.BMC.CertPin == "" || was[0].Password == "" {
		t.Fatalf("inventory: %+v", was)
	}
	if err := n.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("BAREYARD_QEMU") == "1" {
		ipmitool{n, was[0]}.power(t, "on")
		waitFor(t, "a machine", func() bool { s, err := client.Status(ctx); return err == nil && s.Machines[0].On })
	}
	if _, err := Up(ctx, cfg.Dir, daemon(t, cfg)); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("second lab in the folder: %v", err)
	}
	elsewhere := cfg
	elsewhere.Dir = t.TempDir()
	if _, err := Up(ctx, elsewhere.Dir, daemon(t, elsewhere)); err == nil {
		t.Error("second lab of that name came up")
	}
	if err := Down(ctx, elsewhere.Dir, false); err != nil {
		t.Errorf("down in a folder where none runs: %v", err)
	}
	if _, err := client.Status(ctx); err != nil {
		t.Errorf("down in another folder took this lab down: %v", err)
	}

	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the children to die", func() bool { _, pids, err := n.Leftovers(); return err == nil && len(pids) == 0 })
	if netns, _, _ := n.Leftovers(); len(netns) != len(namespaces()) {
		t.Errorf("a killed lab left %v: the test shows nothing", netns)
	}
	if _, err := client.Status(ctx); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("status of a killed lab: %v", err)
	}

	renamed := cfg
	renamed.Name = testName(t, "r")
	if _, err := Up(ctx, cfg.Dir, daemon(t, renamed)); err != nil {
		t.Fatal(err)
	}
	if netns, _, _ := n.Leftovers(); len(netns) != 0 {
		t.Errorf("a lab of another name in the folder left %v of the one that was killed", netns)
	}
	if err := Down(ctx, cfg.Dir, false); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, renamed.Name, cfg.Dir)

	second, err := Up(ctx, cfg.Dir, daemon(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	if second.PID == first.PID || second.Machines[0].On {
		t.Errorf("after the crash: %+v", second)
	}
	now, err := client.Inventory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range was {
		if now[i].Password != was[i].Password || now[i].Machine.BMC != was[i].Machine.BMC || now[i].Machine.Hardware.UUID != was[i].Machine.Hardware.UUID {
			t.Errorf("machine is another after the crash: %+v, was %+v", now[i], was[i])
		}
	}
	if err := n.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := client.PowerCut(ctx, "nobody"); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("power cut of no machine: %v", err)
	}
	if err := Down(ctx, cfg.Dir, false); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, cfg.Name, cfg.Dir)
	if _, err := os.Stat(filepath.Join(cfg.Dir, "machines", "a", "system.img")); err != nil {
		t.Errorf("the disk went with the lab: %v", err)
	}
	if err := Down(ctx, cfg.Dir, true); err != nil {
		t.Errorf("down of a lab that is down: %v", err)
	}
	if _, err := os.Stat(cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("purged, and still there: %v", err)
	}
}

// A lab that was killed and never came up again is removed by down alone.
func TestDownAfterCrash(t *testing.T) {
	needRoot(t)
	cfg := Config{Name: testName(t, "e"), Dir: t.TempDir(), Machines: []MachineConfig{{BMC: OpenIPMI}}, Server: fakeServer(t)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := Up(ctx, cfg.Dir, daemon(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := Down(ctx, cfg.Dir, false); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, cfg.Name, cfg.Dir)
}
