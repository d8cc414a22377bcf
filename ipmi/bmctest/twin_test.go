package bmctest_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type server interface {
	Listen() (string, error)
	Run(ctx context.Context) error
	Target() ipmi.Target
}

// start runs a BMC until the test ends.
func start(t *testing.T, s server) ipmi.Target {
	t.Helper()
	if _, err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s.Target()
}

// TestIpmitool drives both IPMI servers with a client that is neither ours nor go-ipmi's.
func TestIpmitool(t *testing.T) {
	if _, err := exec.LookPath("ipmitool"); err != nil {
		t.Fatal("ipmitool not found: install the package ipmitool")
	}
	for _, name := range []string{"go-ipmi", "ipmi_sim"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := bmctest.NewMemory(bmctest.Identity{UUID: "a1234567-89ab-cdef-a123-456789abcdef"})
			var s server = &bmctest.IPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: m}
			if name == "ipmi_sim" {
				s = &bmctest.OpenIPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: m}
			}
			target := start(t, s)
			host, port, _ := net.SplitHostPort(target.Address)
			tool := func(args ...string) string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				all := append([]string{"-I", "lanplus", "-H", host, "-p", port, "-U", "admin", "-E", "-C", "3", "-N", "5", "-R", "5"}, args...)
				cmd := exec.CommandContext(ctx, "ipmitool", all...)
				cmd.Env = []string{"IPMITOOL_PASSWORD=secret"}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("ipmitool %v: %v: %s", args, err, out)
				}
				return strings.TrimSpace(string(out))
			}
			if got := tool("chassis", "power", "status"); got != "Chassis Power is off" {
				t.Fatalf("status = %q", got)
			}
			tool("chassis", "bootdev", "pxe")
			tool("chassis", "power", "on")
			// The BMCs answer first and act afterwards.
			for tool("chassis", "power", "status") != "Chassis Power is on" {
				if t.Context().Err() != nil {
					t.Fatal("never on")
				}
			}
			if s := m.Starts(); len(s) != 1 || s[0].Device != ipmi.DevicePXE || !s[0].Once {
				t.Errorf("starts = %+v, want one from pxe", s)
			}
			if b := m.NextBoot(); b.Device != ipmi.DeviceNone {
				t.Errorf("override after the start = %+v, want none", b)
			}
		})
	}
}

// A helper takes curl's place.
func TestOpenIPMIHelper(t *testing.T) {
	helper := filepath.Join(t.TempDir(), "helper")
	log := helper + ".log"
	text := "#!/bin/sh\nsocket=$1; shift\necho \"$*\" >>'" + log + "'\nexec curl -sf --unix-socket \"$socket\" -d \"$*\" http://bmc/\n"
	if err := os.WriteFile(helper, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	m := bmctest.NewMemory(bmctest.Identity{})
	target := start(t, &bmctest.OpenIPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: m, Helper: helper})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := (&ipmi.Controller{Poll: 50 * time.Millisecond}).SetPower(ctx, target, ipmi.OpOn); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "set power 1") {
		t.Errorf("the helper was called with %q, %v", b, err)
	}
}
