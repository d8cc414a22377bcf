package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Names of a lab's namespaces, to be given to Network.Enter and Network.Command.
const (
	Fabric   = "fabric"   // the switches and the machines
	Mgmt     = "mgmt"     // the controller
	BMCs     = "bmc"      // the BMCs
	Edge     = "edge"     // the edge router
	Internet = "internet" // a customer somewhere
	Racks    = "racks"    // the simulated machines
)

// netnsDir is where iproute2 keeps named network namespaces.
const netnsDir = "/run/netns"

func namespaces() []string { return []string{Fabric, Mgmt, BMCs, Edge, Internet, Racks} }

// Network reaches into the namespaces of a lab by the lab's name, from any process on the box. The lab need not have been
// started by this process.
type Network string

// Netns returns the full name of a namespace, as ip netns and the drivers know it.
func (n Network) Netns(ns string) string { return string(n) + "-" + ns }

func (n Network) path(ns string) string { return filepath.Join(netnsDir, n.Netns(ns)) }

// Enter calls fn on an operating system thread that is inside the namespace. Sockets that fn opens and processes that it
// starts stay inside; goroutines that it starts do not.
func (n Network) Enter(ns string, fn func() error) error {
	target, err := os.Open(n.path(ns))
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer target.Close()
	return onThread(func() error {
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.Netns(ns), err)
		}
		return fn()
	})
}

// onThread calls fn on a thread of its own, whose network namespace fn may change, and gives the thread back in the
// namespace where it was. A thread that cannot go back is not used again.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own namespace: %w", err)
			return
		}
		defer home.Close()
		// Deferred, so that a panic or runtime.Goexit in fn (t.Fatal in a test) still answers and restores the thread.
		finished := false
		defer func() {
			if !finished {
				err = errors.New("call inside the namespace did not return")
			}
			if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
				runtime.UnlockOSThread()
			}
			done <- err
		}()
		err = fn()
		finished = true
	}()
	return <-done
}

// Command returns a command that runs inside the namespace. It uses nsenter and not ip netns exec, which remounts /sys and
// so hides the box's control groups.
func (n Network) Command(ctx context.Context, ns, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + n.path(ns), "--", name}, args...)...)
}

// Dial connects from inside the namespace.
func (n Network) Dial(ctx context.Context, ns, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := n.Enter(ns, func() error {
		// A literal address keeps the dialer on this thread: there is no name to look up and one address to try.
		if host, _, err := net.SplitHostPort(address); err != nil || net.ParseIP(host) == nil {
			return fmt.Errorf("dial %s: want a literal address and port", address)
		}
		var d net.Dialer
		var err error
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
