package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// lockFolder makes dir and takes its lock, which the kernel frees when we die, however we die. The folder stays ours: what runs as the
// unprivileged user may pass through it but not change a name in it, so it cannot lead us to write elsewhere.
func lockFolder(dir string, u osUser) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make folder of the cluster: %w", err)
	}
	if err := os.Mkdir(dir, 0o710); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make folder of the cluster: %w", err)
	}
	if err := errors.Join(os.Chown(dir, os.Geteuid(), u.gid), os.Chmod(dir, 0o710)); err != nil {
		return nil, fmt.Errorf("close folder of the cluster: %w", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of the cluster: %w", err)
	}
	if err := takeLock(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// takeLock locks f and writes down who holds it.
func takeLock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := os.ReadFile(f.Name())
		return &machine.Error{
			Code:    machine.Conflict,
			Message: fmt.Sprintf("the database in %s is in use by process %s", filepath.Dir(f.Name()), strings.TrimSpace(string(holder))),
			Hint:    "stop that server first, or give each server a data_dir of its own; several share one database by database_url",
		}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		return fmt.Errorf("lock cluster: %w", err)
	}
	return nil
}

// initialise makes the data folder unless it is there. It is made under another name first: a kill half-way leaves nothing that looks
// like a cluster.
func (c *Cluster) initialise(ctx context.Context) error {
	if _, err := os.Stat(c.data()); err == nil {
		if _, err := os.Stat(filepath.Join(c.data(), "PG_VERSION")); err != nil {
			return &machine.Error{
				Code:    machine.Conflict,
				Message: fmt.Sprintf("%s is there but is no PostgreSQL cluster", c.data()),
				Hint:    "nothing was touched; move that folder away, or restore it from a backup",
			}
		}
		return nil
	}
	fresh := c.data() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove half-made cluster: %w", err)
	}
	if err := errors.Join(os.Mkdir(fresh, 0o700), os.Lchown(fresh, c.user.uid, c.user.gid)); err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	began := time.Now()
	cmd := exec.Command(filepath.Join(c.bin.Folder, "initdb"), "-D", fresh, "-U", clusterRole, "-A", "peer", "--encoding=UTF8", "--locale=C", "--data-checksums")
	cmd.SysProcAttr = c.user.attr()
	if err := runChild(ctx, cmd); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	if err := os.Rename(fresh, c.data()); err != nil {
		return fmt.Errorf("put cluster in place: %w", err)
	}
	if err := syncFolder(c.dir); err != nil {
		return err
	}
	c.log.Info("made a new cluster", "dir", c.dir, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// stopOrphan ends what a killed parent left running in the data folder and removes a postmaster.pid that names a process which is not
// ours: after a reboot that number may belong to anybody, and PostgreSQL would refuse to start. The caller holds the lock, so no living
// server of ours is the parent of what is found.
func (c *Cluster) stopOrphan(ctx context.Context) error {
	pidFile := filepath.Join(c.data(), "postmaster.pid")
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	began, said := time.Now(), syscall.Signal(0)
	for {
		pids, err := livingIn(c.data())
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove stale postmaster.pid: %w", err)
			}
			return nil
		}
		switch waited := time.Since(began); {
		case said == 0:
			c.log.Warn("stopping the postgres of an earlier run", "pids", pids)
			said = syscall.SIGINT // fast: cut connections, write a checkpoint
			signalAll(postmasterOf(pidFile, pids), said)
		case waited > 30*time.Second && said == syscall.SIGINT:
			said = syscall.SIGQUIT // at once; it recovers at the next start
			signalAll(pids, said)
		case waited > 45*time.Second:
			return &machine.Error{
				Code:    machine.Unavailable,
				Message: fmt.Sprintf("the postgres of an earlier run does not stop: processes %v", pids),
				Hint:    "look whether its disk answers (dmesg), then end these processes",
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the postgres of an earlier run: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// livingIn lists the PostgreSQL processes whose working folder is data: the postmaster and all of its children change into it. The kernel
// says so, not a file that may be old.
func livingIn(data string) ([]int, error) {
	want, err := os.Stat(data)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at data folder: %w", err)
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink("/proc/" + p.Name() + "/exe")
		if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != "postgres" { // deleted: upgraded under it
			continue
		}
		if cwd, err := os.Stat("/proc/" + p.Name() + "/cwd"); err == nil && os.SameFile(cwd, want) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// postmasterOf returns the postmaster among pids as its file names it, or all of them when it is not among them: it was killed, and its
// children will follow.
func postmasterOf(pidFile string, pids []int) []int {
	text, _ := os.ReadFile(pidFile)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return pids
	}
	for _, p := range pids {
		if p == pid {
			return []int{pid}
		}
	}
	return pids
}

// signalAll signals each process; one that has just gone is what we want.
func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// socketFolder makes the folder of the socket, short (the kernel takes 107 bytes), the same at each start, and closed to all but root and
// the unprivileged user. What is in it is left from before: the caller holds the cluster's lock.
func socketFolder(dir string, u osUser) (string, error) {
	folder := socketPath(dir)
	if err := os.RemoveAll(folder); err != nil {
		return "", fmt.Errorf("clear folder of the socket: %w", err)
	}
	if err := errors.Join(os.Mkdir(folder, 0o700), os.Lchown(folder, u.uid, u.gid)); err != nil {
		return "", fmt.Errorf("make folder of the socket: %w", err)
	}
	return folder, nil
}

// socketPath names the folder of the socket of the cluster in dir.
func socketPath(dir string) string {
	base := "/run"
	if os.Geteuid() != 0 {
		if base = os.Getenv("XDG_RUNTIME_DIR"); base == "" || len(base) > 60 {
			base = "/tmp"
		}
	}
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(base, fmt.Sprintf("bareyard-%d-%x", os.Geteuid(), sum[:6]))
}

// syncFolder makes a rename in folder last.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return fmt.Errorf("sync %s: %w", folder, err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", folder, err)
	}
	return nil
}
