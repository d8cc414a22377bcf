package bmctest

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bareyard/bareyard/ipmi"
)

// Board is what a BMC watches over: sensors, an event log, firmware and its settings. The BMCs of both protocols can show the
// same board. Its methods are safe for concurrent use.
type Board struct {
	mu       sync.Mutex
	sensors  []Sensor
	events   []ipmi.Event
	serial   int
	erased   time.Time
	added    time.Time
	capacity int
	firmware []ipmi.Firmware
	bios     map[string]any
	lan      ipmi.LAN
	shut     bool
}

// Sensor is a sensor of a board. Value is in °C, RPM, V, A or W, by its kind; a power supply and others have none.
type Sensor struct {
	Name   string
	Kind   ipmi.SensorKind
	Value  float64
	State  ipmi.Severity
	Absent bool // there, and cannot be read now
}

// NewBoard returns a healthy board.
func NewBoard() *Board {
	return &Board{
		capacity: 500,
		sensors: []Sensor{
			{Name: "CPU1 Temp", Kind: ipmi.Temperature, Value: 45, State: ipmi.OK}, {Name: "Inlet Temp", Kind: ipmi.Temperature, Value: 22, State: ipmi.OK},
			{Name: "FAN1", Kind: ipmi.Fan, Value: 5400, State: ipmi.OK}, {Name: "FAN2", Kind: ipmi.Fan, Value: 5500, State: ipmi.OK},
			{Name: "P12V", Kind: ipmi.Voltage, Value: 12.1, State: ipmi.OK}, {Name: "PSU1 Input", Kind: ipmi.PowerDraw, Value: 360, State: ipmi.OK},
			{Name: "PSU1", Kind: ipmi.PowerSupply, State: ipmi.OK}, {Name: "PSU2", Kind: ipmi.PowerSupply, State: ipmi.OK},
		},
		firmware: []ipmi.Firmware{{ID: "BIOS", Name: "BIOS", Version: "2.7"}, {ID: "BMC", Name: "BMC", Version: "1.11"}},
		bios:     map[string]any{"BootMode": "Uefi", "SriovEnable": "Enabled", "NumaNodesPerSocket": int64(1), "ProcTurboMode": true, "SystemPassword": nil},
		lan:      ipmi.LAN{MAC: "02:00:00:00:06:23", Source: "static"},
	}
}

// Sensors lists the sensors.
func (b *Board) Sensors() []Sensor {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sensors)
}

// Set changes a sensor, or adds it.
func (b *Board) Set(s Sensor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.sensors {
		if b.sensors[i].Name == s.Name {
			b.sensors[i] = s
			return
		}
	}
	b.sensors = append(b.sensors, s)
}

// Log adds an event, with the next ID. When the log is full the oldest goes.
func (b *Board) Log(e ipmi.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	e.ID = strconv.Itoa(b.serial)
	b.events = append(b.events, e)
	b.added = time.Now()
	if len(b.events) > b.capacity {
		b.events = b.events[1:]
	}
}

// Events lists the event log, oldest first.
func (b *Board) Events() []ipmi.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.events)
}

// Clear empties the event log. The IDs begin anew.
func (b *Board) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events, b.serial, b.erased = nil, 0, time.Now()
}

// Capacity bounds the event log.
func (b *Board) Capacity(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.capacity = n
}

// Firmware lists the firmware.
func (b *Board) Firmware() []ipmi.Firmware {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.firmware)
}

// Flash changes the version of a piece of firmware, or adds it.
func (b *Board) Flash(f ipmi.Firmware) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.firmware {
		if b.firmware[i].ID == f.ID {
			b.firmware[i] = f
			return
		}
	}
	b.firmware = append(b.firmware, f)
}

func (b *Board) version(id string) string {
	for _, f := range b.Firmware() {
		if f.ID == id {
			return f.Version
		}
	}
	return ""
}

// BIOS is the firmware settings that hold now.
func (b *Board) BIOS() map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.bios)
}

// SetBIOS changes a firmware setting, as a hand at the keyboard would.
func (b *Board) SetBIOS(name string, value any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bios[name] = value
}

// LAN is the BMC's network.
func (b *Board) LAN() ipmi.LAN {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lan
}

// SetLAN changes what the BMC says of its network; it moves nowhere.
func (b *Board) SetLAN(l ipmi.LAN) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lan = l
}

// HostAccess reports whether the host's own system may change its BMC.
func (b *Board) HostAccess() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.shut
}

// SetHostAccess lets the host's own system change its BMC, or not.
func (b *Board) SetHostAccess(open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut = !open
}
