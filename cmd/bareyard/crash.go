package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// crasher makes crash tests possible: this process kills itself, as kill -9 would, right after a transition was committed and
// before anything follows from it. The file says when: it holds "LEFT" or "LEFT EVERY", the number of transitions to go, and
// what to begin with again after a crash. Without EVERY it is gone after the crash. While there is no file, nothing happens.
type crasher struct {
	file string
	log  *slog.Logger
	mu   sync.Mutex
}

// committed counts a transition.
func (c *crasher) committed() {
	c.mu.Lock() // also by whoever dies, for good
	defer c.mu.Unlock()
	over, err := c.countdown()
	if err == nil && over {
		if err = syscall.Kill(os.Getpid(), syscall.SIGKILL); err == nil {
			select {}
		}
	}
	if err != nil {
		c.log.Error("the crash test does not happen", "err", err)
	}
}

// countdown takes one off the number in the file and reports whether that was the last.
func (c *crasher) countdown() (over bool, err error) {
	text, err := os.ReadFile(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var left, every int
	if n, err := fmt.Sscan(string(text), &left, &every); n == 0 {
		return false, fmt.Errorf("read %s: %w", c.file, err)
	}
	left--
	switch {
	case left > 0:
	case every > 0:
		over, left = true, every
	default:
		return true, os.Remove(c.file)
	}
	return over, os.WriteFile(c.file, fmt.Appendf(nil, "%d %d\n", left, every), 0o600)
}
