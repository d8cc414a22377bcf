package billing_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/billing"
)

func TestPercentile95Samples(t *testing.T) {
	upTo := func(n int) (v []int64) {
		for i := range n {
			v = append(v, int64(i+1))
		}
		return v
	}
	for name, c := range map[string]struct {
		values []int64
		slots  int
		want   int64
	}{
		"nothing":                       {nil, 0, 0},
		"slots without a value":         {nil, 8640, 0},
		"one":                           {[]int64{7}, 1, 7},
		"a hundred":                     {upTo(100), 100, 95},
		"twenty":                        {upTo(20), 20, 19},
		"twenty-one":                    {upTo(21), 21, 20},
		"a month of 30 days":            {upTo(8640), 8640, 8208},
		"half of it missing":            {upTo(4320), 8640, 4320 - 432},
		"more values than slots":        {upTo(100), 10, 95},
		"a burst in 5 % is free":        {append(make([]int64, 95), 9, 9, 9, 9, 9), 100, 0},
		"a burst in 6 % is not":         {append(make([]int64, 94), 9, 9, 9, 9, 9, 9), 100, 9},
		"missing slots do not raise it": {[]int64{9, 9, 9, 9}, 100, 0},
	} {
		if got := billing.Percentile95(c.values, c.slots); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestPercentile95Properties: what must be true of a percentile, whatever the values.
func TestPercentile95Properties(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		n := 1 + r.IntN(400)
		values := make([]int64, r.IntN(n+1))
		for i := range values {
			values[i] = r.Int64N(1 << r.IntN(40))
		}
		keep := slices.Clone(values)
		got := billing.Percentile95(values, n)
		if !slices.Equal(values, keep) {
			t.Fatal("the values were put in order under the caller's feet")
		}
		// By its definition: at least 95 % of all slots are at or below it, and it is the least such value.
		atMost := func(x int64) int {
			count := n - len(values) // missing ones are zero
			for _, v := range values {
				if v <= x {
					count++
				}
			}
			return count
		}
		if 100*atMost(got) < 95*n {
			t.Fatalf("%d slots, %d values: only %d are at or below %d", n, len(values), atMost(got), got)
		}
		if got > 0 && 100*atMost(got-1) >= 95*n {
			t.Fatalf("%d slots, %d values: %d would have done", n, len(values), got-1)
		}
		// The order does not count; leaving a sample out never makes it dearer; a busier slot never makes it cheaper.
		shuffled := slices.Clone(values)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if billing.Percentile95(shuffled, n) != got {
			t.Fatal("the order counts")
		}
		if len(values) > 0 {
			i := r.IntN(len(values))
			without := slices.Delete(slices.Clone(values), i, i+1)
			if billing.Percentile95(without, n) > got {
				t.Fatal("a sample that is left out makes it dearer")
			}
			busier := slices.Clone(values)
			busier[i] += r.Int64N(1 << 40)
			if billing.Percentile95(busier, n) < got {
				t.Fatal("a busier slot makes it cheaper")
			}
		}
	}
}

func TestRate(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 10_000 {
		bytes, took := r.Int64N(math.MaxInt64>>r.IntN(40)), time.Duration(1+r.Int64N(int64(time.Hour)))
		exact := new(big.Int).Mul(big.NewInt(bytes), big.NewInt(8*int64(time.Second)))
		exact.Quo(exact, big.NewInt(int64(took)))
		want := int64(math.MaxInt64)
		if exact.IsInt64() {
			want = exact.Int64()
		}
		if got := billing.Rate(bytes, took); got != want {
			t.Fatalf("%d bytes in %s: %d, want %s", bytes, took, got, exact)
		}
	}
	for _, c := range []struct {
		bytes int64
		took  time.Duration
		want  int64
	}{{0, time.Minute, 0}, {100, 0, 0}, {100, -time.Second, 0}, {-5, time.Second, 0}, {3_750_000_000, 5 * time.Minute, 100_000_000}} {
		if got := billing.Rate(c.bytes, c.took); got != c.want {
			t.Errorf("%d bytes in %s: %d, want %d", c.bytes, c.took, got, c.want)
		}
	}
}

// TestSlotsAreContiguous: periods that join each other count each slot once, wherever they meet.
func TestSlotsAreContiguous(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 2000 {
		anchor, until, _ := randomTerm(r)
		total := 0
		for n := 0; ; n++ {
			from, to := billing.Period(anchor, 1, n, time.UTC)
			slots := billing.Slots(from, to)
			if slots < 28*288 || slots > 31*288 {
				t.Fatalf("from %s to %s: %d slots", from, to, slots)
			}
			if total += slots; !to.Before(until) {
				break
			}
		}
		if want := billing.Slots(anchor, until); total != want {
			t.Fatalf("from %s until %s: the months have %d slots, the term %d", anchor, until, total, want)
		}
	}
	at := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		from, to time.Duration
		want     int
	}{{0, 0, 0}, {0, 1, 1}, {0, 5 * time.Minute, 1}, {1, 5 * time.Minute, 0}, {1, 5*time.Minute + 1, 1}, {0, 10 * time.Minute, 2}, {time.Minute, -time.Minute, 0}} {
		if got := billing.Slots(at.Add(c.from), at.Add(c.to)); got != c.want {
			t.Errorf("from %s to %s: %d slots, want %d", c.from, c.to, got, c.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	from := time.Date(2026, 11, 1, 0, 2, 0, 0, time.UTC) // hand-over within a slot
	to := from.Add(100 * billing.SampleLength)
	var samples []billing.Sample
	for i := range 120 { // some before, some after
		slot := billing.Slot(from).Add(time.Duration(i-5) * billing.SampleLength)
		samples = append(samples, billing.Sample{Slot: slot, Took: billing.SampleLength, Up: 37_500_000, Down: 3_750_000}) // 1 and 0.1 Mbit/s
	}
	samples[50].Doubt, samples[50].Up = "it covers 9m0s", 1<<40
	samples[60].Up = 375_000_000                                                                            // 10 Mbit/s
	samples = append(samples, samples[60], samples[61])                                                     // twice
	samples = slices.DeleteFunc(samples, func(s billing.Sample) bool { return s.Slot == samples[70].Slot }) // missing
	got := billing.Summarize(samples, from, to)
	if got.Slots != 100 || got.Measured != 98 || got.Doubtful != 1 {
		t.Errorf("%+v", got)
	}
	if got.Up.Bytes != 97*37_500_000+375_000_000 || got.Down.Bytes != 98*3_750_000 || got.Up.Unbilled != 1<<40 {
		t.Errorf("bytes of %+v", got)
	}
	if got.Up.P95 != 1_000_000 || got.Up.Peak != 10_000_000 || got.Down.P95 != 100_000 {
		t.Errorf("rates of %+v", got)
	}
	if got.Billed("up") != 1_000_000 || got.Billed("down") != 100_000 || got.Billed("higher") != 1_000_000 {
		t.Error("billed by the wrong direction")
	}
	if billing.Above(25_000_000, 20) != 5_000_000 || billing.Above(15_000_000, 20) != 0 {
		t.Error("above what was committed")
	}
	// A sample in doubt is never billed, whatever it says.
	for i := range samples {
		samples[i].Doubt = "tampered with"
	}
	if all := billing.Summarize(samples, from, to); all.Up.Bytes+all.Down.Bytes+all.Billed("higher") != 0 || all.Measured != 0 || all.Doubtful != 99 {
		t.Errorf("with nothing to trust: %+v", all)
	}
}

func TestUntimely(t *testing.T) {
	for took, late := range map[time.Duration]bool{5 * time.Minute: false, 4*time.Minute + 1: false, 6 * time.Minute: false, 3 * time.Minute: true, 6*time.Minute + 1: true, 48 * time.Hour: true, 0: true} {
		if got := billing.Untimely(took); (got != "") != late {
			t.Errorf("%s: %q", took, got)
		}
	}
}
