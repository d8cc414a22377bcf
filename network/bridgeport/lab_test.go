package bridgeport_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network/bridgeport"
)

const prefix = "byport-"

var serial atomic.Int64

func TestMain(m *testing.M) {
	// What a killed run has left: namespaces carry the process that made them.
	left, _ := filepath.Glob("/run/netns/" + prefix + "*")
	for _, path := range left {
		name := filepath.Base(path)
		pid, err := strconv.Atoi(strings.Split(strings.TrimPrefix(name, prefix), "-")[0])
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	}
	os.Exit(m.Run())
}

// lab is a bridge in a namespace; its ports are tap devices, as QEMU's are.
type lab struct {
	t    *testing.T
	ns   string
	taps map[string]*tap
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests make network namespaces: run them as root")
	}
	l := &lab{t: t, ns: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), serial.Add(1)), taps: map[string]*tap{}}
	l.run("netns", "add", l.ns)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", l.ns).Run() })
	l.run("-n", l.ns, "link", "add", "br0", "type", "bridge")
	l.run("-n", l.ns, "link", "set", "br0", "up")
	return l
}

func (l *lab) run(args ...string) string {
	l.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("ip %s: %v (install iproute2 if missing)\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (l *lab) driver() *bridgeport.Driver { return &bridgeport.Driver{Netns: l.ns} }

func (l *lab) set(port string, open bool) {
	l.t.Helper()
	if err := l.driver().Set(l.t.Context(), port, open); err != nil {
		l.t.Fatal(err)
	}
}

// tap is a port with a machine behind it: what it writes comes in at the port, what goes out of the port it reads.
type tap struct {
	f    *os.File
	mac  []byte
	seen chan []byte
	wg   sync.WaitGroup
}

// plug makes a tap device and puts it into the bridge; the device lives as long as the tap is open.
func (l *lab) plug(name string) {
	l.t.Helper()
	tp := &tap{seen: make(chan []byte, 100), mac: []byte{2, 0, 0, 0, 9, byte(len(l.taps) + 1)}}
	if old := l.taps[name]; old != nil {
		tp.mac = old.mac
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- tp.open(l.ns, name)
	}()
	if err := <-done; err != nil {
		l.t.Fatalf("make tap %s: %v", name, err)
	}
	l.run("-n", l.ns, "link", "set", name, "master", "br0")
	l.run("-n", l.ns, "link", "set", name, "up")
	tp.wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, err := tp.f.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte("frame-")) {
				tp.seen <- bytes.Clone(buf[:n])
			}
		}
	})
	l.taps[name] = tp
	l.t.Cleanup(tp.unplug)
}

// open makes the device in a namespace, which becomes that of the calling thread.
func (tp *tap) open(ns, name string) error {
	h, err := netns.GetFromName(ns)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	if err := netns.Set(h); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	tp.f = os.NewFile(uintptr(fd), name) // only now: a descriptor without a device is never ready
	return nil
}

func (tp *tap) unplug() {
	_ = tp.f.Close()
	tp.wg.Wait()
}

// passes sends a frame, to everybody and then to the receiver alone, and checks whether both arrive. That one does not is
// known after a while only.
func (l *lab) passes(from, to string, source []byte, want bool) {
	l.t.Helper()
	src, dst := l.taps[from], l.taps[to]
	if source == nil {
		source = src.mac
	}
	wait := 100 * time.Millisecond
	if want {
		wait = 5 * time.Second
	}
	for _, target := range [][]byte{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, dst.mac} {
		mark := fmt.Sprintf("frame-%d", serial.Add(1))
		f := append(append(append([]byte{}, target...), source...), 0x88, 0xb5) // local experimental EtherType
		f = append(f, make([]byte, 50)...)
		copy(f[14:], mark)
		if _, err := src.f.Write(f); err != nil {
			l.t.Fatal(err)
		}
		if got := dst.sees(mark+"\x00", wait); got != want {
			l.t.Errorf("frame from %s to %s (%x) arrived: %v, want %v", from, to, target, got, want)
		}
	}
}

func (tp *tap) sees(mark string, wait time.Duration) bool {
	deadline := time.After(wait)
	for {
		select {
		case f := <-tp.seen:
			if bytes.Contains(f, []byte(mark)) {
				return true
			}
		case <-deadline:
			return false
		}
	}
}

// hears has a machine ask for the bridge's own address, 10.99.0.1, and checks whether the host learns who asked.
func (l *lab) hears(port string, want bool) {
	l.t.Helper()
	m := l.taps[port]
	ask := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, m.mac...)
	ask = append(ask, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	ask = append(append(ask, m.mac...), 10, 99, 0, 9)
	ask = append(ask, 0, 0, 0, 0, 0, 0, 10, 99, 0, 1)
	if _, err := m.f.Write(ask); err != nil {
		l.t.Fatal(err)
	}
	if got := strings.Contains(l.run("-n", l.ns, "neigh", "show", "10.99.0.9"), "lladdr"); got != want {
		l.t.Errorf("the bridge's own device heard %s: %v, want %v", port, got, want)
	}
}

func (l *lab) reads(want map[string]bool) {
	l.t.Helper()
	got, err := l.driver().Read(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		l.t.Errorf("read %v, want %v", got, want)
	}
}
