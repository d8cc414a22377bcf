package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process that does not outlive us.
type child struct {
	cmd  *exec.Cmd
	out  *logLines
	done chan struct{} // closed once it has exited and been waited for
	err  error         // how it exited; read after done
}

// startChild starts cmd, whose output goes to log. orphaned is the signal that the kernel sends it when we die. That signal is tied to
// the thread which started the child, not to the process: one goroutine keeps that thread until the child is gone.
func startChild(cmd *exec.Cmd, orphaned syscall.Signal, log *slog.Logger) (*child, error) {
	c := &child{cmd: cmd, out: &logLines{log: log}, done: make(chan struct{})}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"} // ours may hold secrets
	cmd.Stdout, cmd.Stderr = c.out, c.out
	cmd.WaitDelay = 5 * time.Second // grandchildren may hold the pipe a little longer
	cmd.SysProcAttr.Pdeathsig = orphaned
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for us: we stop it when nothing needs it any more
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// runChild runs cmd to its end; the error of one that fails says what it said last.
func runChild(ctx context.Context, cmd *exec.Cmd) error {
	c, err := startChild(cmd, syscall.SIGKILL, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	name := cmd.Path
	select {
	case <-c.done:
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("run %s: %w", name, ctx.Err())
	}
	if c.err != nil {
		return fmt.Errorf("run %s: %w: %s", name, c.err, c.out.last())
	}
	return nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// lastWords is what it said before it exited.
func (c *child) lastWords() string { return c.out.last() }

// stop ends a postmaster: fast; once ctx is over at once; and after ten more seconds by force. It returns when it is gone.
func (c *child) stop(ctx context.Context) error {
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	_ = c.cmd.Process.Signal(syscall.SIGQUIT)
	force := time.NewTimer(10 * time.Second)
	defer force.Stop()
	select {
	case <-c.done:
	case <-force.C:
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	return fmt.Errorf("stop postgres: stopped without a checkpoint: %w", ctx.Err())
}

// logLines turns PostgreSQL's output into log records and remembers the last words.
type logLines struct {
	log *slog.Logger

	mu    sync.Mutex
	part  []byte   // a line that has not ended yet
	lines []string // the last few
}

// lastLines is how many lines are remembered.
const lastLines = 8

// Write takes a piece of output; pieces need not end at a line.
func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			break
		}
		l.line(strings.TrimSpace(string(line)))
		l.part = rest
	}
	if len(l.part) > 64<<10 { // no line is that long
		l.part = nil
	}
	return len(p), nil
}

func (l *logLines) line(s string) {
	if s == "" {
		return
	}
	if l.lines = append(l.lines, s); len(l.lines) > lastLines {
		l.lines = l.lines[1:]
	}
	severity, msg, ok := strings.Cut(s, ":  ")
	if !ok {
		severity, msg = "", s
	}
	level := logLevel(severity)
	if strings.HasSuffix(msg, "is starting up") { // what awaitReady hears until it is
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, msg, "severity", severity)
}

// logLevel maps PostgreSQL's severities. An ERROR went to the client that caused it, who answers for it; a FATAL ends one connection.
func logLevel(severity string) slog.Level {
	switch severity {
	case "PANIC":
		return slog.LevelError
	case "WARNING":
		return slog.LevelWarn
	case "FATAL", "ERROR":
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// last returns the last words: the newest line that is an error with the one before it, which often says why, or else the newest line.
func (l *logLines) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.lines) - 1; i >= 0; i-- {
		for _, mark := range []string{"FATAL:", "PANIC:", "error:", "ERROR:"} {
			if strings.Contains(l.lines[i], mark) {
				return strings.Join(l.lines[max(0, i-1):i+1], "; ")
			}
		}
	}
	if len(l.lines) == 0 {
		return "it said nothing"
	}
	return l.lines[len(l.lines)-1]
}
