package billing_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bareyard/bareyard/billing"
)

// randomTerm is a term of some months somewhere in the next years, and a moment within it.
func randomTerm(r *rand.Rand) (anchor, until, at time.Time) {
	anchor = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(r.Int64N(int64(4*365*24*time.Hour/time.Microsecond))) * time.Microsecond)
	_, until = billing.Period(anchor, 1+r.IntN(36), 0, time.UTC)
	at = anchor.Add(time.Duration(r.Int64N(int64(until.Sub(anchor)/time.Microsecond))) * time.Microsecond)
	return anchor, until, at
}

// TestRemainingAddsUp: the month under way holds the moment, and what is left of it and the whole months after it end just
// where the term ends.
func TestRemainingAddsUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		anchor, until, at := randomTerm(r)
		got := billing.Remaining(anchor, until, at, time.UTC)
		if at.Before(got.From) || !at.Before(got.To) || got.Left <= 0 || got.Left > got.Of {
			t.Fatalf("anchor %s, at %s: %+v", anchor, at, got)
		}
		if at.Add(time.Duration(got.Left)*time.Microsecond) != got.To || got.From.Add(time.Duration(got.Of)*time.Microsecond) != got.To {
			t.Fatalf("anchor %s, at %s: the parts do not fit: %+v", anchor, at, got)
		}
		n := 0
		for from, _ := billing.Period(anchor, 1, n, time.UTC); !from.Equal(got.From); from, _ = billing.Period(anchor, 1, n, time.UTC) {
			if n++; n > 40 {
				t.Fatalf("anchor %s: %s begins no period", anchor, got.From)
			}
		}
		if _, end := billing.Period(anchor, 1, n+got.Months, time.UTC); !end.Equal(until) {
			t.Fatalf("anchor %s until %s at %s: %d whole months after %s end at %s", anchor, until, at, got.Months, got.To, end)
		}
	}
}

func TestRemainingAtTheEdges(t *testing.T) {
	anchor := time.Date(2025, 1, 31, 12, 0, 0, 0, time.UTC)
	_, until := billing.Period(anchor, 3, 0, time.UTC) // 30 April
	for name, c := range map[string]struct {
		at     time.Time
		left   time.Duration
		months int
	}{
		"at hand-over":    {anchor, 28 * 24 * time.Hour, 2},
		"before it":       {anchor.Add(-time.Hour), 28 * 24 * time.Hour, 2},
		"second month":    {time.Date(2025, 2, 28, 12, 0, 0, 0, time.UTC), 31 * 24 * time.Hour, 1},
		"last instant":    {until.Add(-time.Microsecond), time.Microsecond, 0},
		"at the end":      {until, 0, 0},
		"after the end":   {until.Add(time.Hour), 0, 0},
		"an hour earlier": {time.Date(2025, 2, 28, 11, 0, 0, 0, time.UTC), time.Hour, 2},
	} {
		got := billing.Remaining(anchor, until, c.at, time.UTC)
		if time.Duration(got.Left)*time.Microsecond != c.left || got.Months != c.months {
			t.Errorf("%s: %+v, want %s and %d months", name, got, c.left, c.months)
		}
	}
	if got := billing.Remaining(time.Time{}, time.Time{}, anchor, time.UTC); got != (billing.Rest{}) {
		t.Errorf("an order that was never handed over has %+v left", got)
	}
}

// TestDifference holds the charge of an upgrade against exact fractions, and against what must be true of any charge.
func TestDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		anchor, until, at := randomTerm(r)
		rest := billing.Remaining(anchor, until, at, time.UTC)
		low, high := r.Int64N(1<<40), int64(0)
		high = low + r.Int64N(1<<40)
		got := billing.Difference(low, high, rest)

		exact := new(big.Int).Mul(big.NewInt(high-low), big.NewInt(int64(rest.Left)))
		exact.Quo(exact, big.NewInt(int64(rest.Of)))
		exact.Add(exact, new(big.Int).Mul(big.NewInt(high-low), big.NewInt(int64(rest.Months))))
		if exact.Int64() != got {
			t.Fatalf("from %d to %d for %+v: %d, exactly %s", low, high, rest, got, exact)
		}
		if got < 0 || got > (high-low)*int64(rest.Months+1) {
			t.Fatalf("from %d to %d for %+v: %d is out of bounds", low, high, rest, got)
		}
		if back := billing.Difference(high, low, rest); back != -got {
			t.Fatalf("from %d to %d costs %d, back %d", low, high, got, back)
		}
		// In two steps at one moment it costs the same, but for one unit that rounding towards zero may leave with the customer.
		mid := low + (high-low)/2
		if steps := billing.Difference(low, mid, rest) + billing.Difference(mid, high, rest); steps > got || steps < got-1 {
			t.Fatalf("from %d over %d to %d for %+v: %d in steps, %d at once", low, mid, high, rest, steps, got)
		}
		// Later is never dearer.
		later := billing.Remaining(anchor, until, at.Add(time.Hour), time.UTC)
		if billing.Difference(low, high, later) > got {
			t.Fatalf("from %d to %d: dearer an hour later", low, high)
		}
	}
	month := billing.Rest{Left: 30 * 86400e6, Of: 30 * 86400e6}
	if got := billing.Difference(0, math.MaxInt64, month); got != math.MaxInt64 {
		t.Errorf("a whole month of the largest price is %d", got)
	}
	if got := billing.Difference(math.MaxInt64, 0, month); got != -math.MaxInt64 {
		t.Errorf("a whole month less is %d", got)
	}
	if got := billing.Difference(1, 2, billing.Rest{}); got != 0 {
		t.Errorf("nothing is left, yet it costs %d", got)
	}
}
