package ipmi

import (
	"cmp"
	"context"
	"strings"
)

// rfSensors bounds the sensors that are read one by one.
const rfSensors = 300

var rfKinds = map[string]SensorKind{"Temperature": Temperature, "Rotational": Fan, "Voltage": Voltage, "Current": Current, "Power": PowerDraw}

// rfReadings reads the sensors of the system's chassis: all at once where the service can write out a collection, by the older Thermal
// and Power where it has them, and one by one otherwise.
func (l *link) rfReadings(ctx context.Context, h *Health) error {
	g := turns{l}
	var system resource
	if err := l.redfish(ctx, func(c *rfConn) (err error) {
		if system, err = c.get(ctx, c.system); err == nil {
			h.Power = c.powerOf(system.body)
		}
		return err
	}); err != nil {
		return err
	}
	h.Overall = Worse(h.Overall, rfHealth(system.body))
	paths := system.body.obj("Links").links("Chassis")
	if len(paths) == 0 {
		var err error
		if paths, err = l.rfOnly(ctx, "Chassis"); err != nil {
			return err
		}
	}
	for _, path := range paths {
		chassis, err := g.get(ctx, path)
		if err == nil {
			err = l.rfChassis(ctx, chassis, h)
		}
		if err != nil {
			if !isAny(err, ErrUnsupported) {
				return err
			}
			h.unread(path, err)
		}
	}
	return nil
}

func (h *Health) unread(what string, err error) { h.Unread = append(h.Unread, unread(what, err)) }

// unread words what could not be read.
func unread(what string, err error) string {
	if err == nil {
		return what
	}
	return what + ": " + err.Error()
}

func (l *link) rfChassis(ctx context.Context, chassis resource, h *Health) error {
	g := turns{l}
	root, err := l.rfRoot(ctx)
	if err != nil {
		return err
	}
	sensors := chassis.body.obj("Sensors").str("@odata.id")
	old := chassis.body.has("Thermal") || chassis.body.has("Power")
	if sensors != "" && (!old || expanded(root, sensors) != sensors) {
		more, err := each(ctx, g, expanded(root, sensors), rfSensors, func(r resource) bool {
			h.sensor(r.path, r.body)
			return true
		})
		if err != nil {
			return err
		}
		if more {
			h.Unread = append(h.Unread, "more sensors than are read one by one")
		}
		return l.rfSupplies(ctx, root, chassis, h)
	}
	if thermal, err := follow(ctx, g, chassis.body, "Thermal"); err == nil {
		for _, o := range thermal.body.objs("Temperatures") {
			h.member(thermal.path, o, Temperature, "ReadingCelsius", "Cel")
		}
		for _, o := range thermal.body.objs("Fans") {
			unit := "RPM"
			if o.str("ReadingUnits") == "Percent" {
				unit = "%"
			}
			h.member(thermal.path, o, Fan, "Reading", unit)
		}
	} else if !isAny(err, ErrUnsupported) {
		return err
	}
	power, err := follow(ctx, g, chassis.body, "Power")
	if err != nil {
		if isAny(err, ErrUnsupported) {
			return nil
		}
		return err
	}
	for _, o := range power.body.objs("Voltages") {
		h.member(power.path, o, Voltage, "ReadingVolts", "V")
	}
	for _, o := range power.body.objs("PowerControl") {
		h.member(power.path, o, PowerDraw, "PowerConsumedWatts", "W")
	}
	for _, o := range power.body.objs("PowerSupplies") {
		h.supply(power.path+"/"+o.text("MemberId"), o)
	}
	return nil
}

func (l *link) rfSupplies(ctx context.Context, root object, chassis resource, h *Health) error {
	subsystem, err := follow(ctx, turns{l}, chassis.body, "PowerSubsystem")
	if err == nil {
		if list := subsystem.body.obj("PowerSupplies").str("@odata.id"); list != "" {
			_, err = each(ctx, turns{l}, expanded(root, list), 16, func(r resource) bool {
				h.supply(r.path, r.body)
				return true
			})
		}
	}
	if isAny(err, ErrUnsupported) {
		return nil
	}
	return err
}

// sensor adds a Sensor resource.
func (h *Health) sensor(path string, o object) {
	r := Reading{ID: path, Name: cmp.Or(o.text("Name"), o.text("Id")), Kind: cmp.Or(rfKinds[o.str("ReadingType")], OtherSensor), Unit: o.str("ReadingUnits")}
	r.Value, r.Known = o.number("Reading")
	if r.Kind == Fan && r.Unit == "{rev}/min" {
		r.Unit = "RPM"
	}
	h.add(r, o)
}

// member adds a member of Thermal or Power.
func (h *Health) member(path string, o object, kind SensorKind, field, unit string) {
	r := Reading{ID: path + "/" + string(kind) + "/" + cmp.Or(o.text("MemberId"), o.text("Name")), Name: cmp.Or(o.text("Name"), o.text("FanName")), Kind: kind, Unit: unit}
	r.Value, r.Known = o.number(field)
	h.add(r, o)
}

// supply adds a power supply.
func (h *Health) supply(id string, o object) {
	h.add(Reading{ID: id, Name: cmp.Or(o.text("Name"), o.text("Id"), o.text("MemberId")), Kind: PowerSupply}, o)
}

func (h *Health) add(r Reading, o object) {
	r.State = rfHealth(o)
	switch state := o.obj("Status").str("State"); {
	case state == "Absent" || state == "UnavailableOffline" || state == "Disabled":
		r.Text, r.Known, r.Value, r.State = "not there", false, 0, Unclear
	case r.State != OK && r.State != Unclear:
		r.Text = strings.ToLower(o.obj("Status").str("Health"))
	}
	h.Readings = append(h.Readings, r)
}

// rfHealth is what a resource says of its health.
func rfHealth(o object) Severity {
	return cmp.Or(rfSeverities[strings.ToLower(o.obj("Status").str("Health"))], Unclear)
}
