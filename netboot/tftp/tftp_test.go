package tftp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pin "github.com/pin/tftp/v3"
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
	f := &fixture{news: make(chan struct{}, 100)}
	if s.Open == nil {
		s.Open = func(name string) ([]byte, error) {
			n, err := strconv.Atoi(name)
			if err != nil {
				return nil, fs.ErrNotExist
			}
			return pattern(n), nil
		}
	}
	s.Done = func(tr Transfer) {
		f.mu.Lock()
		f.done = append(f.done, tr)
		f.mu.Unlock()
		f.news <- struct{}{}
	}
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
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
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(f.addr))
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

// TestB01SizeProbe: the probe ends at once and is no failure; the second request is served.
func TestB01SizeProbe(t *testing.T) {
	for _, abort := range []string{"\x00\x05\x00\x08User aborted the transfer\x00", "\x00\x05\x00\x00TFTP Aborted\x00", "\x00\x05\x00\x08"} {
		f := serve(t, &Server{})
		p1 := f.client(t)
		p1.ask("3000", "octet", "tsize", "0", "blksize", "1468")
		p1.wantOACK("blksize\x001468\x00tsize\x003000\x00")
		p1.send([]byte(abort))
		if tr := f.next(t); !tr.Probe || tr.Err != nil || tr.Size != 3000 || tr.Sent != 0 {
			t.Errorf("probe reported as %+v", tr)
		}
		p2 := f.client(t)
		p2.ask("3000", "octet", "blksize", "1468")
		p2.wantOACK("blksize\x001468\x00")
		p2.ack(0)
		for n, size := range []int{1468, 1468, 64} {
			p2.want(n+1, size)
			p2.ack(n + 1)
		}
		if tr := f.next(t); tr.Probe || tr.Err != nil || tr.Sent != 3000 {
			t.Errorf("transfer reported as %+v", tr)
		}
		p1.silent() // no repeat for the probe
	}
}

// TestBrokenOff: an error after data has moved is a failure.
func TestBrokenOff(t *testing.T) {
	f := serve(t, &Server{})
	c := f.client(t)
	c.ask("3000", "octet")
	c.want(1, 512)
	c.ack(1)
	c.want(2, 512)
	c.send([]byte("\x00\x05\x00\x03disk full\x00"))
	if tr := f.next(t); tr.Probe || tr.Err == nil || !strings.Contains(tr.Err.Error(), "disk full") || tr.Sent != 512 {
		t.Errorf("reported as %+v", tr)
	}
}

// TestB03NoOptions: a client without options gets 512-byte blocks at once; modes are case-insensitive; mail is refused.
func TestB03NoOptions(t *testing.T) {
	f := serve(t, &Server{Open: func(string) ([]byte, error) { return bytes.Repeat([]byte("a"), 1400), nil }})
	for _, mode := range []string{"octet", "OCTET", "netascii", "NetASCII"} {
		c := f.client(t)
		c.ask("f", mode)
		for n, size := range []int{512, 512, 376} {
			c.want(n+1, size)
			c.ack(n + 1)
		}
		f.next(t)
	}
	for _, mode := range []string{"mail", "x", ""} {
		c := f.client(t)
		c.ask("f", mode)
		c.wantError(codeIllegal)
	}
}

func TestNetASCII(t *testing.T) {
	if got := toNetASCII([]byte("a\nb\r\n\r")); string(got) != "a\r\nb\r\x00\r\n\r\x00" {
		t.Errorf("got %q", got)
	}
}

// TestB05WholeBlocks: a file that ends with a block is followed by an empty one.
func TestB05WholeBlocks(t *testing.T) {
	f := serve(t, &Server{})
	for _, test := range []struct{ size, block, window int }{
		{0, 0, 0}, {512, 0, 0}, {1024, 0, 0}, {3 * 1468, 1468, 0}, {4 * 512, 512, 4}, {3 * 512, 512, 4}, {5 * 512, 512, 4},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			c := f.client(t)
			var options []string
			block, window := 512, 1
			if test.block != 0 {
				options, block = append(options, "blksize", strconv.Itoa(test.block)), test.block
			}
			if test.window != 0 {
				options, window = append(options, "windowsize", strconv.Itoa(test.window)), test.window
			}
			c.ask(strconv.Itoa(test.size), "octet", options...)
			if options != nil {
				c.recv()
				c.ack(0)
			}
			last := test.size/block + 1
			for n := 1; n <= last; n++ {
				size := block
				if n == last {
					size = 0
				}
				c.want(n, size)
				if n%window == 0 || n == last {
					c.ack(n)
				}
			}
			if tr := f.next(t); tr.Err != nil || tr.Sent != int64(test.size) {
				t.Errorf("reported as %+v", tr)
			}
			c.silent()
		})
	}
}

// TestB07Window: after a gap the server goes back to the acknowledged block; nothing moves before ACK 0.
func TestB07Window(t *testing.T) {
	f := serve(t, &Server{})
	c := f.client(t)
	const blocks = 60
	c.ask(strconv.Itoa(blocks*1468-10), "octet", "blksize", "1468", "tsize", "0", "windowsize", "16", "timeout", "1")
	c.wantOACK("blksize\x001468\x00tsize\x0088070\x00timeout\x001\x00windowsize\x0016\x00")
	c.silent()
	c.ack(0)
	for n := 1; n <= 16; n++ {
		c.want(n, 1468)
	}
	c.ack(16)
	for n := 17; n <= 32; n++ { // 27 is lost
		c.want(n, 1468)
	}
	c.ack(26)
	for n := 27; n <= 42; n++ {
		c.want(n, 1468)
	}
	c.ack(26) // the first block of the window is lost: once more from there, and not for each further complaint
	for n := 27; n <= 42; n++ {
		c.want(n, 1468)
	}
	c.ack(26)
	c.silent()
	c.ack(42)
	for n := 43; n <= 58; n++ {
		c.want(n, 1468)
	}
	c.ack(58)
	c.want(59, 1468)
	c.want(60, 1458)
	c.ack(60)
	if tr := f.next(t); tr.Err != nil {
		t.Errorf("reported as %+v", tr)
	}
}

// TestOptionLimits: what is out of range is left out of the OACK, what is too large is cut down.
func TestOptionLimits(t *testing.T) {
	f := serve(t, &Server{MaxPerHost: 100})
	for _, test := range []struct{ options, oack string }{
		{"blksize 65464", "blksize 1468"},
		{"BLKSIZE 1024", "blksize 1024"},
		{"windowsize 64", "windowsize 16"},
		{"tsize 0 windowsize 0", "tsize 9"},
		{"tsize 0 blksize 7", "tsize 9"},
		{"tsize 0 blksize -1 timeout 0 timeout 256 multicast x", "tsize 9"},
	} {
		c := f.client(t)
		c.ask("9", "octet", strings.Fields(test.options)...)
		c.wantOACK(strings.ReplaceAll(test.oack, " ", "\x00") + "\x00")
	}
	for _, options := range []string{"windowsize 0", "blksize x", "unknown 1", "blksize"} {
		c := f.client(t)
		c.ask("9", "octet", strings.Fields(options)...)
		c.want(1, 9) // nothing left to acknowledge: as if no option had been sent
	}
}

// TestB09OnePort: everything comes from the port that was asked.
func TestB09OnePort(t *testing.T) {
	f := serve(t, &Server{})
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WriteToUDPAddrPort([]byte("\x00\x01600\x00octet\x00"), f.addr); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2048)
	for n := range 2 {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil || from != f.addr {
			t.Fatalf("block %d from %s: %v", n+1, from, err)
		}
		if _, err := c.WriteToUDPAddrPort([]byte{0, opAck, 0, byte(n + 1)}, f.addr); err != nil {
			t.Fatal(err)
		}
	}
	f.next(t)
}

// TestB11Repeats: the same request again is the same transfer; too many transfers are refused.
func TestB11Repeats(t *testing.T) {
	f := serve(t, &Server{Timeout: time.Minute, MaxPerHost: 3})
	c := f.client(t)
	for range 4 {
		c.ask("600", "octet", "tsize", "0")
		c.wantOACK("tsize\x00600\x00")
	}
	c.ack(0)
	c.want(1, 512)
	c.ask("600", "octet", "tsize", "0") // late: block 1 again, not a second transfer
	c.want(1, 512)
	c.ack(1)
	c.want(2, 88)
	c.ack(1) // a duplicate acknowledgement must not double the packets from here on
	c.silent()
	c.ack(2)
	if tr := f.next(t); tr.Err != nil || tr.Sent != 600 {
		t.Errorf("reported as %+v", tr)
	}
	c.silent()

	var open []client
	for range 3 {
		open = append(open, f.client(t))
		open[len(open)-1].ask("600", "octet")
		open[len(open)-1].want(1, 512)
	}
	more := f.client(t)
	more.ask("600", "octet")
	more.wantError(codeBusy)

	open[0].ack(1)
	open[0].want(2, 88)
	open[0].ack(2)
	f.next(t)
	more.ask("600", "octet")
	more.want(1, 512)
}

// TestB11Unreachable: a machine that was switched off loses its place with the first ICMP error, long before the last
// try.
func TestB11Unreachable(t *testing.T) {
	f := serve(t, &Server{Timeout: 20 * time.Millisecond, Tries: 1000})
	stays := f.client(t)
	stays.ask("600", "octet")
	stays.want(1, 512)
	goes := f.client(t)
	goes.ask("600", "octet")
	goes.want(1, 512)
	gone := goes.LocalAddr().(*net.UDPAddr).AddrPort()
	goes.Close()
	if tr := f.next(t); tr.Peer != gone || !errors.Is(tr.Err, errGone) {
		t.Errorf("reported as %+v, want %s gone", tr, gone)
	}
	stays.ack(1)
	for b := stays.recv(); b[3] != 2; b = stays.recv() { // repeats of block 1 that were on the way
	}
	stays.ack(2)
	if tr := f.next(t); tr.Err != nil {
		t.Errorf("the other one was reported as %+v", tr)
	}
}

// TestManyBlocks: block numbers wrap at 65536 and the transfer goes on.
func TestManyBlocks(t *testing.T) {
	data := pattern(8*140000 + 3)
	tb := newTable(&Server{Open: func(string) ([]byte, error) { return data, nil }})
	peer, now := netip.MustParseAddrPort("127.0.0.1:2000"), time.Unix(0, 0)
	var wire recorder
	tb.receive(&wire, peer, []byte("\x00\x01f\x00octet\x00blksize\x008\x00windowsize\x004\x00"), now)
	tb.receive(&wire, peer, []byte{0, opAck, 0, 0}, now)
	var got []byte
	for len(tb.sessions) > 0 {
		last := wire.packets[len(wire.packets)-1]
		for _, p := range wire.packets {
			if p[1] == opData {
				got = append(got, p[4:]...)
			}
		}
		wire.packets = nil
		tb.receive(&wire, peer, []byte{0, opAck, last[2], last[3]}, now)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived as %d, or damaged", len(data), len(got))
	}
}

type recorder struct {
	counter
	packets [][]byte
}

func (r *recorder) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	r.packets = append(r.packets, b)
	return len(b), nil
}

// TestLostPackets: what is lost on the way is sent again; a client that is silent is given up.
func TestLostPackets(t *testing.T) {
	f := serve(t, &Server{Timeout: 20 * time.Millisecond, Tries: 4})
	c := f.client(t)
	c.ask("600", "octet", "tsize", "0")
	c.recv()
	c.recv() // the OACK again
	c.ack(0)
	c.want(1, 512)
	c.want(1, 512)
	c.ack(1)
	c.want(2, 88)
	for range 3 {
		c.want(2, 88)
	}
	if tr := f.next(t); !errors.Is(tr.Err, errGone) || tr.Sent != 512 {
		t.Errorf("reported as %+v", tr)
	}
	c.silent()
}

// TestPinClient: an independent client reads what we serve.
func TestPinClient(t *testing.T) {
	f := serve(t, &Server{})
	for _, test := range []struct{ size, block int }{{0, 0}, {1, 0}, {173792, 1468}, {1024 * 3, 1024}} {
		cl, err := pin.NewClient(f.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if test.block != 0 {
			cl.SetBlockSize(test.block)
			cl.RequestTSize(true)
		}
		wt, err := cl.Receive(strconv.Itoa(test.size), "octet")
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := wt.(pin.IncomingTransfer).Size(); test.block != 0 && (!ok || n != int64(test.size)) {
			t.Errorf("size %d, %v", n, ok)
		}
		var got bytes.Buffer
		if _, err := wt.WriteTo(&got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), pattern(test.size)) {
			t.Errorf("%d bytes arrived as %d, damaged", test.size, got.Len())
		}
		f.next(t)
	}
	cl, err := pin.NewClient(f.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Receive("nothing", "octet"); err == nil || !strings.Contains(err.Error(), "code: 1") {
		t.Errorf("missing file: %v", err)
	}
	f.next(t)
	wr, err := cl.Send("upload", "octet")
	if err == nil {
		_, err = wr.ReadFrom(io.LimitReader(strings.NewReader("x"), 1))
	}
	if err == nil {
		t.Error("write accepted")
	}
}

// TestRubbish: packets of no transfer get no answer.
func TestRubbish(t *testing.T) {
	f := serve(t, &Server{})
	c := f.client(t)
	for _, s := range []string{"", "\x00", "\x00\x04\x00\x01", "\x00\x05\x00\x01x\x00", "\x00\x03\x00\x01data", "\xff\xff", "\x00\x06a\x00b\x00"} {
		c.send([]byte(s))
	}
	c.silent()
	c.ask("9", "octet")
	c.want(1, 9)
}

// TestK01Traversal: nothing outside the folder, by any spelling; TFTP says error 2.
func TestK01Traversal(t *testing.T) {
	top := t.TempDir()
	root := filepath.Join(top, "data")
	for path, content := range map[string]string{
		"data/undionly.kpxe": "loader", "data/sub/y": "deeper", "data-private/f": "secret", "secret": "secret",
	} {
		path = filepath.Join(top, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"l": "/", "up": "../secret", "abs": filepath.Join(top, "secret"), "good": "undionly.kpxe"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	f := serve(t, &Server{Open: Dir(root)})
	for _, name := range []string{
		"../../etc/passwd", `..\..\etc\passwd`, "/etc/passwd", "x/../../y", "../data-private/f", "l/etc/passwd", "....//",
		"sub/y", "sub", "l", "up", "abs", ".", "..", "/", "//", "/..", "C:\\x", "\xff", "..\xff", "//undionly.kpxe", "a\nb",
	} {
		c := f.client(t)
		c.ask(name, "octet")
		c.wantError(codeForbidden)
		if tr := f.next(t); tr.Err == nil {
			t.Errorf("%q served", name)
		}
	}
	for _, name := range []string{"missing", "undionly.kpxe\xff\xff"} {
		if _, err := Dir(root)(name); err == nil {
			t.Errorf("%q served", name)
		}
	}
	nul := f.client(t)
	nul.ask("undionly.kpxe\x00/../secret", "octet")
	nul.wantError(codeIllegal)
	// A13: old ROMs read past option 67 and append the end option; others put a slash in front.
	for _, name := range []string{"undionly.kpxe", "undionly.kpxe\xff", "/undionly.kpxe", "good"} {
		c := f.client(t)
		c.ask(name, "octet")
		c.want(1, 6)
		c.ack(1)
		f.next(t)
	}
}

// FuzzServer: a sequence of packets of one client never panics, and no packet makes more than a window of answers.
func FuzzServer(f *testing.F) {
	f.Add([]byte("\x00\x01900\x00octet\x00"), []byte("\x00\x04\x00\x01"), []byte("\x00\x04\x00\x02"))
	f.Add([]byte("\x00\x013000\x00octet\x00blksize\x001468\x00windowsize\x004\x00tsize\x000\x00"), []byte("\x00\x04\x00\x00"), []byte("\x00\x04\x00\x02"))
	f.Add([]byte("\x00\x01shimx64.efi\x00octet\x00tsize\x000\x00blksize\x001468\x00windowsize\x004\x00"), []byte("\x00\x05\x00\x08User aborted the transfer\x00"), []byte(nil))
	f.Add([]byte("\x00\x02x\x00octet\x00"), []byte("\x00\x01\xff\x00mail\x00"), []byte("\x00\x01a\x00netascii\x00blksize\x008\x00"))
	peer := netip.MustParseAddrPort("127.0.0.1:2000")
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		tb := newTable(&Server{Open: func(name string) ([]byte, error) {
			if _, err := Clean(name); err != nil {
				return nil, err
			}
			return pattern(len(name) * 100), nil
		}})
		now := time.Unix(0, 0)
		for _, p := range [][]byte{a, b, c} {
			var out counter
			tb.receive(&out, peer, p, now)
			if out.packets > 16 {
				t.Fatalf("%d packets for one", out.packets)
			}
			if len(tb.sessions) > 1 || tb.hosts[peer.Addr()] != len(tb.sessions) {
				t.Fatalf("%d sessions, counted %d", len(tb.sessions), tb.hosts[peer.Addr()])
			}
		}
		for range 20 {
			now = now.Add(5 * time.Minute)
			tb.expire(&counter{}, now)
		}
		if len(tb.sessions) != 0 || len(tb.hosts) != 0 {
			t.Fatal("a silent client keeps its session")
		}
	})
}

type counter struct{ packets int }

func (*counter) ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error) { panic("not read") }
func (*counter) SetReadDeadline(time.Time) error                         { return nil }
func (c *counter) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	c.packets++
	return len(b), nil
}

// FuzzClean: what passes is one name that stays in its folder, and is clean already.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"undionly.kpxe", "/snponly.efi", "x\xff", "../x", `a\b`, "....//", "\xff", "/", "..\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := Clean(s)
		if err != nil {
			if !errors.Is(err, fs.ErrPermission) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if filepath.Base(name) != name || !filepath.IsLocal(name) || strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '\\' || r < ' ' || r > '~' }) {
			t.Fatalf("%q became %q", s, name)
		}
		if again, err := Clean(name); err != nil || again != name {
			t.Fatalf("%q became %q, then %q (%v)", s, name, again, err)
		}
	})
}
