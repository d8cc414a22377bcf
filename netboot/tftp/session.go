package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// session is one transfer. Blocks are counted from 1 without wrapping; only their low 16 bits travel.
type session struct {
	peer    netip.AddrPort
	began   time.Time
	asked   []byte // the request as it came, to know a repeat
	name    string
	file    File // nil until it is opened
	size    int
	oack    []byte // nil when the client sent no option: it gets block 1 at once
	block   int    // bytes
	window  int    // blocks
	timeout time.Duration

	opened  bool // the OACK was acknowledged, or there is none
	acked   int  // blocks that the client has
	sent    int  // blocks sent at least once
	packets int  // data packets sent

	failed error    // the file could not be read to its end
	ahead  []byte   // what was read of it last
	at     int      // where that begins
	out    [][]byte // the last flight
	room   [][]byte // for as many packets as a window has

	due      time.Time // when to repeat
	tries    int       // of what is in flight
	repeated bool      // the window was sent again because the client asked; not twice until it moves on
}

// errGone ends a transfer whose client does not answer.
var errGone = errors.New("client stopped answering")

// errBrokeOff ends a transfer by the client's wish.
var errBrokeOff = errors.New("client broke off")

func (s *session) last() int { return s.size/s.block + 1 } // the last block is shorter than the others, maybe empty

// flight returns the packets that should be on the way now. The next flight takes their place in memory.
func (s *session) flight() [][]byte {
	if !s.opened {
		return [][]byte{s.oack}
	}
	out := s.out[:0]
	for n := s.acked + 1; n <= min(s.acked+s.window, s.last()); n++ {
		p := s.dataPacket(n)
		if s.failed != nil { // the client must not take what is left for the whole file
			return append(out, errorPacket(codeOther, "cannot read the file"))
		}
		out = append(out, p)
	}
	s.out = out
	return out
}

func (s *session) dataPacket(n int) []byte {
	from := (n - 1) * s.block
	to := min(from+s.block, s.size)
	if s.room == nil {
		s.room = make([][]byte, s.window)
	}
	room := &s.room[n%s.window]
	if *room == nil {
		*room = make([]byte, 4+s.block)
	}
	b := (*room)[:4+to-from]
	binary.BigEndian.PutUint16(b, opData)
	binary.BigEndian.PutUint16(b[2:], uint16(n))
	if err := s.read(b[4:], from); err != nil {
		s.failed = err
	}
	s.sent = max(s.sent, n)
	s.packets++
	return b
}

// readAhead is how much of a file is read at once, bytes: a dozen blocks.
const readAhead = 16 << 10

// read fills b with what the file has at a place.
func (s *session) read(b []byte, from int) error {
	if from < s.at || from+len(b) > s.at+len(s.ahead) {
		if s.ahead == nil {
			s.ahead = make([]byte, max(readAhead, s.block))
		}
		got, err := s.file.ReadAt(s.ahead[:cap(s.ahead)], int64(from))
		s.ahead, s.at = s.ahead[:got], from
		if got < len(b) {
			return fmt.Errorf("read file at %d: %w", from+got, err)
		}
	}
	copy(b, s.ahead[from-s.at:])
	return nil
}

// again arms the timer and returns what is in flight; the wait doubles with each repeat.
func (s *session) again(now time.Time) [][]byte {
	s.due = now.Add(s.timeout << min(s.tries, 3))
	s.tries++
	return s.flight()
}

// fresh starts a new flight.
func (s *session) fresh(now time.Time) [][]byte {
	s.tries, s.repeated = 0, false
	return s.again(now)
}

// packet takes a packet of the client and returns what to send. done means that the transfer is over, well when err
// is nil.
func (s *session) packet(b []byte, now time.Time) (out [][]byte, done bool, err error) {
	if len(b) < 4 {
		return nil, false, nil
	}
	switch binary.BigEndian.Uint16(b) {
	case opAck:
		return s.ack(binary.BigEndian.Uint16(b[2:]), now)
	case opError:
		text, _, _ := bytes.Cut(b[4:], []byte{0})
		return nil, true, fmt.Errorf("%w: error %d: %q", errBrokeOff, binary.BigEndian.Uint16(b[2:]), text)
	case opRead:
		if s.acked == 0 && bytes.Equal(b, s.asked) && s.tries <= maxRepeats {
			return s.again(now), false, nil // our answer was lost or slow: the same again, no second transfer
		}
	}
	return nil, false, nil
}

// maxRepeats bounds how often the same request gets the same answer before the timer alone decides.
const maxRepeats = 4

func (s *session) ack(wire uint16, now time.Time) ([][]byte, bool, error) {
	if !s.opened {
		if wire != 0 {
			return nil, false, nil // no data before the client agrees to the options
		}
		s.opened = true
		return s.fresh(now), false, nil
	}
	// The block between acked and sent that has these low bits; a window is far smaller than 65536.
	n := s.acked + int(wire-uint16(s.acked))
	switch {
	case n > s.sent:
		return nil, false, nil // an older acknowledgement, late
	case n == s.acked:
		// In a window it tells of a gap after n: send again from there, once. Alone it is a duplicate, and to answer
		// would double every packet from here on (RFC 1123 section 4.2.3.1).
		if s.window == 1 || s.repeated || n == 0 {
			return nil, false, nil
		}
		out := s.again(now)
		s.repeated = true
		return out, false, nil
	case n == s.last():
		s.acked = n
		return nil, true, nil
	}
	s.acked = n
	return s.fresh(now), false, nil
}

// probe reports whether err ended the transfer before any data arrived because the client only wanted to know the
// size. EDK2 sends error 8 "User aborted the transfer"; others send 0.
func (s *session) probe(err error) bool { return s.acked == 0 && errors.Is(err, errBrokeOff) }

func (s *session) transfer(err error, now time.Time) Transfer {
	t := Transfer{
		Peer: s.peer, Name: s.name, Size: s.size, Blocks: s.packets,
		Sent: int64(min(s.acked*s.block, s.size)), Began: s.began, Took: now.Sub(s.began),
	}
	if t.Probe = s.probe(err); !t.Probe {
		t.Err = err
	}
	return t
}
