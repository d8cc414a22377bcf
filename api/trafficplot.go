package api

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"
)

// Size of the plot, in its own units; it scales.
const (
	plotWidth, plotHeight   = 860, 300
	plotLeft, plotRight     = 70, 16
	plotTop, plotBottom     = 34, 34
	plotInnerW, plotInnerH  = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
	plotColumns             = 720 // at most so many points are drawn: of more the highest of each column
	plotUpColor, plotDownCo = "#0b7285", "#e8590c"
)

// trafficSVG draws a traffic: both directions over time, the percentile that is billed, and a grey mark where a sample is in
// doubt. It holds no script and nothing that anybody wrote.
func trafficSVG(t Traffic) []byte {
	var b bytes.Buffer
	from, to := t.Usage.From, t.Usage.To
	span := max(to.Sub(from), time.Minute)
	top := plotTopRate(t)
	x := func(at time.Time) float64 { return plotLeft + plotInnerW*at.Sub(from).Seconds()/span.Seconds() }
	y := func(bps int64) float64 { return plotTop + plotInnerH*(1-float64(bps)/float64(top)) }

	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="system-ui, sans-serif" font-size="12">`, plotWidth, plotHeight)
	fmt.Fprintf(&b, `<title>Traffic from %s to %s: up at most %s, down at most %s</title>`, from.UTC().Format("2006-01-02 15:04"), to.UTC().Format("2006-01-02 15:04 MST"), Bits(t.Usage.Up.Peak), Bits(t.Usage.Down.Peak))
	b.WriteString(`<style>text{fill:#495057}.g{stroke:#ced4da;stroke-width:1}@media(prefers-color-scheme:dark){text{fill:#ced4da}.g{stroke:#495057}}</style>`)
	for i := range 5 {
		bps := top * int64(i) / 4
		fmt.Fprintf(&b, `<line class="g" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, plotLeft, plotWidth-plotRight, y(bps), y(bps), plotLeft-6, y(bps)+4, Bits(bps))
	}
	layout := "01-02"
	if span <= 48*time.Hour {
		layout = "15:04"
	}
	for i := range 7 {
		at := from.Add(span * time.Duration(i) / 6)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(at), plotHeight-12, at.UTC().Format(layout))
	}
	for _, p := range t.Points {
		if p.Doubt != "" {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="2" height="%d" fill="#868e96" opacity="0.35"/>`, x(p.At), plotTop, plotInnerH)
		}
	}
	plotLine(&b, t, span, func(p TrafficPoint) int64 { return p.UpBps }, x, y, plotUpColor)
	plotLine(&b, t, span, func(p TrafficPoint) int64 { return p.DownBps }, x, y, plotDownCo)
	if t.Billed > 0 {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#c92a2a" stroke-dasharray="6 4"/>`, plotLeft, plotWidth-plotRight, y(t.Billed), y(t.Billed))
	}
	legend := fmt.Sprintf(`<tspan fill="%s">up</tspan> <tspan fill="%s">down</tspan>`, plotUpColor, plotDownCo)
	if t.Billed > 0 {
		legend += fmt.Sprintf(` <tspan fill="#c92a2a">95th percentile (%s) %s</tspan>`, t.Basis, Bits(t.Billed))
	}
	if len(t.Points) == 0 {
		legend += " no sample yet"
	}
	fmt.Fprintf(&b, `<text x="%d" y="20">%s</text></svg>`, plotLeft, legend)
	return b.Bytes()
}

// plotTopRate is the rate at the top of the plot: the next 1, 2 or 5 times a power of ten.
func plotTopRate(t Traffic) int64 {
	most := int64(1000)
	for _, p := range t.Points {
		most = max(most, p.UpBps, p.DownBps)
	}
	power := math.Pow(10, math.Floor(math.Log10(float64(most))))
	for _, n := range []float64{1, 2, 5, 10} {
		if n*power >= float64(most) {
			return int64(n * power)
		}
	}
	return most
}

// plotLine draws one direction. Where a sample is missing the line is broken: nothing was measured there.
func plotLine(b *bytes.Buffer, t Traffic, span time.Duration, rate func(TrafficPoint) int64, x func(time.Time) float64, y func(int64) float64, color string) {
	step, err := time.ParseDuration(t.Step)
	if err != nil {
		step = 5 * time.Minute
	}
	column := max(step, span/plotColumns)
	var path strings.Builder
	var last time.Time
	for i := 0; i < len(t.Points); {
		at, highest := t.Points[i].At, int64(-1)
		end := at
		for ; i < len(t.Points) && t.Points[i].At.Sub(at) < column; i++ {
			end = t.Points[i].At
			if t.Points[i].Doubt == "" {
				highest = max(highest, rate(t.Points[i]))
			}
		}
		if highest < 0 {
			continue
		}
		verb := "L"
		if last.IsZero() || at.Sub(last) > 2*column {
			verb = "M"
		}
		last = end
		fmt.Fprintf(&path, "%s%.1f %.1f", verb, x(at.Add(step/2)), y(highest))
		if verb == "M" { // a lone point is seen, too
			path.WriteString("h0.1")
		}
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5" stroke-linecap="round"/>`, path.String(), color)
}

// Bits writes a rate for people: 94.5 Mbit/s.
func Bits(bps int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1e9, "Gbit/s"}, {1e6, "Mbit/s"}, {1e3, "kbit/s"}} {
		if bps >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bps)/float64(u.size)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bit/s", bps)
}
