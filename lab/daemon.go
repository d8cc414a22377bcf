package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

const (
	pidFile   = "lab.pid"
	daemonLog = "lab.log"
)

// Run brings a lab up and keeps it until ctx ends or a Client takes it down. It is the process that Up detaches.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	lock, err := lockDir(cfg.Dir, cfg.Name)
	if err != nil {
		return err
	}
	defer lock.release()
	if lock.before != "" && lock.before != cfg.Name {
		if err := cleanName(lock.before); err != nil {
			return err
		}
	}
	l, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.Log.Info("lab is up", "name", cfg.Name, "dir", cfg.Dir)
	err = l.ServeControl(ctx)
	err = errors.Join(err, l.Close())
	cfg.Log.Info("lab is down", "name", cfg.Name)
	return err
}

// cleanName removes what is left of a lab that was killed.
func cleanName(name string) error {
	owner, err := own(name)
	if err != nil {
		return err // it runs in another folder: not ours to touch
	}
	defer owner.Close()
	return Network(name).clean()
}

// dirLock marks a lab's folder as in use. The kernel releases it when its process ends, however it ends. The file holds the
// process id and the name of the lab, one a line.
type dirLock struct {
	file   *os.File
	before string // the name of the lab that was killed here, if one was
}

func lockDir(dir, name string) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, pidFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open pid file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &machine.Error{Code: machine.Conflict, Message: "a lab is running in " + dir, Hint: "take it down first: bareyard lab down"}
	}
	// Its last holder may have removed it between our open and our lock.
	if ours, err := f.Stat(); err != nil || !sameAs(f.Name(), ours) {
		f.Close()
		return lockDir(dir, name)
	}
	_, before, err := readPID(f)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n%s\n", os.Getpid(), name), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write pid file: %w", err)
	}
	return &dirLock{file: f, before: before}, nil
}

// readPID reads a pid file. One that holds anything else was written by nobody here and names nothing.
func readPID(r io.Reader) (pid int, name string, err error) {
	b, err := io.ReadAll(io.LimitReader(r, 4096))
	if err != nil {
		return 0, "", err
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) != 3 || !validWord(lines[1], maxName) {
		return 0, "", nil
	}
	pid, err = strconv.Atoi(lines[0])
	if err != nil {
		return 0, "", nil
	}
	return pid, lines[1], nil
}

func sameAs(path string, info fs.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && os.SameFile(now, info)
}

// release removes the pid file and lets go of it.
func (d *dirLock) release() {
	os.Remove(d.file.Name())
	d.file.Close()
}

// holder returns the process that has the folder, or 0 when none does, and the name of the lab that it runs or, when it was
// killed, ran.
func holder(dir string) (pid int, name string, err error) {
	f, err := os.Open(filepath.Join(dir, pidFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", fmt.Errorf("open pid file: %w", err)
	}
	defer f.Close()
	free := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
	pid, name, err = readPID(f)
	if err != nil {
		return 0, "", fmt.Errorf("read pid file: %w", err)
	}
	if free {
		return 0, name, nil
	}
	if pid == 0 {
		return 0, "", fmt.Errorf("read pid file: %s is locked and names no process", f.Name())
	}
	return pid, name, nil
}

// Up starts a command that calls Run, detached from this process and its terminal, and waits until the lab answers. The
// command must be about to run a lab in dir; its output goes to lab.log there.
func Up(ctx context.Context, dir string, cmd *exec.Cmd) (Status, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Status{}, fmt.Errorf("make state directory: %w", err)
	}
	client := NewClient(dir)
	if s, err := client.Status(ctx); err == nil {
		return s, &machine.Error{Code: machine.Conflict, Message: "a lab is running in " + dir, Hint: "take it down first: bareyard lab down"}
	}
	path := filepath.Join(dir, daemonLog)
	out, err := os.Create(path)
	if err != nil {
		return Status{}, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return Status{}, fmt.Errorf("start lab: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the lab, or with this process
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if s, err := client.Status(ctx); err == nil && s.PID == cmd.Process.Pid {
			return s, nil
		}
		select {
		case <-ctx.Done():
			cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			return Status{}, fmt.Errorf("wait for lab: %w", ctx.Err())
		case err := <-ended:
			return Status{}, fmt.Errorf("start lab: %w: %s", err, tail(path, 2000))
		case <-tick.C:
		}
	}
}

// Down ends the lab that runs in a folder, or removes what a killed one left behind. It returns when nothing is left: no
// namespace, process, socket or mount. Disks, logs and the server's data stay, unless purge is set.
func Down(ctx context.Context, dir string, purge bool) error {
	pid, name, err := holder(dir)
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := end(ctx, dir, pid); err != nil {
			return err
		}
	}
	if name != "" {
		if err := cleanName(name); err != nil {
			return err
		}
	}
	for _, file := range []string{controlSocket, serverSocket, simulators, pidFile} { // the pid file last: it names the lab
		if err := os.RemoveAll(filepath.Join(dir, file)); err != nil {
			return fmt.Errorf("remove what is left: %w", err)
		}
	}
	if purge {
		return os.RemoveAll(dir)
	}
	return nil
}

// end asks the process that has the folder to end, then tells it to, and waits until it has let go.
func end(ctx context.Context, dir string, pid int) error {
	process, err := os.FindProcess(pid) // a handle: the number cannot pass on to another process
	if err != nil {
		return fmt.Errorf("find lab: %w", err)
	}
	defer process.Release()
	if now, _, err := holder(dir); err != nil || now != pid {
		return err
	}
	if err := NewClient(dir).Down(ctx); err != nil {
		process.Signal(syscall.SIGTERM)
	}
	patience := time.NewTimer(2 * stopGrace)
	defer patience.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now, _, err := holder(dir)
		if err != nil || now != pid {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for lab to end: %w", ctx.Err())
		case <-patience.C:
			process.Kill()
		case <-tick.C:
		}
	}
}

// tail is the end of a log file, for an error message.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	b = b[max(0, len(b)-n):]
	return strings.TrimSpace(string(b))
}
