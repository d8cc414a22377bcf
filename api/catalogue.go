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

// NewLine is the body that defines a carrier line and its addresses.
type NewLine struct {
	Site         string         `json:"site"`
	MinBandwidth int            `json:"min_bandwidth" minimum:"1" doc:"Mbit/s"`
	MaxBandwidth int            `json:"max_bandwidth" minimum:"1" doc:"Mbit/s"`
	CoolDown     string         `json:"cool_down" doc:"how long a released address rests, e.g. 24h"`
	Ranges       []netip.Prefix `json:"ranges" doc:"public addresses, e.g. 203.0.113.0/24"`
}

// NamePath is the name in a path.
type NamePath struct {
	Name string `path:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$"`
}

func (s *Server) catalogueRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/classes", "list-classes", "What is sold, and how many are available", func(ctx context.Context, _ *struct{}) (*reply[[]provisioner.ClassStock], error) {
		if _, err := caller(ctx); err != nil {
			return nil, err
		}
		list, err := s.Catalogue.Classes(ctx)
		return &reply[[]provisioner.ClassStock]{list}, err
	})
	route(s, api, http.MethodPut, "/v1/classes/{name}", "put-class", "Define a class", func(ctx context.Context, in *struct {
		NamePath
		Body struct {
			Description  string `json:"description,omitempty"`
			Accelerator  string `json:"accelerator,omitempty" pattern:"^([0-9a-f]{4}:[0-9a-f]{4})?$" doc:"PCI vendor:device of its cards"`
			Count        int    `json:"count,omitempty" minimum:"0" doc:"how many cards"`
			MonthlyPrice int64  `json:"monthly_price" minimum:"0" doc:"integer minor units"`
			Currency     string `json:"currency" pattern:"^[A-Z]{3}$"`
		}
	}) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		b := in.Body
		return nil, s.Catalogue.PutClass(ctx, machine.Class{Name: in.Name, Description: b.Description, Accelerator: b.Accelerator, Count: b.Count, MonthlyPrice: b.MonthlyPrice, Currency: b.Currency})
	})
	route(s, api, http.MethodGet, "/v1/lines", "list-lines", "Carrier lines and their free addresses", func(ctx context.Context, _ *struct{}) (*reply[[]provisioner.LineStock], error) {
		if _, err := caller(ctx); err != nil {
			return nil, err
		}
		list, err := s.Catalogue.Lines(ctx)
		return &reply[[]provisioner.LineStock]{list}, err
	})
	route(s, api, http.MethodPut, "/v1/lines/{name}", "put-line", "Define a line and add addresses to it", func(ctx context.Context, in *struct {
		NamePath
		Body NewLine
	}) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		rest, err := time.ParseDuration(in.Body.CoolDown)
		if err != nil || rest < 0 {
			return nil, &machine.Error{Code: machine.Invalid, Field: "cool_down", Message: "cool-down cannot be read", Hint: "write it as 24h or 30m"}
		}
		l := network.Line{Name: in.Name, Site: in.Body.Site, MinBandwidth: in.Body.MinBandwidth, MaxBandwidth: in.Body.MaxBandwidth}
		if err := l.Validate(); err != nil {
			return nil, err
		}
		if l.MaxBandwidth < l.MinBandwidth {
			return nil, &machine.Error{Code: machine.Invalid, Field: "max_bandwidth", Message: "the most is less than the least", Hint: "swap the two"}
		}
		for _, r := range in.Body.Ranges {
			if err := network.ValidateRange(r, r.Addr().BitLen()); err != nil {
				return nil, err
			}
		}
		if err := s.Catalogue.PutLine(ctx, l, rest); err != nil {
			return nil, err
		}
		for _, r := range in.Body.Ranges {
			if _, err := s.Catalogue.AddAddresses(ctx, l.Name, r); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	route(s, api, http.MethodGet, "/v1/images", "list-images", "Operating systems that can be put on a machine", func(ctx context.Context, _ *struct{}) (*reply[[]machine.Image], error) {
		if _, err := caller(ctx); err != nil {
			return nil, err
		}
		list, err := s.Shelf.Images(ctx)
		return &reply[[]machine.Image]{list}, err
	})
}
