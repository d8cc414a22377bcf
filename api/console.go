package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner/console"
)

// Consoles shares the serial consoles of machines.
type Consoles interface {
	Join(ctx context.Context, machineID string, takeOver bool) (*console.Viewer, error)
}

// Records reads what consoles showed while jobs ran.
type Records interface {
	ConsoleRecord(ctx context.Context, jobID string) (console.Record, error)
}

// Desk is what an operator needs to look after machines from afar.
type Desk struct {
	BMCs         BMCs
	Health       Health
	ReadNow      func(context.Context, machine.Machine) error // reads a BMC whenever its turn would be; nil: this server reads none
	Consoles     Consoles
	Records      Records
	CustomersMay CustomersMay // what customers may do with the consoles of their machines; "" is MayType
}

// CustomersMay says what a customer may do with the serial console of the machine that he holds.
type CustomersMay string

// What customers may do.
const (
	MayType CustomersMay = "read-write"
	MayLook CustomersMay = "read-only"
	MayNot  CustomersMay = "no"
)

// ConsoleMessage is a text message of a console's WebSocket; the host's bytes and the viewer's keys are binary messages.
type ConsoleMessage struct {
	Kind string `json:"kind"` // from the server: open, gap, notice, end; from the viewer: break
	Text string `json:"text,omitempty"`
}

// Times of a console.
const (
	consoleCheck = time.Second      // between two looks at whether a customer still holds the machine
	consolePing  = 20 * time.Second // a viewer whose network is gone is dropped after two of these
	consoleSend  = 10 * time.Second // for one message
	consoleKeys  = 64 << 10         // bytes of one message of keys
)

func (s *Server) consoleRoutes(api huma.API, mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/machines/{id}/console", func(w http.ResponseWriter, r *http.Request) {
		s.serveConsole(w, r, s.consoleOfMachine)
	})
	mux.HandleFunc("GET /v1/orders/{id}/console", func(w http.ResponseWriter, r *http.Request) {
		s.serveConsole(w, r, s.consoleOfOrder)
	})
	route(s, api, http.MethodGet, "/v1/jobs/{id}/console", "job-console", "What the machine's serial console showed while a job ran; for operators", func(ctx context.Context, in *struct {
		ID string `path:"id"`
	}) (*reply[console.Record], error) {
		if err := operator(ctx); err != nil { // it may show what the tenant before left on his screen, and our own networks
			return nil, err
		}
		rec, err := s.Desk.Records.ConsoleRecord(ctx, in.ID)
		return &reply[console.Record]{rec}, err
	})
}

// access is what a caller may do with a console.
type access struct {
	machine machine.Machine
	write   bool
	still   func(ctx context.Context) error // nil: for as long as he likes
}

// consoleOfMachine lets operators look at any machine, and a customer at the one that he holds.
func (s *Server) consoleOfMachine(ctx context.Context, id string) (access, error) {
	c, err := caller(ctx)
	if err != nil {
		return access{}, err
	}
	m, err := s.Machines.Machine(ctx, id)
	if c.Role == Operator {
		return access{machine: m, write: true}, err
	}
	missing := &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no machine %q", id), Hint: "open the console of an order of yours"}
	if err != nil || m.OrderID == "" {
		return access{}, missing
	}
	if o, err := s.Orders.Order(ctx, m.OrderID); err != nil || o.Project != c.Project {
		return access{}, missing
	}
	return s.consoleOfOrder(ctx, m.OrderID)
}

// consoleOfOrder lets whoever may act on an order look at its machine.
func (s *Server) consoleOfOrder(ctx context.Context, id string) (access, error) {
	o, err := s.ownOrder(ctx, id)
	if err != nil {
		return access{}, err
	}
	if o.MachineID == "" {
		return access{}, &machine.Error{Code: machine.Conflict, Message: "no machine holds this order now", Hint: "wait until it is active"}
	}
	c, err := caller(ctx)
	if err != nil {
		return access{}, err
	}
	if c.Role == Operator {
		m, err := s.Machines.Machine(ctx, o.MachineID)
		return access{machine: m, write: true}, err
	}
	if s.Desk.CustomersMay == MayNot {
		return access{}, &Problem{Status: http.StatusForbidden, Code: "forbidden", Detail: "serial consoles are not open to customers here", Hint: "ask the operator"}
	}
	still := func(ctx context.Context) error { _, err := s.holds(ctx, o.ID); return err }
	m, err := s.holds(ctx, o.ID)
	return access{machine: m, write: s.Desk.CustomersMay != MayLook, still: still}, err
}

// holds returns the machine of an order that is in its customer's hands: active, and no job works on it. While one does, the
// console may show what is not his: our networks, or the next tenant.
func (s *Server) holds(ctx context.Context, orderID string) (machine.Machine, error) {
	o, err := s.Orders.Order(ctx, orderID)
	if err != nil {
		return machine.Machine{}, err
	}
	refused := &machine.Error{Code: machine.Conflict, Message: "the machine is not in your hands now", Hint: "wait until the order is active and no job is under way"}
	if o.State != machine.OrderActive || o.MachineID == "" {
		return machine.Machine{}, refused
	}
	m, err := s.Machines.Machine(ctx, o.MachineID)
	if err != nil {
		return m, err
	}
	if m.State != machine.Active || m.JobID != "" || m.OrderID != o.ID {
		return m, refused
	}
	return m, nil
}

// serveConsole answers with a WebSocket, or with a problem. Query: write=true to type, take_over=true for operators to end the
// session of whoever else has the console at the BMC.
func (s *Server) serveConsole(w http.ResponseWriter, r *http.Request, find func(context.Context, string) (access, error)) {
	ctx := r.Context()
	a, err := find(ctx, r.PathValue("id"))
	if err != nil {
		s.answer(w, nil, err)
		return
	}
	q := r.URL.Query()
	takeOver := q.Get("take_over") == "true"
	if takeOver {
		if err := operator(ctx); err != nil {
			s.answer(w, nil, err)
			return
		}
	}
	write := q.Get("write") == "true"
	if write && !a.write {
		s.answer(w, nil, &Problem{Status: http.StatusForbidden, Code: "forbidden", Detail: "this console is open to you for looking only", Hint: "leave write out"})
		return
	}
	v, err := s.Desk.Consoles.Join(ctx, a.machine.ID, takeOver)
	if err != nil {
		s.answer(w, nil, err)
		return
	}
	defer v.Leave()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil { // it has been answered
		s.Logger.Info("console not opened", "machine", a.machine.Name, "err", err)
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(consoleKeys)
	c, _ := caller(ctx) // find has looked
	if err := s.Engine.NoteConsole(ctx, a.machine.ID, who(c), write); err != nil {
		s.Logger.Warn("opening of a console not noted", "machine", a.machine.Name, "err", err)
	}
	end := (&consoleSession{conn: conn, viewer: v, write: write, still: a.still}).run(ctx)
	s.Logger.Debug("console closed", "machine", a.machine.Name, "why", end)
}

func who(c Caller) string {
	if c.Role == Operator {
		return "an operator"
	}
	return "the customer"
}

// consoleSession is one viewer's WebSocket.
type consoleSession struct {
	conn   *websocket.Conn
	viewer *console.Viewer
	write  bool
	still  func(context.Context) error
}

// run serves the viewer until one of them ends, and says why. The connection has a context of its own: one that ends in the middle
// of a read or a write breaks it, and the viewer would not hear why.
func (c *consoleSession) run(ctx context.Context) error {
	wire, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tasks := []func() error{
		func() error { return c.hear(wire) },
		func() error { return c.ping(ctx, wire) },
	}
	if c.still != nil {
		tasks = append(tasks, func() error { return c.guard(ctx) })
	}
	var running sync.WaitGroup
	for _, task := range tasks {
		running.Go(func() { cancel(task()) })
	}
	err := c.speak(ctx, wire)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(err)
	if !errors.Is(err, errGone) {
		_ = c.message(wire, ConsoleMessage{Kind: "end", Text: endText(err)}) // whoever has gone does not hear it
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
	}
	hangUp()
	_ = c.conn.CloseNow()
	running.Wait()
	return err
}

var errGone = errors.New("the viewer has gone")

// speak sends what the host says.
func (c *consoleSession) speak(ctx, wire context.Context) error {
	mode := "read-only"
	if c.write {
		mode = "read-write"
	}
	if err := c.message(wire, ConsoleMessage{Kind: "open", Text: mode}); err != nil {
		return errGone
	}
	for {
		out, err := c.viewer.Next(ctx)
		if err != nil {
			return err
		}
		if out.Gap != nil {
			err = c.message(wire, ConsoleMessage{Kind: "gap", Text: console.GapText(*out.Gap)})
		} else {
			err = c.send(wire, websocket.MessageBinary, out.Data)
		}
		if err != nil {
			return errGone
		}
	}
}

// hear takes what the viewer types.
func (c *consoleSession) hear(wire context.Context) error {
	told := false
	for {
		kind, data, err := c.conn.Read(wire)
		if err != nil {
			return errGone
		}
		if !c.write {
			if !told {
				told = true
				_ = c.message(wire, ConsoleMessage{Kind: "notice", Text: "this console is open for looking only: keys are not sent"})
			}
			continue
		}
		if kind == websocket.MessageBinary {
			err = c.viewer.Write(data)
		} else {
			var m ConsoleMessage
			if json.Unmarshal(data, &m) != nil || m.Kind != "break" {
				continue // of a newer client
			}
			err = c.viewer.Break()
		}
		if err != nil {
			_ = c.message(wire, ConsoleMessage{Kind: "notice", Text: err.Error()})
		}
	}
}

// ping finds out when the viewer's network is gone.
func (c *consoleSession) ping(ctx, wire context.Context) error {
	tick := time.NewTicker(consolePing)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		one, cancel := context.WithTimeout(wire, consolePing)
		err := c.conn.Ping(one)
		cancel()
		if err != nil {
			return errGone
		}
	}
}

// guard ends the session when the customer no longer holds the machine, or when nobody can tell.
func (c *consoleSession) guard(ctx context.Context) error {
	tick := time.NewTicker(consoleCheck)
	defer tick.Stop()
	for unknown := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		err := c.still(ctx)
		switch {
		case err == nil:
			unknown = 0
		case machine.CodeOf(err) != "" || unknown >= 2:
			return err
		default:
			unknown++
		}
	}
}

func (c *consoleSession) message(ctx context.Context, m ConsoleMessage) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode console message: %w", err)
	}
	return c.send(ctx, websocket.MessageText, raw)
}

func (c *consoleSession) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, consoleSend)
	defer cancel()
	return c.conn.Write(ctx, kind, data)
}

// endText says why a console is over, without a word about where BMCs are.
func endText(err error) string {
	if errors.Is(err, context.Canceled) {
		return "the server is stopping"
	}
	return console.Plain(err)
}
