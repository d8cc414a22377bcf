package tftp

import (
	"context"
	"encoding/binary"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pattern returns n bytes of which no two blocks are the same.
func pattern(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint64(b, i*0x9e3779b97f4a7c15)
	}
	return b[:n]
}

// fixture is a Server on loopback and what it reported.
type fixture struct {
	addr netip.AddrPort
	mu   sync.Mutex
	done []Transfer
	news chan struct{}
}

func serve(t testing.TB, s *Server) *fixture {
	t.Helper()
	return serveOn(t, "127.0.0.1", s)
}

func serveOn(t testing.TB, loopback string, s *Server) *fixture {
	t.Helper()
	f := &fixture{news: make(chan struct{}, 100)}
	if s.Open == nil {
		s.Open = func(_ context.Context, name string, _ netip.AddrPort) (File, error) {
			n, err := strconv.Atoi(name)
			if err != nil {
				return nil, fs.ErrNotExist
			}
			return Bytes(pattern(n)), nil
		}
	}
	s.Done = func(tr Transfer) {
		f.mu.Lock()
		f.done = append(f.done, tr)
		f.mu.Unlock()
		f.news <- struct{}{}
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(loopback), 0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := watchErrors(c); err != nil {
		t.Fatal(err)
	}
	f.addr = c.LocalAddr().(*net.UDPAddr).AddrPort()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		c.Close()
	})
	return f
}

// next waits for the end of a transfer.
func (f *fixture) next(t testing.TB) Transfer {
	t.Helper()
	select {
	case <-f.news:
	case <-time.After(20 * time.Second):
		t.Fatal("transfer does not end")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	tr := f.done[0]
	f.done = f.done[1:]
	return tr
}

// client is one port of a machine.
type client struct {
	t testing.TB
	*net.UDPConn
}

func (f *fixture) client(t testing.TB) client {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(f.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{t, c}
}

func (c client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c client) ask(name, mode string, options ...string) {
	c.t.Helper()
	b := []byte{0, opRead}
	for _, s := range append([]string{name, mode}, options...) {
		b = append(append(b, s...), 0)
	}
	c.send(b)
}

func (c client) ack(n int) { c.t.Helper(); c.send([]byte{0, opAck, byte(n >> 8), byte(n)}) }

// recv returns the next packet.
func (c client) recv() []byte {
	c.t.Helper()
	b := make([]byte, 65536)
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := c.Read(b)
	if err != nil {
		c.t.Fatal(err)
	}
	return b[:n]
}

// want fails unless the next packet is block n with size bytes of data.
func (c client) want(n, size int) {
	c.t.Helper()
	b := c.recv()
	if len(b) != 4+size || b[1] != opData || int(b[2])<<8|int(b[3]) != n {
		c.t.Fatalf("got %d bytes beginning % x, want block %d with %d bytes", len(b), b[:min(8, len(b))], n, size)
	}
}

// silent fails when anything comes within a moment.
func (c client) silent() {
	c.t.Helper()
	b := make([]byte, 2048)
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := c.Read(b); err == nil {
		c.t.Fatalf("unexpected % x", b[:min(n, 16)])
	}
}

// wantError fails unless the next packet is an error with this code.
func (c client) wantError(code byte) {
	c.t.Helper()
	if b := c.recv(); b[1] != opError || b[3] != code {
		c.t.Fatalf("got % x, want error %d", b, code)
	}
}

func (c client) wantOACK(want string) {
	c.t.Helper()
	if b := c.recv(); b[1] != opOAck || string(b[2:]) != want {
		c.t.Fatalf("got %q, want OACK %q", b, want)
	}
}

// inDir is what a Server opens of a folder.
func inDir(folder string) func(context.Context, string, netip.AddrPort) (File, error) {
	return func(_ context.Context, name string, _ netip.AddrPort) (File, error) { return Dir(folder)(name) }
}

func asText(t testing.TB, s string) string {
	t.Helper()
	f, err := toNetASCII(Bytes([]byte(s)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
