package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire is a host's serial port behind a BMC. The real ones are in lab; here it shows what they cannot: floods and a BMC that takes
// no keys.
type wire struct {
	out    chan ipmi.Output
	closed chan struct{}
	once   sync.Once
	stuck  chan struct{} // while not nil, Write waits for it to be closed

	mu    sync.Mutex
	typed bytes.Buffer
}

func newWire() *wire { return &wire{out: make(chan ipmi.Output), closed: make(chan struct{})} }

func (w *wire) Next(ctx context.Context) (ipmi.Output, error) {
	select {
	case out, ok := <-w.out:
		if !ok {
			return ipmi.Output{}, fmt.Errorf("BMC at 10.0.0.1: %w", ipmi.ErrUnreachable)
		}
		return out, nil
	case <-ctx.Done():
		return ipmi.Output{}, ctx.Err()
	case <-w.closed:
		return ipmi.Output{}, io.EOF
	}
}

func (w *wire) Write(p []byte) (int, error) {
	if w.stuck != nil {
		select {
		case <-w.stuck:
		case <-w.closed:
			return 0, io.ErrClosedPipe
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.typed.Write(p)
}

func (w *wire) Break(context.Context) error { _, err := w.Write([]byte("<break>")); return err }

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *wire) say(text string) {
	select {
	case w.out <- ipmi.Output{At: time.Now(), Data: []byte(text)}:
	case <-w.closed:
	}
}

// bench is a hub with the BMC of one machine, m.
type bench struct {
	hub    *Hub
	opened atomic.Int64
	mu     sync.Mutex
	wire   *wire
	fail   error
	held   string // node that holds the console, where it is not ours
	stop   context.CancelFunc
	done   chan error
}

func (b *bench) ClaimConsole(_ context.Context, _, node string, _ time.Duration) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == "" {
		return node, nil
	}
	return b.held, nil
}

func (b *bench) ReleaseConsole(context.Context, string, string) error { return nil }

func (b *bench) now() *wire {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wire
}

// newBench starts a hub inside a bubble; the caller ends it with close.
func newBench() *bench {
	b := &bench{done: make(chan error, 1)}
	b.hub = &Hub{Node: "here", Claims: b, Open: func(context.Context, string, bool) (Line, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fail != nil {
			return nil, b.fail
		}
		if b.wire != nil {
			select {
			case <-b.wire.closed:
			default:
				return nil, ipmi.ErrTaken // the BMC has one console
			}
		}
		b.opened.Add(1)
		b.wire = newWire()
		return b.wire, nil
	}}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	go func() { b.done <- b.hub.Run(ctx) }()
	synctest.Wait()
	return b
}

func (b *bench) close(t *testing.T) {
	t.Helper()
	b.stop()
	if err := <-b.done; err != nil {
		t.Error(err)
	}
}

func (b *bench) join(t *testing.T) *Viewer {
	t.Helper()
	v, err := b.hub.Join(t.Context(), "m", false)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// read takes what a viewer has seen so far.
func read(t *testing.T, v *Viewer) (text string, err error) {
	t.Helper()
	for {
		synctest.Wait()
		v.mu.Lock()
		empty := len(v.queue) == 0 && v.over == nil
		v.mu.Unlock()
		if empty {
			return text, nil
		}
		out, err := v.Next(t.Context())
		if err != nil {
			return text, err
		}
		text += string(out.Data)
	}
}

// TestShared: one session for all, each sees what comes after it joined, keys come in order, and the session ends a moment after
// the last one has left.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		defer b.close(t)
		first := b.join(t)
		b.now().say("one ")
		synctest.Wait()
		second := b.join(t)
		b.now().say("two")
		if text, err := read(t, first); text != "one two" || err != nil {
			t.Errorf("first sees %q, %v", text, err)
		}
		if text, err := read(t, second); text != "two" || err != nil {
			t.Errorf("second sees %q, %v", text, err)
		}
		for _, err := range []error{first.Write([]byte("a")), second.Write([]byte("b")), first.Break(), second.Write([]byte("c"))} {
			if err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if got := b.now().typed.String(); got != "ab<break>c" {
			t.Errorf("the host gets %q", got)
		}
		if consoles, viewers := b.hub.Counts(); consoles != 1 || viewers != 2 || b.opened.Load() != 1 {
			t.Errorf("%d consoles, %d viewers, %d opened", consoles, viewers, b.opened.Load())
		}
		first.Leave()
		if _, err := first.Next(t.Context()); err == nil {
			t.Error("who has left still sees")
		}
		if err := first.Write([]byte("x")); err == nil {
			t.Error("who has left still types")
		}
		second.Leave()
		time.Sleep(linger - time.Second)
		third := b.join(t) // came back in time
		time.Sleep(2 * linger)
		b.now().say("still")
		if text, _ := read(t, third); text != "still" || b.opened.Load() != 1 {
			t.Errorf("who came back sees %q, opened %d times", text, b.opened.Load())
		}
		third.Leave()
		time.Sleep(2 * linger)
		synctest.Wait()
		select {
		case <-b.now().closed:
		default:
			t.Error("nobody looks, and the console is open")
		}
		fourth := b.join(t)
		if b.opened.Load() != 2 {
			t.Error("not opened anew")
		}
		fourth.Leave()
	})
}

// TestSlowViewer: who does not keep up is dropped, and nobody else waits for him or loses a byte.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		defer b.close(t)
		slow, quick := b.join(t), b.join(t)
		var got int
		for range 2 * maxBehind / 1024 {
			b.now().say(strings.Repeat("x", 1024))
			text, err := read(t, quick)
			if err != nil {
				t.Fatal(err)
			}
			got += len(text)
		}
		if got != 2*maxBehind {
			t.Errorf("the quick one got %d bytes, want %d", got, 2*maxBehind)
		}
		text, err := read(t, slow)
		if !errors.Is(err, ErrSlow) || len(text) > maxBehind || len(text) < maxBehind/2 {
			t.Errorf("the slow one got %d bytes, then %v", len(text), err)
		}
		slow.Leave()
		quick.Leave()
	})
}

// TestStuckKeys: a BMC that takes no keys stops nobody from looking, and who types is told.
func TestStuckKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		defer b.close(t)
		v := b.join(t)
		b.now().stuck = make(chan struct{})
		var refused error
		for range writeQueue + 10 {
			if err := v.Write([]byte("k")); err != nil {
				refused = err
			}
			synctest.Wait()
		}
		if machine.CodeOf(refused) != machine.Unavailable {
			t.Errorf("keys without end: %v", refused)
		}
		b.now().say("hello")
		if text, err := read(t, v); text != "hello" || err != nil {
			t.Errorf("sees %q, %v", text, err)
		}
		v.Leave()
	})
}

// TestEnds: every viewer learns why the console ended, without a word about where BMCs are; the next one opens it anew.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		a, c := b.join(t), b.join(t)
		b.now().say("last words")
		close(b.now().out)
		for _, v := range []*Viewer{a, c} {
			text, err := read(t, v)
			if text != "last words" || !errors.Is(err, ipmi.ErrUnreachable) {
				t.Errorf("%q, %v", text, err)
			}
			if plain := Plain(err); strings.Contains(plain, "10.0.0.1") || plain == "" {
				t.Errorf("told: %q", plain)
			}
			v.Leave()
		}
		again := b.join(t)
		b.now().say("again")
		if text, _ := read(t, again); text != "again" {
			t.Errorf("sees %q", text)
		}

		// Another server took the claim: this one lets go.
		b.mu.Lock()
		b.held = "elsewhere"
		b.mu.Unlock()
		time.Sleep(2 * claimRenew)
		if _, err := read(t, again); err == nil || !strings.Contains(err.Error(), "another server took") {
			t.Errorf("claim lost: %v", err)
		}
		again.Leave()
		if _, err := b.hub.Join(t.Context(), "m", false); machine.CodeOf(err) != machine.Conflict {
			t.Errorf("held elsewhere: %v", err)
		}
		b.mu.Lock()
		b.held, b.fail = "", ipmi.ErrBusy
		b.mu.Unlock()
		if _, err := b.hub.Join(t.Context(), "m", false); !errors.Is(err, ipmi.ErrBusy) {
			t.Errorf("busy: %v", err)
		}
		b.mu.Lock()
		b.fail = nil
		b.mu.Unlock()
		last := b.join(t)
		b.close(t)
		if _, err := read(t, last); !errors.Is(err, errStopped) {
			t.Errorf("at the end: %v", err)
		}
		last.Leave()
		if _, err := b.hub.Join(t.Context(), "m", false); machine.CodeOf(err) != machine.Unavailable {
			t.Errorf("after the end: %v", err)
		}
	})
}

// notebook keeps records in memory: what PostgreSQL makes of them is tested there.
type notebook struct {
	mu    sync.Mutex
	work  []Work
	text  map[string]string
	until map[string]time.Time
	fails int
}

func (n *notebook) Recordable(context.Context) ([]Work, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Work(nil), n.work...), nil
}

func (n *notebook) AppendRecord(_ context.Context, job string, pieces []Piece, _ int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 {
		n.fails--
		return errors.New("the database is away")
	}
	for _, p := range pieces {
		n.until[job] = p.At
		n.text[job] += string(p.Data)
		if p.Gap != "" {
			n.text[job] += "[" + p.Gap + "]"
		}
	}
	return nil
}

func (n *notebook) RecordedUntil(_ context.Context, job string) (time.Time, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.until[job], nil
}

func (n *notebook) PruneRecords(context.Context, time.Duration) (int, error) { return 0, nil }

func (n *notebook) set(work ...Work) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.work = work
}

func (n *notebook) read(job string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text[job]
}

// TestRecorder: what the console shows while a job runs is kept, with the places where bytes are missing; it shares the session
// with who looks, ends with the job, and begins anew after the console broke or could not be written down.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		n := &notebook{text: map[string]string{}, until: map[string]time.Time{}}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		r := &Recorder{Hub: b.hub, Records: n}
		go func() { done <- r.Run(ctx) }()
		job := Work{JobID: "j1", MachineID: "m"}
		v := b.join(t)
		b.now().say("before the job ")
		n.set(job)
		time.Sleep(2 * lookEvery)
		b.now().say("during ")
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		b.now().out <- ipmi.Output{Gap: &ipmi.Gap{From: at, To: at.Add(3 * time.Second), Reason: ipmi.GapLink}}
		b.now().say("more ")
		time.Sleep(2 * flushEvery)
		want := "during [bytes may be missing between 03:04:05.0 and 03:04:08.0: link lost]more "
		if got := n.read("j1"); got != want {
			t.Errorf("record: %q, want %q", got, want)
		}
		if b.opened.Load() != 1 {
			t.Error("the recorder opened a session of its own")
		}
		v.Leave()

		close(b.now().out) // the console breaks
		time.Sleep(flushEvery)
		synctest.Wait()
		if got := n.read("j1"); !strings.HasSuffix(got, "[the recording ended: the machine's management controller failed]") {
			t.Errorf("record: %q", got)
		}
		time.Sleep(retryPause + 2*lookEvery)
		b.now().say("back ")
		time.Sleep(2 * flushEvery)
		if got := n.read("j1"); !strings.Contains(got, "][not recorded between ") || !strings.HasSuffix(got, "]back ") {
			t.Errorf("record: %q", got)
		}
		n.mu.Lock()
		n.fails = 1
		n.mu.Unlock()
		b.now().say("lost ")
		time.Sleep(retryPause + 2*lookEvery)
		b.now().say("found")
		time.Sleep(2 * flushEvery)
		if got := n.read("j1"); !strings.Contains(got, "back [not recorded between ") || !strings.HasSuffix(got, "]found") {
			t.Errorf("record: %q", got)
		}

		n.set()
		time.Sleep(2*lookEvery + 2*linger)
		if consoles, _ := b.hub.Counts(); consoles != 0 {
			t.Error("the job is over, and the console is open")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.close(t)
	})
}
