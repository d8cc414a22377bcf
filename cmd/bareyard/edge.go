package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/remoteedge"
)

type edgeCommand struct {
	Run   edgeRunCommand   `cmd:"" default:"withargs" help:"Carry public addresses and bandwidth on this box, as a server says (the default)."`
	Issue edgeIssueCommand `cmd:"" help:"Issue the credentials of an edge on another box."`
	List  edgeListCommand  `cmd:"" help:"Show the server's edges and whether they answer."`
}

type edgeRunCommand struct {
	Config string `placeholder:"FILE" help:"Configuration file (default: /etc/bareyard/edge.yaml)."`
	Check  bool   `help:"Read the configuration, say whether it is right, and start nothing."`
}

// edgeBoxConfig is the configuration of an edge on a box of its own; docs/edge.yaml shows each key with its default.
type edgeBoxConfig struct {
	Listen      string     `yaml:"listen"`      // host:port that servers dial, on the management network
	Credentials string     `yaml:"credentials"` // what `bareyard edge issue` printed
	Memory      string     `yaml:"memory"`      // file with what it was told last
	Repair      duration   `yaml:"repair"`      // how often it is brought back to that
	Edge        edgeConfig `yaml:"edge"`
	LogLevel    string     `yaml:"log_level"`
	LogFormat   string     `yaml:"log_format"`
}

// standardEdgeConfig is read when no other file is named.
const standardEdgeConfig = "/etc/bareyard/edge.yaml"

func loadEdgeConfig(path string) (edgeBoxConfig, error) {
	file := cmp.Or(path, standardEdgeConfig)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return edgeBoxConfig{}, &machine.Error{Code: machine.Invalid, Field: "config", Message: "no configuration file " + file, Hint: "docs/edge.yaml shows every key"}
	}
	if err != nil {
		return edgeBoxConfig{}, fmt.Errorf("read configuration: %w", err)
	}
	return parseEdgeConfig(file, text)
}

func parseEdgeConfig(file string, text []byte) (edgeBoxConfig, error) {
	var c edgeBoxConfig
	lines, err := decodeStrict(file, text, &c)
	if err != nil {
		return c, err
	}
	folder, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return c, fmt.Errorf("find folder of configuration: %w", err)
	}
	c.Listen = cmp.Or(c.Listen, ":8444")
	c.Credentials = absolute(folder, cmp.Or(c.Credentials, "/etc/bareyard/edge.pem"))
	c.Memory = absolute(folder, cmp.Or(c.Memory, "/var/lib/bareyard/edge.json"))
	c.Edge.fill(folder)
	c.Repair = cmp.Or(c.Repair, duration(10*time.Second))
	c.LogLevel, c.LogFormat = cmp.Or(c.LogLevel, "info"), cmp.Or(c.LogFormat, "text")
	if key, problem, hint := c.problem(); problem != "" {
		where := file
		if line := lines[key]; line > 0 {
			where = fmt.Sprintf("%s:%d", file, line)
		}
		return c, &machine.Error{Code: machine.Invalid, Field: key, Message: fmt.Sprintf("%s: %s %s", where, key, problem), Hint: hint}
	}
	return c, nil
}

func (c *edgeBoxConfig) problem() (key, problem, hint string) {
	if host, port, err := net.SplitHostPort(c.Listen); err != nil || !isPort(port) || strings.Contains(host, " ") {
		return "listen", fmt.Sprintf("%q is not host:port", c.Listen), "write it as 10.98.0.5:8444, with this box's address on the management network"
	}
	if c.Repair < duration(time.Second) || c.Repair > duration(time.Hour) {
		return "repair", fmt.Sprintf("is %s", time.Duration(c.Repair)), "choose 1s to 1h"
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return "log_level", fmt.Sprintf("%q is no level", c.LogLevel), "debug, info, warn or error"
	}
	if !slices.Contains([]string{"text", "json"}, c.LogFormat) {
		return "log_format", fmt.Sprintf("%q is no format", c.LogFormat), "text or json"
	}
	if c.Edge.Driver != "" {
		return "edge.driver", "is for servers", "this box does its work by itself"
	}
	if c.Edge.Address != "" || c.Edge.Name != "" {
		return "edge.address", "is for servers", "say where this box listens with listen"
	}
	if !c.Edge.driven() {
		return "edge.uplink", "is missing", "name the device towards the Internet, and with downlink the one towards the machines' public ports"
	}
	return c.Edge.problem("edge")
}

// Run is an edge until ctx is cancelled.
func (e *edgeRunCommand) Run(ctx context.Context, t *terminal) error {
	cfg, err := loadEdgeConfig(e.Config)
	if err != nil {
		return err
	}
	tlsConfig, err := remoteedge.Credentials{File: cfg.Credentials}.TLS()
	if err != nil {
		return err
	}
	if e.Check {
		_, err := fmt.Fprintln(t.out, "the configuration is right")
		return err
	}
	log := newLogger(t.err, config{LogLevel: cfg.LogLevel, LogFormat: cfg.LogFormat})
	if err := os.MkdirAll(filepath.Dir(cfg.Memory), 0o700); err != nil {
		return fmt.Errorf("make folder of memory: %w", err)
	}
	l, err := tls.Listen("tcp", cfg.Listen, tlsConfig)
	if err != nil {
		return fmt.Errorf("listen for servers: %w", err)
	}
	log.Info("ready", "listen", l.Addr(), "uplink", cfg.Edge.Uplink, "downlink", cfg.Edge.Downlink)
	group, ctx := errgroup.WithContext(ctx)
	edge, err := openLinux(ctx, group, cfg.Edge, log)
	if err != nil {
		_ = l.Close()
		return err
	}
	keeper := remoteedge.NewKeeper(edge, cfg.Memory, log)
	group.Go(func() error { return keeper.Run(ctx, time.Duration(cfg.Repair)) })
	group.Go(func() error { return remoteedge.Serve(ctx, l, keeper, log) })
	return group.Wait()
}

type edgeIssueCommand struct {
	remote
	Name string `arg:"" help:"Name of the edge, as in the server's configuration."`
}

// Run prints the credentials; the key leaves the server here and is kept nowhere.
func (e *edgeIssueCommand) Run(ctx context.Context, t *terminal) error {
	return e.call(ctx, func(ctx context.Context, c *client.Client) error {
		pem, err := c.IssueEdge(ctx, e.Name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(t.out, pem)
		return err
	})
}

type edgeListCommand struct{ remote }

// Run asks the server, which asks the edges.
func (e *edgeListCommand) Run(ctx context.Context, t *terminal) error {
	return e.call(ctx, func(ctx context.Context, c *client.Client) error {
		edges, err := c.Edges(ctx)
		if err != nil {
			return err
		}
		return e.show(t, edges, func(w io.Writer) {
			fmt.Fprintln(w, "SITE\tDRIVER\tPORTS\tCOUNTS\tPROBES\tSTATE")
			for _, x := range edges {
				probes := "no"
				if x.Caps.Probes {
					probes = "yes"
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", cmp.Or(x.Site, "all"), x.Caps.Driver, x.Ports, x.Caps.Counts, probes, cmp.Or(x.Problem, strings.Join(x.Caps.Trouble, "; "), "answers"))
			}
		})
	})
}
