package accelerator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// Tests that put a load on cards.
const (
	TestBurn    = "mma-bf16"       // matrix multiplication out of registers: rate, power, and results that must be equal everywhere
	TestPattern = "memory-pattern" // patterns written to all the memory that is free, and read back
	TestRead    = "memory-read"    // bandwidth of the card's memory
	TestToCard  = "host-to-device" // from pinned host memory
	TestToHost  = "device-to-host"
	TestPeer    = "peer"       // from one card to another, for each pair both ways
	TestReduce  = "all-reduce" // bus bandwidth over all cards
)

// Load is the result of one test on one card, or on a pair.
type Load struct {
	Test    string `json:"test"`
	Tool    string `json:"tool"` // bareyard-burn, nvbandwidth, nccl-tests, ascend-dmi
	Version string `json:"version"`
	Slot    string `json:"slot"`           // "" for a test of all cards together
	Peer    string `json:"peer,omitempty"` // the card that the data goes to
	Direct  bool   `json:"direct,omitempty"`

	Seconds float64        `json:"seconds"` // for how long
	Fault   *Fault         `json:"fault,omitempty"`
	Rate    Value[float64] `json:"rate"`             // TFLOPS, GB/s
	Errors  int64          `json:"errors"`           // results that were wrong
	Bytes   int64          `json:"bytes,omitempty"`  // of memory that was tested
	Result  string         `json:"result,omitempty"` // what was computed, equal on every card for one tool and version
	Detail  string         `json:"detail,omitempty"` // the first wrong result: where, expected, got
}

// Reading is a measured value that may be missing; JSON has null for it.
type Reading float64

// Missing is the reading that there is none.
func Missing() Reading { return Reading(math.NaN()) }

// Known reports whether there is a value.
func (r Reading) Known() bool { return !math.IsNaN(float64(r)) && !math.IsInf(float64(r), 0) }

// MarshalJSON writes null for a missing value and three decimals at most.
func (r Reading) MarshalJSON() ([]byte, error) {
	if !r.Known() {
		return []byte("null"), nil
	}
	return json.Marshal(math.Round(float64(r)*1000) / 1000)
}

// UnmarshalJSON reads a number or null.
func (r *Reading) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*r = Missing()
		return nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("read measured value: %w", err)
	}
	*r = Reading(f)
	return nil
}

// Sample is a card at one moment of a load.
type Sample struct {
	At          time.Duration `json:"at"` // since the load began
	Temperature Reading       `json:"temperature"`
	Margin      Reading       `json:"margin"` // to the temperature at which it throttles, where the card says that instead
	Power       Reading       `json:"power"`
	Clock       Reading       `json:"clock"` // MHz, of the cores
	Rate        Reading       `json:"rate"`  // of the test under way
	Busy        Reading       `json:"busy"`  // per cent
	Gen         Reading       `json:"gen"`   // PCIe link of the card
	Width       Reading       `json:"width"`
	PortGen     Reading       `json:"port_gen"` // and of the port that it is plugged into
	PortWidth   Reading       `json:"port_width"`
	Reasons     []Throttle    `json:"reasons,omitempty"`
}

// Throttle is a reason for which a card holds its clocks back.
type Throttle string

// Reasons. The rest of what drivers report (idle, application clocks, display) is no fault and not kept.
const (
	ThrottleHardware Throttle = "hardware slowdown"
	ThrottleHeat     Throttle = "hardware thermal slowdown"
	ThrottleBrake    Throttle = "power brake"
	ThrottleSoftHeat Throttle = "software thermal slowdown"
	ThrottlePower    Throttle = "power cap" // a full load does that: recorded, not judged
)

// Series is a card during a load: every sample counts for the extremes and the reasons, a few hundred are kept for the picture.
type Series struct {
	Slot    string `json:"slot"`
	Samples int64  `json:"samples"`
	Fault   *Fault `json:"fault,omitempty"` // why the watch ended early

	Seconds     []Reading `json:"seconds"` // columns of equal length, for the plots
	Temperature []Reading `json:"temperature"`
	Power       []Reading `json:"power"`
	Clock       []Reading `json:"clock"`
	Rate        []Reading `json:"rate"`

	Hottest   Reading              `json:"hottest"`
	Margin    Reading              `json:"least_margin"`
	MeanPower Reading              `json:"mean_power"` // of the samples under load
	MeanClock Reading              `json:"mean_clock"`
	Loaded    int64                `json:"loaded"` // samples under load: the card busy, or its link at work
	Gen       Spread               `json:"gen"`    // of the link, under load
	Width     Spread               `json:"width"`
	PortGen   Spread               `json:"port_gen"`
	PortWidth Spread               `json:"port_width"`
	Throttled map[Throttle]float64 `json:"throttled,omitempty"` // seconds
}

// Spread is how a value varied; Samples is 0 when it was never read.
type Spread struct {
	Least   float64 `json:"least"`
	Most    float64 `json:"most"`
	Median  float64 `json:"median"`
	Samples int64   `json:"samples"`
}

// keptPoints is how many points of a series are kept for the plots.
const keptPoints = 300

// Watcher gathers a card's samples into a Series. The zero value with a slot is ready.
type Watcher struct {
	series  Series
	points  []Sample
	every   int // of so many samples one point is kept
	last    time.Duration
	columns map[string]map[float64]int64 // of the link: how often each value was seen
	power   mean
	clock   mean
}

type mean struct {
	sum float64
	n   int64
}

func (m *mean) add(r Reading) {
	if r.Known() {
		m.sum += float64(r)
		m.n++
	}
}

func (m mean) reading() Reading {
	if m.n == 0 {
		return Missing()
	}
	return Reading(m.sum / float64(m.n))
}

// NewWatcher returns a watcher of the card in a slot.
func NewWatcher(slot string) *Watcher {
	return &Watcher{series: Series{Slot: slot, Hottest: Missing(), Margin: Missing()}, every: 1, columns: map[string]map[float64]int64{}}
}

// longestGap bounds the time that one sample answers for: between two that lie further apart nothing is known.
const longestGap = 5 * time.Second

// Add adds a sample; they come in the order of time.
func (w *Watcher) Add(s Sample) {
	gap := min(s.At-w.last, longestGap)
	if w.series.Samples == 0 || gap < 0 {
		gap = 0
	}
	w.last = s.At
	w.series.Samples++
	if s.Temperature.Known() && (!w.series.Hottest.Known() || s.Temperature > w.series.Hottest) {
		w.series.Hottest = s.Temperature
	}
	if s.Margin.Known() && (!w.series.Margin.Known() || s.Margin < w.series.Margin) {
		w.series.Margin = s.Margin
	}
	for _, r := range s.Reasons {
		if w.series.Throttled == nil {
			w.series.Throttled = map[Throttle]float64{}
		}
		w.series.Throttled[r] += gap.Seconds()
	}
	// A card at rest trains its link down and its clocks too: only what it does at work is judged.
	if s.Busy.Known() && s.Busy >= 50 || s.Rate.Known() && s.Rate > 0 {
		w.series.Loaded++
		w.power.add(s.Power)
		w.clock.add(s.Clock)
		w.count("gen", s.Gen)
		w.count("width", s.Width)
		w.count("port gen", s.PortGen)
		w.count("port width", s.PortWidth)
	}
	if (w.series.Samples-1)%int64(w.every) != 0 {
		return
	}
	if w.points = append(w.points, s); len(w.points) > 2*keptPoints { // keep every second one from here on
		for i := range keptPoints {
			w.points[i] = w.points[2*i]
		}
		w.points = w.points[:keptPoints]
		w.every *= 2
	}
}

func (w *Watcher) count(column string, r Reading) {
	if !r.Known() {
		return
	}
	if w.columns[column] == nil {
		w.columns[column] = map[float64]int64{}
	}
	if len(w.columns[column]) < 64 {
		w.columns[column][float64(r)]++
	}
}

// Series returns what was gathered.
func (w *Watcher) Series() Series {
	s := w.series
	points := w.points
	for len(points) > keptPoints {
		half := make([]Sample, 0, len(points)/2+1)
		for i := 0; i < len(points); i += 2 {
			half = append(half, points[i])
		}
		points = half
	}
	for _, p := range points {
		s.Seconds = append(s.Seconds, Reading(p.At.Seconds()))
		s.Temperature = append(s.Temperature, p.Temperature)
		s.Power = append(s.Power, p.Power)
		s.Clock = append(s.Clock, p.Clock)
		s.Rate = append(s.Rate, p.Rate)
	}
	s.MeanPower, s.MeanClock = w.power.reading(), w.clock.reading()
	s.Gen, s.Width = spread(w.columns["gen"]), spread(w.columns["width"])
	s.PortGen, s.PortWidth = spread(w.columns["port gen"]), spread(w.columns["port width"])
	return s
}

func spread(seen map[float64]int64) Spread {
	var s Spread
	values := make([]float64, 0, len(seen))
	for v, n := range seen {
		values = append(values, v)
		s.Samples += n
	}
	if s.Samples == 0 {
		return s
	}
	slices.Sort(values)
	s.Least, s.Most = values[0], values[len(values)-1]
	passed := int64(0)
	for _, v := range values {
		if passed += seen[v]; 2*passed >= s.Samples {
			s.Median = v
			break
		}
	}
	return s
}

// Snapshot is cards and log before a load, so that what the load did can be told from what was there.
type Snapshot struct {
	Taken  time.Time `json:"taken"`
	PCI    Bus       `json:"pci"`
	Driver []Driver  `json:"drivers"`
	Log    KernelLog `json:"log"`
	Host   Host      `json:"host"`
}

// Diagnosis is what a vendor's own tool found: dcgmi, ascend-dmi.
type Diagnosis struct {
	Tool    string     `json:"tool"`
	Version string     `json:"version,omitempty"`
	Fault   *Fault     `json:"fault,omitempty"` // FaultAbsent: the tool is not installed
	Tests   []ToolTest `json:"tests"`
}

// ToolTest is one test of a vendor's tool. A skip of such a tool is incomplete, never a pass.
type ToolTest struct {
	Name    string  `json:"name"`
	Card    string  `json:"card,omitempty"` // slot or index, "" for all
	Outcome Outcome `json:"outcome"`
	Detail  string  `json:"detail,omitempty"`
}

// BMC is what the machine's BMC says. The validator in the machine does not ask it: whoever may, puts it in.
type BMC struct {
	Taken    time.Time  `json:"taken"`
	Error    string     `json:"error,omitempty"` // why it could not be asked
	Supplies []Supply   `json:"supplies"`
	Fans     []Fan      `json:"fans"`
	Events   []SELEvent `json:"events"`              // of its log
	LogError string     `json:"log_error,omitempty"` // why its log alone could not be read
	Full     bool       `json:"full"`                // the log takes no more: what is new may be missing
	Firmware []Firmware `json:"firmware,omitempty"`
}

// Supply is a power supply.
type Supply struct {
	Name    string       `json:"name"`
	Present bool         `json:"present"`
	Healthy Value[bool]  `json:"healthy"`
	Input   Value[bool]  `json:"input"` // mains are there
	Watts   Value[int64] `json:"watts"`
}

// Fan is a fan.
type Fan struct {
	Name    string       `json:"name"`
	Present bool         `json:"present"`
	Healthy Value[bool]  `json:"healthy"`
	RPM     Value[int64] `json:"rpm"`
}

// SELEvent is an entry of the BMC's log.
type SELEvent struct {
	At       time.Time `json:"at"`
	Sensor   string    `json:"sensor"`
	Text     string    `json:"text"`
	Severity string    `json:"severity"` // ok, warning, critical; "" unknown
	Asserted bool      `json:"asserted"` // false: the condition went away
}
