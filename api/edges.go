package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/network"
)

// Edges knows what carries the public addresses.
type Edges interface {
	// Issue returns new credentials for an edge on another box, as PEM. An Invalid error says that the name is none.
	Issue(name string) (string, error)
	// Edges asks every edge how it is.
	Edges(ctx context.Context) []EdgeState
}

// EdgeState is how an edge is.
type EdgeState struct {
	Site    string       `json:"site,omitempty" doc:"site that it serves; without one, every site that has none of its own"`
	Caps    network.Caps `json:"caps" doc:"what it can do"`
	Ports   int          `json:"ports" doc:"ports that it carries"`
	Problem string       `json:"problem,omitempty" doc:"why it does not answer"`
}

func (s *Server) edgeRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/edges", "list-edges", "What carries the public addresses, asked now", func(ctx context.Context, _ *struct{}) (*reply[[]EdgeState], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		return &reply[[]EdgeState]{s.Edges.Edges(ctx)}, nil
	})
	route(s, api, http.MethodPost, "/v1/edges/{name}/credentials", "issue-edge", "Issue credentials for an edge on another box; the key is shown once", func(ctx context.Context, in *struct {
		Name string `path:"name"`
	}) (*reply[EdgeCredentials], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		pem, err := s.Edges.Issue(in.Name)
		if err != nil {
			return nil, err
		}
		s.Logger.Info("credentials of an edge issued", "edge", in.Name)
		return &reply[EdgeCredentials]{EdgeCredentials{PEM: pem}}, nil
	})
}

// EdgeCredentials are what `bareyard edge` shows to servers.
type EdgeCredentials struct {
	PEM string `json:"pem" doc:"the authority, a certificate and its key"`
}
