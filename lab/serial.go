package lab

import (
	"context"
	"io"
	"sync"
)

// serialPort is a machine's serial port: the machine on one side, for as long as it is on, and the BMC on the other, for as long as
// somebody has the console open. What the machine says while nobody listens is lost, as on a real wire; it never waits.
type serialPort struct {
	mu   sync.Mutex
	host io.Writer // where keys go; nil while the machine is off
	port *serialEnd
}

// serialBuffer is how much a slow BMC may be behind, in bytes.
const serialBuffer = 256 << 10

// plug joins a machine that was just switched on, until what it says has ended.
func (s *serialPort) plug(host io.ReadWriter) {
	s.mu.Lock()
	s.host = host
	s.mu.Unlock()
	buf := make([]byte, 4096)
	for {
		n, err := host.Read(buf)
		s.say(buf[:n])
		if err != nil {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host == host {
		s.host = nil
	}
}

// say puts bytes of the machine on the wire.
func (s *serialPort) say(p []byte) {
	s.mu.Lock()
	port := s.port
	s.mu.Unlock()
	if port != nil {
		port.put(p)
	}
}

// open attaches a BMC, in place of the one before.
func (s *serialPort) open(context.Context) (io.ReadWriteCloser, error) {
	end := &serialEnd{of: s, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	s.mu.Lock()
	before := s.port
	s.port = end
	s.mu.Unlock()
	if before != nil {
		_ = before.Close() // never fails
	}
	return end, nil
}

// serialEnd is the BMC's end of the wire.
type serialEnd struct {
	of     *serialPort
	wake   chan struct{}
	once   sync.Once
	closed chan struct{}

	mu   sync.Mutex
	data []byte
}

func (e *serialEnd) put(p []byte) {
	e.mu.Lock()
	e.data = append(e.data, p...)
	if over := len(e.data) - serialBuffer; over > 0 {
		e.data = e.data[over:]
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Read implements io.Reader.
func (e *serialEnd) Read(p []byte) (int, error) {
	for {
		e.mu.Lock()
		n := copy(p, e.data)
		e.data = e.data[n:]
		e.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-e.wake:
		case <-e.closed:
			return 0, io.EOF
		}
	}
}

// Write implements io.Writer. Keys for a machine that is off are lost.
func (e *serialEnd) Write(p []byte) (int, error) {
	e.of.mu.Lock()
	host := e.of.host
	e.of.mu.Unlock()
	if host == nil {
		return len(p), nil
	}
	if _, err := host.Write(p); err != nil { // switched off just now
		return len(p), nil
	}
	return len(p), nil
}

// Close implements io.Closer.
func (e *serialEnd) Close() error {
	e.once.Do(func() { close(e.closed) })
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.of.port == e {
		e.of.port = nil
	}
	return nil
}
