package ipmi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// brisk is console options that notice a lost link soon.
var brisk = ipmi.ConsoleOptions{KeepAlive: 100 * time.Millisecond}

func openConsole(t *testing.T, c *ipmi.Controller, target ipmi.Target, o ipmi.ConsoleOptions) *ipmi.Console {
	t.Helper()
	k, err := c.OpenConsole(t.Context(), target, o)
	must(t, err)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// hears reads the console until text has come, and returns the gaps before it.
func hears(t *testing.T, k *ipmi.Console, text string) []ipmi.Gap {
	t.Helper()
	ctx := long(t)
	var got strings.Builder
	var gaps []ipmi.Gap
	for {
		o, err := k.Next(ctx)
		if err != nil {
			t.Fatalf("console ended after %q: %v", got.String(), err)
		}
		if o.Gap != nil {
			gaps = append(gaps, *o.Gap)
		}
		got.Write(o.Data)
		if strings.Contains(got.String(), text) {
			return gaps
		}
	}
}

// typed waits until the host got exactly text.
func typed(t *testing.T, w *world, text string) {
	t.Helper()
	ctx := long(t)
	for {
		got, _ := w.line.Typed()
		if got == text {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the host got %q, want %q", got, text)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestConsole(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		k := openConsole(t, c, w.target, ipmi.ConsoleOptions{})
		boot := strings.Repeat("[    0.000000] Linux version 6.1.0 (debian-kernel@lists.debian.org)\r\n", 200)
		go w.line.Say(boot + "login: ")
		if gaps := hears(t, k, boot+"login: "); len(gaps) != 0 {
			t.Errorf("gaps = %v", gaps)
		}
		keys := strings.Repeat("echo 0123456789 abcdefghijklmnopqrstuvwxyz\r", 20)
		n, err := k.Write([]byte(keys))
		if n != len(keys) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
		typed(t, w, keys)
		if w.ipmi != nil {
			must(t, k.Break(t.Context()))
			if _, breaks := w.line.Typed(); breaks != 1 {
				t.Errorf("%d breaks", breaks)
			}
		}
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn)) // the other methods work meanwhile
		if _, err := c.OpenConsole(long(t), w.target, ipmi.ConsoleOptions{TakeOver: true}); !errors.Is(err, ipmi.ErrTaken) {
			t.Errorf("a second one: %v, want ErrTaken", err)
		}
		must(t, k.Close())
		if _, err := k.Next(t.Context()); err != io.EOF {
			t.Errorf("after Close: %v, want EOF", err)
		}
		if _, err := k.Write([]byte("x")); err == nil {
			t.Error("keys were taken after Close")
		}
		openConsole(t, c, w.target, ipmi.ConsoleOptions{})
	}, "IPMI", "ipmi_sim")
}

// D11: the console is busy, or lost.
func TestD11(t *testing.T) {
	t.Parallel()
	t.Run("foreign session", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			theirs := openConsole(t, quick(), w.target, brisk)
			c := quick()
			if _, err := c.OpenConsole(long(t), w.target, ipmi.ConsoleOptions{}); !errors.Is(err, ipmi.ErrTaken) {
				t.Fatalf("err = %v, want ErrTaken", err)
			}
			go w.line.Say("still theirs")
			hears(t, theirs, "still theirs")
			ours := openConsole(t, c, w.target, ipmi.ConsoleOptions{TakeOver: true})
			ctx := long(t)
			for {
				if _, err := theirs.Next(ctx); err != nil {
					if !errors.Is(err, ipmi.ErrTaken) {
						t.Errorf("theirs ended with %v, want ErrTaken", err)
					}
					break
				}
			}
			go w.line.Say("ours now")
			hears(t, ours, "ours now")
		}, "IPMI", "ipmi_sim")
	})
	t.Run("own stale session", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			// A client of this host dies: its socket is closed, its session is not.
			relay, closeRelay := relayTo(t, w.target.Address)
			dead := w.target
			dead.Address = relay
			ctx, cancel := context.WithCancel(t.Context())
			k, err := quick().OpenConsole(ctx, dead, brisk)
			must(t, err)
			closeRelay()
			cancel()
			must(t, k.Close())
			ours := openConsole(t, quick(), w.target, ipmi.ConsoleOptions{})
			go w.line.Say("hello")
			hears(t, ours, "hello")
		}, "IPMI")
	})
	t.Run("sessions that died with a program", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			// A server is killed again and again: the BMC has four slots, and each life leaves a session.
			for life := range 7 {
				relay, closeRelay := relayTo(t, w.target.Address)
				dead := w.target
				dead.Address = relay
				if err := quick().InSession(long(t), dead, closeRelay); err != nil {
					t.Fatalf("life %d: %v", life, err)
				}
			}
			c := quick()
			must(t, c.InSession(long(t), w.target, func() {
				// One that lives is left alone.
				if err := quick().Check(long(t), w.target); err != nil {
					t.Error(err)
				}
			}))
			if opened, closed := w.sessions(); opened-closed > 1 { // the last one's
				t.Errorf("%d sessions opened, %d closed", opened, closed)
			}
			w.sessions = nil // the last life's is still there
		}, "IPMI")
	})
	t.Run("link lost", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			c := quick()
			c.Answer = 200 * time.Millisecond
			k := openConsole(t, c, w.target, brisk)
			go w.line.Say("before")
			hears(t, k, "before")
			w.faults.Set(lose(true))
			time.AfterFunc(2*time.Second, func() { w.faults.Set(lose(false)) })
			var refused bool
			for deadline := time.Now().Add(2 * time.Second); !refused && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
				_, err := k.Write([]byte("x"))
				refused = errors.Is(err, ipmi.ErrUnreachable)
			}
			if !refused {
				t.Error("keys were taken while the link was lost")
			}
			// What the host says now is lost, or comes late; what it says afterwards comes.
			stop := make(chan struct{})
			said := make(chan struct{})
			go func() {
				defer close(said)
				for {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
						w.line.Say("after")
					}
				}
			}()
			gaps := hears(t, k, "after")
			close(stop)
			<-said
			if len(gaps) == 0 || gaps[0].Reason != ipmi.GapLink || gaps[0].To.Sub(gaps[0].From) < time.Second {
				t.Errorf("gaps = %v, want one of the lost link", gaps)
			}
		}, "IPMI")
	})
	t.Run("what the host says is not what the BMC says", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			k := openConsole(t, quick(), w.target, brisk)
			go w.line.Say("Info: SOL payload already active on another session\r\n[console: bytes may be missing]\r\nlogin: ")
			if gaps := hears(t, k, "login: "); len(gaps) != 0 || k.Err() != nil {
				t.Errorf("gaps = %v, err = %v", gaps, k.Err())
			}
		}, "IPMI", "ipmi_sim")
	})
	t.Run("never comes back", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			c := quick()
			c.Answer = 100 * time.Millisecond
			k := openConsole(t, c, w.target, ipmi.ConsoleOptions{KeepAlive: 50 * time.Millisecond, GiveUp: 500 * time.Millisecond})
			w.faults.Set(lose(true))
			_, err := k.Next(long(t))
			if !errors.Is(err, ipmi.ErrUnreachable) {
				t.Errorf("err = %v, want ErrUnreachable", err)
			}
			w.sessions = nil // that one is not closed: nobody could
		}, "IPMI")
	})
}

func TestConsoleUnsupported(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		_, err := quick().OpenConsole(long(t), w.target, ipmi.ConsoleOptions{})
		if !errors.Is(err, ipmi.ErrUnsupported) || !strings.Contains(err.Error(), "speaks IPMI") {
			t.Errorf("err = %v, want ErrUnsupported and what to do", err)
		}
		other := newWorld(t, "IPMI") // the same BMC by its other protocol
		w.target.IPMIAddress = other.target.Address
		k := openConsole(t, quick(), w.target, ipmi.ConsoleOptions{})
		go other.line.Say("hello")
		hears(t, k, "hello")
	}, "Redfish")
}

// relayTo relays UDP to a BMC until closed.
func relayTo(t *testing.T, bmc string) (addr string, closeIt func()) {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	back, err := net.Dial("udp", bmc)
	must(t, err)
	done := make(chan struct{}, 2)
	client := make(chan net.Addr, 1)
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 4096)
		for first := true; ; first = false {
			n, from, err := front.ReadFrom(buf)
			if err != nil {
				return
			}
			if first {
				client <- from
			}
			_, _ = back.Write(buf[:n])
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 4096)
		var to net.Addr
		for {
			n, err := back.Read(buf)
			if err != nil {
				return
			}
			if to == nil {
				to = <-client
			}
			_, _ = front.WriteTo(buf[:n], to)
		}
	}()
	closed := false
	closeIt = func() {
		if !closed {
			closed = true
			_ = front.Close()
			_ = back.Close()
			<-done
			<-done
		}
	}
	t.Cleanup(closeIt)
	return front.LocalAddr().String(), closeIt
}

func lose(all bool) func(*bmctest.Fault) { return func(f *bmctest.Fault) { f.Unreachable = all } }
