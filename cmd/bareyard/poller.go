package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// pollLimit is how many BMCs one server reads at a time.
const pollLimit = 16

// runPoller starts the reading of the BMCs' sensors and event logs, unless it is off. Servers that share a database share the BMCs: each is
// claimed for a period by one of them.
func runPoller(ctx context.Context, group *errgroup.Group, cfg config, engine *provisioner.Engine, db *postgres.DB, bmcs *ipmi.Controller, server *api.Server, r prometheus.Registerer, log *slog.Logger) error {
	counted := newPollMetrics()
	for _, c := range []prometheus.Collector{counted, healthCollector{db, log}} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register metrics of BMCs: %w", err)
		}
	}
	period := time.Duration(cfg.BMC.Poll)
	if period < 0 {
		return nil
	}
	p := &ipmi.Poller{Controller: bmcs, Period: period, Limit: pollLimit, Reach: engine.ReachBMC}
	p.Targets = func(ctx context.Context) ([]ipmi.PollTarget, error) { return db.DuePolls(ctx, period) }
	took := func(ctx context.Context, poll ipmi.Poll) error {
		counted.WithLabelValues(pollOutcome(poll.Err)).Inc()
		return engine.Polled(ctx, period, poll)
	}
	p.Took = func(ctx context.Context, poll ipmi.Poll) {
		if err := took(ctx, poll); err != nil && ctx.Err() == nil && machine.CodeOf(err) != machine.NotFound {
			log.Error("what a BMC says is not kept", "machine", poll.Key, "err", err)
		}
	}
	server.Desk.ReadNow = func(ctx context.Context, m machine.Machine) error {
		h, err := db.Health(ctx, m.ID)
		if err != nil {
			return err
		}
		poll, asked := p.Once(ctx, ipmi.PollTarget{Key: m.ID, Cursor: h.Cursor, Events: true, Inventory: true})
		if !asked {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("a job is at work on machine %s, and has its BMC for itself", m.Name), Hint: "wait for the job, or look at what was read before: leave --now out"}
		}
		if err := took(ctx, poll); err != nil {
			return err
		}
		if poll.Err != nil && !errors.Is(poll.Err, ipmi.ErrUnsupported) {
			return &machine.Error{Code: machine.Unavailable, Message: poll.Err.Error(), Hint: "what was read before is still there: leave --now out"}
		}
		return nil
	}
	group.Go(func() error { return p.Run(ctx) })
	return nil
}

func newPollMetrics() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bareyard_bmc_polls_total", Help: "Reads of BMCs by this server, by what came of them."}, []string{"outcome"})
}

// pollOutcome is a label with few values.
func pollOutcome(err error) string {
	for _, k := range []struct {
		err  error
		name string
	}{{ipmi.ErrCredentials, "credentials"}, {ipmi.ErrLocked, "locked"}, {ipmi.ErrUntrusted, "untrusted"}, {ipmi.ErrBusy, "busy"}, {ipmi.ErrUnreachable, "unreachable"}, {ipmi.ErrUnsupported, "partly"}} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	if err != nil {
		return "failed"
	}
	return "ok"
}

// healthCollector shows the health of all machines, from the database: whichever server is asked says the same.
type healthCollector struct {
	db interface {
		AllHealth(context.Context) ([]provisioner.MachineHealth, error)
	}
	log *slog.Logger
}

// Descriptions of the metrics. Labels are bounded by the number of machines and by mostSensors.
var (
	healthDesc = prometheus.NewDesc("bareyard_bmc_health", "Health of a machine as its BMC sees it: 0 ok, 1 warning, 2 critical, -1 unknown.", []string{"machine"}, nil)
	openDesc   = prometheus.NewDesc("bareyard_bmc_open_events", "Critical entries of a BMC's event log that nobody has acknowledged.", []string{"machine"}, nil)
	readDesc   = prometheus.NewDesc("bareyard_bmc_read_timestamp_seconds", "When a BMC was last read, in Unix time.", []string{"machine"}, nil)
	failedDesc = prometheus.NewDesc("bareyard_bmc_failed_polls", "Reads of a BMC in a row that failed.", []string{"machine"}, nil)
	onDesc     = prometheus.NewDesc("bareyard_bmc_power_on", "Whether a machine is on, as its BMC was last read to say; absent where it does not say.", []string{"machine"}, nil)
	wattsDesc  = prometheus.NewDesc("bareyard_bmc_power_watts", "Power drawn, by the sensor that says so.", []string{"machine", "sensor"}, nil)
	tempDesc   = prometheus.NewDesc("bareyard_bmc_temperature_celsius", "Temperatures.", []string{"machine", "sensor"}, nil)
	fanDesc    = prometheus.NewDesc("bareyard_bmc_fan_rpm", "Fans.", []string{"machine", "sensor"}, nil)
	badDesc    = prometheus.NewDesc("bareyard_bmc_bad_sensors", "Sensors of a machine that are out of their limits.", []string{"machine"}, nil)
)

// mostSensors bounds the sensors of one kind of one machine that become metrics.
const mostSensors = 32

// Describe implements prometheus.Collector.
func (c healthCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{healthDesc, openDesc, readDesc, failedDesc, onDesc, wattsDesc, tempDesc, fanDesc, badDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c healthCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := c.db.AllHealth(ctx)
	if err != nil {
		c.log.Warn("health of machines cannot be shown as metrics", "err", err)
		return
	}
	for _, h := range list {
		c.one(h, func(d *prometheus.Desc, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{h.Machine}, labels...)...)
		})
	}
}

func (c healthCollector) one(h provisioner.MachineHealth, put func(*prometheus.Desc, float64, ...string)) {
	put(failedDesc, float64(h.Failed))
	put(openDesc, float64(h.Open))
	rank, known := map[ipmi.Severity]float64{ipmi.OK: 0, ipmi.Warning: 1, ipmi.Critical: 2}[h.Overall]
	if !known {
		rank = -1
	}
	put(healthDesc, rank)
	if h.At.IsZero() {
		return
	}
	put(readDesc, float64(h.At.Unix()))
	if h.Power == ipmi.On || h.Power == ipmi.Off {
		put(onDesc, map[ipmi.Power]float64{ipmi.On: 1}[h.Power])
	}
	kinds := map[ipmi.SensorKind]*prometheus.Desc{ipmi.PowerDraw: wattsDesc, ipmi.Temperature: tempDesc, ipmi.Fan: fanDesc}
	shown, names, bad := map[ipmi.SensorKind]int{}, map[string]bool{}, 0
	for _, r := range h.Readings {
		if h.Bad(r) {
			bad++
		}
		d := kinds[r.Kind]
		name := provisioner.SensorName(r)
		key := string(r.Kind) + " " + name
		if d == nil || !r.Known || shown[r.Kind] >= mostSensors || names[key] || r.Kind == ipmi.Fan && r.Unit != "RPM" {
			continue
		}
		shown[r.Kind]++
		names[key] = true
		put(d, r.Value, name)
	}
	put(badDesc, float64(bad))
}
