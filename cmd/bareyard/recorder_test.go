package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/netboot"
)

// pages collects what a recorder writes.
type pages struct {
	mu    sync.Mutex
	lines []trace.Line
	calls int
	block chan struct{} // not nil: writing waits for it
	err   error
}

func (p *pages) write(ctx context.Context, batch []trace.Line) error {
	if p.block != nil {
		select {
		case <-p.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.err != nil {
		return p.err
	}
	p.lines = append(p.lines, batch...)
	return nil
}

func (p *pages) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// TestRecorder: lines are written in their order, in few batches, and all of them when the server stops.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pages
		r := newRecorder("server-1", p.write, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		for i := range 1200 {
			r.note(trace.Line{At: time.Now(), MAC: "m", Proto: trace.HTTP, Asked: fmt.Sprint(i)})
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if p.calls > 4 || len(p.lines) != 1200 || p.lines[1199].Asked != "1199" || p.lines[0].Node != "server-1" {
			t.Errorf("%d lines in %d batches", len(p.lines), p.calls)
		}
		for range 5000 {
			r.note(trace.Line{MAC: "m", Proto: trace.HTTP, File: "/images/chunk/x", Asked: "x", Outcome: trace.Answered, Bytes: 10})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if last := p.lines[len(p.lines)-1]; len(p.lines) != 1201 || last.Times != 5000 || last.Bytes != 50_000 {
			t.Errorf("chunks: %d lines, the last %+v", len(p.lines), last)
		}
		r.note(trace.Line{MAC: "m", Proto: trace.HTTP, Asked: "last words"})
		stop()
		if err := <-done; err != nil || p.lines[len(p.lines)-1].Asked != "last words" {
			t.Errorf("after the end: %v, %+v", err, p.lines[len(p.lines)-1])
		}
	})
}

// TestRecorderNeverWaits: a database that hangs or fails costs lines, and no answer waits for it.
func TestRecorderNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pages{block: make(chan struct{})}
		var log strings.Builder
		r := newRecorder("n", p.write, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		began := time.Now()
		for i := range 20_000 {
			r.note(trace.Line{MAC: "m", Asked: fmt.Sprint(i)})
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("noting waited for %s", d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		close(p.block)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(p.lines) == 0 || len(p.lines) > recorderHolds || !strings.Contains(log.String(), "boot traces have gaps") {
			t.Errorf("%d lines were written; log:\n%s", len(p.lines), log.String())
		}
		p.fail(errors.New("the database is away"))
		r.note(trace.Line{MAC: "m", Asked: "x"})
		time.Sleep(time.Second)
		synctest.Wait()
		p.fail(nil)
		r.note(trace.Line{MAC: "m", Asked: "afterwards"})
		time.Sleep(time.Second)
		synctest.Wait()
		if p.lines[len(p.lines)-1].Asked != "afterwards" || !strings.Contains(log.String(), "the database is away") {
			t.Error("it does not go on after an error")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRecorderExchange: what a boot server tells becomes a line, and a machine's bytes cannot spoil it (K04).
func TestRecorderExchange(t *testing.T) {
	var p pages
	r := newRecorder("n", p.write, slog.New(slog.DiscardHandler))
	r.exchange(netboot.Exchange{MAC: "52:54:00:0b:01:01", Proto: "dhcp", Asked: "DISCOVER pxe\x1b[2J", Got: "OFFER", Outcome: netboot.Answered, File: "x\x00y", Bytes: 300,
		DHCP: netboot.DHCPFacts{Message: "DISCOVER", Answer: "OFFER", Stage: "pxe", Arch: 7, Basis: netboot.Proxied, Circuit: "\u202eswp1" + strings.Repeat("A", 9000)}})
	r.put(t.Context(), r.gather(<-r.lines))
	l := p.lines[0]
	if l.Asked != "DISCOVER pxe?[2J" || l.File != "x?y" || l.DHCP == nil || !l.DHCP.Proxied || l.DHCP.Arch != 7 || l.Times != 1 || l.Bytes != 0 || !strings.HasPrefix(l.DHCP.Circuit, "?swp1") || len(l.DHCP.Circuit) > 400 {
		t.Errorf("line %+v, %+v", l, l.DHCP)
	}
}
