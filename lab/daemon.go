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
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return err
	}
	defer lock.release()
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

// dirLock marks a lab's folder as in use. The kernel releases it when its process ends, however it ends.
type dirLock struct{ file *os.File }

func lockDir(dir string) (*dirLock, error) {
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
		return lockDir(dir)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write pid file: %w", err)
	}
	return &dirLock{file: f}, nil
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

// holder returns the process that has the folder, or 0 when none does, whatever the pid file says.
func holder(dir string) (int, error) {
	path := filepath.Join(dir, pidFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open pid file: %w", err)
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0, nil
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return 0, fmt.Errorf("read pid file: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("read pid file: %w", err)
	}
	return pid, nil
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

// Down ends the lab that runs in a folder, or removes what a killed one of that name left behind. It returns when nothing is
// left: no namespace, process, socket or mount. Disks, logs and the server's data stay, unless purge is set.
func Down(ctx context.Context, cfg Config, purge bool) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if err := end(ctx, cfg.Dir); err != nil {
		return err
	}
	owner, err := own(cfg.Name)
	if err != nil {
		return err // a lab of this name runs in another folder: not ours to touch
	}
	defer owner.Close()
	if err := Network(cfg.Name).clean(); err != nil {
		return err
	}
	for _, name := range []string{controlSocket, serverSocket, pidFile} {
		if err := os.Remove(filepath.Join(cfg.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what is left: %w", err)
		}
	}
	if purge {
		return os.RemoveAll(cfg.Dir)
	}
	return nil
}

// end asks the process that has the folder to end, then tells it to, and waits until it has let go.
func end(ctx context.Context, dir string) error {
	pid, err := holder(dir)
	if err != nil || pid == 0 {
		return err
	}
	process, err := os.FindProcess(pid) // a handle: the number cannot pass on to another process
	if err != nil {
		return fmt.Errorf("find lab: %w", err)
	}
	defer process.Release()
	if now, err := holder(dir); err != nil || now != pid {
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
		now, err := holder(dir)
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
