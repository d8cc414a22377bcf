package console

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// maxBehind is how much output is kept for a viewer who does not fetch it, in bytes. A serial line at 115,200 baud brings as much
// in 20 seconds.
const maxBehind = 256 << 10

// ErrSlow ends a viewer who does not keep up.
var ErrSlow = errors.New("you were too slow: output was lost, and the console was closed for you")

// Viewer is one who looks at a console. It sees what comes after it joined, and nothing from before.
type Viewer struct {
	of *shared

	mu     sync.Mutex
	queue  []ipmi.Output
	behind int           // bytes in queue
	over   error         // why it is over
	wake   chan struct{} // holds a token when any of these changed
}

func newViewer(s *shared) *Viewer { return &Viewer{of: s, wake: make(chan struct{}, 1)} }

// Next returns the next piece of output, or why there is no more.
func (v *Viewer) Next(ctx context.Context) (ipmi.Output, error) {
	for {
		if err := ctx.Err(); err != nil { // before what is left: he may have lost the right to see it
			return ipmi.Output{}, err
		}
		v.mu.Lock()
		if len(v.queue) > 0 {
			out := v.queue[0]
			v.queue = v.queue[1:]
			v.behind -= size(out)
			v.mu.Unlock()
			return out, nil
		}
		over := v.over
		v.mu.Unlock()
		if over != nil {
			return ipmi.Output{}, over
		}
		select {
		case <-ctx.Done():
			return ipmi.Output{}, ctx.Err()
		case <-v.wake:
		}
	}
}

// Write sends keys to the host. It does not wait for the BMC.
func (v *Viewer) Write(keys []byte) error { return v.send(input{keys: slices.Clone(keys)}) }

// Break sends a serial break.
func (v *Viewer) Break() error { return v.send(input{breaks: true}) }

func (v *Viewer) send(in input) error {
	if err := v.failure(); err != nil {
		return err
	}
	select {
	case v.of.input <- in:
		return nil
	default:
		return &machine.Error{Code: machine.Unavailable, Message: "the console takes no more keys: the BMC is slow or does not answer", Hint: "wait, and type again"}
	}
}

// Leave ends the viewer. The console closes a moment after the last one has left.
func (v *Viewer) Leave() {
	v.of.hub.mu.Lock()
	// a new list: whoever fans out has the old one
	v.of.viewers = slices.DeleteFunc(slices.Clone(v.of.viewers), func(x *Viewer) bool { return x == v })
	v.of.hub.mu.Unlock()
	v.of.tell()
	v.end(errLeft)
}

var errLeft = errors.New("this viewer has left")

func (v *Viewer) failure() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.over
}

// put hands output to the viewer, or ends him when he is too far behind.
func (v *Viewer) put(out ipmi.Output) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over != nil {
		return
	}
	if v.behind+size(out) > maxBehind {
		v.over = ErrSlow
	} else {
		v.queue = append(v.queue, out)
		v.behind += size(out)
	}
	v.signal()
}

func (v *Viewer) end(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over == nil {
		v.over = err
	}
	v.signal()
}

// signal wakes Next. v.mu is held.
func (v *Viewer) signal() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// size is what a piece of output costs; a gap is not for nothing.
func size(out ipmi.Output) int { return len(out.Data) + 64 }
