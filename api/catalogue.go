package api

import (
	"context"
	"net/http"
	"net/netip"

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
	Ranges       []netip.Prefix `json:"ranges" doc:"public addresses, e.g. 203.0.113.0/24 or 2001:db8:7::/56, for pools of the line's own"`

	Carrier      string          `json:"carrier,omitempty" doc:"bgp, telecom, unicom, mobile …"`
	Step         int             `json:"step,omitempty" minimum:"0" doc:"Mbit/s between two bandwidths that are sold; 1 if left out"`
	MinDown      int             `json:"min_down,omitempty" minimum:"0" doc:"Mbit/s to the machine; as from it if left out"`
	MaxDown      int             `json:"max_down,omitempty" minimum:"0" doc:"Mbit/s to the machine; as from it if left out"`
	Models       []network.Model `json:"models,omitempty" doc:"fixed, burst or both; fixed if left out"`
	Percentile   network.Basis   `json:"percentile,omitempty" doc:"what a burst is billed by: up, down or higher, which it is if left out"`
	MaxAddresses int             `json:"max_addresses,omitempty" minimum:"0" doc:"of each family, per order; 8 if left out"`
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
		b := in.Body
		rest, err := coolDown(b.CoolDown)
		if err != nil {
			return nil, err
		}
		l := network.Line{Name: in.Name, Site: b.Site, MinBandwidth: b.MinBandwidth, MaxBandwidth: b.MaxBandwidth, Carrier: b.Carrier, Step: b.Step,
			MinDown: b.MinDown, MaxDown: b.MaxDown, Models: b.Models, Percentile: b.Percentile, MaxAddresses: b.MaxAddresses}.WithDefaults()
		if err := l.Validate(); err != nil {
			return nil, err
		}
		for _, r := range b.Ranges {
			bits := 32
			if r.Addr().Is6() {
				bits = 64
			}
			if err := network.ValidateRange(r, bits); err != nil {
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
}
