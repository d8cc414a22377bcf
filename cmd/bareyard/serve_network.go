package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/manual"
	"github.com/bareyard/bareyard/network/netbox"
	"github.com/bareyard/bareyard/network/powerdns"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// joinNetwork joins the engine and the API to what keeps addresses, bandwidth and names.
func joinNetwork(cfg config, db *postgres.DB, engine *provisioner.Engine, server *api.Server) error {
	engine.Calendar, engine.Directory = db, db
	engine.Names = manual.Names{Tasks: db}
	if cfg.RDNS.URL != "" {
		key, err := readSecret("rdns.key_file", cfg.RDNS.KeyFile)
		if err != nil {
			return err
		}
		engine.Names = &powerdns.Client{URL: cfg.RDNS.URL, Key: key, Server: cfg.RDNS.Server, TTL: int(cfg.RDNS.TTL)}
	}
	engine.Books, engine.Tasks = db, db
	if edge, ok := engine.Edge.(network.Edge); ok {
		engine.Prober, engine.Meter = siteEdges{edge}, siteEdges{edge}
	}
	if cfg.NetBox.URL != "" {
		token, err := readSecret("netbox.token_file", cfg.NetBox.TokenFile)
		if err != nil {
			return err
		}
		engine.Outbox, engine.Registry = db, &netbox.Client{URL: strings.TrimSuffix(cfg.NetBox.URL, "/"), Token: token, Tag: cfg.NetBox.Tag}
	}
	server.Pools, server.Addresses, server.Ledger, server.Tasks, server.Books = db, db, db, db, db
	return nil
}

// siteEdges asks the edge of one site, or all.
type siteEdges struct{ network.Edge }

// Probe implements provisioner.Prober.
func (e siteEdges) Probe(ctx context.Context, site string, addrs []netip.Prefix) ([]network.Answer, error) {
	return network.Probe(ctx, e.Edge, site, addrs)
}

// CountersAt implements provisioner.Meter.
func (e siteEdges) CountersAt(ctx context.Context, site string) ([]network.Counter, error) {
	return network.CountersAt(ctx, e.Edge, site)
}

// runNetwork starts what keeps other systems as the database says.
func runNetwork(ctx context.Context, group *errgroup.Group, cfg config, engine *provisioner.Engine) {
	group.Go(func() error { return engine.TellNames(ctx, 2*time.Second) })
	if engine.Registry != nil {
		group.Go(func() error { return engine.TellRegistry(ctx, 2*time.Second, time.Hour) })
	}
	if engine.Meter != nil {
		const day = 24 * time.Hour
		keep := provisioner.Retention{Samples: time.Duration(cfg.Traffic.SampleDays) * day, Hours: time.Duration(cfg.Traffic.HourDays) * day}
		group.Go(func() error { return engine.Account(ctx, keep) })
	}
}

// readSecret reads a file that holds one secret.
func readSecret(field, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", &machine.Error{Code: machine.Invalid, Field: field, Message: fmt.Sprintf("%s: %v", field, err), Hint: "put the secret into that file, readable by the server alone"}
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", &machine.Error{Code: machine.Invalid, Field: field, Message: fmt.Sprintf("%s: %s does not hold one line", field, path), Hint: "put the secret into that file, and nothing else"}
	}
	return secret, nil
}
