package linuxedge_test

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/linuxedge"
)

// flood sends datagrams at a rate until the test ends, and returns where they arrive.
func (w *world) flood(fromNS, from, toNS, to string, mbit int) net.Conn {
	w.t.Helper()
	src, dst := w.listenUDP(fromNS, from+":0"), w.listenUDP(toNS, to+":0")
	control(w.t, dst, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
	var wg sync.WaitGroup
	stop := make(chan struct{})
	size := udpPayload
	if strings.HasPrefix(to, "[") {
		size -= 20 // the longer header, or it would be fragmented
	}
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		start, sent := time.Now(), 0
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for float64(sent) < float64(mbit)*1.25e5*time.Since(start).Seconds() {
				n, err := src.WriteTo(make([]byte, size), dst.LocalAddr())
				if err != nil {
					return
				}
				sent += n
			}
		}
	})
	w.t.Cleanup(func() {
		close(stop)
		_ = src.Close()
		wg.Wait()
	})
	return dst
}

// TestBurst has two machines on a trunk of 60 Mbit/s, of which one bursts: alone it takes all of it; beside the other it
// leaves the other what is committed, and keeps its own.
func TestBurst(t *testing.T) {
	w := newWorld(t, 2)
	w.capacity, w.shard = 60_000, 1 // each in a shard of its own
	burst, fixed := w.tenants[0].port, w.tenants[1].port
	burst.Up, burst.Down = network.Bandwidth{Kbit: 10_000, Burst: 200_000}, network.Bandwidth{Kbit: 10_000, Burst: 30_000}
	fixed.Up = network.Fixed(40_000)
	w.reconcile(burst, fixed)
	buf := make([]byte, 64<<10)
	mbit := func(c net.Conn) float64 { return rate(t, c, buf) / udpPayload * frame }

	up := w.flood(w.tenants[0].ns, "203.0.113.1", w.inet, inet4, 150)
	best(t, "burst up to the trunk", 60, func() float64 { return mbit(up) })
	other := w.flood(w.tenants[1].ns, "203.0.113.2", w.inet, inet4, 150)
	best(t, "the other's committed 40", 40, func() float64 { return mbit(other) })
	best(t, "what it leaves", 20, func() float64 { return mbit(up) })
	down := w.flood(w.inet, inet4, w.tenants[0].ns, "203.0.113.1", 150)
	best(t, "burst down to its ceiling", 30, func() float64 { return mbit(down) })
}

// TestLimited suspends a machine in the middle of a connection, and takes the suspension back.
func TestLimited(t *testing.T) {
	w := newWorld(t, 1)
	p := w.tenants[0].port
	p.Up = network.Bandwidth{Kbit: 20_000, Burst: 50_000}
	w.reconcile(p)
	c := w.stream(w.tenants[0], true)
	buf := make([]byte, 1<<20)
	p.Mode, p.Limit = network.Limited, 5_000
	w.reconcile(p)
	best(t, "limited to 5 Mbit/s", 5*tcpPayload/float64(frame), func() float64 { return rate(t, c, buf) })
	p.Limit = 0
	w.reconcile(p)
	udp := w.flood(w.tenants[0].ns, "203.0.113.1", w.inet, inet4, 10)
	best(t, "limited to 1 Mbit/s", 1, func() float64 { return rate(t, udp, buf) / udpPayload * frame })
	p.Mode, p.Up = network.On, network.Bandwidth{Kbit: 20_000, Burst: 60_000} // of which the flood takes 10
	w.reconcile(p)
	best(t, "as sold again", 50*tcpPayload/float64(frame), func() float64 { return rate(t, c, buf) })
}

// TestIPv6 measures the second of two shards over IPv6, where TCP carries 20 bytes less.
func TestIPv6(t *testing.T) {
	w := newWorld(t, 2)
	w.shard = 1
	want := w.ports()
	want[1].Up, want[1].Down = network.Fixed(30_000), network.Fixed(80_000)
	w.reconcile(want...)
	home, away := "[2001:db8:2::1]", "["+inet6+"]"
	ns := w.tenants[1].ns
	buf := make([]byte, 64<<10)
	for _, c := range []struct {
		what               string
		from, src, to, dst string
		mbit               float64
	}{{"UDP up", ns, home, w.inet, away, 30}, {"UDP down", w.inet, away, ns, home, 80}} {
		conn := w.flood(c.from, c.src, c.to, c.dst, int(2*c.mbit))
		best(t, c.what, c.mbit, func() float64 { return rate(t, conn, buf) / (udpPayload - 20) * frame })
	}
}

// TestBlackholeEnds gives a blackhole that has run out, and one that has not.
func TestBlackholeEnds(t *testing.T) {
	w := newWorld(t, 1)
	p := w.tenants[0].port
	for _, c := range []struct {
		until time.Time
		then  network.Mode
		want  network.Mode
	}{
		{time.Now().Add(time.Hour), network.Off, network.Blackhole},
		{time.Now().Add(-time.Second), network.Off, network.Off},
		{time.Now().Add(-time.Second), "", network.On},
	} {
		p.Mode, p.Until, p.Then = network.Blackhole, c.until, c.then
		if err := network.Reconcile(t.Context(), w.driver(), []network.Port{p}); err != nil {
			t.Fatal(err)
		}
		have, err := w.driver().Read(t.Context())
		if err != nil || len(have) != 1 || have[0].Mode != c.want {
			t.Errorf("until %s: edge has %v, %v, want mode %s", c.until, have, err, c.want)
		}
	}
}

func TestCountersInterrupted(t *testing.T) {
	w := newWorld(t, 1)
	w.reconcile(w.ports()...)
	cs, err := linuxedge.CountInterrupted(t.Context(), w.config(), "up0")
	if err != nil || len(cs) != 2 {
		t.Fatalf("got %v, %v, want two counters", cs, err)
	}
	if cs[0].Direction != network.Down || cs[0].Doubt != "" || !strings.Contains(cs[1].Doubt, "interrupted") || cs[1].Bytes != 0 {
		t.Errorf("got %+v, want down to be trusted and up to be in doubt", cs)
	}
}

// TestWidest sets the fastest bandwidths, which no 32 bits hold in bytes, and reads them back.
func TestWidest(t *testing.T) {
	w := newWorld(t, 1)
	p := w.tenants[0].port
	for _, kbit := range []int{34_359_738, 34_359_739, 50_000_000, network.MaxKbit} {
		p.Up, p.Down = network.Fixed(kbit), network.Bandwidth{Kbit: network.MinKbit, Burst: kbit}
		w.reconcile(p)
	}
}
