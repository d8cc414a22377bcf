package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// needRoot ends the test where namespaces cannot be made.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run the tests of lab as root")
	}
}

// testName names a lab that no other test on this box has.
func testName(t *testing.T, suffix string) string {
	t.Helper()
	return fmt.Sprintf("t%d%s", os.Getpid(), suffix)
}

// checkNothingLeft fails the test when anything of the lab is still there.
func checkNothingLeft(t *testing.T, name, dir string) {
	t.Helper()
	netns, pids, err := Network(name).Leftovers()
	if err != nil || len(netns) > 0 || len(pids) > 0 {
		t.Errorf("left: namespaces %v, processes %v, %v", netns, pids, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, netnsDir+"/"+name+"-") || dir != "" && strings.Contains(line, dir) {
			t.Errorf("left mount: %s", line)
		}
	}
	if dir == "" {
		return
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSocket != 0 {
			t.Errorf("left socket: %s", path)
		}
		return nil
	})
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sockets), "bareyard-lab-"+name+"\n") || strings.Contains(string(sockets), dir+"/") {
		t.Error("left an open socket")
	}
}

// wired makes the namespaces of a lab without its machines.
func wired(t *testing.T) Network {
	t.Helper()
	needRoot(t)
	cfg, err := Config{Name: testName(t, "w"), Dir: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	n := Network(cfg.Name)
	t.Cleanup(func() {
		if err := n.clean(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, cfg.Name, "")
	})
	if err := n.wire(planMachines(cfg)); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWiring(t *testing.T) {
	n := wired(t)
	for _, c := range []struct {
		from, to string
		reach    bool
	}{
		{Mgmt, "10.78.0.11", true},
		{Mgmt, "10.78.0.13", true},
		{Edge, "198.51.100.2", true},
		{Internet, "198.51.100.1", true},
		{Internet, "10.77.0.1", false},
		{Internet, "10.78.0.11", false},
		{Fabric, "10.77.0.1", false}, // the switches have no address
		{BMCs, "10.77.0.1", false},   // no way from the BMCs to the machines
		{Mgmt, "198.51.100.2", false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		conn, err := n.Dial(ctx, c.from, "tcp", net.JoinHostPort(c.to, "9"))
		cancel()
		if err == nil {
			conn.Close()
		}
		// Whoever is there refuses: nobody listens.
		if reached := errors.Is(err, unix.ECONNREFUSED); reached != c.reach {
			t.Errorf("from %s to %s: %v", c.from, c.to, err)
		}
	}
	out, err := n.Command(t.Context(), Fabric, "ip", "-brief", "link", "show", "master", bridgeProvision).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"mgmt", "n1-prov", "n2-prov", "n3-prov"} {
		if !strings.Contains(string(out), port) {
			t.Errorf("%s is not on %s:\n%s", port, bridgeProvision, out)
		}
	}
	out, err = n.Command(t.Context(), Fabric, "ip", "-brief", "address").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte("fe80")) || bytes.Contains(out, []byte("10.")) {
		t.Errorf("the switches have addresses:\n%s", out)
	}
	out, err = n.Command(t.Context(), Internet, "ip", "route").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte("default")) || !bytes.Contains(out, []byte("203.0.113.0/24 via 198.51.100.1")) {
		t.Errorf("routes of the internet:\n%s", out)
	}
}

// A lab that was killed leaves namespaces and, where the kernel did not help, processes. Cleaning ends those inside and no
// others.
func TestCleanKillsOnlyWhatIsInside(t *testing.T) {
	n := wired(t)
	s := newStarter()
	defer s.close()
	log := filepath.Join(t.TempDir(), "log")
	inside, err := s.start(n.Command(t.Context(), BMCs, "sleep", "600"), log)
	if err != nil {
		t.Fatal(err)
	}
	outside, err := s.start(exec.CommandContext(t.Context(), "sleep", "600"), log)
	if err != nil {
		t.Fatal(err)
	}
	defer outside.kill()
	waitFor(t, "sleep in the namespace", func() bool { _, pids, _ := n.Leftovers(); return len(pids) == 1 })
	if err := n.clean(); err != nil {
		t.Fatal(err)
	}
	<-inside.done
	if !outside.running() {
		t.Error("cleaning killed a process that was not the lab's")
	}
	checkNothingLeft(t, string(n), "")
}

func TestEnterComesBack(t *testing.T) {
	n := wired(t)
	home, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var there string
	failure := errors.New("from inside")
	err = n.Enter(Edge, func() error {
		there, _ = os.Readlink("/proc/thread-self/ns/net")
		return failure
	})
	if !errors.Is(err, failure) || there == home || there == "" {
		t.Errorf("Enter: %v, in %s (home is %s)", err, there, home)
	}
	// No thread of this process stays behind.
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if at, err := os.Readlink(task); err == nil && at != home {
			t.Errorf("%s is in %s", task, at)
		}
	}
	if err := n.Enter("nowhere", func() error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("entering no namespace: %v", err)
	}
}

func TestNameIsTaken(t *testing.T) {
	name := testName(t, "o")
	owner, err := own(name)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	if _, err := own(name); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("second owner: %v", err)
	}
}

// waitFor polls until a condition that another process brings about holds.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	waitLong(t, 30*time.Second, what, is)
}

func waitLong(t *testing.T, patience time.Duration, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !is() {
		select {
		case <-late:
			t.Fatalf("waited %s in vain for: %s", patience, what)
		case <-tick.C:
		}
	}
}
