package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// createNamespace makes a named network namespace with kernel settings of its own.
func createNamespace(path string, sysctls map[string]string) error {
	if err := shareNetnsDir(); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		for name, value := range sysctls {
			err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6 has no IPv6 to turn off
				return fmt.Errorf("set sysctl: %w", err)
			}
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "bind", unix.MS_BIND, "")
	})
	if err != nil {
		os.Remove(path)
		return fmt.Errorf("create namespace %s: %w", filepath.Base(path), err)
	}
	return nil
}

// shareNetnsDir makes /run/netns a shared mount as iproute2 does on its first use. Were it left to ip, a namespace made
// before would end up mounted twice, and could not be removed again.
func shareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	share := func() error { return unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err = unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", netnsDir, err)
	}
	return nil
}

// removeNamespace kills what lives in a named namespace and removes the name. It is nil when there is no such namespace.
func removeNamespace(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := killInside(path); err != nil {
		return err
	}
	// EINVAL: the file is there, but nothing is mounted on it.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount namespace: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove namespace: %w", err)
	}
	return nil
}

// killInside kills every process whose network namespace is the named one, and waits until they are gone. Living in a lab's
// namespace is the proof that a process is the lab's: a process id from a file is not, it may be somebody else's by now.
func killInside(path string) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		pids, err := inside(path)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in %s do not die", pids, filepath.Base(path))
		}
		for _, pid := range pids {
			killHeld(pid, path)
		}
		time.Sleep(20 * time.Millisecond) // a killed process is gone when the kernel has reaped its memory
	}
}

// killHeld kills a process after another look at where it lives, holding a descriptor so that its number cannot pass on to a
// new process in between.
func killHeld(pid int, path string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	want, err := os.Stat(path)
	if err != nil {
		return
	}
	if got, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && os.SameFile(want, got) {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// inside lists the processes in a named namespace, this one excepted. A zombie has no namespace and is not listed.
func inside(path string) ([]int, error) {
	want, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("stat namespace: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		got, err := os.Stat("/proc/" + e.Name() + "/ns/net")
		if err == nil && os.SameFile(want, got) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Leftovers lists the namespaces of a lab that exist, and the processes in them: nothing, when the lab is down.
func (n Network) Leftovers() (netns []string, pids []int, err error) {
	for _, ns := range namespaces() {
		if _, err := os.Stat(n.path(ns)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		netns = append(netns, n.Netns(ns))
		in, err := inside(n.path(ns))
		if err != nil {
			return nil, nil, err
		}
		pids = append(pids, in...)
	}
	return netns, pids, nil
}

// clean removes whatever is left of a lab of this name. The caller must own the name.
func (n Network) clean() error {
	var errs []error
	for _, ns := range namespaces() {
		errs = append(errs, removeNamespace(n.path(ns)))
	}
	return errors.Join(errs...)
}
