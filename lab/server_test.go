package lab

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// fakeServer makes this test program the controller.
func fakeServer(t *testing.T) *ServerConfig {
	t.Helper()
	self := os.Args[0]
	return &ServerConfig{Binary: self, Kernel: self, RAMDisk: self, Validator: self}
}

// A lab whose controller could not work says so before it is up, and what to do.
func TestServerFilesMissing(t *testing.T) {
	needRoot(t)
	server := fakeServer(t)
	server.RAMDisk = "/nowhere/ramdisk"
	_, err := Start(t.Context(), Config{Name: testName(t, "m"), Dir: t.TempDir(), Server: server})
	var e *machine.Error
	if !errors.As(err, &e) || e.Code != machine.Unavailable || e.Hint != "make ramdisk" || !strings.Contains(e.Message, "/nowhere/ramdisk") {
		t.Errorf("err = %v", err)
	}
}

func TestServerKeptRunning(t *testing.T) {
	needRoot(t)
	l := startLab(t, Config{Name: testName(t, "s"), Machines: []MachineConfig{{}}, Server: fakeServer(t)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.WaitServer(ctx); err != nil {
		t.Fatalf("%v: %s", err, tail(l.serverLog(), 500))
	}
	before := l.Status().Server
	if err := l.KillServer(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server to be started again", func() bool { return l.Status().Server.Starts == 2 })
	if err := l.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
	if after := l.Status().Server; after.PID == before.PID || after.PID == 0 {
		t.Errorf("pid %d, then %d", before.PID, after.PID)
	}

	if err := l.StopServer(ctx); err != nil {
		t.Fatal(err)
	}
	if s := l.Status().Server; s.PID != 0 {
		t.Errorf("pid %d after StopServer", s.PID)
	}
	if err := l.KillServer(); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("killing a server that is stopped: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := l.WaitServer(short); err == nil {
		t.Error("a stopped server answers")
	}
	if err := l.StartServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
}

// A controller that cannot live must not keep the lab from coming down.
func TestServerThatDies(t *testing.T) {
	needRoot(t)
	server := fakeServer(t)
	server.Binary = "/bin/false"
	l := startLab(t, Config{Name: testName(t, "s"), Machines: []MachineConfig{{}}, Server: server})
	waitFor(t, "a start", func() bool { return l.Status().Server.Starts > 0 })
}
