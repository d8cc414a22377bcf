package httpboot

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Steady is a ResponseWriter that gives a client Patience for each Piece instead of a time for the whole download: a
// slow client may take hours, one that stopped reading is cut off. It also counts.
type Steady struct {
	http.ResponseWriter
	Patience time.Duration // for one piece; zero means one minute

	Status int   // of the answer; zero until it is sent
	Bytes  int64 // of the body handed to the kernel

	Note string // what the handler says of its answer, for a trace

	err error
}

// piece is how much may go out under one deadline, bytes: with a minute of patience the slowest client that is still
// served takes 4 KiB/s.
const piece = 256 << 10

// NewSteady wraps w for one request. It sets the first deadline, so that nothing is left of the last request's on a
// connection that was kept.
func NewSteady(w http.ResponseWriter) *Steady {
	s := &Steady{ResponseWriter: w}
	_ = s.push() // a failure shows at the first write
	return s
}

// WriteHeader notes the status.
func (s *Steady) WriteHeader(status int) {
	if s.Status < 200 {
		s.Status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write sends b in pieces.
func (s *Steady) Write(b []byte) (int, error) {
	s.begin()
	total := 0
	for {
		n := min(len(b), piece)
		if err := s.push(); err != nil {
			return total, err
		}
		n, err := s.ResponseWriter.Write(b[:n])
		total += n
		s.Bytes += int64(n)
		if err != nil {
			return total, s.stalled(err)
		}
		if b = b[n:]; len(b) == 0 {
			return total, nil
		}
	}
}

// ReadFrom sends what src has in pieces. Where src is a file the kernel copies each of them (sendfile).
func (s *Steady) ReadFrom(src io.Reader) (int64, error) {
	s.begin()
	left := int64(1<<63 - 1)
	outer, limited := src.(*io.LimitedReader)
	if limited { // http.ServeContent's way; the kernel's copy sees only one limit
		src, left = outer.R, outer.N
	}
	var total int64
	for left > 0 {
		if err := s.push(); err != nil {
			return total, err
		}
		want := min(left, piece)
		n, err := io.Copy(s.ResponseWriter, &io.LimitedReader{R: src, N: want})
		total += n
		left -= n
		s.Bytes += n
		if limited {
			outer.N = left
		}
		if err != nil {
			return total, s.stalled(err)
		}
		if n < want {
			return total, nil
		}
	}
	return total, nil
}

// Length returns how long the body was to be, bytes; 0 when the handler has not said.
func (s *Steady) Length() int64 {
	n, err := strconv.ParseInt(s.Header().Get("Content-Length"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Unwrap lets http.ResponseController reach the connection.
func (s *Steady) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Flush sends what is buffered.
func (s *Steady) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }

// Err returns why the body was cut short, nil when it was not.
func (s *Steady) Err() error { return s.err }

func (s *Steady) begin() {
	if s.Status < 200 {
		s.Status = http.StatusOK
	}
}

// push moves the deadline on.
func (s *Steady) push() error {
	d := s.Patience
	if d <= 0 {
		d = time.Minute
	}
	err := http.NewResponseController(s.ResponseWriter).SetWriteDeadline(time.Now().Add(d))
	if err != nil {
		s.err = fmt.Errorf("set write deadline: %w", err)
	}
	return s.err
}

func (s *Steady) stalled(err error) error {
	s.err = fmt.Errorf("stalled at %d bytes: %w", s.Bytes, err)
	return s.err
}
