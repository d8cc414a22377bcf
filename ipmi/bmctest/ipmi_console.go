package bmctest

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/hal"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/types"
)

// serialPort is the host's serial port as go-ipmi wants it: read without waiting.
type serialPort func(ctx context.Context) (io.ReadWriteCloser, error)

// Open attaches to the serial port.
func (s serialPort) Open(ctx context.Context) (hal.ConsoleConn, error) {
	rw, err := s(ctx)
	if err != nil {
		return nil, err
	}
	p := &portConn{rw: rw, done: make(chan struct{})}
	go p.fill()
	return p, nil
}

// portLimit is how much the BMC keeps of what nobody has read.
const portLimit = 64 << 10

type portConn struct {
	rw   io.ReadWriteCloser
	done chan struct{} // closed when fill has ended

	mu   sync.Mutex
	rx   []byte
	last error
}

func (p *portConn) fill() {
	defer close(p.done)
	buf := make([]byte, 4096)
	for {
		n, err := p.rw.Read(buf)
		p.mu.Lock()
		p.rx = append(p.rx, buf[:n]...)
		if over := len(p.rx) - portLimit; over > 0 {
			p.rx = p.rx[over:]
		}
		p.last = err
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// ReadAvailable reads what is there.
func (p *portConn) ReadAvailable(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rx) == 0 {
		return 0, p.last
	}
	n := copy(b, p.rx)
	p.rx = p.rx[n:]
	return n, nil
}

// Write sends bytes to the host.
func (p *portConn) Write(b []byte) (int, error) { return p.rw.Write(b) }

// SendBreak sends a break where the port can.
func (p *portConn) SendBreak(context.Context) error {
	if b, ok := p.rw.(interface{ Break() error }); ok {
		return b.Break()
	}
	return hal.ErrNotSupported
}

// Close detaches.
func (p *portConn) Close() error {
	err := p.rw.Close()
	<-p.done
	return err
}

// Line is a serial line in memory: what Type writes is read from the line, and what is written to the line is kept in Typed. It can be
// opened again after it was closed; what the host says while nobody listens is lost, as on a real line.
type Line struct {
	mu     sync.Mutex
	typed  []byte
	breaks int
	end    *lineEnd
}

type lineEnd struct {
	l *Line
	r *io.PipeReader
	w *io.PipeWriter
}

// Open opens the line; somebody who had it open loses it.
func (l *Line) Open(context.Context) (io.ReadWriteCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		_ = l.end.w.Close()
	}
	r, w := io.Pipe()
	l.end = &lineEnd{l: l, r: r, w: w}
	return l.end, nil
}

// Say is what the host writes.
func (l *Line) Say(text string) {
	l.mu.Lock()
	end := l.end
	l.mu.Unlock()
	if end != nil {
		_, _ = io.WriteString(end.w, text)
	}
}

// Typed is what was written to the host so far, and the number of breaks.
func (l *Line) Typed() (text string, breaks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.typed), l.breaks
}

func (e *lineEnd) Read(p []byte) (int, error) { return e.r.Read(p) }

func (e *lineEnd) Write(p []byte) (int, error) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.l.typed = append(e.l.typed, p...)
	return len(p), nil
}

func (e *lineEnd) Break() error {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.l.breaks++
	return nil
}

func (e *lineEnd) Close() error {
	e.l.mu.Lock()
	if e.l.end == e {
		e.l.end = nil
	}
	e.l.mu.Unlock()
	_ = e.w.Close()
	return e.r.Close()
}

// sessionInfo answers Get Session Info also for a session of which the ID or the place in the list is known, which go-ipmi's server does
// not.
func (b *IPMI) sessionInfo(plain *handlers.Registry) func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
	return func(ctx context.Context, h *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		active := b.active()
		var s *bmc.Session
		switch {
		case len(req) >= 5 && req[0] == 0xff:
			s, _ = b.bmc.Sessions.Get(binary.LittleEndian.Uint32(req[1:]))
		case len(req) >= 1 && req[0] > 0 && req[0] < 0xfe:
			if int(req[0]) <= len(active) {
				s = active[req[0]-1]
			}
		default:
			return plain.Dispatch(ctx, h, uint8(types.CommandGetSessionInfo.NetFn), types.CommandGetSessionInfo.ID, req)
		}
		if s == nil {
			return nil, types.CodeRequestedDataNotPresent, nil
		}
		user := userOf(s, h.Session)
		if user == nil {
			return nil, types.CodeRequestedDataNotPresent, nil
		}
		out := []byte{s.Handle, 8, byte(len(active)), user.ID, 4, 0x11}
		if at, ok := s.GetAddr().(*net.UDPAddr); ok && at.IP.To4() != nil {
			out = append(append(out, at.IP.To4()...), 0, 0, 0, 0, 0, 0, byte(at.Port), byte(at.Port>>8))
		}
		return out, types.CodeOK, nil
	}
}

// userOf is who opened a session, nil while it is being opened or has a command under way. The one that asks is locked already, and two
// that asked about each other must not wait for each other.
func userOf(s, asking *bmc.Session) *bmc.User {
	if s != asking {
		if !s.ProcMu.TryLock() {
			return nil
		}
		defer s.ProcMu.Unlock()
	}
	return s.User
}

// closeSession closes a session also by its handle, as the specification leaves open.
func (b *IPMI) closeSession(plain *handlers.Registry) func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
	return func(ctx context.Context, h *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		if len(req) == 5 && binary.LittleEndian.Uint32(req) == 0 {
			for _, s := range b.active() {
				if s.Handle == req[4] && s != h.Session {
					req = binary.LittleEndian.AppendUint32(nil, s.BMCID)
					break
				}
			}
		}
		return plain.Dispatch(ctx, h, uint8(types.CommandCloseSession.NetFn), types.CommandCloseSession.ID, req[:min(4, len(req))])
	}
}

// active is the sessions that were opened and not closed, oldest first.
func (b *IPMI) active() []*bmc.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*bmc.Session
	b.ids = slices.DeleteFunc(b.ids, func(id uint32) bool {
		s, err := b.bmc.Sessions.Get(id)
		if err == nil {
			out = append(out, s)
		}
		return err != nil
	})
	return out
}
