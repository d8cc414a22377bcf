package linuxedge_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// Frames as HTB counts them: 1500 bytes of IP and the Ethernet header. TCP carries 1448 with timestamps, UDP 1472.
const (
	frame      = 1514
	tcpPayload = 1448
	udpPayload = 1472
)

const (
	warmUp  = 500 * time.Millisecond // slow start, the queue fills
	window  = 1500 * time.Millisecond
	tries   = 3
	patient = 10 // while the box is busy with something else
)

// within reports whether a rate is −10 % to +3 % of the ideal.
func within(got, ideal float64) bool { return got >= 0.90*ideal && got <= 1.03*ideal }

// busy reports whether more than three processes per two cores want to run, which no measurement of 1 Gbit/s survives.
func busy(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	var load float64
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		t.Fatal(err)
	}
	return load > 1.5*float64(runtime.NumCPU())
}

// best measures three times at most, on a busy box more often, until a rate, in Mbit/s, is within bounds. That a rate is
// exceeded is nothing that load explains, but the queue and the burst of a class may come out in one window.
func best(t *testing.T, what string, ideal float64, measure func() float64) {
	t.Helper()
	if got, ok := attempt(t, what, ideal, measure); !ok {
		t.Errorf("%s: %v Mbit/s, want %.1f -10/+3 %%", what, got, ideal)
	}
}

func attempt(t *testing.T, what string, ideal float64, measure func() float64) ([]string, bool) {
	t.Helper()
	var got []string
	for n := 1; n <= tries || n <= patient && busy(t); n++ {
		mbit := measure()
		got = append(got, fmt.Sprintf("%.1f", mbit))
		if within(mbit, ideal) {
			t.Logf("%s: %v Mbit/s, ideal %.1f", what, got, ideal)
			return got, true
		}
	}
	return got, false
}

// rate reads from a connection for a while and returns its goodput in Mbit/s.
func rate(t *testing.T, c net.Conn, buf []byte) float64 {
	t.Helper()
	count := func(d time.Duration) (n int) {
		if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := c.Read(buf)
			n += m
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return n
			}
			if err != nil {
				t.Fatalf("connection broke: %v", err)
			}
		}
	}
	count(warmUp)
	start := time.Now()
	n := count(window)
	return float64(n) * 8 / time.Since(start).Seconds() / 1e6
}

// stream opens a TCP connection from a tenant to the Internet on which data flows one way until the test ends, and returns
// the end that reads.
func (w *world) stream(tn tenant, up bool) net.Conn {
	w.t.Helper()
	l := w.listen(w.inet, inet4+":0")
	accepted := make(chan net.Conn, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
		close(accepted)
	})
	var c net.Conn
	inside(w.t, tn.ns, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		return err
	})
	wg.Wait()
	s, ok := <-accepted
	if !ok {
		w.t.Fatal("connection was not accepted")
	}
	from, to := s, c
	if up {
		from, to = c, s
	}
	wg.Go(func() {
		buf := make([]byte, 256<<10)
		for {
			if _, err := from.Write(buf); err != nil {
				return
			}
		}
	})
	w.t.Cleanup(func() {
		_ = c.Close()
		_ = s.Close()
		wg.Wait()
	})
	return to
}

// udpRate sends more than the given rate from one address to another and returns what arrives, in Mbit/s of Ethernet.
func (w *world) udpRate(fromNS, from, toNS, to string, mbit int) float64 {
	w.t.Helper()
	src, dst := w.listenUDP(fromNS, from+":0"), w.listenUDP(toNS, to+":0")
	defer func() { _ = src.Close() }()
	defer func() { _ = dst.Close() }()
	// Segmentation offload on both ends: a Go program under the race detector handles no 80,000 datagrams a second here.
	control(w.t, src, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, udpPayload) })
	control(w.t, dst, func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		train := make([]byte, min(40, max(1, mbit/12))*udpPayload) // a millisecond's worth
		perSecond := float64(mbit) * 1.25e6 / 8
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		start, sent := time.Now(), 0
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for float64(sent) < perSecond*time.Since(start).Seconds() {
				n, err := src.WriteTo(train, dst.LocalAddr())
				if err != nil {
					return
				}
				sent += n
			}
		}
	})
	got := rate(w.t, dst, make([]byte, 64<<10))
	close(stop)
	wg.Wait()
	return got / udpPayload * frame
}

func control(t *testing.T, c syscall.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inner error
	if err := errors.Join(raw.Control(func(fd uintptr) { inner = f(int(fd)) }), inner); err != nil {
		t.Fatal(err)
	}
}

func TestBandwidth(t *testing.T) {
	w := newWorld(t, 1)
	tn := w.tenants[0]
	home := tn.port.Addrs[0].Addr().String()
	for _, mbit := range []int{10, 100, 1000} {
		buf := make([]byte, 1<<20)
		for _, m := range []struct {
			what  string
			ideal float64
			start func(w *world) (measure func() float64)
		}{
			{"TCPUp", float64(mbit) * tcpPayload / frame, func(w *world) func() float64 {
				c := w.stream(w.tenants[0], true)
				return func() float64 { return rate(w.t, c, buf) }
			}},
			{"TCPDown", float64(mbit) * tcpPayload / frame, func(w *world) func() float64 {
				c := w.stream(w.tenants[0], false)
				return func() float64 { return rate(w.t, c, buf) }
			}},
			{"UDPUp", float64(mbit), func(w *world) func() float64 {
				return func() float64 { return w.udpRate(w.tenants[0].ns, home, w.inet, inet4, mbit) }
			}},
			{"UDPDown", float64(mbit), func(w *world) func() float64 {
				return func() float64 { return w.udpRate(w.inet, inet4, w.tenants[0].ns, home, mbit) }
			}},
		} {
			t.Run(fmt.Sprintf("%dMbit/%s", mbit, m.what), func(t *testing.T) {
				w := w.in(t)
				p := tn.port
				p.Up, p.Down = network.Fixed(mbit*1000), network.Fixed(mbit*1000)
				w.reconcile(p)
				got, ok := attempt(t, m.what, m.ideal, m.start(w))
				if ok {
					return
				}
				plain := m.start(newPlainWorld(t))()
				if mbit == 1000 && plain < 1.1*m.ideal {
					t.Skipf("LOUD SKIP: this box forwards %.0f Mbit/s without any rule of ours, and cannot show %.0f; measured %v", plain, m.ideal, got)
				}
				t.Errorf("%v Mbit/s, want %.1f -10/+3 %%; without any rule of ours it is %.0f", got, m.ideal, plain)
			})
		}
	}
	t.Run("UpAndDownApart", func(t *testing.T) {
		w := w.in(t)
		p := tn.port
		p.Up, p.Down = network.Fixed(20_000), network.Fixed(200_000)
		w.reconcile(p)
		best(t, "up", 20, func() float64 { return w.udpRate(tn.ns, home, w.inet, inet4, 20) })
		best(t, "down", 200, func() float64 { return w.udpRate(w.inet, inet4, tn.ns, home, 200) })
	})
}

// in returns the world for a subtest: its helpers then fail and clean up there.
func (w *world) in(t *testing.T) *world {
	c := *w
	c.t = t
	return &c
}

func TestLiveChange(t *testing.T) {
	w := newWorld(t, 1)
	p := w.tenants[0].port
	for _, up := range []bool{true, false} {
		name := "Down"
		if up {
			name = "Up"
		}
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.reconcile(p)
			c := w.stream(w.tenants[0], up)
			buf := make([]byte, 1<<20)
			for _, mbit := range []int{100, 300, 50} {
				p.Up, p.Down = network.Fixed(mbit*1000), network.Fixed(mbit*1000)
				w.reconcile(p)
				best(t, fmt.Sprintf("one connection at %d Mbit/s", mbit), float64(mbit)*tcpPayload/frame, func() float64 { return rate(t, c, buf) })
			}
		})
	}
}

// TestCounters checks that what is billed is what was delivered, that a change of rate keeps the count and that a new class
// starts a new epoch.
func TestCounters(t *testing.T) {
	w := newWorld(t, 1)
	tn := w.tenants[0]
	home := tn.port.Addrs[0].Addr().String()
	p := tn.port
	p.Up, p.Down = network.Fixed(20_000), network.Fixed(20_000)
	w.reconcile(p)
	type reading struct{ up, down network.Counter }
	read := func() reading {
		t.Helper()
		cs, err := w.driver().Counters(t.Context())
		if err != nil || len(cs) != 2 || cs[0].Machine != p.Machine || cs[0].Direction != network.Down || cs[1].Direction != network.Up {
			t.Fatalf("counters are %v, %v", cs, err)
		}
		return reading{cs[1], cs[0]}
	}
	since := func(now, before network.Counter) uint64 {
		t.Helper()
		n, doubt := now.Since(before)
		if doubt != "" {
			t.Errorf("between %+v and %+v: %s", before, now, doubt)
		}
		return n
	}
	before := read()
	start := time.Now()
	w.udpRate(tn.ns, home, w.inet, inet4, 100) // five times what passes
	most := uint64(time.Since(start).Seconds()*20e6/8) + 200_000
	after := read()
	least := uint64((warmUp + window).Seconds() * 20e6 / 8 * 0.8)
	if up, down := since(after.up, before.up), since(after.down, before.down); up < least || up > most || down > 10_000 {
		t.Errorf("counted %d up and %d down, want %d to %d up and nothing down", up, down, least, most)
	}
	p.Up, p.Down = network.Fixed(30_000), network.Fixed(30_000)
	w.reconcile(p)
	if c := read(); c.up.Epoch != before.up.Epoch || c.up.Bytes < after.up.Bytes {
		t.Errorf("a change of rate turned %+v into %+v", after, c)
	}
	w.exec(w.edge, "tc class del dev up0 classid 1:10")
	if c := read(); c.up.Doubt == "" || c.down.Doubt != "" {
		t.Errorf("without one class the port counts %+v", c)
	}
	w.reconcile(p)
	c := read()
	if c.up.Epoch == before.up.Epoch || c.up.Bytes > 10_000 || c.down.Bytes > 10_000 {
		t.Errorf("after its class was lost the port counts %+v, want a new epoch and both from zero", c)
	}
	if n := since(c.up, after.up); n != c.up.Bytes {
		t.Errorf("a new count of %d is %d since the old one", c.up.Bytes, n)
	}
}
