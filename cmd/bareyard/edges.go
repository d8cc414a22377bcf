package main

import (
	"context"
	"crypto/x509"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/frr"
	"github.com/bareyard/bareyard/network/linuxedge"
	"github.com/bareyard/bareyard/network/remoteedge"
	"github.com/bareyard/bareyard/postgres"
)

// newEdge returns what carries the public addresses: one edge for all sites, one for each, or none. What runs beside it is started in
// the group.
func newEdge(ctx context.Context, group *errgroup.Group, cfg config, db *postgres.DB, authority *authority, log *slog.Logger) (network.Edge, error) {
	all := cfg
	open := func(cfg edgeConfig) (network.Edge, error) {
		switch {
		case cfg.Driver == manualDialect:
			return byHand(all, db), nil
		case cfg.Address == "":
			return openLinux(ctx, group, cfg, log)
		}
		cert, err := authority.issueDialler(time.Now())
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AddCert(authority.cert)
		return remoteedge.Dial(cfg.Name, cfg.Address, cert, roots)
	}
	if len(cfg.Edges) == 0 {
		return open(cfg.Edge)
	}
	sites := &network.Sites{Edges: map[string]network.Edge{}, SiteOf: func(ctx context.Context, id string) (string, error) {
		m, err := db.Machine(ctx, id)
		if machine.CodeOf(err) == machine.NotFound {
			return "", nil
		}
		return m.Site, err
	}}
	list := cfg.Edges
	if cfg.Edge.driven() {
		list = append([]siteEdgeConfig{{Edge: cfg.Edge}}, list...)
	}
	for _, e := range list {
		edge, err := open(e.Edge)
		if err != nil {
			return nil, err
		}
		sites.Edges[e.Site] = edge
	}
	return sites, nil
}

// announced is how often FRR is looked after.
const announced = 10 * time.Second

// openLinux returns the edge on this box, or none; with FRR beside it, which is looked after in the group.
func openLinux(ctx context.Context, group *errgroup.Group, cfg edgeConfig, log *slog.Logger) (network.Edge, error) {
	if !cfg.driven() {
		return noEdge{}, nil
	}
	edge, err := linuxedge.New(cfg.linux())
	if err != nil || cfg.BGP.ASN == 0 {
		return edge, err
	}
	speaker, err := frr.NewSpeaker(cfg.BGP.speaker(cfg.Downlink))
	if err != nil {
		return nil, err
	}
	told := frr.Announce(edge, speaker, log)
	group.Go(func() error { return told.Run(ctx, announced) })
	return told, nil
}

// noEdge stands where no edge is configured: nothing can be exposed, so withdrawing always succeeds.
type noEdge struct{}

func (noEdge) Read(context.Context) ([]network.Port, error) { return nil, nil }

func (noEdge) Apply(_ context.Context, set []network.Port, _ []string) error {
	if len(set) > 0 {
		return &machine.Error{Code: machine.Unavailable, Message: "no edge is configured to carry public addresses", Hint: "set edge.uplink and edge.downlink in the configuration"}
	}
	return nil
}

func (noEdge) Counters(context.Context) ([]network.Counter, error) { return nil, nil }

func (noEdge) Caps(context.Context) (network.Caps, error) { return network.Caps{Driver: "none"}, nil }

// edgeDesk answers operators' questions about edges.
type edgeDesk struct {
	authority *authority
	edge      network.Edge
}

// Issue implements api.Edges.
func (d *edgeDesk) Issue(name string) (string, error) { return d.authority.issueEdge(name) }

// askTime bounds how long an edge may take to say how it is.
const askTime = 10 * time.Second

// Edges implements api.Edges.
func (d *edgeDesk) Edges(ctx context.Context) []api.EdgeState {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	edges := map[string]network.Edge{"": d.edge}
	if sites, ok := d.edge.(*network.Sites); ok {
		edges = sites.Edges
	}
	out := make([]api.EdgeState, len(edges))
	var wg sync.WaitGroup
	for i, site := range slices.Sorted(maps.Keys(edges)) {
		wg.Go(func() {
			out[i].Site = site
			caps, err := edges[site].Caps(ctx)
			if err == nil {
				out[i].Caps = caps
				var ports []network.Port
				ports, err = edges[site].Read(ctx)
				out[i].Ports = len(ports)
			}
			if err != nil {
				out[i].Problem = err.Error()
			}
		})
	}
	wg.Wait()
	return out
}
