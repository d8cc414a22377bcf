package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

type serveCommand struct {
	Config string `placeholder:"FILE" help:"Configuration file (default: /etc/bareyard/bareyard.yaml where it is there). Every key is optional."`
	Check  bool   `help:"Read the configuration, say whether it is right, and start nothing."`
	Rekey  bool   `help:"Make a new key for the secrets in the database, encrypt them all with it, and end. Stop every server first."`

	CrashFile string `hidden:"" env:"BAREYARD_CRASH_FILE"` // for crash tests: see crasher
}

// Run reads the configuration and serves until ctx is cancelled.
func (s *serveCommand) Run(ctx context.Context, t *terminal) error {
	cfg, err := loadConfig(s.Config)
	if err != nil {
		return err
	}
	if s.Check {
		_, err := fmt.Fprintln(t.out, "the configuration is right")
		return err
	}
	log, tuning := newLogger(t.err, cfg), postgres.Tuning{}
	if s.CrashFile != "" {
		tuning.AfterCommit = (&crasher{file: s.CrashFile, log: log}).committed
	}
	if s.Rekey {
		return serveWith(ctx, cfg, log, func(ctx context.Context, url string) error { return rekey(ctx, url, cfg, log, t.out) })
	}
	return serve(ctx, cfg, log, tuning)
}

// newLogger is the server's log as configured.
func newLogger(w io.Writer, cfg config) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	options := &slog.HandlerOptions{Level: levels[cfg.LogLevel]}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// stopTime is how long the embedded database gets to write its last checkpoint.
const stopTime = 30 * time.Second

// workers is how many actions one server carries out at a time; most of them wait for a BMC.
const workers = 64

// serve runs the server until ctx is cancelled and returns nil, or until a part of it fails. The database is started first and stopped
// last.
func serve(ctx context.Context, cfg config, log *slog.Logger, tuning postgres.Tuning) error {
	return serveWith(ctx, cfg, log, func(ctx context.Context, url string) error { return serveFrom(ctx, url, cfg, log, tuning) })
}

// serveWith runs work with a database: the configured one, or our own, which ends with it.
func serveWith(ctx context.Context, cfg config, log *slog.Logger, work func(ctx context.Context, url string) error) error {
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	if cfg.DatabaseURL != "" {
		return unlessAsked(ctx, work(ctx, cfg.DatabaseURL))
	}
	cluster, err := postgres.StartCluster(ctx, filepath.Join(cfg.DataDir, "postgres"), log)
	if err != nil {
		return unlessAsked(ctx, err)
	}
	parts, done := context.WithCancel(ctx)
	defer done()
	group, parts := errgroup.WithContext(parts)
	group.Go(func() error { return watchCluster(parts, cluster) })
	group.Go(func() error {
		defer done() // the database has no more to do
		return work(parts, cluster.URL())
	})
	err = unlessAsked(ctx, group.Wait())

	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return errors.Join(err, cluster.Stop(stopping))
}

// unlessAsked drops the error of something that was called off because we were asked to end.
func unlessAsked(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// serveFrom runs everything that needs a database. One group owns every goroutine, and none of them is left when it returns.
func serveFrom(ctx context.Context, databaseURL string, cfg config, log *slog.Logger, tuning postgres.Tuning) error {
	seal, err := postgres.LoadSeal(filepath.Join(cfg.DataDir, "secret.key"))
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, databaseURL, seal, log, tuning)
	if err != nil {
		return err
	}
	defer db.Close()
	serving, err := db.Serving(ctx)
	if err != nil {
		return err
	}
	defer serving()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	if err := start(ctx, group, cfg, db, log); err != nil {
		cancel()
		_ = group.Wait() // what was started already only says that it was cancelled
		return err
	}
	log.Info("ready", "api", cfg.APIListen, "socket", cfg.Socket)
	return group.Wait()
}

// rekey makes a new key for all secrets.
func rekey(ctx context.Context, databaseURL string, cfg config, log *slog.Logger, out io.Writer) error {
	file := filepath.Join(cfg.DataDir, "secret.key")
	seal, err := postgres.LoadSeal(file)
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, databaseURL, seal, log, postgres.Tuning{})
	if err != nil {
		return err
	}
	defer db.Close()
	n, err := db.Rekey(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d secrets are encrypted with a new key; keep a copy of %s, and give it to every server of this database\n", n, file)
	return err
}

// start builds the parts, joins them, and starts them in the group.
func start(ctx context.Context, group *errgroup.Group, cfg config, db *postgres.DB, log *slog.Logger) error {
	authority, err := loadAuthority(ctx, db)
	if err != nil {
		return err
	}
	edge, err := newEdge(ctx, group, cfg, db, authority, log)
	if err != nil {
		return err
	}
	bmcs := &ipmi.Controller{Log: log, Poll: 400 * time.Millisecond, Silence: time.Duration(cfg.BMC.ObeyWithin) / 4}
	engine, err := newEngine(cfg, db, log, string(authority.certPEM), edge, bmcs)
	if err != nil {
		return err
	}
	if engine.ReportKey, err = reportKey(ctx, cfg.DataDir, db); err != nil {
		return err
	}
	node, err := nodeName(cfg.DataDir)
	if err != nil {
		return err
	}
	rec := newRecorder(node, db.WriteTrace, log)
	engine.Trace = rec.note
	group.Go(func() error { return rec.Run(ctx) })
	store := &images.Store{Dir: cfg.ImageDir}
	server := &api.Server{Accounts: db, Machines: db, Orders: db, Log: db, Catalogue: db, Shelf: db, Inbox: db, Boots: db, Store: store, Engine: engine, Edges: &edgeDesk{authority, edge}, Reports: db, Cards: db, Erasures: db,
		Validator: cfg.Validator, Logger: log, Version: version}
	if err := joinNetwork(cfg, db, engine, server); err != nil {
		return err
	}
	server.Pools, server.Addresses, server.Ledger = db, db, db
	engine.Acceptances, server.Acceptances = db, db
	cfg.Acceptance.join(engine, server)
	hub, recorder := newConsoles(cfg, engine, db, node, log)
	server.Desk = api.Desk{BMCs: db, Health: db, Consoles: hub, Records: db, CustomersMay: cfg.Console.Customers}
	metrics := prometheus.NewRegistry()
	if err := runPoller(ctx, group, cfg, engine, db, bmcs, server, metrics, log); err != nil {
		return err
	}
	if err := runMedia(ctx, group, cfg, engine, db, bmcs, log); err != nil {
		return err
	}
	handler := server.Handler()

	cert, err := authority.issue(cfg.Boot.Address, time.Now())
	if err != nil {
		return err
	}
	tlsListener, err := tls.Listen("tcp", cfg.APIListen, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	socket, err := listenSocket(cfg.Socket)
	if err != nil {
		tlsListener.Close()
		return err
	}
	serveHTTP(ctx, group, tlsListener, handler)
	trusted := http.NewServeMux()
	trusted.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	trusted.Handle("/", api.Trusted(handler))
	serveHTTP(ctx, group, socket, trusted)

	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return hub.Run(ctx) })
	if recorder != nil {
		group.Go(func() error { return recorder.Run(ctx) })
	}
	group.Go(func() error { return db.Work(ctx, node, workers, engine.Act) })
	group.Go(func() error { return engine.Watch(ctx, 2*time.Second) })
	runNetwork(ctx, group, cfg, engine)
	if cfg.Boot.Interface != "" {
		reserved := &reservations{db: db, log: log}
		group.Go(func() error { return reserved.Run(ctx) })
		seen := newSightings(db, log)
		group.Go(func() error { return seen.run(ctx) })
		boot, err := newBoot(cfg, engine, db, reserved, log, metrics)
		if err != nil {
			return err
		}
		boot.Handlers = map[string]http.Handler{"/images/": http.StripPrefix("/images", store.Handler())}
		boot.Alarm = seen.other
		boot.Trace = func(x netboot.Exchange) { seen.trace(x); rec.exchange(x) }
		group.Go(func() error { return boot.Run(ctx) })
	}
	return nil
}

// newEngine joins the engine to what answers its seams.
func newEngine(cfg config, db *postgres.DB, log *slog.Logger, ca string, edge network.Edge, bmcs *ipmi.Controller) (*provisioner.Engine, error) {
	ports, err := newPorts(cfg, db)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(cfg.APIListen)
	if err != nil {
		return nil, fmt.Errorf("read api_listen: %w", err)
	}
	e := &provisioner.Engine{
		Store: db, Shelf: db, Tickets: db, Vault: db, BMCs: db, Pins: db, Doctor: db,
		Power: bmcs, Accounts: bmcs, Memory: bmcs, Certificates: bmcs, Serial: bmcs,
		Baselines: bmcs, HostAccess: bmcs, Care: cfg.BMC.care(), Settings: bmcs, Profiles: db,
		Discovery: cfg.Boot.Discovery, Inbox: db, Visits: db, List: db, Identify: bmcs, Boots: db,
		SeenWithin: time.Duration(cfg.BMC.SeenWithin), ObeyWithin: time.Duration(cfg.BMC.ObeyWithin),
		Reports: db, Fleet: db, Facts: bmcs, Validation: cfg.Validation.rules(),
		Edge: edge, Ports: ports,
		Agents:   "https://" + net.JoinHostPort(cfg.Boot.Address.String(), port),
		Images:   fmt.Sprintf("http://%s/images", net.JoinHostPort(cfg.Boot.Address.String(), strconv.Itoa(int(cfg.Boot.HTTPPort)))),
		CA:       ca,
		BootNets: bootNets(cfg), ForeignDHCP: cfg.Boot.Mode == modeProxy,
		Log: log,
	}
	if err := e.ReadProfiles(); err != nil {
		return nil, fmt.Errorf("read validation.profiles: %w", err)
	}
	return e, nil
}

// serveHTTP serves on a listener until ctx ends. Streams end with ctx as well: they would hold up the shutdown.
func serveHTTP(ctx context.Context, group *errgroup.Group, l net.Listener, h http.Handler) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve API: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := server.Shutdown(stop); err != nil {
			return server.Close()
		}
		return nil
	})
}

// listenSocket opens the operators' socket; its mode lets in only the user that the server runs as. A socket file that
// nobody answers on was left by a crash and is replaced.
func listenSocket(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, &machine.Error{Code: machine.Conflict, Field: "socket", Message: fmt.Sprintf("a server answers on %s already", path), Hint: "stop it first, or give this one another data_dir"}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for operators: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect socket: %w", err)
	}
	return l, nil
}

// watchCluster returns an error when the embedded database ends before ctx does.
func watchCluster(ctx context.Context, cluster *postgres.Cluster) error {
	select {
	case <-ctx.Done():
		return nil
	case <-cluster.Done():
		return &machine.Error{
			Code:    machine.Unavailable,
			Message: "the embedded PostgreSQL has ended",
			Hint:    "its last words are in the log above; start bareyard again, it recovers by itself",
		}
	}
}

// bootAddr is what certificates are issued for when there is no provisioning network.
func bootAddr(a netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
