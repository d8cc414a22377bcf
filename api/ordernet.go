package api

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// Ledger knows what orders have agreed on.
type Ledger interface {
	Changes(ctx context.Context, orderID string) ([]provisioner.Change, error) // oldest first
	Names(ctx context.Context, orderID string) ([]provisioner.Name, error)
}

// KeyHeader lets a request be repeated without harm.
type KeyHeader struct {
	Key string `header:"Idempotency-Key" maxLength:"200" doc:"a repeated request with the same key changes nothing and gets the first answer"`
}

func (s *Server) networkRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/orders/{id}/addresses", "list-order-addresses", "Addresses of an order", func(ctx context.Context, in *OrderPath) (*reply[[]provisioner.Address], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Addresses.Addresses(ctx, provisioner.AddressFilter{Order: o.ID})
		return &reply[[]provisioner.Address]{list}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/addresses", "add-order-addresses", "Add addresses of the order's line; they are routed to the machine at once", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Family int `json:"family,omitempty" doc:"4 or 6; 4 if left out"`
			Count  int `json:"count,omitempty" doc:"one if left out"`
		}
	}) (*reply[[]netip.Prefix], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if in.Body.Family == 0 {
			in.Body.Family = 4
		}
		if in.Body.Count == 0 {
			in.Body.Count = 1
		}
		added, err := s.Engine.AddAddresses(ctx, o.ID, in.Body.Family, in.Body.Count, in.Key)
		return &reply[[]netip.Prefix]{added}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/addresses/remove", "remove-order-address", "Take an address off the machine; it cools down", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Address string `json:"address"`
		}
	}) (*reply[machine.Order], error) {
		o, p, err := s.heldAddress(ctx, in.ID, in.Body.Address, in.Key)
		if err != nil {
			return nil, err
		}
		o, err = s.Engine.RemoveAddress(ctx, o.ID, p, in.Key)
		return &reply[machine.Order]{shownTo(ctx, o)}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/addresses/move", "move-order-address", "Move an address to another order of the project", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Address string `json:"address"`
			To      string `json:"to" doc:"the order that gets it"`
		}
	}) (*reply[machine.Order], error) {
		o, p, err := s.heldAddress(ctx, in.ID, in.Body.Address, in.Key)
		if err != nil {
			return nil, err
		}
		if _, err := s.ownOrder(ctx, in.Body.To); err != nil {
			return nil, err
		}
		o, err = s.Engine.MoveAddress(ctx, o.ID, p, in.Body.To, in.Key)
		return &reply[machine.Order]{shownTo(ctx, o)}, err
	})
	route(s, api, http.MethodGet, "/v1/orders/{id}/names", "list-order-names", "Reverse DNS of an order's addresses", func(ctx context.Context, in *OrderPath) (*reply[[]provisioner.Name], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Ledger.Names(ctx, o.ID)
		if c, _ := caller(ctx); c.Role != Operator {
			for i := range list {
				if list[i].Problem != "" { // it may name the operator's servers
					list[i].Problem = "not set yet; the operator sees why"
				}
			}
		}
		return &reply[[]provisioner.Name]{list}, err
	})
	route(s, api, http.MethodPut, "/v1/orders/{id}/names", "set-order-name", "Set the reverse DNS of an address, or clear it", func(ctx context.Context, in *struct {
		OrderPath
		Body struct {
			Address string `json:"address" doc:"one address; within an IPv6 prefix any"`
			Name    string `json:"name,omitempty" maxLength:"300" doc:"a full host name; left out it is cleared"`
		}
	}) (*struct{}, error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		p, err := network.ParseAddress("address", in.Body.Address)
		if err != nil {
			return nil, err
		}
		if !p.IsSingleIP() {
			return nil, &machine.Error{Code: machine.Invalid, Field: "address", Message: p.String() + " is not a single address", Hint: "name one address of it, e.g. " + network.FirstOf(p).Addr().String()}
		}
		return nil, s.Engine.SetName(ctx, o.ID, p.Addr(), in.Body.Name)
	})
	s.bandwidthRoutes(api)
	s.restrictionRoutes(api)
}

func (s *Server) bandwidthRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/orders/{id}/bandwidth", "list-bandwidth-changes", "Changes of an order's bandwidth, oldest first", func(ctx context.Context, in *OrderPath) (*reply[[]provisioner.Change], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Ledger.Changes(ctx, o.ID)
		return &reply[[]provisioner.Change]{list}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/bandwidth", "set-bandwidth", "Change the bandwidth: what is more acts at once, what is less when the paid term is over", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Up    int  `json:"up,omitempty" minimum:"0" doc:"Mbit/s from the machine; as it is if left out"`
			Down  int  `json:"down,omitempty" minimum:"0" doc:"Mbit/s to the machine; as it is if left out"`
			Quote bool `json:"quote,omitempty" doc:"only say what it comes to"`
		}
	}) (*reply[[]provisioner.Change], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		made, err := s.Engine.SetBandwidth(ctx, o.ID, network.Rates{Up: in.Body.Up, Down: in.Body.Down}, in.Body.Quote, in.Key)
		return &reply[[]provisioner.Change]{made}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/packs", "add-pack", "Add bandwidth for some days; it reverts by itself", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Up   int `json:"up,omitempty" minimum:"0" doc:"Mbit/s to add from the machine"`
			Down int `json:"down,omitempty" minimum:"0" doc:"Mbit/s to add to the machine"`
			Days int `json:"days" doc:"1 to 31"`
		}
	}) (*reply[provisioner.Change], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		made, err := s.Engine.AddPack(ctx, o.ID, network.Rates{Up: in.Body.Up, Down: in.Body.Down}, in.Body.Days, in.Key)
		return &reply[provisioner.Change]{made}, err
	})
}

// restrictionRoutes are for operators: what a customer's network is kept from.
func (s *Server) restrictionRoutes(api huma.API) {
	route(s, api, http.MethodPost, "/v1/orders/{id}/limit", "limit-order", "Limit an order's bandwidth until it is lifted", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			Rate   int    `json:"rate,omitempty" doc:"Mbit/s each way; 1 if left out"`
			Reason string `json:"reason,omitempty" maxLength:"200" doc:"the customer sees it"`
		}
	}) (*reply[machine.Order], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		if in.Body.Rate == 0 {
			in.Body.Rate = 1
		}
		o, err := s.Engine.Limit(ctx, in.ID, in.Body.Rate, in.Body.Reason, in.Key)
		return &reply[machine.Order]{o}, err
	})
	route(s, api, http.MethodPost, "/v1/orders/{id}/blackhole", "blackhole-order", "Null-route an order's addresses for a while", func(ctx context.Context, in *struct {
		OrderPath
		KeyHeader
		Body struct {
			For    string `json:"for" doc:"1m to 720h, e.g. 2h"`
			Reason string `json:"reason,omitempty" maxLength:"200" doc:"the customer sees it"`
		}
	}) (*reply[machine.Order], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		d, err := time.ParseDuration(in.Body.For)
		if err != nil {
			return nil, &machine.Error{Code: machine.Invalid, Field: "for", Message: "the time cannot be read", Hint: "write it as 2h or 90m"}
		}
		o, err := s.Engine.Blackhole(ctx, in.ID, d, in.Body.Reason, in.Key)
		return &reply[machine.Order]{o}, err
	})
	for verb, act := range map[string]struct {
		summary string
		do      func(ctx context.Context, id, key string) (machine.Order, error)
	}{
		"unlimit":     {"Lift the limit", s.Engine.Unlimit},
		"unblackhole": {"End the null-route before its time", s.Engine.Restore},
	} {
		route(s, api, http.MethodPost, "/v1/orders/{id}/"+verb, verb+"-order", act.summary, func(ctx context.Context, in *struct {
			OrderPath
			KeyHeader
		}) (*reply[machine.Order], error) {
			if err := operator(ctx); err != nil {
				return nil, err
			}
			o, err := act.do(ctx, in.ID, in.Key)
			return &reply[machine.Order]{o}, err
		})
	}
}

// heldAddress returns the caller's order and the address of it that text names. A repeated request, with its key, may name one that
// the order holds no more.
func (s *Server) heldAddress(ctx context.Context, id, text, key string) (machine.Order, netip.Prefix, error) {
	o, err := s.ownOrder(ctx, id)
	if err != nil {
		return o, netip.Prefix{}, err
	}
	p, err := network.ParseAddress("address", text)
	if err != nil {
		return o, p, err
	}
	for _, held := range o.Addresses {
		if held == p || held.Addr() == p.Addr() && p.IsSingleIP() {
			return o, held, nil
		}
	}
	if key != "" {
		return o, p, nil
	}
	return o, p, &machine.Error{Code: machine.NotFound, Field: "address", Message: text + " is no address of this order", Hint: "see `bareyard order show`"}
}
