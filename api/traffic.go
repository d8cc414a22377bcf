package api

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// Books is the traffic of orders, in the order of time.
type Books interface {
	Samples(ctx context.Context, orderID string, from, to time.Time) ([]billing.Sample, error) // of five minutes
	Hours(ctx context.Context, orderID string, from, to time.Time) ([]billing.Sample, error)   // of an hour: for longer
	Periods(ctx context.Context, orderID string) ([]provisioner.ClosedPeriod, error)
}

// Traffic is what an order's machine was delivered over a time.
type Traffic struct {
	OrderID   string         `json:"order_id"`
	Step      string         `json:"step" doc:"length of a point: 5m or 1h"`
	Usage     billing.Usage  `json:"usage" doc:"percentiles are of samples of five minutes: with points of an hour they are zero"`
	Model     string         `json:"model" doc:"how the order's bandwidth is sold"`
	Basis     network.Basis  `json:"basis" doc:"what a burst is billed by"`
	Billed    int64          `json:"billed_bps" doc:"the 95th percentile by that basis"`
	Committed int            `json:"committed" doc:"burst: Mbit/s that are paid for in any case"`
	Above     int64          `json:"above_bps" doc:"burst: what of the percentile is above them"`
	Points    []TrafficPoint `json:"points"`
}

// TrafficPoint is what was delivered in one step. A step that was not measured has none.
type TrafficPoint struct {
	At      time.Time `json:"at" doc:"when it begins"`
	Seconds float64   `json:"seconds" doc:"between the two readings of the counters"`
	Up      int64     `json:"up_bytes"`
	Down    int64     `json:"down_bytes"`
	UpBps   int64     `json:"up_bps"`
	DownBps int64     `json:"down_bps"`
	Doubt   string    `json:"doubt,omitempty" doc:"why it is not billed"`
}

// TrafficQuery says which traffic.
type TrafficQuery struct {
	OrderPath
	From string `query:"from" doc:"a day, or a time with its zone; the month of the order that is under way if left out"`
	To   string `query:"to" doc:"exclusive; now if left out"`
	Step string `query:"step" enum:"5m,1h" doc:"by the length of the time if left out: 5m up to 35 days"`
}

const (
	fineSpan  = 35 * 24 * time.Hour  // the longest time that is shown in steps of five minutes unless asked for
	mostFine  = 100 * 24 * time.Hour // and when asked for
	mostHours = 800 * 24 * time.Hour
)

func (s *Server) trafficRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/orders/{id}/traffic", "order-traffic", "What an order's machine was delivered", func(ctx context.Context, in *TrafficQuery) (*reply[Traffic], error) {
		t, err := s.traffic(ctx, *in)
		return &reply[Traffic]{t}, err
	})
	route(s, api, http.MethodGet, "/v1/orders/{id}/traffic/periods", "order-traffic-periods", "Traffic of the order's months that are over, counted from hand-over", func(ctx context.Context, in *OrderPath) (*reply[[]provisioner.ClosedPeriod], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Books.Periods(ctx, o.ID)
		return &reply[[]provisioner.ClosedPeriod]{list}, err
	})
	for format, render := range map[string]struct {
		kind, summary string
		write         func(Traffic) []byte
	}{
		"csv": {"text/csv; charset=utf-8", "The same as CSV", TrafficCSV},
		"svg": {"image/svg+xml", "The same as a plot", trafficSVG},
	} {
		route(s, api, http.MethodGet, "/v1/orders/{id}/traffic."+format, "order-traffic-"+format, render.summary, func(ctx context.Context, in *TrafficQuery) (*document, error) {
			t, err := s.traffic(ctx, *in)
			if err != nil {
				return nil, err
			}
			return &document{ContentType: render.kind, Policy: "default-src 'none'; style-src 'unsafe-inline'", Body: render.write(t)}, nil
		})
	}
}

// document is a body that is not JSON.
type document struct {
	ContentType string `header:"Content-Type"`
	Policy      string `header:"Content-Security-Policy"`
	Body        []byte
}

func (s *Server) traffic(ctx context.Context, q TrafficQuery) (Traffic, error) {
	o, err := s.ownOrder(ctx, q.ID)
	if err != nil {
		return Traffic{}, err
	}
	now := time.Now()
	from, _, _ := provisioner.PeriodUnderWay(o, now)
	to := now
	if q.From != "" {
		if from, err = network.ParseDay("from", q.From); err != nil {
			return Traffic{}, err
		}
	}
	if q.To != "" {
		if to, err = network.ParseDay("to", q.To); err != nil {
			return Traffic{}, err
		}
	}
	if to.Before(from) {
		return Traffic{}, &machine.Error{Code: machine.Invalid, Field: "to", Message: "the time ends before it begins", Hint: "swap from and to"}
	}
	span := to.Sub(from)
	if q.Step == "" {
		q.Step = "5m"
		if span > fineSpan {
			q.Step = "1h"
		}
	}
	if most := map[string]time.Duration{"5m": mostFine, "1h": mostHours}[q.Step]; span > most {
		return Traffic{}, &machine.Error{Code: machine.Invalid, Field: "from", Message: fmt.Sprintf("%d days are too many for steps of %s", int(span.Hours()/24), q.Step),
			Hint: fmt.Sprintf("ask for up to %d days", int(most.Hours()/24))}
	}
	line, err := s.Engine.Shelf.Line(ctx, o.Line)
	if err != nil {
		return Traffic{}, err
	}
	t := Traffic{OrderID: o.ID, Step: q.Step, Model: o.Model, Basis: line.Percentile, Committed: o.Committed, Points: []TrafficPoint{}}
	read := s.Books.Samples
	if q.Step == "1h" {
		read = s.Books.Hours
	}
	samples, err := read(ctx, o.ID, from, to)
	if err != nil {
		return Traffic{}, err
	}
	end := to
	if end.After(now) {
		end = now // slots to come are not missing
	}
	// The slot under way is measured when it is over.
	t.Usage = billing.Summarize(samples, from, billing.Slot(end))
	t.Usage.To = to
	if q.Step == "1h" {
		t.Usage.Up.P95, t.Usage.Down.P95, t.Usage.Measured, t.Usage.Slots, t.Usage.Doubtful = 0, 0, 0, 0, 0
	}
	t.Billed = t.Usage.Billed(string(line.Percentile))
	if network.Model(o.Model) == network.ModelBurst {
		t.Above = billing.Above(t.Billed, o.Committed)
	}
	for _, x := range samples {
		t.Points = append(t.Points, TrafficPoint{At: x.Slot.UTC(), Seconds: x.Took.Round(time.Millisecond).Seconds(), Up: x.Up, Down: x.Down, UpBps: x.UpRate(), DownBps: x.DownRate(), Doubt: x.Doubt})
	}
	return t, nil
}

// TrafficCSV writes the points of a traffic as CSV with a head.
func TrafficCSV(t Traffic) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"at", "seconds", "up_bytes", "down_bytes", "up_bps", "down_bps", "doubt"}) // a buffer does not fail
	for _, p := range t.Points {
		_ = w.Write([]string{p.At.Format(time.RFC3339), strconv.FormatFloat(p.Seconds, 'f', -1, 64), strconv.FormatInt(p.Up, 10), strconv.FormatInt(p.Down, 10),
			strconv.FormatInt(p.UpBps, 10), strconv.FormatInt(p.DownBps, 10), p.Doubt})
	}
	w.Flush()
	return b.Bytes()
}
