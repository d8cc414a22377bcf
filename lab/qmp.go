package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
)

// qmp speaks QEMU's machine protocol over one connection: commands with an id, answers by that id, events in between.
// See docs/interop/qmp-spec in QEMU's source.
type qmp struct {
	conn net.Conn
	done chan struct{} // closed when the reader has ended

	write sync.Mutex // held while a command is written: commands must not mingle

	mu      sync.Mutex
	last    uint64
	waiting map[string]chan qmpReply // by id; nil once the reader has ended
	cause   error                    // why it ended
}

type qmpReply struct {
	Return json.RawMessage `json:"return"`
	Error  *QMPError       `json:"error"`
}

// QMPError is QEMU's refusal of a command.
type QMPError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *QMPError) Error() string { return e.Desc }

type qmpMessage struct {
	qmpReply
	ID    string          `json:"id"`
	Event string          `json:"event"`
	Hello json.RawMessage `json:"QMP"`
}

// newQMP takes over the connection, negotiates, and reads until the connection ends or close is called. event is called with
// the name of each event, by the reader: it must not wait for a command.
func newQMP(ctx context.Context, conn net.Conn, event func(name string)) (*qmp, error) {
	q := &qmp{conn: conn, done: make(chan struct{}), waiting: make(map[string]chan qmpReply)}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	dec := json.NewDecoder(conn)
	var hello qmpMessage
	if err := dec.Decode(&hello); err != nil {
		conn.Close()
		return nil, fmt.Errorf("read QMP greeting: %w", cmp.Or(ctx.Err(), err))
	}
	if hello.Hello == nil {
		conn.Close()
		return nil, errors.New("read QMP greeting: peer does not speak QMP")
	}
	go q.read(dec, event)
	if err := q.do(ctx, "qmp_capabilities", nil, nil); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

func (q *qmp) read(dec *json.Decoder, event func(string)) {
	defer close(q.done)
	for {
		var m qmpMessage
		if err := dec.Decode(&m); err != nil {
			q.end(err)
			return
		}
		if m.Event != "" {
			event(m.Event)
			continue
		}
		q.mu.Lock()
		ch := q.waiting[m.ID]
		delete(q.waiting, m.ID)
		q.mu.Unlock()
		if ch != nil {
			ch <- m.qmpReply
		}
	}
}

// end lets everyone who waits for an answer go.
func (q *qmp) end(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if errors.Is(cause, io.EOF) {
		cause = errors.New("the emulator has gone")
	}
	q.cause = cause
	for _, ch := range q.waiting {
		close(ch)
	}
	q.waiting = nil
}

// do runs a command and decodes what it returns into out, unless out is nil.
func (q *qmp) do(ctx context.Context, command string, args, out any) error {
	q.mu.Lock()
	if q.waiting == nil {
		defer q.mu.Unlock()
		return fmt.Errorf("run QMP %s: %w", command, q.cause)
	}
	q.last++
	id := strconv.FormatUint(q.last, 10)
	answer := make(chan qmpReply, 1)
	q.waiting[id] = answer
	q.mu.Unlock()

	req := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        string `json:"id"`
	}{command, args, id}
	b, err := json.Marshal(req)
	if err == nil {
		q.write.Lock()
		_, err = q.conn.Write(append(b, '\n'))
		q.write.Unlock()
	}
	if err != nil {
		q.forget(id)
		return fmt.Errorf("run QMP %s: %w", command, err)
	}
	select {
	case <-ctx.Done():
		q.forget(id)
		return fmt.Errorf("run QMP %s: %w", command, ctx.Err())
	case r, ok := <-answer:
		switch {
		case !ok:
			return fmt.Errorf("run QMP %s: %w", command, q.cause) // written before the channel was closed
		case r.Error != nil:
			return fmt.Errorf("run QMP %s: %w", command, r.Error)
		case out != nil:
			return json.Unmarshal(r.Return, out)
		}
		return nil
	}
}

func (q *qmp) forget(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, id)
}

// close ends the connection and waits for the reader.
func (q *qmp) close() {
	q.conn.Close()
	<-q.done
}
