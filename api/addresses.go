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

// Pools keeps the stocks of addresses.
type Pools interface {
	Pools(ctx context.Context, line string) ([]provisioner.PoolStock, error)
	PutPool(ctx context.Context, p network.AddressPool) (added int64, err error)
	RetireRange(ctx context.Context, r netip.Prefix) (removed int64, err error)
}

// Addresses reads single addresses and keeps them back.
type Addresses interface {
	Addresses(ctx context.Context, f provisioner.AddressFilter) ([]provisioner.Address, error)
	Address(ctx context.Context, p netip.Prefix) (provisioner.Address, error) // the one that p is, or lies in
	History(ctx context.Context, addr netip.Addr, at time.Time) ([]provisioner.Tenure, error)
	KeepBack(ctx context.Context, p netip.Prefix, state provisioner.AddressState, note string) (int64, error)
}

// NewPool is the body that makes a pool of addresses or adds to it.
type NewPool struct {
	Line     string         `json:"line"`
	Bits     int            `json:"bits,omitempty" doc:"length of the prefixes that are handed out: 32 for IPv4, 64 or 56 for IPv6; 32 or 64 if left out"`
	CoolDown string         `json:"cool_down" doc:"how long a released address rests, e.g. 24h"`
	Ranges   []netip.Prefix `json:"ranges" doc:"what to add, e.g. 203.0.113.0/24"`
	Reserved []netip.Prefix `json:"reserved,omitempty" doc:"of these, what is not handed out"`
	Gateways []netip.Prefix `json:"gateways,omitempty" doc:"of these, what routers have"`
}

func (s *Server) addressRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/address-pools", "list-address-pools", "Stocks of addresses", func(ctx context.Context, in *struct {
		Line string `query:"line" doc:"only those of a line"`
	}) (*reply[[]provisioner.PoolStock], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Pools.Pools(ctx, in.Line)
		return &reply[[]provisioner.PoolStock]{list}, err
	})
	route(s, api, http.MethodPut, "/v1/address-pools/{name}", "put-address-pool", "Make a pool of addresses, or add to it", func(ctx context.Context, in *struct {
		NamePath
		Body NewPool
	}) (*reply[provisioner.PoolStock], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		out, err := s.putPool(ctx, in.Name, in.Body)
		return &reply[provisioner.PoolStock]{out}, err
	})
	route(s, api, http.MethodPost, "/v1/address-pools/retire", "retire-address-range", "Give up a range of addresses", func(ctx context.Context, in *struct {
		Body struct {
			Range netip.Prefix `json:"range" doc:"as it was added"`
		}
	}) (*reply[struct {
		Removed int64 `json:"removed"`
	}], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		var out reply[struct {
			Removed int64 `json:"removed"`
		}]
		var err error
		out.Body.Removed, err = s.Pools.RetireRange(ctx, in.Body.Range)
		return &out, err
	})
	route(s, api, http.MethodGet, "/v1/addresses", "list-addresses", "Addresses, in their order", func(ctx context.Context, in *struct {
		Line  string                   `query:"line"`
		State provisioner.AddressState `query:"state" enum:"free,held,leaving,cooling,reserved,gateway,conflict"`
		Order string                   `query:"order"`
		After string                   `query:"after" doc:"larger ones: the last of the page before"`
		Limit int                      `query:"limit" minimum:"0" maximum:"10000"`
	}) (*reply[[]provisioner.Address], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		f := provisioner.AddressFilter{Line: in.Line, State: in.State, Order: in.Order, Limit: in.Limit}
		if in.After != "" {
			after, err := network.ParseAddress("after", in.After)
			if err != nil {
				return nil, err
			}
			f.After = after
		}
		list, err := s.Addresses.Addresses(ctx, f)
		return &reply[[]provisioner.Address]{list}, err
	})
	route(s, api, http.MethodPost, "/v1/addresses/keep", "keep-addresses", "Keep addresses back, or put them into stock again", func(ctx context.Context, in *struct {
		Body struct {
			Address string                   `json:"address" doc:"one, or a prefix with all that are in it"`
			State   provisioner.AddressState `json:"state" enum:"reserved,gateway,free"`
			Note    string                   `json:"note,omitempty" maxLength:"200" doc:"why"`
		}
	}) (*reply[struct {
		Changed int64 `json:"changed"`
	}], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		p, err := network.ParseAddress("address", in.Body.Address)
		if err != nil {
			return nil, err
		}
		var out reply[struct {
			Changed int64 `json:"changed"`
		}]
		out.Body.Changed, err = s.Addresses.KeepBack(ctx, p, in.Body.State, in.Body.Note)
		return &out, err
	})
	route(s, api, http.MethodGet, "/v1/addresses/{address}/history", "address-history", "Who had an address, newest first", func(ctx context.Context, in *struct {
		Address string `path:"address"`
		At      string `query:"at" doc:"only who had it then, e.g. 2026-11-03T10:00Z; a zone is needed"`
	}) (*reply[[]provisioner.Tenure], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		p, err := network.ParseAddress("address", in.Address)
		if err != nil {
			return nil, err
		}
		var at time.Time
		if in.At != "" {
			if at, err = network.ParseInstant("at", in.At); err != nil {
				return nil, err
			}
		}
		list, err := s.Addresses.History(ctx, p.Addr(), at)
		return &reply[[]provisioner.Tenure]{list}, err
	})
}

// putPool makes a pool or adds to it.
func (s *Server) putPool(ctx context.Context, name string, b NewPool) (provisioner.PoolStock, error) {
	rest, err := coolDown(b.CoolDown)
	if err != nil {
		return provisioner.PoolStock{}, err
	}
	line, err := s.Engine.Shelf.Line(ctx, b.Line)
	if err != nil {
		return provisioner.PoolStock{}, err
	}
	p := network.AddressPool{Name: name, Site: line.Site, Line: line.Name, Ranges: b.Ranges, Bits: b.Bits, CoolDown: rest,
		Reserved: b.Reserved, Gateways: b.Gateways}
	if p.Bits == 0 && len(p.Ranges) > 0 {
		p.Bits = 32
		if p.Ranges[0].Addr().Is6() {
			p.Bits = 64
		}
	}
	if err := p.Validate(); err != nil {
		return provisioner.PoolStock{}, err
	}
	if _, err := s.Pools.PutPool(ctx, p); err != nil {
		return provisioner.PoolStock{}, err
	}
	list, err := s.Pools.Pools(ctx, line.Name)
	for _, stock := range list {
		if stock.Name == name {
			return stock, nil
		}
	}
	return provisioner.PoolStock{AddressPool: p}, err
}

func coolDown(text string) (time.Duration, error) {
	rest, err := time.ParseDuration(text)
	if err != nil || rest < 0 {
		return 0, &machine.Error{Code: machine.Invalid, Field: "cool_down", Message: "cool-down cannot be read", Hint: "write it as 24h or 30m"}
	}
	return rest, nil
}
