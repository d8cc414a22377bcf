package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// NewOrder is the body of a request for a machine.
type NewOrder struct {
	Project   string   `json:"project,omitempty" doc:"operators only: the tenant; a customer's is that of the token"`
	Class     string   `json:"class" doc:"what to rent, from /v1/classes"`
	Image     string   `json:"image" doc:"operating system, from /v1/images"`
	Line      string   `json:"line" doc:"carrier of the public address, from /v1/lines"`
	Bandwidth int      `json:"bandwidth" doc:"Mbit/s from the machine"`
	SSHKeys   []string `json:"ssh_keys" doc:"authorized_keys lines"`
	Hostname  string   `json:"hostname,omitempty"`
	Months    int      `json:"months,omitempty" doc:"length of the term; one if left out"`

	BandwidthDown int           `json:"bandwidth_down,omitempty" minimum:"0" doc:"Mbit/s to the machine; as from it, or the most that the line has, if left out"`
	Model         network.Model `json:"model,omitempty" doc:"fixed or burst; what the line sells first if left out"`
	Committed     int           `json:"committed,omitempty" minimum:"0" doc:"burst: Mbit/s that are paid for in any case"`
	Addresses     int           `json:"addresses,omitempty" minimum:"0" doc:"IPv4 addresses; one if left out"`
	IPv6          int           `json:"ipv6,omitempty" minimum:"0" doc:"IPv6 prefixes"`
}

// OrderPath is the order in a path.
type OrderPath struct {
	ID string `path:"id"`
}

func (s *Server) orderRoutes(api huma.API) {
	route(s, api, http.MethodPost, "/v1/orders", "create-order", "Rent a machine", func(ctx context.Context, in *struct {
		Key  string `header:"Idempotency-Key" maxLength:"200" doc:"a repeated request with the same key returns the first order"`
		Body NewOrder
	}) (*reply[machine.Order], error) {
		c, err := caller(ctx)
		if err != nil {
			return nil, err
		}
		project := in.Body.Project
		if c.Role != Operator {
			project = c.Project
		}
		if project == "" {
			project = "default"
		}
		o, err := s.Engine.Place(ctx, provisioner.Request{Project: project, Class: in.Body.Class, Image: in.Body.Image, Line: in.Body.Line,
			Bandwidth: in.Body.Bandwidth, SSHKeys: in.Body.SSHKeys, Hostname: in.Body.Hostname, Months: in.Body.Months,
			BandwidthDown: in.Body.BandwidthDown, Model: in.Body.Model, Committed: in.Body.Committed, Addresses: in.Body.Addresses, IPv6: in.Body.IPv6}, in.Key)
		return &reply[machine.Order]{shownOrder(c, o)}, err
	})
	route(s, api, http.MethodGet, "/v1/orders", "list-orders", "Orders of the project, newest first", func(ctx context.Context, _ *struct{}) (*reply[[]machine.Order], error) {
		c, err := caller(ctx)
		if err != nil {
			return nil, err
		}
		list, err := s.Orders.Orders(ctx, c.Project)
		for i := range list {
			list[i] = shownOrder(c, list[i])
		}
		return &reply[[]machine.Order]{list}, err
	})
	s.orderRoute(api, http.MethodGet, "", "get-order", "One order", func(_ context.Context, o machine.Order) (machine.Order, error) { return o, nil })
	s.orderRoute(api, http.MethodPost, "/cancel", "cancel-order", "Call an order off before hand-over", func(ctx context.Context, o machine.Order) (machine.Order, error) {
		return s.Engine.Cancel(ctx, o.ID)
	})
	s.orderRoute(api, http.MethodPost, "/release", "release-order", "End an active order: the machine is isolated and wiped", func(ctx context.Context, o machine.Order) (machine.Order, error) {
		return s.Engine.Release(ctx, o.ID)
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/reinstall", "reinstall-order", "Put an image on the machine; erases the system disk", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Image    string `json:"image"`
			Consent  string `json:"consent" doc:"the machine's hostname, typed"`
			WipeData bool   `json:"wipe_data,omitempty" doc:"erase the data disks too"`
		}
	}) (*reply[machine.Order], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		o, err = s.Engine.Reinstall(ctx, o.ID, in.Body.Image, in.Body.Consent, in.Body.WipeData, in.Key)
		return &reply[machine.Order]{shownTo(ctx, o)}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/power", "power-order", "Switch the machine on, off, or off and on", func(ctx context.Context, in *struct {
		OrderPath
		Body struct {
			Op string `json:"op" enum:"on,off,cycle"`
		}
	}) (*struct{}, error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return nil, s.Engine.SetPower(ctx, o.ID, in.Body.Op)
	})
	route(s, api, http.MethodGet, "/v1/orders/{id}/jobs", "list-order-jobs", "Jobs of an order, newest first; of a report its schema and outcome", func(ctx context.Context, in *OrderPath) (*reply[[]machine.Job], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Orders.Jobs(ctx, "", o.ID)
		c, _ := caller(ctx) // ownOrder has looked
		for i := range list {
			list[i] = shownJob(c, list[i], o.Address)
		}
		return &reply[[]machine.Job]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/orders/{id}/report", "order-report", "The newest validation report of an order's machine", func(ctx context.Context, in *OrderPath) (*reply[json.RawMessage], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		jobs, err := s.Orders.Jobs(ctx, "", o.ID)
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			if j.Kind != machine.ReclaimJob && len(j.Result) > 0 {
				whole, err := s.Orders.Job(ctx, j.ID)
				return &reply[json.RawMessage]{whole.Result}, err
			}
		}
		return nil, &machine.Error{Code: machine.NotFound, Message: "no validation report yet", Hint: "it is there when the machine has been validated"}
	})
}

func (s *Server) orderRoute(api huma.API, method, suffix, id, summary string, fn func(context.Context, machine.Order) (machine.Order, error)) {
	route(s, api, method, "/v1/orders/{id}"+suffix, id, summary, func(ctx context.Context, in *OrderPath) (*reply[machine.Order], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		o, err = fn(ctx, o)
		return &reply[machine.Order]{shownTo(ctx, o)}, err
	})
}

// ownOrder returns an order that is the caller's to act on.
func (s *Server) ownOrder(ctx context.Context, id string) (machine.Order, error) {
	if _, err := caller(ctx); err != nil {
		return machine.Order{}, err
	}
	o, err := s.Orders.Order(ctx, id)
	if err != nil {
		return o, err
	}
	return o, own(ctx, o)
}
