package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/sse"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Acceptances reads acceptance runs.
type Acceptances interface {
	Run(ctx context.Context, id string) (machine.AcceptanceRun, error)
	Runs(ctx context.Context) ([]machine.AcceptanceRun, error)
}

// AcceptanceDefaults is what a request for a run leaves to the server's configuration.
type AcceptanceDefaults struct {
	Image   string
	Accept  bool
	Stagger time.Duration
}

// NewAcceptanceRun is the body that begins a run.
type NewAcceptanceRun struct {
	Machines  []string                `json:"machines,omitempty" doc:"ids or names"`
	Racks     []string                `json:"racks,omitempty" doc:"all machines in them"`
	Site      string                  `json:"site,omitempty" doc:"all machines of it, or of those racks in it"`
	SkipBusy  bool                    `json:"skip_busy,omitempty" doc:"leave out machines of a rack or site that are rented or at work, instead of refusing"`
	Image     string                  `json:"image,omitempty" doc:"of the catalogue, with the drivers; as configured when it is left out"`
	Hours     int                     `json:"hours,omitempty" minimum:"0" maximum:"24" doc:"of stress; 4 when neither this nor a plan is given"`
	Plan      *machine.AcceptancePlan `json:"plan,omitempty" doc:"instead of hours"`
	Accept    *bool                   `json:"accept,omitempty" doc:"what passes goes to stock without being asked again; as configured when it is left out"`
	Parallel  int                     `json:"parallel,omitempty" minimum:"0" doc:"machines at a time; 0 sets no bound"`
	Stagger   *machine.Span           `json:"stagger,omitempty" doc:"between two starts in one rack, e.g. 30s; as configured when it is left out"`
	RackWatts int                     `json:"rack_watts,omitempty" minimum:"0" doc:"what each rack bears; as configured when it is 0"`
	Note      string                  `json:"note,omitempty" maxLength:"500"`
}

// BegunRun answers it.
type BegunRun struct {
	Run     machine.AcceptanceRun `json:"run"`
	LeftOut []provisioner.Left    `json:"left_out"`
}

// RunMessage is a message of a run's stream: how the run stands now.
type RunMessage machine.AcceptanceRun

// RunPath is the run in a path.
type RunPath struct {
	ID string `path:"id" doc:"id of an acceptance run"`
}

// terms are what a request asks of the run.
func (n NewAcceptanceRun) terms(d AcceptanceDefaults) (machine.AcceptanceTerms, error) {
	t := machine.AcceptanceTerms{Image: n.Image, Parallel: n.Parallel, RackWatts: n.RackWatts, Note: n.Note, Accept: d.Accept, Stagger: machine.Span(d.Stagger), Plan: machine.HourlyPlan(4)}
	switch {
	case n.Hours > 0 && n.Plan != nil:
		return t, &machine.Error{Code: machine.Invalid, Field: "hours", Message: "hours and a plan are given", Hint: "a plan says itself how long it is"}
	case n.Plan != nil:
		t.Plan = *n.Plan
	case n.Hours > 0:
		t.Plan = machine.HourlyPlan(n.Hours)
	}
	if t.Image == "" {
		t.Image = d.Image
	}
	if n.Accept != nil {
		t.Accept = *n.Accept
	}
	if n.Stagger != nil {
		t.Stagger = *n.Stagger
	}
	return t, nil
}

func (s *Server) acceptanceRoutes(api huma.API) {
	route(s, api, http.MethodPost, "/v1/acceptance-runs", "begin-acceptance-run", "Try machines; they are held from here on", func(ctx context.Context, in *struct{ Body NewAcceptanceRun }) (*reply[BegunRun], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		b := in.Body
		terms, err := b.terms(s.AcceptanceDefaults)
		if err != nil {
			return nil, err
		}
		run, left, err := s.Engine.BeginRun(ctx, provisioner.RunRequest{Machines: b.Machines, Racks: b.Racks, Site: b.Site, SkipBusy: b.SkipBusy, AcceptanceTerms: terms})
		return &reply[BegunRun]{BegunRun{run, append([]provisioner.Left{}, left...)}}, err
	})
	route(s, api, http.MethodGet, "/v1/acceptance-runs", "list-acceptance-runs", "Acceptance runs, newest first", func(ctx context.Context, _ *struct{}) (*reply[[]machine.AcceptanceRun], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Acceptances.Runs(ctx)
		return &reply[[]machine.AcceptanceRun]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/acceptance-runs/{id}", "get-acceptance-run", "One acceptance run, with where each machine is", func(ctx context.Context, in *RunPath) (*reply[machine.AcceptanceRun], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		run, err := s.Acceptances.Run(ctx, in.ID)
		return &reply[machine.AcceptanceRun]{run}, err
	})
	decide := func(verb, summary string, do func(ctx context.Context, id, machineID, reason string) error) {
		route(s, api, http.MethodPost, "/v1/acceptance-runs/{id}/"+verb, verb+"-acceptance-run", summary, func(ctx context.Context, in *struct {
			RunPath
			Body struct {
				Machine string `json:"machine,omitempty" doc:"id or name; all when it is left out"`
				Reason  string `json:"reason,omitempty" maxLength:"500"`
			}
		}) (*reply[machine.AcceptanceRun], error) {
			if err := operator(ctx); err != nil {
				return nil, err
			}
			if err := do(ctx, in.ID, in.Body.Machine, in.Body.Reason); err != nil {
				return nil, err
			}
			run, err := s.Acceptances.Run(ctx, in.ID)
			return &reply[machine.AcceptanceRun]{run}, err
		})
	}
	decide("cancel", "Call a run off, or one machine of it", func(ctx context.Context, id, machineID, reason string) error {
		if reason == "" {
			reason = "an operator called it off"
		}
		return s.Engine.CancelRun(ctx, id, machineID, reason)
	})
	decide("retry", "Try one machine of a run again", func(ctx context.Context, id, machineID, _ string) error {
		return s.Engine.RetryTrial(ctx, id, machineID)
	})
	decide("admit", "Take what has passed into stock, through a wipe", func(ctx context.Context, id, machineID, _ string) error {
		_, err := s.Engine.AdmitRun(ctx, id, machineID)
		return err
	})
	for _, form := range []struct{ suffix, kind, what string }{
		{"", "application/json", "signed JSON once the run is over, as it stands before"}, {".html", "text/html; charset=utf-8", "one HTML page"}, {".xml", "application/xml", "JUnit"},
	} {
		name := form.suffix
		if name != "" {
			name = "-" + name[1:]
		}
		route(s, api, http.MethodGet, "/v1/acceptance-runs/{id}/report"+form.suffix, "acceptance-run-report"+name, "The report of a run: "+form.what, func(ctx context.Context, in *RunPath) (*document, error) {
			if err := operator(ctx); err != nil {
				return nil, err
			}
			body, err := s.Engine.RunReport(ctx, in.ID, form.suffix)
			return &document{ContentType: form.kind, Policy: "default-src 'none'; style-src 'unsafe-inline'", Body: body}, err
		})
	}
	sse.Register(api, huma.Operation{OperationID: "watch-acceptance-run", Method: http.MethodGet, Path: "/v1/acceptance-runs/{id}/stream", Summary: "How a run stands, whenever that changes, until it is over"},
		map[string]any{"run": RunMessage{}, "error": Problem{}},
		func(ctx context.Context, in *RunPath, send sse.Sender) {
			if err := operator(ctx); err != nil {
				_ = send.Data(asProblem(s.problem(err))) // whoever does not listen has gone
				return
			}
			s.watchRun(ctx, in.ID, send)
		})
}

// watchRun sends a run whenever it has changed, until it is over or the caller goes away.
func (s *Server) watchRun(ctx context.Context, id string, send sse.Sender) {
	wake, leave := s.wakes.join()
	defer leave()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last machine.AcceptanceRun
	for {
		run, err := s.Acceptances.Run(ctx, id)
		if err != nil {
			_ = send.Data(asProblem(s.problem(err)))
			return
		}
		if !reflect.DeepEqual(run, last) {
			last = run
			if send.Data(RunMessage(run)) != nil || run.State != machine.RunUnderWay {
				return
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
