package api

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/sse"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// eventQuery filters events; an order's are for its project, the rest for operators.
type eventQuery struct {
	After   int64  `query:"after" doc:"events with a larger id"`
	Order   string `query:"order" doc:"id of an order"`
	Machine string `query:"machine" doc:"id of a machine"`
	Job     string `query:"job" doc:"id of a job"`
}

func (q eventQuery) filter() provisioner.EventFilter {
	return provisioner.EventFilter{After: q.After, Settled: q.After > 0, OrderID: q.Order, MachineID: q.Machine, JobID: q.Job}
}

func (s *Server) mayWatch(ctx context.Context, q eventQuery) error {
	if q.Order != "" {
		_, err := s.ownOrder(ctx, q.Order)
		return err
	}
	return operator(ctx)
}

// reader is who reads the events of an order, and the order's own address.
func (s *Server) reader(ctx context.Context, q eventQuery) (Caller, netip.Addr) {
	c, _ := caller(ctx) // mayWatch has looked
	o, err := s.Orders.Order(ctx, q.Order)
	if q.Order == "" || err != nil {
		return c, netip.Addr{}
	}
	return c, o.Address
}

// JobProgress is a message of the event stream: how the job of the watched order stands now.
type JobProgress machine.Job

func (s *Server) eventRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/events", "list-events", "What happened, oldest first", func(ctx context.Context, in *eventQuery) (*reply[[]provisioner.Event], error) {
		if err := s.mayWatch(ctx, *in); err != nil {
			return nil, err
		}
		list, err := s.Log.Events(ctx, in.filter())
		c, own := s.reader(ctx, *in)
		for i := range list {
			list[i] = shownEvent(c, list[i], own)
		}
		return &reply[[]provisioner.Event]{list}, err
	})
	sse.Register(api, huma.Operation{OperationID: "watch-events", Method: http.MethodGet, Path: "/v1/events/stream", Summary: "What happens, as it happens"},
		map[string]any{"event": provisioner.Event{}, "job": JobProgress{}, "error": Problem{}},
		func(ctx context.Context, in *eventQuery, send sse.Sender) {
			if err := s.mayWatch(ctx, *in); err != nil {
				_ = send.Data(asProblem(s.problem(err))) // whoever does not listen has gone
				return
			}
			c, own := s.reader(ctx, *in)
			s.watch(ctx, in.filter(), func(m sse.Message) error {
				switch v := m.Data.(type) {
				case provisioner.Event:
					m.Data = shownEvent(c, v, own)
				case JobProgress:
					m.Data = JobProgress(shownJob(c, machine.Job(v), own))
				}
				return send(m)
			})
		})
}

func asProblem(err error) Problem {
	if p, ok := err.(*Problem); ok {
		return *p
	}
	return Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "internal error"}
}

// watch sends events and the progress of the order's job until the caller goes away.
func (s *Server) watch(ctx context.Context, f provisioner.EventFilter, send sse.Sender) {
	wake, leave := s.wakes.join()
	defer leave()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last machine.Job
	f.Settled = true
	for {
		list, err := s.Log.Events(ctx, f)
		if err != nil {
			return
		}
		for _, ev := range list {
			if send(sse.Message{ID: int(ev.ID), Data: ev}) != nil {
				return
			}
			f.After = ev.ID
		}
		if f.OrderID != "" {
			if j, ok := s.newestJob(ctx, f.OrderID); ok && (j.ID != last.ID || j.Turn != last.Turn || j.Step != last.Step || j.State != last.State || j.Progress != last.Progress) {
				last = j
				if send.Data(JobProgress(j)) != nil {
					return
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick.C:
		}
	}
}

func (s *Server) newestJob(ctx context.Context, orderID string) (machine.Job, bool) {
	o, err := s.Orders.Order(ctx, orderID)
	if err != nil || o.JobID == "" {
		return machine.Job{}, false
	}
	j, err := s.Orders.Job(ctx, o.JobID)
	return j, err == nil
}

// Run wakes the event streams when the database says that something happened, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	return s.Log.Listen(ctx, s.wakes.all)
}

// wakes wakes whoever has joined. A wake is a hint: none is lost that matters, as everybody also looks each second.
type wakes struct {
	mu      sync.Mutex
	members map[chan struct{}]struct{}
}

func (w *wakes) join() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.members == nil {
		w.members = map[chan struct{}]struct{}{}
	}
	w.members[c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.members, c)
	}
}

func (w *wakes) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.members {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
