package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/provisioner"
)

// ProfilePath names a profile, or cards by their PCI vendor:device.
type ProfilePath struct {
	Name string `path:"name"`
}

// ProfileText is a file of profiles.
type ProfileText struct {
	Text string `json:"text" doc:"YAML"`
}

func (s *Server) profileRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/profiles", "list-profiles", "Profiles of cards, and the models that have none", func(ctx context.Context, _ *struct{}) (*reply[[]provisioner.CardProfile], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Engine.CardProfiles(ctx)
		return &reply[[]provisioner.CardProfile]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/profiles/{name}", "get-profile", "What is known of a card, as a file of profiles", func(ctx context.Context, in *ProfilePath) (*reply[ProfileText], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		text, err := s.Engine.ProfileText(ctx, in.Name)
		return &reply[ProfileText]{ProfileText{text}}, err
	})
	route(s, api, http.MethodGet, "/v1/profiles/{name}/fleet", "profile-fleet", "What this site's cards reach, and which are slower", func(ctx context.Context, in *ProfilePath) (*reply[[]accelerator.Baseline], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Engine.FleetBaselines(ctx, in.Name)
		return &reply[[]accelerator.Baseline]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/profiles/{name}/calibration", "calibrate-profile", "An operator's profile from the rates of this site's cards", func(ctx context.Context, in *struct {
		ProfilePath
		MinCards int `query:"min_cards" minimum:"8" default:"8" doc:"a limit needs so many cards"`
	}) (*reply[provisioner.Calibration], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		c, err := s.Engine.Calibrate(ctx, in.Name, in.MinCards, time.Now())
		return &reply[provisioner.Calibration]{c}, err
	})
}
