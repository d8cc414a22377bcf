package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// starter starts the lab's processes from one thread that lives as long as the lab: the kernel kills a child when the
// thread that started it ends, and Go's threads may end at any time.
type starter struct {
	calls chan func()
	done  chan struct{}
}

func newStarter() *starter {
	s := &starter{calls: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for call := range s.calls {
			call()
		}
	}()
	return s
}

// do calls fn on the thread.
func (s *starter) do(fn func() error) error {
	result := make(chan error, 1)
	s.calls <- func() { result <- fn() }
	return <-result
}

// close ends the thread, and with it every process that it started. Nothing may call do any more.
func (s *starter) close() {
	close(s.calls)
	<-s.done
}

// childAttr makes a child die with the thread that starts it. It is in a group of its own: a terminal's Ctrl-C is for this
// process alone, which then ends the others in order.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// process is a child that dies with this process, by the kernel's hand.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was reaped
	err  error         // how; read it after done
}

// start starts a command whose output goes to the end of a log file.
func (s *starter) start(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttr()
	if err := s.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process at once and waits for its end.
func (p *process) kill() {
	p.cmd.Process.Kill() // by handle: an error means that it has ended
	<-p.done
}

// terminate asks the process to end and kills it when it has not within the grace.
func (p *process) terminate(grace time.Duration) {
	p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}
