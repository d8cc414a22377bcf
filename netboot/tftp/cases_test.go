package tftp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
	f := serve(t, &Server{Open: func(context.Context, string, netip.AddrPort) (File, error) {
		return Bytes(bytes.Repeat([]byte("a"), 1400)), nil
	}})
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
	if got := asText(t, "a\nb\r\n\r"); got != "a\r\nb\r\x00\r\n\r\x00" {
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
	for _, loopback := range []string{"127.0.0.1", "::1"} {
		t.Run(loopback, func(t *testing.T) { testUnreachable(t, loopback) })
	}
}

func testUnreachable(t *testing.T, loopback string) {
	f := serveOn(t, loopback, &Server{Timeout: 20 * time.Millisecond, Tries: 1000})
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
	tb := newTable(&Server{Open: func(context.Context, string, netip.AddrPort) (File, error) { return Bytes(data), nil }})
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
