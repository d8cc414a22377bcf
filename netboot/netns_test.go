package netboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netns"
)

// namespaces counts the network namespaces of this test process, for their names.
var namespaces atomic.Int32

// newNamespace makes a network namespace that is gone when the test ends.
func newNamespace(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	name := fmt.Sprintf("bynb-%d-%d", os.Getpid(), namespaces.Add(1))
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "del", name) })
	ip(t, "-n", name, "link", "set", "lo", "up")
	return name
}

// ip runs iproute2.
func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s (install iproute2)", strings.Join(args, " "), err, out)
	}
}

// inNamespace runs f on a thread of its own in a namespace. Sockets that f opens stay in it.
func inNamespace(t testing.TB, name string, f func() error) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		h, err := netns.GetFromName(name)
		if err == nil {
			err = netns.Set(h)
			h.Close()
		}
		if err != nil {
			result <- fmt.Errorf("enter namespace %s: %w", name, err)
			return
		}
		result <- f()
	}()
	return result
}

// start runs a Server in a namespace until the test ends.
func start(t testing.TB, namespace string, s *Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	up := make(chan struct{})
	s.Log = testLog(t, up)
	done := inNamespace(t, namespace, func() error { return s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-up:
	case err := <-done:
		done = closedWith(nil)
		t.Fatalf("Run ended: %v", err)
	}
}

func closedWith(err error) <-chan error {
	c := make(chan error, 1)
	c <- err
	return c
}

// fakeBooter knows the machines of a test.
type fakeBooter struct {
	mu       sync.Mutex
	leases   map[string]Lease
	boot     Boot
	archive  []byte
	archives int
	discover bool  // unknown machines boot the agent
	anywhere bool  // addresses are another server's
	failures int   // how often Archive fails before it answers
	err      error // returned by every method when set
}

func (b *fakeBooter) Lease(_ context.Context, mac string) (Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.leases[mac]
	switch {
	case b.err != nil:
		return Lease{}, b.err
	case !ok:
		return Lease{}, ErrUnknown
	}
	return l, nil
}

func (b *fakeBooter) Boot(ctx context.Context, mac string) (Boot, error) {
	if _, err := b.Lease(ctx, mac); err != nil && !(b.discover && errors.Is(err, ErrUnknown)) {
		return Boot{}, err
	}
	return b.boot, nil
}

func (b *fakeBooter) Archive(ctx context.Context, mac string, from netip.Addr) ([]byte, error) {
	l, err := b.Lease(ctx, mac)
	if b.discover && errors.Is(err, ErrUnknown) {
		return b.archive, nil // the Server has checked from
	}
	if err != nil {
		return nil, err
	}
	if b.boot.Kind != BootAgent || from != l.Addr.Addr() && !b.anywhere {
		return nil, ErrRefused
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures > 0 {
		b.failures--
		return nil, errors.New("not yet")
	}
	b.archives++
	return b.archive, nil
}

// files writes a folder with loaders, kernel and RAM disk that are only names, and fills a Server with them.
func files(t testing.TB, s *Server) {
	t.Helper()
	dir := t.TempDir()
	s.LoaderDir = filepath.Join(dir, "loaders")
	s.KernelPath = filepath.Join(dir, "vmlinuz")
	s.RAMDiskPath = filepath.Join(dir, "ramdisk")
	for path, content := range map[string][]byte{
		s.LoaderDir + "/undionly.kpxe": bytes.Repeat([]byte("u"), 3*512),
		s.LoaderDir + "/snponly.efi":   bytes.Repeat([]byte("s"), 3*1468),
		s.KernelPath:                   bytes.Repeat([]byte("kernel"), 10000),
		s.RAMDiskPath:                  bytes.Repeat([]byte("ramdisk"), 10000),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// signed writes a signed chain that is only names, and fills a Server with it.
func signed(t testing.TB, s *Server) {
	t.Helper()
	dir := t.TempDir()
	s.ShimPath, s.GRUBPath = filepath.Join(dir, "shim.signed"), filepath.Join(dir, "grub.signed")
	for path, n := range map[string]int{s.ShimPath: 3000, s.GRUBPath: 4000} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// cpioFile returns a newc archive with one file in one folder.
func cpioFile(files map[string][]byte) []byte {
	var b bytes.Buffer
	inode := 0
	entry := func(name string, mode int, data []byte) {
		inode++
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
		b.Write(make([]byte, (4-b.Len()%4)%4))
		b.Write(data)
		b.Write(make([]byte, (4-b.Len()%4)%4))
	}
	for name, data := range files {
		if dir := filepath.Dir(name); dir != "." {
			entry(dir, 0o40755, nil)
		}
		entry(name, 0o100755, data)
	}
	entry("TRAILER!!!", 0, nil)
	return b.Bytes()
}
