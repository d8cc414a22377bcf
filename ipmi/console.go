package ipmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ConsoleOptions says how to open a serial console. The zero value is polite.
type ConsoleOptions struct {
	// TakeOver ends the console session of somebody else. Without it that session is respected: ErrTaken.
	TakeOver bool
	// KeepAlive is how often the BMC is asked for a sign of life; 0 is 5 s. A link without one for four times as long is lost.
	KeepAlive time.Duration
	// GiveUp is how long a lost link is tried again; 0 is 5 minutes.
	GiveUp time.Duration
}

// Output is the next piece of a console: bytes of the host, or a place where bytes may be missing.
type Output struct {
	At   time.Time
	Data []byte // nil for a gap
	Gap  *Gap   // nil for data
}

// Gap is a place where bytes of the host may be missing.
type Gap struct {
	From, To time.Time // between these the console was not, or not wholly, received
	Reason   GapReason
}

// GapReason is why bytes may be missing.
type GapReason string

// Reasons of a gap.
const (
	GapLink    GapReason = "link lost"       // the BMC fell silent, or ended the console, and it was opened again
	GapOverrun GapReason = "BMC overrun"     // the BMC says that it dropped bytes
	GapPackets GapReason = "packets missing" // the BMC went on to later bytes
)

// String is the gap as a line of a transcript.
func (g Gap) String() string {
	return fmt.Sprintf("[console: bytes may be missing, %s to %s: %s]", g.From.UTC().Format(time.RFC3339), g.To.UTC().Format(time.RFC3339), g.Reason)
}

// consoleQueue is how many bytes wait for a slow reader before the BMC is told to wait.
const consoleQueue = 256 << 10

// Console is a serial console. It is an io.ReadWriteCloser; reading and writing may go on at the same time.
type Console struct {
	c      *Controller
	t      Target
	o      ConsoleOptions
	l      *link
	ctx    context.Context
	cancel context.CancelFunc
	keys   chan keystrokes
	done   chan struct{} // closed when nothing of it runs any more

	mu     sync.Mutex
	queue  []Output
	queued int           // bytes in queue
	wake   chan struct{} // holds a token when there is something new in queue
	up     bool          // the link is there: keys can be sent
	err    error         // how it ended; read it after done
	rest   []byte        // what Read has not returned yet
}

// keystrokes are bytes for the host, or a break.
type keystrokes struct {
	data []byte
	brk  bool
	took chan error
}

// OpenConsole opens the host's serial console, which lives until Close or until ctx ends. It holds a session of its own, beside
// the one that the other methods share. There is one console for each BMC: a second one of this Controller is ErrTaken too.
//
// A console session that this Controller lost, or that a client on this host left behind when it died, is ended. ErrTaken means that
// somebody else holds it. A lost link is opened again, and the output says where bytes may be missing.
//
// Redfish has no console of its own: a Redfish target needs an IPMIAddress, and is ErrUnsupported without.
func (c *Controller) OpenConsole(ctx context.Context, t Target, o ConsoleOptions) (*Console, error) {
	const doing = "open console"
	over := t
	if t.Protocol == Redfish {
		if t.IPMIAddress == "" {
			return nil, t.on(doing, failf(ErrUnsupported, "Redfish has no console: the BMC's record needs the address at which it speaks IPMI"))
		}
		over.Protocol, over.Address, over.CertPin = IPMI, t.IPMIAddress, ""
	}
	l := c.hold(over)
	if !l.b.console.TryLock() {
		l.release()
		return nil, t.on(doing, failf(ErrTaken, "it is open in this program"))
	}
	o.KeepAlive, o.GiveUp = cmp.Or(o.KeepAlive, 5*time.Second), cmp.Or(o.GiveUp, 5*time.Minute)
	k := &Console{c: c, t: over, o: o, l: l, keys: make(chan keystrokes), done: make(chan struct{}), wake: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(ctx)
	opening, cancel := c.within(k.ctx)
	defer cancel()
	s, err := k.openSOL(opening, o.TakeOver)
	if err != nil {
		err = orOver(opening, err)
		k.cancel()
		l.b.console.Unlock()
		l.release()
		return nil, t.on(doing, err)
	}
	k.up = true
	go k.run(s)
	return k, nil
}

// run serves the console until it ends.
func (k *Console) run(s *solSession) {
	defer close(k.done)
	defer k.l.release()
	defer k.l.b.console.Unlock()
	for {
		lost := s.serve(k.ctx)
		k.setUp(false)
		s.end()
		if k.ctx.Err() != nil {
			k.finish(io.EOF)
			return
		}
		last, old := s.heard, s.r.wire.session
		var err error
		if s, err = k.reopen(lost); err != nil {
			k.finish(k.t.on("keep console open", err))
			return
		}
		s.bury(k.ctx, old)
		k.put(Output{At: time.Now(), Gap: &Gap{From: last, To: time.Now(), Reason: GapLink}})
		k.setUp(true)
	}
}

// reopen opens the console again after it was lost. Somebody who took it meanwhile keeps it.
func (k *Console) reopen(lost error) (*solSession, error) {
	ctx, cancel := context.WithTimeout(k.ctx, k.o.GiveUp)
	defer cancel()
	k.c.log().Info("console lost", "bmc", k.t, "err", lost)
	for failed := 1; ; failed++ {
		s, err := k.openSOL(ctx, false)
		if err == nil {
			return s, nil
		}
		if !transient(err) || !k.c.pause(ctx, failed, err) {
			return nil, orOver(ctx, err)
		}
	}
}

func (k *Console) setUp(up bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.up = up
}

func (k *Console) finish(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// room reports whether the reader keeps up.
func (k *Console) room() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.queued < consoleQueue
}

func (k *Console) put(o Output) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.queue); n > 0 && o.Gap == nil && k.queue[n-1].Gap == nil && len(k.queue[n-1].Data) < 4096 {
		k.queue[n-1].Data = append(k.queue[n-1].Data, o.Data...)
	} else {
		k.queue = append(k.queue, o)
	}
	k.queued += len(o.Data)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *Console) take() (Output, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return Output{}, false
	}
	o := k.queue[0]
	k.queue = k.queue[1:]
	k.queued -= len(o.Data)
	return o, true
}

// Next returns the next piece of output, and io.EOF after Close. Any other error is the end of the console, or of ctx.
func (k *Console) Next(ctx context.Context) (Output, error) {
	for {
		if o, ok := k.take(); ok {
			return o, nil
		}
		select {
		case <-ctx.Done():
			return Output{}, ctx.Err()
		case <-k.wake:
		case <-k.done:
			if o, ok := k.take(); ok {
				return o, nil
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			return Output{}, k.err
		}
	}
}

// Read reads what Next would return, with each gap as a line of its own in brackets. Use Next where it matters whether the host
// wrote that line.
func (k *Console) Read(p []byte) (int, error) {
	k.mu.Lock()
	if len(k.rest) == 0 {
		k.mu.Unlock()
		o, err := k.Next(context.Background())
		if err != nil {
			return 0, err
		}
		k.mu.Lock()
		k.rest = append(k.rest, o.Data...)
		if o.Gap != nil {
			k.rest = append(k.rest, "\r\n"+o.Gap.String()+"\r\n"...)
		}
	}
	defer k.mu.Unlock()
	n := copy(p, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}

// Write sends keys to the host. It returns when the BMC took them, and fails at once while the link is lost: keys must not arrive
// minutes after they were pressed.
func (k *Console) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		chunk := p[n:min(len(p), n+solChunk)]
		if err := k.send(k.ctx, keystrokes{data: chunk}); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(p), nil
}

// Break sends a serial break, which Linux reads as the start of a SysRq.
func (k *Console) Break(ctx context.Context) error { return k.send(ctx, keystrokes{brk: true}) }

func (k *Console) send(ctx context.Context, keys keystrokes) error {
	const doing = "send keys"
	keys.data = append([]byte(nil), keys.data...)
	keys.took = make(chan error, 1)
	k.mu.Lock()
	up := k.up
	k.mu.Unlock()
	if !up {
		return k.t.on(doing, failf(ErrUnreachable, "the link is lost"))
	}
	select {
	case k.keys <- keys:
	case <-ctx.Done():
		return k.t.on(doing, over(ctx))
	case <-k.done:
		return io.ErrClosedPipe
	}
	select {
	case err := <-keys.took:
		return k.t.on(doing, err)
	case <-k.done:
		return io.ErrClosedPipe
	}
}

// Close ends the console and its session. What was received stays readable.
func (k *Console) Close() error {
	k.cancel()
	<-k.done
	return nil
}

// Err is how the console ended: nil while it lives, io.EOF after Close.
func (k *Console) Err() error {
	select {
	case <-k.done:
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.err
	default:
		return nil
	}
}

// taken is the error of a console that somebody else holds; who is for operators.
func taken(who string) error { return failf(ErrTaken, "by %s", who) }

var errDeactivated = errors.New("the BMC ended the console")
