package netboot

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what a Server does. Its zero value is not ready: see NewMetrics.
type Metrics struct {
	exchanges *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	took      *prometheus.HistogramVec
	dropped   prometheus.Counter
	foreign   *prometheus.CounterVec
}

// NewMetrics registers the metrics of a Server.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		exchanges: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bareyard_boot_exchanges_total",
			Help: "Questions of booting machines, by protocol, stage (DHCP) and outcome."}, []string{"proto", "stage", "outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bareyard_boot_sent_bytes_total",
			Help: "Payload sent to booting machines."}, []string{"proto"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "bareyard_boot_seconds", Buckets: []float64{.0005, .002, .01, .05, .2, 1, 5, 30, 120},
			Help: "From a question to its answer, or to the end of a transfer."}, []string{"proto"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "bareyard_boot_dropped_total",
			Help: "DHCP requests of unknown machines that were over the limit."}),
		foreign: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bareyard_boot_foreign_servers_total",
			Help: "Sightings of DHCP servers that do not belong on the network; each server at most once in ten minutes for each way it is seen."}, []string{"interface"}),
	}
	for _, c := range []prometheus.Collector{m.exchanges, m.bytes, m.took, m.dropped, m.foreign} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// exchange counts one exchange. A nil Metrics counts nothing.
func (m *Metrics) exchange(x Exchange) {
	if m == nil {
		return
	}
	m.exchanges.WithLabelValues(x.Proto, x.DHCP.Stage, string(x.Outcome)).Inc()
	m.took.WithLabelValues(x.Proto).Observe(x.Took.Seconds())
	if x.Bytes > 0 {
		m.bytes.WithLabelValues(x.Proto).Add(float64(x.Bytes))
	}
}

func (m *Metrics) drop() {
	if m != nil {
		m.dropped.Inc()
	}
}

func (m *Metrics) alien(ifname string) {
	if m != nil {
		m.foreign.WithLabelValues(ifname).Inc()
	}
}
