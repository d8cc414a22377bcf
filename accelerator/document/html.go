// Package document writes a report for people and for other programs: HTML, JUnit, and signed JSON.
package document

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
)

//go:embed report.html
var page string

// HTML writes a report as one page that needs nothing from elsewhere: no script, no font, no picture. Everything in a report comes from machines
// that customers had in hand; the template escapes all of it.
func HTML(w io.Writer, r accelerator.Report) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"time":  func(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" },
		"value": func(v fmt.Stringer) string { return v.String() },
		"mib":   mib,
		"rate":  func(l accelerator.Load) string { return rateText(l) },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("write HTML report: %w", err) // never: the page is part of the program, and a test parses it
	}
	verdict := "may be handed over"
	if r.Blocks() {
		verdict = "must not be handed over"
	}
	data := struct {
		accelerator.Report
		Verdict, Reason string
		Plots           []plot
		Matrix          matrix
		Single          []accelerator.Load
	}{r, verdict, r.Reason(), plots(r.Series), pairs(r.Loads), singles(r.Loads)}
	if err := t.Execute(w, data); err != nil {
		return fmt.Errorf("write HTML report: %w", err)
	}
	return nil
}

func mib(v accelerator.Value[int64]) string {
	if !v.Known() {
		return v.String()
	}
	return fmt.Sprintf("%d MiB", v.Value>>20)
}

func rateText(l accelerator.Load) string {
	switch {
	case l.Rate.Known():
		return fmt.Sprintf("%.4g %s", l.Rate.Value, l.Rate.Unit)
	case l.Fault != nil:
		return string(l.Fault.Kind)
	}
	return "–"
}

func singles(loads []accelerator.Load) []accelerator.Load {
	var out []accelerator.Load
	for _, l := range loads {
		if l.Peer == "" {
			out = append(out, l)
		}
	}
	return out
}

// matrix is the bandwidth from each card to each other.
type matrix struct {
	Slots []string
	Rows  [][]string
}

func pairs(loads []accelerator.Load) matrix {
	var m matrix
	at := map[string]int{}
	for _, l := range loads {
		if l.Test != accelerator.TestPeer || l.Peer == "" || l.Tool != "bareyard-burn" {
			continue
		}
		for _, s := range []string{l.Slot, l.Peer} {
			if _, ok := at[s]; !ok && len(at) < 64 {
				at[s] = len(m.Slots)
				m.Slots = append(m.Slots, s)
			}
		}
	}
	for range m.Slots {
		m.Rows = append(m.Rows, make([]string, len(m.Slots)))
	}
	for _, l := range loads {
		i, ok1 := at[l.Slot]
		k, ok2 := at[l.Peer]
		if l.Test == accelerator.TestPeer && ok1 && ok2 && l.Tool == "bareyard-burn" {
			m.Rows[i][k] = rateText(l)
			if !l.Direct {
				m.Rows[i][k] += " *"
			}
		}
	}
	return m
}

// plot is one quantity of all cards over time, as numbers that the template puts into SVG.
type plot struct {
	Title, Unit         string
	Lines               []curve
	Top, Bottom         string // labels of the axis
	Width, Height, Left int
	Seconds             string
}

type curve struct {
	Slot   string
	Colour string
	Points string // x,y pairs
}

const (
	plotWidth  = 720
	plotHeight = 180
	plotLeft   = 60
)

// colours that are told apart by most people, in the order of the cards.
func colour(i int) string {
	list := []string{"#1b6ca8", "#d1495b", "#2e933c", "#8d5a97", "#c77800", "#00798c", "#5c4033", "#6b717e", "#3a0ca3", "#9c6644", "#606c38", "#bc4749", "#4361ee", "#7f4f24", "#006d77", "#9d4edd"}
	return list[i%len(list)]
}

func plots(series []accelerator.Series) []plot {
	var out []plot
	for _, q := range []struct {
		title, unit string
		column      func(accelerator.Series) []accelerator.Reading
	}{
		{"Temperature", "°C", func(s accelerator.Series) []accelerator.Reading { return s.Temperature }},
		{"Power", "W", func(s accelerator.Series) []accelerator.Reading { return s.Power }},
		{"Clock of the cores", "MHz", func(s accelerator.Series) []accelerator.Reading { return s.Clock }},
		{"Throughput", "TFLOPS", func(s accelerator.Series) []accelerator.Reading { return s.Rate }},
	} {
		if p, ok := draw(q.title, q.unit, series, q.column); ok {
			out = append(out, p)
		}
	}
	return out
}

func draw(title, unit string, series []accelerator.Series, column func(accelerator.Series) []accelerator.Reading) (plot, bool) {
	low, high, last := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range series {
		for i, v := range column(s) {
			if v.Known() && i < len(s.Seconds) && s.Seconds[i].Known() {
				low, high, last = min(low, float64(v)), max(high, float64(v)), max(last, float64(s.Seconds[i]))
			}
		}
	}
	if low > high {
		return plot{}, false
	}
	if low > 0 && low > high/2 { // a zero far below would flatten the curves
		low -= (high - low) / 4
	} else {
		low = min(low, 0)
	}
	if high == low {
		high = low + 1
	}
	last = max(last, 1)
	p := plot{Title: title, Unit: unit, Top: fmt.Sprintf("%.4g", high), Bottom: fmt.Sprintf("%.4g", low), Width: plotWidth, Height: plotHeight, Left: plotLeft, Seconds: fmt.Sprintf("%.0f s", last)}
	for i, s := range series {
		var points strings.Builder
		for k, v := range column(s) {
			if v.Known() && k < len(s.Seconds) && s.Seconds[k].Known() {
				fmt.Fprintf(&points, "%.1f,%.1f ", plotLeft+float64(s.Seconds[k])/last*(plotWidth-plotLeft-10), 10+(high-float64(v))/(high-low)*(plotHeight-30))
			}
		}
		p.Lines = append(p.Lines, curve{Slot: s.Slot, Colour: colour(i), Points: strings.TrimSpace(points.String())})
	}
	return p, true
}
