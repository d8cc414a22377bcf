package main

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// crasher makes crash tests possible: this process kills itself, as kill -9 would, right after a transition was committed and
// before anything else follows from it.
type crasher struct {
	after int    // counted from the start; 0 for never
	file  string // holds how many more transitions, and is gone once they are over; "" for none

	mu   sync.Mutex
	seen int
}

// hook is what is called after each transition; nil when this server is not made to crash.
func (c *crasher) hook() func() {
	if c.after <= 0 && c.file == "" {
		return nil
	}
	return c.committed
}

// committed counts a transition. Those of other goroutines wait meanwhile, so that the process dies with no more than it was
// told to commit being followed up.
func (c *crasher) committed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen++
	if c.seen == c.after || c.file != "" && c.countdown() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err == nil {
			select {} // nothing after it runs
		}
	}
}

// countdown takes one off the number in the file, if there is one, and reports whether it came to nothing.
func (c *crasher) countdown() bool {
	text, err := os.ReadFile(c.file)
	if err != nil {
		return false // not armed
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && left > 1 {
		err = os.WriteFile(c.file, []byte(strconv.Itoa(left-1)), 0o600)
	} else if err == nil {
		err = os.Remove(c.file)
	}
	if err != nil {
		slog.Log(context.Background(), slog.LevelError, "crash test is not carried out", "err", err)
		return false
	}
	return left <= 1
}
