package agent

import (
	"sync"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// rateWindow is over which time the rate is an average.
const rateWindow = 5 * time.Second

// meter turns a byte count into a progress with a rate.
type meter struct {
	mu      sync.Mutex // guards all below: the step sets, the loop reads
	done    int64
	total   int64
	samples []sample // oldest first, at least rateWindow back if the step is that old
}

type sample struct {
	at   time.Time
	done int64
}

func (m *meter) set(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done, m.total = done, total
	if len(m.samples) == 0 {
		m.samples = append(m.samples, sample{time.Now(), done})
	}
}

// read returns the progress and takes a sample: call it once a beat.
func (m *meter) read() machine.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := machine.Progress{Done: m.done, Total: m.total}
	if len(m.samples) == 0 {
		return p
	}
	now := time.Now()
	m.samples = append(m.samples, sample{now, m.done})
	for len(m.samples) > 2 && now.Sub(m.samples[1].at) >= rateWindow {
		m.samples = m.samples[1:]
	}
	first := m.samples[0]
	// A phase that starts over (zeroing, then reading back) counts from the start again.
	if d := now.Sub(first.at); d > 0 && m.done >= first.done {
		p.Rate = int64(float64(m.done-first.done) / d.Seconds())
	} else if m.done < first.done {
		m.samples = m.samples[len(m.samples)-1:]
	}
	return p
}
