package tftp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"time"
)

// table holds the transfers in progress. One goroutine uses it.
type table struct {
	*Server
	log      *slog.Logger
	sessions map[netip.AddrPort]*session
	hosts    map[netip.Addr]int // sessions by address

	// start opens a file elsewhere and has the function that it returns called here. Without one it is done at once.
	start func(open func(context.Context) func())
}

func newTable(s *Server) *table {
	log := s.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &table{Server: s, log: log, sessions: map[netip.AddrPort]*session{}, hosts: map[netip.Addr]int{}}
}

// receive takes a packet from peer.
func (t *table) receive(c conn, peer netip.AddrPort, b []byte, now time.Time) {
	if len(b) < 2 {
		return
	}
	op := binary.BigEndian.Uint16(b)
	s := t.sessions[peer]
	if s != nil && s.file == nil {
		return // its file is being opened: whatever it says, it can say again
	}
	if s != nil && op == opRead && !bytes.Equal(b, s.asked) {
		t.end(s, errBrokeOff, now) // the client uses its port for something new
		s = nil
	}
	if s != nil {
		out, done, err := s.packet(b, now)
		t.advance(c, s, out, now)
		if done {
			t.end(s, err, now)
		}
		return
	}
	switch op {
	case opRead:
		t.open(c, peer, b, now)
	case opWrite:
		t.refuse(c, peer, codeForbidden, "read only")
	}
	// Anything else is late or lost: no answer, so that two servers cannot keep each other busy.
}

// open starts a transfer.
func (t *table) open(c conn, peer netip.AddrPort, b []byte, now time.Time) {
	req, err := parseRequest(b[2:])
	if err != nil {
		t.log.Debug("TFTP request refused", "peer", peer, "err", err)
		t.refuse(c, peer, codeIllegal, err.Error())
		return
	}
	if len(t.sessions) >= cmp.Or(t.MaxSessions, 1024) || t.hosts[peer.Addr()] >= cmp.Or(t.MaxPerHost, 8) {
		t.log.Warn("TFTP request refused: too many transfers", "peer", peer, "total", len(t.sessions))
		t.refuse(c, peer, codeBusy, "too many transfers")
		return
	}
	s := &session{peer: peer, name: req.name, asked: bytes.Clone(b), began: now, due: now.Add(time.Hour)}
	t.sessions[peer] = s
	t.hosts[peer.Addr()]++
	open := func(ctx context.Context) func() {
		f, err := t.Open(ctx, req.name, peer)
		if err == nil && req.text {
			f, err = toNetASCII(f)
		}
		return func() { t.ready(c, s, req, f, err) }
	}
	if t.start == nil {
		open(context.Background())()
		return
	}
	t.start(open)
}

// ready begins the transfer of a file that was opened.
func (t *table) ready(c conn, s *session, req request, f File, err error) {
	now := time.Now()
	if t.start == nil {
		now = s.began
	}
	if t.sessions[s.peer] != s { // the client went away meanwhile
		if err == nil {
			f.Close()
		}
		return
	}
	if err != nil {
		code, text := uint16(codeOther), "cannot read the file"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			code, text = codeNotFound, "file not found"
		case errors.Is(err, fs.ErrPermission):
			code, text = codeForbidden, "access violation"
		}
		t.refuse(c, s.peer, code, text)
		t.end(s, err, now)
		return
	}
	t.settle(s, req, f)
	t.advance(c, s, s.fresh(now), now)
}

// advance sends the next packets of a transfer. One whose file cannot be read ends.
func (t *table) advance(c conn, s *session, packets [][]byte, now time.Time) {
	t.send(c, s.peer, packets)
	if s.failed != nil {
		t.end(s, s.failed, now)
	}
}

// close ends all transfers without a word: the server stops.
func (t *table) close() {
	for _, s := range t.sessions {
		if s.file != nil {
			s.file.Close()
		}
	}
	clear(t.sessions)
}

// settle sets the options of a transfer. The OACK names only what was asked for and is granted (RFC 2347); a client
// without options gets blocks of 512 bytes at once.
func (t *table) settle(s *session, req request, f File) {
	s.file, s.size = f, int(f.Size())
	s.block, s.window, s.timeout = 512, 1, cmp.Or(t.Timeout, time.Second)
	oack := binary.BigEndian.AppendUint16(nil, opOAck)
	bare := len(oack)
	if req.block != 0 {
		s.block = min(req.block, cmp.Or(t.MaxBlock, 1468))
		oack = option(oack, "blksize", s.block)
	}
	if req.size {
		oack = option(oack, "tsize", s.size)
	}
	if req.timeout != 0 {
		s.timeout = time.Duration(req.timeout) * time.Second
		oack = option(oack, "timeout", req.timeout)
	}
	if req.window != 0 {
		s.window = min(req.window, cmp.Or(t.MaxWindow, 16))
		oack = option(oack, "windowsize", s.window)
	}
	if len(oack) > bare {
		s.oack = oack
	} else {
		s.opened = true
	}
}

// expire repeats what was not acknowledged in time, and gives up on who does not answer.
func (t *table) expire(c conn, now time.Time) {
	for _, s := range t.sessions {
		switch {
		case now.Before(s.due):
		case s.tries >= cmp.Or(t.Tries, 6):
			t.end(s, errGone, now)
		default:
			t.advance(c, s, s.again(now), now)
		}
	}
}

// scanEvery is how often all transfers are looked through for what is due. Not for each packet: there may be many.
const scanEvery = 20 * time.Millisecond

// nextDue is when to look through them again.
func (t *table) nextDue(now, scanned time.Time) time.Time {
	if len(t.sessions) == 0 {
		return now.Add(time.Minute)
	}
	return scanned.Add(scanEvery)
}

func (t *table) end(s *session, err error, now time.Time) {
	if t.sessions[s.peer] != s {
		return
	}
	delete(t.sessions, s.peer)
	if s.file != nil {
		s.file.Close()
	}
	if t.hosts[s.peer.Addr()]--; t.hosts[s.peer.Addr()] <= 0 {
		delete(t.hosts, s.peer.Addr())
	}
	t.done(s.transfer(err, now))
}

func (t *table) done(tr Transfer) {
	if t.Done != nil {
		t.Done(tr)
	}
}

func (t *table) refuse(c conn, peer netip.AddrPort, code uint16, text string) {
	t.send(c, peer, [][]byte{errorPacket(code, text)})
}

func (t *table) send(c conn, peer netip.AddrPort, packets [][]byte) {
	for _, b := range packets {
		_, err := c.WriteToUDPAddrPort(b, peer)
		if err != nil { // maybe the ICMP error of another peer, which the kernel reports to whoever comes next
			t.drop(unreachable(c), time.Now())
			_, err = c.WriteToUDPAddrPort(b, peer)
		}
		if err != nil {
			t.log.Debug("send TFTP", "peer", peer, "err", err) // the timer repeats it
			return
		}
	}
}

// drop ends the transfers of peers that are not there any more.
func (t *table) drop(gone []netip.AddrPort, now time.Time) {
	for _, peer := range gone {
		if s := t.sessions[peer]; s != nil {
			t.end(s, errGone, now)
		}
	}
}
