package bmctest

import (
	"fmt"

	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/bareyard/bareyard/ipmi"
)

// ipmiKind is how a kind of sensor reads over IPMI: value = raw × m × 10^exp.
type ipmiKind struct {
	sensor types.SensorType
	unit   types.SensorUnitType
	m      int16
	exp    int8
}

var ipmiKinds = map[ipmi.SensorKind]ipmiKind{
	ipmi.Temperature: {types.SensorTypeTemperature, types.SensorUnitType_DegreesC, 1, 0},
	ipmi.Fan:         {types.SensorTypeFan, types.SensorUnitType_RPM, 100, 0},
	ipmi.Voltage:     {types.SensorTypeVoltage, types.SensorUnitType_Volts, 1, -1},
	ipmi.Current:     {types.SensorTypeCurrent, types.SensorUnitType_Amps, 1, -1},
	ipmi.PowerDraw:   {types.SensorTypeOtherUnitsbased, types.SensorUnitType_Watts, 10, 0},
}

const (
	bmcAddress   = 0x20
	entityBoard  = 7
	classByLimit = 0x01 // event/reading type of a sensor with thresholds
	classOwn     = 0x6f // of a sensor with states of its own
)

// sdr is the record of sensor number n.
func sdr(n int, s Sensor) ([]byte, error) {
	header := &types.SDRHeader{RecordID: uint16(n), SDRVersion: 0x51}
	name := []byte(s.Name)
	r := &types.SDR{RecordHeader: header}
	if k, ok := ipmiKinds[s.Kind]; ok {
		header.RecordType = types.SDRRecordTypeFullSensor
		r.Full = &types.SDRFull{GeneratorID: bmcAddress, SensorNumber: types.SensorNumber(n), SensorEntityID: entityBoard, SensorEntityInstance: 1,
			SensorType: k.sensor, SensorEventReadingType: classByLimit, SensorUnit: types.SensorUnit{BaseUnit: k.unit},
			ReadingFactors: types.ReadingFactors{M: k.m, R_Exp: k.exp}, SensorMaxReadingRaw: 255, IDStringTypeLength: types.TypeLength(0xc0 | len(name)), IDStringBytes: name}
	} else {
		header.RecordType = types.SDRRecordTypeCompactSensor
		r.Compact = &types.SDRCompact{GeneratorID: bmcAddress, SensorNumber: types.SensorNumber(n), SensorEntityID: entityBoard, SensorEntityInstance: 1,
			SensorType: types.SensorTypePowerSupply, SensorEventReadingType: classOwn, SensorUnit: types.SensorUnit{AnalogDataFormat: types.SensorAnalogUnitFormat_NotAnalog},
			IDStringTypeLength: types.TypeLength(0xc0 | len(name)), IDStringBytes: name}
	}
	out, err := types.PackSDR(r)
	if err != nil {
		return nil, fmt.Errorf("pack sensor record of %s: %w", s.Name, err)
	}
	return out, nil
}

// raw is what Get Sensor Reading tells of a sensor: its reading and its state bits.
func (s Sensor) raw() (reading, states byte) {
	if k, ok := ipmiKinds[s.Kind]; ok {
		v := s.Value / float64(k.m)
		for range -k.exp {
			v *= 10
		}
		states = map[ipmi.Severity]byte{ipmi.Warning: 1 << 3, ipmi.Critical: 3 << 3}[s.State]
		return byte(min(max(v+0.5, 0), 255)), states
	}
	return 0, map[ipmi.Severity]byte{ipmi.OK: 1, ipmi.Warning: 1 | 1<<2, ipmi.Critical: 1 | 1<<1}[s.State]
}

// sel is the record of an event of a board, whose sensors are numbered from 1.
func (b *Board) sel(id uint16, e ipmi.Event) []byte {
	out := make([]byte, 16)
	out[0], out[1], out[2] = byte(id), byte(id>>8), 0x02
	if !e.At.IsZero() {
		at := uint32(e.At.Unix())
		out[3], out[4], out[5], out[6] = byte(at), byte(at>>8), byte(at>>16), byte(at>>24)
	} else {
		out[3], out[4], out[5], out[6] = 0xff, 0xff, 0xff, 0xff
	}
	out[7], out[9] = bmcAddress, 0x04
	out[10], out[12], out[13] = byte(types.SensorTypePowerSupply), classOwn, 0xf0|1 // failure detected
	for i, s := range b.Sensors() {
		if s.Name != e.Sensor {
			continue
		}
		out[11] = byte(i + 1)
		if k, ok := ipmiKinds[s.Kind]; ok {
			out[10], out[12], out[13] = byte(k.sensor), classByLimit, 0x09 // upper critical going high
			if e.Severity != ipmi.Critical {
				out[13] = 0x07 // upper non-critical going high
			}
		}
	}
	if e.Cleared {
		out[12] |= 0x80
	}
	return out
}
