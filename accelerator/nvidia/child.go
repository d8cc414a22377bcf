package nvidia

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	maxSaid = 1 << 20         // bytes that a probe may say before it is stopped
	maxKept = 4 << 10         // bytes of its standard output and error that are kept
	mercy   = 2 * time.Second // between the kill and giving it up as stuck in the kernel
)

// probe runs one probe in a child. The message holds what the child had found out when it ended, however it ended.
func (r Reader) probe(ctx context.Context, question ...string) (message, *accelerator.Fault) {
	self, err := r.self()
	if err != nil {
		return message{}, &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
	}
	deadline := cmp.Or(r.Deadline, time.Minute)
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return r.run(ctx, deadline, self, append([]string{ProbeArg, cmp.Or(r.Library, Library)}, question...))
}

// run starts the child in a process group of its own, follows it and takes the whole group down at the end.
func (r Reader) run(ctx context.Context, deadline time.Duration, self string, args []string) (message, *accelerator.Fault) {
	said, theirs, err := os.Pipe()
	if err != nil {
		return message{}, &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
	}
	defer said.Close()

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	noise := &capped{keep: maxKept, max: maxSaid, over: func() { stop(errTooMuch) }}
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = noise, noise
	cmd.ExtraFiles = []*os.File{theirs} // descriptor 3: the library may write what it likes to the others
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = mercy

	started, ended := make(chan error, 1), make(chan error, 1)
	go func() { // ends with the child; left behind when the child is stuck in the kernel and cannot be killed
		runtime.LockOSThread() // the parent in Pdeathsig is the thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		theirs.Close()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return message{}, &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
	}
	group := -cmd.Process.Pid
	last := make(chan message, 1)
	go func() { last <- follow(said, func() { stop(errTooMuch) }) }() // ends at the read deadline at the latest

	select {
	case m := <-last: // the whole answer, or the end of the pipe: a driver that hangs while the process exits changes nothing
		if m.Done {
			syscall.Kill(group, syscall.SIGKILL)
			return m, m.Fault
		}
		last <- m
	case err = <-ended:
		ended <- err
	case <-ctx.Done():
	}
	select {
	case err = <-ended:
		syscall.Kill(group, syscall.SIGKILL) // whatever it started
	case <-ctx.Done():
		syscall.Kill(group, syscall.SIGKILL)
		select {
		case <-ended:
			err = context.Cause(ctx)
		case <-time.After(mercy):
			err = fmt.Errorf("%w, and cannot be killed: process state %s", context.Cause(ctx), procState(cmd.Process.Pid))
		}
	}
	said.SetReadDeadline(time.Now().Add(mercy)) // a grandchild may hold the other end
	m := <-last
	return m, fault(m, err, noise.String(), deadline)
}

var errTooMuch = errors.New("it says more than it should")

// fault reads from a child's end why it gave no whole answer, nil when it did.
func fault(m message, err error, noise string, deadline time.Duration) *accelerator.Fault {
	f := &accelerator.Fault{Kind: accelerator.FaultProbe, During: m.During}
	var exit *exec.ExitError
	switch {
	case m.Done:
		return m.Fault
	case errors.Is(err, context.DeadlineExceeded):
		f.Kind, f.Detail = accelerator.FaultHang, fmt.Sprintf("no answer in %v", deadline)
		if text := err.Error(); text != context.DeadlineExceeded.Error() {
			f.Detail += strings.TrimPrefix(text, context.DeadlineExceeded.Error())
		}
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
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return otherwise
	}
	return otherwise + ": " + strings.Join(lines, " ")
}

// follow reads a child's messages up to the one that is the whole answer and returns the last.
func follow(said *os.File, over func()) message {
	var last message
	dec := json.NewDecoder(&limited{f: said, left: maxSaid, over: over})
	for {
		var m message
		if err := dec.Decode(&m); err != nil {
			return last
		}
		if last = m; m.Done {
			return last
		}
	}
}

// limited reads a file up to a number of bytes and calls over at the first beyond it.
type limited struct {
	f    *os.File
	left int
	over func()
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		l.over()
		return 0, errTooMuch
	}
	n, err := l.f.Read(p[:min(len(p), l.left)])
	l.left -= n
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
	c.buf.Write(p[:min(len(p), c.keep-c.buf.Len())])
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
