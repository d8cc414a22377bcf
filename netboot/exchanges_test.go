package netboot

import (
	"strings"
	"sync"
	"testing"
)

// exchanges collects what a Server traces.
type exchanges struct {
	mu  sync.Mutex
	all []Exchange
}

func (e *exchanges) add(x Exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, x)
}

// list returns what was traced so far.
func (e *exchanges) list() []Exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Exchange{}, e.all...)
}

func (e *exchanges) lines() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, x := range e.all {
		out = append(out, x.Proto+" "+x.Asked+" "+x.Got)
	}
	return out
}

// expect fails unless the exchanges contain the parts in this order.
func (e *exchanges) expect(t testing.TB, parts ...string) {
	t.Helper()
	lines := e.lines()
	next := 0
	for _, l := range lines {
		if next < len(parts) && strings.Contains(l, parts[next]) {
			next++
		}
	}
	if next < len(parts) {
		t.Errorf("no exchange with %q (after %q) in:\n%s", parts[next], parts[:next], strings.Join(lines, "\n"))
	}
}

func (e *exchanges) none(t testing.TB) {
	t.Helper()
	if lines := e.lines(); len(lines) > 0 {
		t.Errorf("%q", lines)
	}
}
