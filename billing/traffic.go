package billing

import (
	"math/bits"
	"slices"
	"time"
)

// SampleLength is the length of a slot: carriers bill by five-minute averages.
const SampleLength = 5 * time.Minute

// Slot returns the beginning of the slot that a moment lies in. Slots begin at whole five minutes of UTC.
func Slot(t time.Time) time.Time { return t.UTC().Truncate(SampleLength) }

// Slots returns how many slots begin within a time: at or after from, before to. Periods that join each other share none and
// leave none out.
func Slots(from, to time.Time) int {
	first := Slot(from.Add(SampleLength - 1))
	if !first.Before(to) {
		return 0
	}
	return int((to.Sub(first)-1)/SampleLength) + 1
}

// Sample is what an order's machine was delivered in one slot, in bytes.
type Sample struct {
	Slot  time.Time     `json:"slot"`
	Took  time.Duration `json:"-"` // between the two readings of the counters
	Up    int64         `json:"up_bytes"`
	Down  int64         `json:"down_bytes"`
	Doubt string        `json:"doubt,omitempty"` // why it is not billed; "" when it can be trusted
}

// UpRate and DownRate are the averages over the sample, in bit/s, rounded down.
func (s Sample) UpRate() int64 { return Rate(s.Up, s.Took) }

// DownRate is UpRate the other way.
func (s Sample) DownRate() int64 { return Rate(s.Down, s.Took) }

// Readings that lie further from five minutes apart say nothing about five minutes.
const (
	shortestSample = 4 * time.Minute
	longestSample  = 6 * time.Minute
)

// Untimely says why a sample that took so long is not billed, or "".
func Untimely(took time.Duration) string {
	switch {
	case took < shortestSample:
		return "it covers " + took.Round(time.Second).String() + " only"
	case took > longestSample:
		return "it covers " + took.Round(time.Second).String() + ": a reading before it is missing"
	}
	return ""
}

// Rate returns an average in bit/s, rounded down; zero when there is no time.
func Rate(bytes int64, took time.Duration) int64 {
	if took <= 0 || bytes <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(bytes), 8*uint64(time.Second))
	if hi >= uint64(took) { // more than fits: no line is so fast
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, uint64(took))
	return int64(min(q, 1<<63-1))
}

// Percentile95 returns the 95th percentile by nearest rank: of n values in order, the one at rank ⌈0.95 n⌉. Slots for which
// there is no value count as zero, so that what was not measured can lower a bill and never raise it; n is the number of
// slots, or of values if there are more.
func Percentile95(values []int64, slots int) int64 {
	n := max(slots, len(values))
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := (95*n + 99) / 100 // from 1
	at := rank - 1 - (n - len(sorted))
	if at < 0 {
		return 0
	}
	return sorted[at]
}

// Usage sums up the traffic of a time. Only samples that can be trusted are in it; the others are counted, and their bytes
// kept apart.
type Usage struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`       // exclusive
	Slots    int       `json:"slots"`    // that there were
	Measured int       `json:"measured"` // of them, with a sample that can be trusted
	Doubtful int       `json:"doubtful"` // with one that cannot

	Up   Sum `json:"up"`   // from the machine
	Down Sum `json:"down"` // to it
}

// Sum is one direction of a usage.
type Sum struct {
	Bytes    int64 `json:"bytes"`
	P95      int64 `json:"p95_bps"`        // bit/s
	Peak     int64 `json:"peak_bps"`       // bit/s, of the busiest slot
	Unbilled int64 `json:"unbilled_bytes"` // of the samples that cannot be trusted
}

// Summarize sums up the samples of an order whose slots begin within a time. Each slot counts once.
func Summarize(samples []Sample, from, to time.Time) Usage {
	u := Usage{From: from, To: to, Slots: Slots(from, to)}
	var up, down []int64
	seen := make(map[time.Time]bool, len(samples))
	for _, s := range samples {
		slot := s.Slot.UTC()
		if slot.Before(from) || !slot.Before(to) || seen[slot] {
			continue
		}
		seen[slot] = true
		if s.Doubt != "" {
			u.Doubtful++
			u.Up.Unbilled += s.Up
			u.Down.Unbilled += s.Down
			continue
		}
		u.Measured++
		u.Up.Bytes += s.Up
		u.Down.Bytes += s.Down
		up, down = append(up, s.UpRate()), append(down, s.DownRate())
	}
	u.Up.P95, u.Down.P95 = Percentile95(up, u.Slots), Percentile95(down, u.Slots)
	u.Up.Peak, u.Down.Peak = peak(up), peak(down)
	return u
}

func peak(rates []int64) int64 {
	if len(rates) == 0 {
		return 0
	}
	return slices.Max(rates)
}

// Billed is the 95th percentile that a burst is billed by: that of one direction, "up" or "down", or the higher of both. It is
// never their sum.
func (u Usage) Billed(basis string) int64 {
	switch basis {
	case "up":
		return u.Up.P95
	case "down":
		return u.Down.P95
	}
	return max(u.Up.P95, u.Down.P95)
}

// Above is what of a percentile was not committed, in bit/s; committed is in Mbit/s.
func Above(billed int64, committed int) int64 { return max(0, billed-int64(committed)*1_000_000) }
