package main

import (
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/billing"
)

// TestPlotTraffic: what is not zero is seen, the highest reaches the top, and what was not measured is not drawn as idle.
func TestPlotTraffic(t *testing.T) {
	from := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	x := api.Traffic{Step: "5m", Usage: billing.Usage{From: from, To: from.Add(72 * 5 * time.Minute)}}
	for i := range 72 {
		p := api.TrafficPoint{At: from.Add(time.Duration(i) * 5 * time.Minute), UpBps: int64(i) * 1_000_000, DownBps: 1}
		switch {
		case i == 30:
			p.Doubt, p.UpBps = "late", 1<<40
		case i > 40 && i < 50:
			continue
		case i == 71:
			p.UpBps = 1_000_000_000
		}
		x.Points = append(x.Points, p)
	}
	var b strings.Builder
	plotTraffic(&b, x)
	lines := strings.Split(b.String(), "\n")
	if lines[1] != "up, at most 1 Gbit/s" || !strings.HasSuffix(lines[2], " █") {
		t.Errorf("the top is\n%s", b.String())
	}
	bottom := []rune(lines[9])
	if len(bottom) != 72 || bottom[0] != ' ' || bottom[1] != '▁' || bottom[30] != '·' || bottom[45] != '·' || bottom[71] != '█' {
		t.Errorf("the bottom is %q", string(bottom))
	}
	if lines[11] != "down, at most 1 bit/s" || !strings.Contains(b.String(), "2026-11-03 00:00") {
		t.Errorf("the rest is\n%s", b.String())
	}
	b.Reset()
	plotTraffic(&b, api.Traffic{Usage: x.Usage})
	if !strings.Contains(b.String(), "no sample yet") {
		t.Errorf("without samples: %s", b.String())
	}
}
