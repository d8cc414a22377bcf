// Package child runs programs that crash, hang or talk without end, and says how they ended.
package child

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bareyard/bareyard/accelerator"
)

const (
	maxNoise = 1 << 20         // bytes that a child may say beside its answer before it is stopped
	maxKept  = 4 << 10         // bytes of that which are kept
	mercy    = 2 * time.Second // between the kill and giving it up as stuck in the kernel
)

// Command is a program to run.
type Command struct {
	Path     string
	Args     []string
	Env      []string      // in place of the program's own; nil: inherited
	Deadline time.Duration // a minute when zero
	Output   int           // bytes of standard output that are kept; more of it ends the program. 1 MiB when zero
}

// Run runs a tool and returns what it wrote to standard output. It runs in a process group of its own, which is gone when Run returns, unless it is
// stuck in the kernel: that is then what the fault says. An exit status other than 0 is a fault too, and so is output without end; what was
// written by then is returned.
func Run(ctx context.Context, c Command) (string, *accelerator.Fault) {
	c.Deadline = cmp.Or(c.Deadline, time.Minute)
	path, err := exec.LookPath(c.Path)
	if err != nil {
		return "", &accelerator.Fault{Kind: accelerator.FaultAbsent, Detail: filepath.Base(c.Path) + " is not installed"}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Deadline)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	most := cmp.Or(c.Output, 1<<20)
	out := &capped{keep: most, max: most, over: func() { stop(errTooMuch) }}
	noise := &capped{keep: maxKept, max: maxNoise, over: func() { stop(errTooMuch) }}
	p, err := start(c.command(path, out, noise))
	if err != nil {
		return "", &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
	}
	err = p.wait(ctx)
	text := out.String()
	var exit *exec.ExitError
	f := &accelerator.Fault{Kind: accelerator.FaultRefused, During: filepath.Base(c.Path)}
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, errTooMuch):
		f.Kind, f.Detail = accelerator.FaultProbe, errTooMuch.Error()
	case errors.Is(err, context.DeadlineExceeded):
		f.Kind, f.Detail = accelerator.FaultHang, hang(err, c.Deadline)
	case errors.As(err, &exit) && !exit.Exited():
		f.Kind, f.Detail = accelerator.FaultCrash, firstLines(noise.String(), exit.String())
	case errors.As(err, &exit):
		f.Detail = firstLines(noise.String()+"\n"+text, exit.String())
	default:
		f.Kind, f.Detail = accelerator.FaultProbe, err.Error()
	}
	return text, f
}

// command makes the command of a child in a group of its own.
func (c Command) command(path string, out, noise io.Writer) *exec.Cmd {
	cmd := exec.Command(path, c.Args...)
	cmd.Env = c.Env
	cmd.Stdout, cmd.Stderr = out, noise
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = mercy
	return cmd
}

// process is a child under way.
type process struct {
	cmd   *exec.Cmd
	ended chan error
}

// start starts a child on a thread of its own: the parent in Pdeathsig is the thread.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan error, 1)}
	started := make(chan error, 1)
	go func() { // ends with the child; left behind when the child is stuck in the kernel and cannot be killed
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.ended <- cmd.Wait()
		}
	}()
	return p, <-started
}

// wait waits for the child's end or the context's and takes the whole group down then.
func (p *process) wait(ctx context.Context) error {
	select {
	case err := <-p.ended:
		p.kill() // whatever it started
		if cause := context.Cause(ctx); errors.Is(cause, errTooMuch) {
			return cause
		}
		return err
	case <-ctx.Done():
		p.kill()
	}
	select {
	case <-p.ended:
		return context.Cause(ctx)
	case <-time.After(mercy):
		return fmt.Errorf("%w, and cannot be killed: process state %s", context.Cause(ctx), procState(p.cmd.Process.Pid))
	}
}

func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

var errTooMuch = errors.New("it says more than it should")

// hang puts a deadline that ran out into words, with the state of a process that could not even be killed.
func hang(err error, deadline time.Duration) string {
	return fmt.Sprintf("no answer in %v", deadline) + strings.TrimPrefix(err.Error(), context.DeadlineExceeded.Error())
}

// Message is what a child of ours says on descriptor 3, one after the other. The last one counts, however the child ended: it tells what it was
// about to do, and all that it had found out.
type Message interface {
	Doing() string             // the call under way
	Whole() bool               // this is the whole answer
	Found() *accelerator.Fault // what the child itself says went wrong
}

// Ask runs a child of ours that answers on descriptor 3 and returns its last message. Without on, the whole answer is due at the command's
// deadline. With it each message is given to on as it comes, and the deadline begins anew: a child that goes on saying things may live for as
// long as the context.
func Ask[M Message](ctx context.Context, c Command, on func(M)) (M, *accelerator.Fault) {
	var none M
	c.Deadline = cmp.Or(c.Deadline, time.Minute)
	said, theirs, err := os.Pipe()
	if err != nil {
		return none, &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
	}
	defer said.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	silence := time.AfterFunc(c.Deadline, func() { stop(context.DeadlineExceeded) })
	defer silence.Stop()
	noise := &capped{keep: maxKept, max: maxNoise, over: func() { stop(errTooMuch) }}
	cmd := c.command(c.Path, noise, noise)
	cmd.ExtraFiles = []*os.File{theirs} // descriptor 3: a vendor's library may write what it likes to the others
	p, err := start(cmd)
	theirs.Close()
	if err != nil {
		return none, &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
	}
	last := make(chan M, 1)
	go func() { // ends at the end of the pipe, at the read deadline below at the latest
		var m M
		dec := json.NewDecoder(&limited{f: said, steady: on != nil, began: time.Now(), over: func() { stop(errTooMuch) }})
		for {
			var next M
			if err := dec.Decode(&next); err != nil {
				break
			}
			m = next
			if on != nil {
				on(m)
				silence.Reset(c.Deadline)
			}
			if m.Whole() {
				break
			}
		}
		last <- m
	}()
	select {
	case m := <-last: // the whole answer, or the end of the pipe: a driver that hangs while the process exits changes nothing
		if m.Whole() {
			p.kill()
			select { // a process that is still ending holds its card: what is asked next would find it busy
			case <-p.ended:
			case <-time.After(mercy):
			}
			return m, m.Found()
		}
		last <- m
	case err = <-p.ended:
		p.ended <- err
	case <-ctx.Done():
	}
	err = p.wait(ctx)
	_ = said.SetReadDeadline(time.Now().Add(mercy)) // a grandchild may hold the other end
	m := <-last
	return m, fault(m, err, noise.String(), c.Deadline)
}

// fault reads from a child's end why it gave no whole answer, nil when it did.
func fault(m Message, err error, noise string, deadline time.Duration) *accelerator.Fault {
	f := &accelerator.Fault{Kind: accelerator.FaultProbe, During: m.Doing()}
	var exit *exec.ExitError
	switch {
	case m.Whole():
		return m.Found()
	case errors.Is(err, context.DeadlineExceeded):
		f.Kind, f.Detail = accelerator.FaultHang, hang(err, deadline)
	case errors.As(err, &exit) && exit.ExitCode() == 127:
		f.Kind, f.Detail = accelerator.FaultSymbol, firstLines(noise, "exit status 127")
	case errors.As(err, &exit):
		f.Kind, f.Detail = accelerator.FaultCrash, firstLines(noise, exit.String())
	case err != nil:
		f.Detail = err.Error()
	default:
		f.Detail = "the probe ended without an answer"
	}
	return f
}

// firstLines returns the first two lines of what a dying process wrote, which name the cause; a traceback follows.
func firstLines(noise, otherwise string) string {
	var lines []string
	for line := range strings.Lines(noise) {
		if line = strings.TrimSpace(line); line != "" && len(lines) < 2 {
			lines = append(lines, line[:min(len(line), 300)])
		}
	}
	if len(lines) == 0 {
		return otherwise
	}
	return otherwise + ": " + strings.Join(lines, " ")
}

// limited reads a file up to a number of bytes, and calls over at the first beyond it. A steady child may say more as time goes by.
type limited struct {
	f      *os.File
	steady bool
	began  time.Time
	read   int
	over   func()
}

// steadyRate is how many bytes a second a steady child may say on the long run; one that watches a card says about 300.
const steadyRate = 64 << 10

func (l *limited) Read(p []byte) (int, error) {
	most := maxNoise
	if l.steady {
		most += int(time.Since(l.began).Seconds()) * steadyRate
	}
	if l.read >= most {
		l.over()
		return 0, errTooMuch
	}
	n, err := l.f.Read(p[:min(len(p), most-l.read)])
	l.read += n
	return n, err
}

// capped keeps the beginning of what is written and calls over when it is far too much.
type capped struct {
	mu        sync.Mutex
	buf       bytes.Buffer
	total     int
	keep, max int
	over      func()
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf.Write(p[:max(0, min(len(p), c.keep-c.buf.Len()))])
	if c.total += len(p); c.total > c.max {
		c.over()
	}
	return len(p), nil
}

func (c *capped) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// procState returns the state letter of a process: D is uninterruptible, in a driver that does not return.
func procState(pid int) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "unknown"
	}
	if _, after, ok := bytes.Cut(b, []byte(") ")); ok && len(after) > 0 {
		return string(after[:1])
	}
	return "unknown"
}

// Find returns where a vendor's tool is: in a folder that was given, and there only; else by PATH or in one of the places where its installer
// puts it. A tool that is nowhere is returned by its name, and running it tells.
func Find(name, folder string, places ...string) string {
	if folder != "" {
		return filepath.Join(folder, name)
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, p := range places {
		if path, err := exec.LookPath(filepath.Join(p, name)); err == nil {
			return path
		}
	}
	return name
}
