package bmctest

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/ipmi"
)

func itoa(n int) string { return strconv.Itoa(n) }

var rfReading = map[ipmi.SensorKind]struct{ kind, unit string }{
	ipmi.Temperature: {"Temperature", "Cel"}, ipmi.Fan: {"Rotational", "RPM"}, ipmi.Voltage: {"Voltage", "V"}, ipmi.PowerDraw: {"Power", "W"}, ipmi.Current: {"Current", "A"},
}

func sensorID(name string) string { return strings.ReplaceAll(name, " ", "_") }

func health(s Sensor) doc {
	if s.Absent {
		return doc{"State": "Absent"}
	}
	return doc{"State": "Enabled", "Health": rfSeverity[s.State]}
}

// value is a sensor's value as the service writes it.
func (r *Redfish) value(s Sensor) any {
	switch {
	case s.Absent && r.Faults.Now().OddTypes:
		return "N/A"
	case s.Absent:
		return nil
	case r.Faults.Now().OddTypes:
		return strconv.FormatFloat(s.Value, 'g', -1, 64)
	}
	return s.Value
}

// serveReadings serves sensors: as Sensors and PowerSubsystem, or as the older Thermal and Power.
func (r *Redfish) serveReadings() {
	at := r.p.chassis
	r.mux.HandleFunc("GET "+at+"/Sensors", func(w http.ResponseWriter, req *http.Request) {
		var paths []string
		for _, s := range r.Board.Sensors() {
			if _, ok := rfReading[s.Kind]; ok {
				paths = append(paths, at+"/Sensors/"+sensorID(s.Name))
			}
		}
		r.show(w, req, collection(paths...))
	})
	r.mux.HandleFunc("GET "+at+"/Sensors/{id}", func(w http.ResponseWriter, req *http.Request) {
		for _, s := range r.Board.Sensors() {
			kind, ok := rfReading[s.Kind]
			if !ok || sensorID(s.Name) != req.PathValue("id") {
				continue
			}
			r.show(w, req, doc{"@odata.type": "#Sensor.v1_8_0.Sensor", "Id": sensorID(s.Name), "Name": s.Name, "ReadingType": kind.kind, "ReadingUnits": kind.unit,
				"Reading": r.value(s), "Status": health(s)})
			return
		}
		missing(w)
	})
	r.mux.HandleFunc("GET "+at+"/PowerSubsystem", func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, doc{"@odata.type": "#PowerSubsystem.v1_1_0.PowerSubsystem", "Id": "PowerSubsystem", "Name": "Power", "PowerSupplies": link(at + "/PowerSubsystem/PowerSupplies")})
	})
	r.mux.HandleFunc("GET "+at+"/PowerSubsystem/PowerSupplies", func(w http.ResponseWriter, req *http.Request) {
		var paths []string
		for _, s := range r.Board.Sensors() {
			if s.Kind == ipmi.PowerSupply {
				paths = append(paths, at+"/PowerSubsystem/PowerSupplies/"+sensorID(s.Name))
			}
		}
		r.show(w, req, collection(paths...))
	})
	r.mux.HandleFunc("GET "+at+"/PowerSubsystem/PowerSupplies/{id}", func(w http.ResponseWriter, req *http.Request) {
		for _, s := range r.Board.Sensors() {
			if s.Kind == ipmi.PowerSupply && sensorID(s.Name) == req.PathValue("id") {
				r.show(w, req, doc{"@odata.type": "#PowerSupply.v1_5_0.PowerSupply", "Id": sensorID(s.Name), "Name": s.Name, "Status": health(s)})
				return
			}
		}
		missing(w)
	})
	r.mux.HandleFunc("GET "+at+"/Thermal", func(w http.ResponseWriter, req *http.Request) {
		temps, fans := []doc{}, []doc{}
		for i, s := range r.Board.Sensors() {
			switch s.Kind {
			case ipmi.Temperature:
				temps = append(temps, doc{"MemberId": itoa(i), "Name": s.Name, "ReadingCelsius": r.value(s), "Status": health(s)})
			case ipmi.Fan:
				fans = append(fans, doc{"MemberId": itoa(i), "Name": s.Name, "Reading": r.value(s), "ReadingUnits": "RPM", "Status": health(s)})
			}
		}
		r.show(w, req, doc{"@odata.type": "#Thermal.v1_7_1.Thermal", "Id": "Thermal", "Name": "Thermal", "Temperatures": temps, "Fans": fans})
	})
	r.mux.HandleFunc("GET "+at+"/Power", func(w http.ResponseWriter, req *http.Request) {
		volts, supplies, control := []doc{}, []doc{}, []doc{}
		for i, s := range r.Board.Sensors() {
			switch s.Kind {
			case ipmi.Voltage:
				volts = append(volts, doc{"MemberId": itoa(i), "Name": s.Name, "ReadingVolts": r.value(s), "Status": health(s)})
			case ipmi.PowerSupply:
				supplies = append(supplies, doc{"MemberId": itoa(i), "Name": s.Name, "Status": health(s)})
			case ipmi.PowerDraw:
				control = append(control, doc{"MemberId": itoa(i), "Name": s.Name, "PowerConsumedWatts": r.value(s), "Status": health(s)})
			}
		}
		r.show(w, req, doc{"@odata.type": "#Power.v1_7_1.Power", "Id": "Power", "Name": "Power", "Voltages": volts, "PowerSupplies": supplies, "PowerControl": control})
	})
}
