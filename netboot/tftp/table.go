package tftp

import (
	"bytes"
	"cmp"
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
	if s != nil && op == opRead && !bytes.Equal(b, s.asked) {
		t.end(s, errBrokeOff, now) // the client uses its port for something new
		s = nil
	}
	if s != nil {
		out, done, err := s.packet(b, now)
		t.send(c, peer, out)
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
	data, err := t.Open(req.name)
	if err != nil {
		code, text := uint16(codeOther), "cannot read the file"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			code, text = codeNotFound, "file not found"
		case errors.Is(err, fs.ErrPermission):
			code, text = codeForbidden, "access violation"
		}
		t.refuse(c, peer, code, text)
		t.done(Transfer{Peer: peer, Name: req.name, Err: err, Began: now})
		return
	}
	s := t.session(peer, req, data)
	s.asked, s.began = bytes.Clone(b), now
	t.sessions[peer] = s
	t.hosts[peer.Addr()]++
	t.send(c, peer, s.fresh(now))
}

// session settles the options of a transfer. The OACK names only what was asked for and is granted (RFC 2347); a
// client without options gets blocks of 512 bytes at once.
func (t *table) session(peer netip.AddrPort, req request, data []byte) *session {
	if req.text {
		data = toNetASCII(data)
	}
	s := &session{peer: peer, name: req.name, data: data, block: 512, window: 1, timeout: cmp.Or(t.Timeout, time.Second)}
	oack := binary.BigEndian.AppendUint16(nil, opOAck)
	bare := len(oack)
	if req.block != 0 {
		s.block = min(req.block, cmp.Or(t.MaxBlock, 1468))
		oack = option(oack, "blksize", s.block)
	}
	if req.size {
		oack = option(oack, "tsize", len(data))
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
	return s
}

// expire repeats what was not acknowledged in time, and gives up on who does not answer.
func (t *table) expire(c conn, now time.Time) {
	for peer, s := range t.sessions {
		switch {
		case now.Before(s.due):
		case s.tries >= cmp.Or(t.Tries, 6):
			t.end(s, errGone, now)
		default:
			t.send(c, peer, s.again(now))
		}
	}
}

// nextDue is when expire has something to do.
func (t *table) nextDue(now time.Time) time.Time {
	due := now.Add(time.Minute)
	for _, s := range t.sessions {
		if s.due.Before(due) {
			due = s.due
		}
	}
	return due
}

func (t *table) end(s *session, err error, now time.Time) {
	delete(t.sessions, s.peer)
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
