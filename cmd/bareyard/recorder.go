package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/netboot"
)

const (
	recorderHolds = 8192                   // lines; more are lost while the database is away or slow
	recorderBatch = 500                    // lines written at once
	recorderPause = 250 * time.Millisecond // between batches: lines that belong together come together
	recorderTime  = 10 * time.Second       // for a batch, then it is lost
	recorderLast  = 3 * time.Second        // for what is left when the server stops
)

// recorder writes what machines ask to the database. Whoever has an answer to send only drops a line here; one goroutine
// writes them. What cannot be written is lost: a boot trace is for people, and no machine waits for it.
type recorder struct {
	node  string // this server, among those that share the database
	write func(context.Context, []trace.Line) error
	log   *slog.Logger

	lines chan trace.Line
	lost  atomic.Int64
}

func newRecorder(node string, write func(context.Context, []trace.Line) error, log *slog.Logger) *recorder {
	return &recorder{node: node, write: write, log: log, lines: make(chan trace.Line, recorderHolds)}
}

// note takes a line; it never waits.
func (r *recorder) note(l trace.Line) {
	l.Node = r.node
	select {
	case r.lines <- l:
	default:
		r.lost.Add(1)
	}
}

// exchange takes what a boot server tells of an exchange.
func (r *recorder) exchange(x netboot.Exchange) {
	l := trace.Line{At: x.At, Took: x.Took, MAC: x.MAC, From: x.From, Proto: trace.Proto(x.Proto), Asked: x.Asked, Got: x.Got,
		Outcome: trace.Outcome(x.Outcome), Why: x.Why, File: x.File, Boots: x.Boots, Bytes: x.Bytes, Size: x.Size}
	if l.Proto == trace.DHCP {
		d := x.DHCP
		l.DHCP = &trace.DHCPFacts{Message: d.Message, Answer: d.Answer, Stage: d.Stage, Arch: d.Arch, Addr: d.Addr, Relay: d.Relay, Circuit: d.Circuit, Server: d.Server,
			Proxied: d.Basis == netboot.Proxied}
		l.Bytes = 0 // of a reply: nobody asks
	}
	r.note(l)
}

// Run writes until ctx ends, then what is left, and returns nil.
func (r *recorder) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), recorderLast)
			defer cancel()
			for last.Err() == nil && len(r.lines) > 0 {
				r.put(last, r.gather(<-r.lines))
			}
			return nil
		case l := <-r.lines:
			wait := time.NewTimer(recorderPause)
			select {
			case <-ctx.Done():
				wait.Stop()
			case <-wait.C:
			}
			in, cancel := context.WithTimeout(context.WithoutCancel(ctx), recorderTime)
			r.put(in, r.gather(l))
			cancel()
		}
	}
}

// gather takes what is there, up to a batch. Image chunks come by the thousand and are one line.
func (r *recorder) gather(l trace.Line) []trace.Line {
	batch := []trace.Line{l.Clean()}
	for len(batch) < recorderBatch {
		select {
		case l = <-r.lines:
			l = l.Clean()
			if last := len(batch) - 1; l.Repeats(batch[last]) {
				batch[last] = l.Merge(batch[last])
				continue
			}
			batch = append(batch, l)
		default:
			return batch
		}
	}
	return batch
}

func (r *recorder) put(ctx context.Context, batch []trace.Line) {
	err := r.write(ctx, batch)
	if lost := r.lost.Swap(0); lost > 0 {
		r.log.Warn("boot traces have gaps: lines came faster than they can be written", "lost", lost)
	}
	if err != nil {
		r.log.Warn("boot traces have gaps", "lost", len(batch), "err", err)
	}
}
