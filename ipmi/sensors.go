package ipmi

import (
	"context"
	"time"
)

// SensorKind is what a sensor measures.
type SensorKind string

// Kinds of sensors.
const (
	Temperature SensorKind = "temperature"
	Fan         SensorKind = "fan"
	Voltage     SensorKind = "voltage"
	Current     SensorKind = "current"
	PowerDraw   SensorKind = "power"
	PowerSupply SensorKind = "psu"
	OtherSensor SensorKind = "other"
)

// Reading is what a sensor shows.
type Reading struct {
	ID    string // stable for the machine; unique within it
	Name  string
	Kind  SensorKind
	Value float64 // in Unit, where Known
	Known bool    // false: the sensor tells a state and no number, or cannot be read now
	Unit  string  // Cel, RPM, %, V, A, W, J or ""
	State Severity
	Text  string // what a sensor without a number says, such as "failure detected"
}

// Health is the state of a machine, as its BMC sees it.
type Health struct {
	At       time.Time
	Power    Power
	Overall  Severity // the worst of the readings, and of what Redfish says of the whole
	Readings []Reading
	Unread   []string // what could not be read and why, for operators
}

// Health reads the power state and the sensors. What the sensors are is remembered, so that the second call is much cheaper than the
// first. An error may stand beside a part of the result.
func (c *Controller) Health(ctx context.Context, t Target) (Health, error) {
	var h Health
	err := c.read(ctx, t, "read sensors", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() (err error) {
			h, err = l.health(ctx)
			return err
		})
	})
	return h, err
}

func (l *link) health(ctx context.Context) (Health, error) {
	h := Health{At: time.Now(), Power: Unknown, Overall: Unclear}
	var err error
	if l.t.Protocol == Redfish {
		err = l.rfReadings(ctx, &h)
	} else if h.Power, err = l.power(ctx); err == nil {
		err = l.rmcpReadings(ctx, &h)
	}
	for _, r := range h.Readings {
		h.Overall = Worse(h.Overall, r.State)
	}
	return h, err
}
