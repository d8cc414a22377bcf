package ipmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/bougou/go-ipmi/pkg/command/sensor"
	"github.com/bougou/go-ipmi/pkg/command/storage"
	"github.com/bougou/go-ipmi/pkg/types"
)

const (
	sdrLimit  = 2000 // records that are read at most
	sdrHeader = 5
	sdrChunk  = 16
	bmcOwner  = 0x20 // the generator of the BMC's own sensors, at LUN 0
	nonLinear = 0x70
)

// sensors is what a BMC's sensor records say. They are read once, and again when the BMC says that they changed.
type sensors struct {
	added, erased time.Time
	records       uint16
	list          []rmcpSensor
	foreign       int // sensors of other controllers, which are not read
}

// rmcpSensor is a sensor of the BMC's own.
type rmcpSensor struct {
	number types.SensorNumber
	name   string
	kind   SensorKind
	unit   string
	sort   types.SensorType
	event  types.EventReadingType
	linear *conversion // nil where it has no number
}

// conversion makes a number of a reading.
type conversion struct {
	format   types.SensorAnalogUnitFormat
	factors  types.ReadingFactors
	function types.LinearizationFunc
}

var sdrKinds = map[types.SensorType]SensorKind{
	types.SensorTypeTemperature: Temperature, types.SensorTypeFan: Fan, types.SensorTypeVoltage: Voltage, types.SensorTypeCurrent: Current, types.SensorTypePowerSupply: PowerSupply,
}

var sdrUnits = map[types.SensorUnitType]struct {
	unit string
	kind SensorKind
}{
	types.SensorUnitType_DegreesC: {"Cel", Temperature}, types.SensorUnitType_RPM: {"RPM", Fan}, types.SensorUnitType_Volts: {"V", Voltage},
	types.SensorUnitType_Amps: {"A", Current}, types.SensorUnitType_Watts: {"W", PowerDraw}, types.SensorUnitType_Joules: {"J", OtherSensor},
}

// sensorName is the name of a sensor in an event, as far as the records were read.
func (l *link) sensorName(g types.GeneratorID, n types.SensorNumber) string {
	if known := l.b.sensors.Load(); known != nil && g&0xff == bmcOwner {
		for _, s := range known.list {
			if s.number == n {
				return s.name
			}
		}
	}
	return fmt.Sprintf("sensor %02x", uint8(n))
}

// rmcpSensors returns the sensors, from memory where the BMC's records did not change.
func (l *link) rmcpSensors(ctx context.Context) (*sensors, error) {
	var info *storage.GetSDRRepoInfoResponse
	if err := l.ipmi(ctx, func(r *rmcpConn) (err error) {
		info, err = ask(ctx, r, r.c.GetSDRRepoInfo)
		return err
	}); err != nil {
		return nil, err
	}
	if known := l.b.sensors.Load(); known != nil && known.added.Equal(info.MostRecentAdditionTime) && known.erased.Equal(info.MostRecentEraseTime) && known.records == info.RecordCount {
		return known, nil
	}
	out := &sensors{added: info.MostRecentAdditionTime, erased: info.MostRecentEraseTime, records: info.RecordCount}
	next := uint16(0)
	for n := 0; n < min(int(info.RecordCount), sdrLimit); n++ {
		var record []byte
		var after uint16
		err := l.ipmi(ctx, func(r *rmcpConn) (err error) {
			record, after, err = r.sdr(ctx, next)
			return err
		})
		if err != nil {
			return nil, err
		}
		if s, own := parseSDR(record); s != nil && own {
			out.list = append(out.list, *s)
		} else if s != nil {
			out.foreign++
		}
		if after == 0xffff || after == next {
			break
		}
		next = after
	}
	l.b.sensors.Store(out)
	return out, nil
}

// sdr reads one record, whole or, where the BMC cannot, in pieces.
func (r *rmcpConn) sdr(ctx context.Context, id uint16) (record []byte, next uint16, err error) {
	get := func(reservation uint16, offset, n int) (*storage.GetSDRResponse, error) {
		return ask(ctx, r, func(ctx context.Context) (*storage.GetSDRResponse, error) {
			res := &storage.GetSDRResponse{}
			return res, r.c.Exchange(ctx, &storage.GetSDRRequest{ReservationID: reservation, RecordID: id, ReadOffset: uint8(offset), ReadBytes: uint8(n)}, res)
		})
	}
	res, err := get(0, 0, 0xff)
	if err == nil {
		return res.RecordData, res.NextRecordID, nil
	}
	switch code(err) {
	case types.CodeCannotReturnRequestedDataBytes, types.CodeRequestDataLengthLimitExceeded, types.CodeUnspecifiedError, types.CodeParameterOutOfRange:
	default:
		return nil, 0, err
	}
	for try := 0; try < 3; try++ { // the reservation is lost when somebody else takes one
		reserved, err := ask(ctx, r, r.c.ReserveSDRRepo)
		if err != nil {
			return nil, 0, err
		}
		if res, err = get(reserved.ReservationID, 0, sdrHeader); err != nil {
			return nil, 0, err
		}
		next, record = res.NextRecordID, res.RecordData
		if len(record) < sdrHeader {
			return nil, 0, failf(ErrUnsupported, "a sensor record of %d bytes", len(record))
		}
		record = record[:sdrHeader]
		length := sdrHeader + int(record[sdrHeader-1])
		for len(record) < length && err == nil {
			if res, err = get(reserved.ReservationID, len(record), min(sdrChunk, length-len(record))); err == nil {
				if len(res.RecordData) == 0 {
					return nil, 0, failf(ErrUnsupported, "a sensor record that ends early")
				}
				record = append(record, res.RecordData...)
			}
		}
		switch {
		case err == nil:
			return record, next, nil
		case code(err) != types.CodeReservationCanceled:
			return nil, 0, err
		}
	}
	return nil, 0, failf(ErrBusy, "the reservation of the sensor records was lost again and again")
}

// parseSDR reads a sensor record: nil where it is none. own is whether the BMC itself reads that sensor.
func parseSDR(record []byte) (s *rmcpSensor, own bool) {
	defer func() {
		if recover() != nil { // in go-ipmi's decoder: a record that cannot be read is none
			s, own = nil, false
		}
	}()
	sdr, err := types.ParseSDR(record, 0)
	if err != nil {
		return nil, false
	}
	var owner types.GeneratorID
	var unit types.SensorUnit
	switch {
	case sdr.Full != nil:
		f := sdr.Full
		owner, unit = f.GeneratorID, f.SensorUnit
		s = &rmcpSensor{number: f.SensorNumber, sort: f.SensorType, event: f.SensorEventReadingType}
		if sdr.HasAnalogReading() {
			s.linear = &conversion{f.SensorUnit.AnalogDataFormat, f.ReadingFactors, f.LinearizationFunc}
		}
	case sdr.Compact != nil:
		c := sdr.Compact
		owner, unit = c.GeneratorID, c.SensorUnit
		s = &rmcpSensor{number: c.SensorNumber, sort: c.SensorType, event: c.SensorEventReadingType}
	default:
		return nil, false
	}
	s.name = strings.TrimSpace(clean(sdr.SensorName()))
	if s.name == "" {
		s.name = fmt.Sprintf("sensor %02x", uint8(s.number))
	}
	s.kind = cmp.Or(sdrKinds[s.sort], OtherSensor)
	if s.linear != nil {
		u := sdrUnits[unit.BaseUnit]
		if s.unit = u.unit; unit.Percentage {
			s.unit = "%"
		}
		if u.kind != "" && s.kind != Fan {
			s.kind = u.kind
		}
	}
	return s, owner == bmcOwner
}

// rmcpReadings reads each sensor, one at a time, so that others can speak to the BMC in between.
func (l *link) rmcpReadings(ctx context.Context, h *Health) error {
	known, err := l.rmcpSensors(ctx)
	if err != nil {
		return err
	}
	if known.foreign > 0 {
		h.Unread = append(h.Unread, fmt.Sprintf("%d sensors of other controllers than the BMC", known.foreign))
	}
	for _, s := range known.list {
		var res *sensor.GetSensorReadingResponse
		err := l.ipmi(ctx, func(r *rmcpConn) (err error) {
			res, err = ask(ctx, r, func(ctx context.Context) (*sensor.GetSensorReadingResponse, error) {
				return r.c.GetSensorReading(ctx, uint8(s.number))
			})
			return err
		})
		if err != nil && !errors.Is(err, ErrUnsupported) {
			return err
		}
		if err != nil { // listed and not there
			res = &sensor.GetSensorReadingResponse{ReadingUnavailable: true}
		}
		h.Readings = append(h.Readings, s.reading(res))
	}
	return nil
}

var rmcpThresholds = map[types.SensorThresholdStatus]Severity{
	types.SensorThresholdStatus_OK: OK, types.SensorThresholdStatus_UNC: Warning, types.SensorThresholdStatus_LNC: Warning, types.SensorThresholdStatus_UCR: Critical,
	types.SensorThresholdStatus_LCR: Critical, types.SensorThresholdStatus_UNR: Critical, types.SensorThresholdStatus_LNR: Critical,
}

func (s rmcpSensor) reading(res *sensor.GetSensorReadingResponse) Reading {
	r := Reading{ID: fmt.Sprintf("%02x", uint8(s.number)), Name: s.name, Kind: s.kind, Unit: s.unit, State: Unclear}
	switch {
	case res.ReadingUnavailable || res.SensorScanningDisabled:
		r.Text = "not there"
		return r
	case s.linear != nil && uint8(s.linear.function) >= nonLinear:
		r.Text = "not linear"
		return r
	case s.linear != nil:
		r.Value = types.ConvertReading(res.Reading, s.linear.format, s.linear.factors, s.linear.function)
		r.Known = !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0)
		if !r.Known {
			r.Value = 0
		}
	}
	if s.event.IsThreshold() {
		r.State = cmp.Or(rmcpThresholds[res.ThresholdStatus()], Unclear)
		return r
	}
	r.State, r.Text = s.states(res.ActiveStates.TrueEvents())
	return r
}

// states is what the states of a sensor without a number come to. A power supply that is not there has none at all.
func (s rmcpSensor) states(active []uint8) (worst Severity, text string) {
	worst = OK
	var texts []string
	for _, n := range active {
		data := types.EventData{EventData1: n}
		if t := s.event.EventString(s.sort, data); t != "" {
			texts = append(texts, t)
		}
		worst = Worse(worst, cmp.Or(selSeverity[s.event.EventSeverity(s.sort, data, types.EventDir(false))], OK))
	}
	if s.sort == types.SensorTypePowerSupply && s.event == 0x6f && !slices.Contains(active, 0) {
		return Unclear, "not there"
	}
	return worst, strings.Join(texts, ", ")
}
