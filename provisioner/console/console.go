// Package console shares the one serial console of each machine among all who look at it, and records it while a job runs.
package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Line is a machine's serial console; ipmi.Console is one.
type Line interface {
	// Next returns the next piece of output. Any error is the end of the line.
	Next(ctx context.Context) (ipmi.Output, error)
	Write(p []byte) (int, error)
	Break(ctx context.Context) error
	Close() error
}

// Claims says which server of those that share a database holds a console: a BMC has one.
type Claims interface {
	// ClaimConsole takes a console for a node, or renews its claim, and returns who holds it now.
	ClaimConsole(ctx context.Context, machineID, node string, life time.Duration) (holder string, err error)
	ReleaseConsole(ctx context.Context, machineID, node string) error
}

// Hub shares the consoles of all machines. Set the fields before Run; nobody can join while it does not run.
type Hub struct {
	// Open opens the console at the BMC, to live until it is closed or ctx ends. With takeOver it ends the session of whoever
	// else has it.
	Open   func(ctx context.Context, machineID string, takeOver bool) (Line, error)
	Claims Claims
	Node   string // this server's name
	// Elsewhere opens a console that another server holds; nil refuses.
	Elsewhere func(ctx context.Context, machineID, node string) (Line, error)
	Log       *slog.Logger

	mu    sync.Mutex
	ctx   context.Context // of Run; nil while it does not run
	tasks sync.WaitGroup  // of Run
	lines map[string]*shared
	going map[string]chan struct{} // by machine: closed when the session before has let go of the BMC
}

const (
	claimLife  = 20 * time.Second
	claimRenew = 5 * time.Second
	linger     = 5 * time.Second // that a line without a viewer stays open, for whoever comes back
	openTime   = 45 * time.Second
	writeQueue = 256 // pieces of input
)

var errStopped = errors.New("the server is stopping")

// Run lets viewers join until ctx ends, and then ends all consoles.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx, h.lines, h.going = ctx, map[string]*shared{}, map[string]chan struct{}{}
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	h.ctx = nil
	h.mu.Unlock()
	h.tasks.Wait()
	return nil
}

func (h *Hub) log() *slog.Logger {
	if h.Log != nil {
		return h.Log
	}
	return slog.New(slog.DiscardHandler)
}

// Join opens a machine's console, or shares the session that is open. Leave the viewer when done.
func (h *Hub) Join(ctx context.Context, machineID string, takeOver bool) (*Viewer, error) {
	h.mu.Lock()
	if h.ctx == nil {
		h.mu.Unlock()
		return nil, &machine.Error{Code: machine.Unavailable, Message: errStopped.Error(), Hint: "try again in a minute"}
	}
	s := h.lines[machineID]
	if s == nil {
		s = &shared{hub: h, machineID: machineID, opened: make(chan struct{}), input: make(chan input, writeQueue), changed: make(chan struct{}, 1), gone: make(chan struct{})}
		h.lines[machineID] = s
		run, before := h.ctx, h.going[machineID]
		h.tasks.Go(func() {
			defer s.left()
			if before != nil {
				<-before
			}
			s.run(run, takeOver)
		})
	}
	v := newViewer(s)
	s.viewers = append(s.viewers, v)
	h.mu.Unlock()
	s.tell()
	select {
	case <-s.opened:
	case <-ctx.Done():
		v.Leave()
		return nil, ctx.Err()
	}
	if err := v.failure(); err != nil {
		v.Leave()
		return nil, err
	}
	return v, nil
}

// Counts reports how many consoles are open, and how many look at them.
func (h *Hub) Counts() (consoles, viewers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.lines {
		consoles++
		viewers += len(s.viewers)
	}
	return consoles, viewers
}

// Here reports whether this server has a machine's console open.
func (h *Hub) Here(machineID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lines[machineID] != nil
}

// shared is one open console. What is not final is guarded by hub.mu.
type shared struct {
	hub       *Hub
	machineID string
	opened    chan struct{} // closed when line is open, or will not be
	input     chan input
	changed   chan struct{} // holds a token when viewers came or went
	gone      chan struct{} // closed when nothing of it is left at the BMC

	viewers []*Viewer
}

// input is keys, or a break.
type input struct {
	keys   []byte
	breaks bool
}

func (s *shared) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// run is the life of a console: open, fan out, close. It ends when nobody looks any more, the line breaks, or ctx ends.
func (s *shared) run(ctx context.Context, takeOver bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	line, claimed, err := s.open(ctx, takeOver)
	if claimed {
		defer s.release(ctx)
	}
	if err != nil {
		s.end(err)
		close(s.opened)
		return
	}
	close(s.opened)
	var tasks sync.WaitGroup
	tasks.Go(func() { s.write(ctx, line) })
	ended := make(chan error, 1)
	tasks.Go(func() { ended <- s.read(ctx, line) })
	err = s.keep(ctx, claimed, ended)
	s.end(err) // before the line is closed: whoever comes now waits until this one has let go
	cancel()
	if err := line.Close(); err != nil {
		s.hub.log().Debug("console did not close in order", "machine", s.machineID, "err", err)
	}
	tasks.Wait()
}

// open claims the console and opens it, here or where it is held.
func (s *shared) open(ctx context.Context, takeOver bool) (line Line, claimed bool, err error) {
	life, cancel := context.WithCancel(ctx) // of the console, which is to open in time
	late := time.AfterFunc(openTime, cancel)
	defer func() {
		if !late.Stop() && err == nil {
			err = errors.Join(errors.New("the console opened too late"), line.Close())
		}
		if err != nil {
			cancel()
		}
	}()
	holder, err := s.hub.Claims.ClaimConsole(ctx, s.machineID, s.hub.Node, claimLife)
	if err != nil {
		return nil, false, fmt.Errorf("claim console: %w", err)
	}
	if holder == s.hub.Node {
		line, err = s.hub.Open(life, s.machineID, takeOver)
		return line, true, err
	}
	if s.hub.Elsewhere == nil {
		return nil, false, &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("server %s has this console open", holder), Hint: "connect to that server"}
	}
	line, err = s.hub.Elsewhere(life, s.machineID, holder)
	return line, false, err
}

func (s *shared) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.hub.Claims.ReleaseConsole(ctx, s.machineID, s.hub.Node); err != nil { // it runs out by itself
		s.hub.log().Warn("console claim not given back", "machine", s.machineID, "err", err)
	}
}

// keep holds the claim until the console is over, and returns why it is.
func (s *shared) keep(ctx context.Context, claimed bool, ended <-chan error) error {
	renew := time.NewTicker(claimRenew)
	defer renew.Stop()
	idle := time.NewTimer(linger)
	defer idle.Stop()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return errStopped
		case err := <-ended:
			return err
		case <-s.changed:
			idle.Reset(linger)
		case <-idle.C:
			if s.deserted() {
				return errDeserted
			}
		case <-renew.C:
			if !claimed {
				continue
			}
			holder, err := s.hub.Claims.ClaimConsole(ctx, s.machineID, s.hub.Node, claimLife)
			switch {
			case err == nil && holder == s.hub.Node:
				renewed = time.Now()
			case err == nil, time.Since(renewed) > claimLife-2*claimRenew:
				return errors.New("another server took the console")
			}
		}
	}
}

var errDeserted = errors.New("nobody looks at this console any more")

// deserted takes the console out of the hub when nobody looks at it.
func (s *shared) deserted() bool {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if len(s.viewers) > 0 {
		return false
	}
	s.remove()
	return true
}

// remove makes room for another session of this machine. hub.mu is held.
func (s *shared) remove() {
	if s.hub.lines[s.machineID] == s {
		delete(s.hub.lines, s.machineID)
		s.hub.going[s.machineID] = s.gone
	}
}

// left lets the next session begin.
func (s *shared) left() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	close(s.gone)
	if s.hub.going[s.machineID] == s.gone {
		delete(s.hub.going, s.machineID)
	}
}

// end tells all viewers that the console is over.
func (s *shared) end(err error) {
	s.hub.mu.Lock()
	s.remove()
	viewers := s.viewers
	s.viewers = nil
	s.hub.mu.Unlock()
	for _, v := range viewers {
		v.end(err)
	}
}

// read fans the line out. No viewer can hold it up.
func (s *shared) read(ctx context.Context, line Line) error {
	for {
		out, err := line.Next(ctx)
		if err != nil {
			return err
		}
		s.hub.mu.Lock()
		viewers := s.viewers
		s.hub.mu.Unlock()
		for _, v := range viewers {
			v.put(out)
		}
	}
}

// write sends what viewers type, in the order in which it came.
func (s *shared) write(ctx context.Context, line Line) {
	for {
		select {
		case <-ctx.Done():
			return
		case in := <-s.input:
			err := error(nil)
			if in.breaks {
				err = line.Break(ctx)
			} else {
				_, err = line.Write(in.keys)
			}
			if err != nil && ctx.Err() == nil { // if the line is over, Next says so too
				s.hub.log().Debug("keys not sent", "machine", s.machineID, "err", err)
			}
		}
	}
}
