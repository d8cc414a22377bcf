package inuse

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ours   = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	theirs = net.HardwareAddr{2, 0, 0x5e, 0x10, 0x20, 0x30}
	target = netip.MustParseAddr("10.99.0.200")
)

// reply is what the owner of target says.
func reply() []byte {
	f := append(bytes.Clone(ours), theirs...)
	f = append(f, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, arpReply)
	f = append(append(f, theirs...), 10, 99, 0, 200)
	return append(append(f, ours...), 0, 0, 0, 0)
}

// TestFrames: the question is one that changes nobody's cache (RFC 5227), and answers are told from everything else.
func TestFrames(t *testing.T) {
	want := append(bytes.Repeat([]byte{0xff}, 6), ours...)
	want = append(want, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	want = append(append(want, ours...), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 99, 0, 200)
	want = append(want, make([]byte, 60-len(want))...) // the shortest frame
	if f := probe(ours, target); !bytes.Equal(f, want) {
		t.Errorf("probe\n% x, want\n% x", f, want)
	}
	vm, err := bpf.NewVM(replies)
	if err != nil {
		t.Fatal(err)
	}
	change := func(at int, to byte) []byte { f := reply(); f[at] = to; return f }
	for name, test := range map[string]struct {
		frame []byte
		ok    bool
	}{
		"reply": {reply(), true}, "request": {change(21, 1), false}, "IPv4": {change(13, 0), false}, "other hardware": {change(15, 6), false},
		"long addresses": {change(18, 8), false}, "short": {reply()[:30], false}, "nothing": {nil, false},
	} {
		a, mac, ok := parseReply(test.frame)
		if ok != test.ok || ok && (a != target || mac.String() != theirs.String()) {
			t.Errorf("%s: %s %s %v", name, a, mac, ok)
		}
		if n, err := vm.Run(test.frame); err == nil && n == 0 && test.ok {
			t.Errorf("%s stays in the kernel", name)
		}
	}
}

// TestAsk: two questions, one answer to everybody who waits for it, and no answer in time is a free address.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waiters
		var sent atomic.Int32
		send := func() error { sent.Add(1); return nil }
		if owner, used, err := w.ask(t.Context(), target, time.Second, send); owner != "" || used || err != nil || sent.Load() != 2 {
			t.Errorf("nobody there: %q %v %v, asked %d times", owner, used, err, sent.Load())
		}
		got := make(chan string, 2)
		for range 2 {
			go func() {
				owner, used, err := w.ask(t.Context(), target, time.Second, send)
				if !used || err != nil {
					t.Errorf("%v %v", used, err)
				}
				got <- owner
			}()
		}
		synctest.Wait()
		w.answered(netip.MustParseAddr("10.99.0.201"), "not asked for")
		w.answered(target, "a")
		w.answered(target, "late")
		if a, b := <-got, <-got; a != "a" || b != "a" {
			t.Errorf("told %q and %q", a, b)
		}
		synctest.Wait()
		if len(w.open) != 0 {
			t.Errorf("left open: %v", w.open)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := w.ask(ctx, target, time.Second, send); err == nil {
			t.Error("cancelled: no error")
		}
		if _, _, err := w.ask(t.Context(), target, time.Second, func() error { return os.ErrClosed }); err == nil {
			t.Error("not sent: no error")
		}
	})
}

// TestEcho: this host answers for itself; in a network namespace whose loopback is down it does not.
func TestEcho(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("opens raw sockets: run it as root")
	}
	ask := func(apart bool) bool {
		t.Helper()
		opened := make(chan *Echo, 1)
		go func() {
			if apart {
				runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					t.Error(err)
				}
			}
			e, err := ListenEcho()
			if err != nil {
				t.Error(err)
			}
			opened <- e
		}()
		e := <-opened
		if t.Failed() {
			t.FailNow()
		}
		defer e.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		_, used, err := e.Ask(ctx, netip.MustParseAddr("127.0.0.1"))
		cancel()
		if ended := <-done; err != nil || ended != nil {
			t.Errorf("Ask: %v, Run: %v", err, ended)
		}
		return used
	}
	if !ask(false) {
		t.Error("nobody answers at 127.0.0.1")
	}
	if ask(true) {
		t.Error("somebody answers where nobody is")
	}
}
