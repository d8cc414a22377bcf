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

// Health reads the sensors. What the sensors are is remembered, so that the second call is much cheaper than the first.
func (c *Controller) Health(ctx context.Context, t Target) (Health, error) {
	return Health{}, t.on("read sensors", failf(ErrUnsupported, "not yet"))
}
