// Package ppu reads T-Head's PPU cards through ppu-smi.
//
// No PPU was at hand: what is here was tested on captured text and on pretended tools. The tool exits 0 when it fails, so only what it says counts.
package ppu

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// Vendor is T-Head's PCI vendor. Images for PPUs bring an nvidia-smi that lists PPUs: cards are told by the bus, never by which tool answers.
const Vendor = "1ded"

const source = "ppu-smi"

// Reader reads the cards.
type Reader struct {
	Tools    string        // folder of the vendor's tools; PATH and the SDK's folder when empty
	Deadline time.Duration // for one call; 30 seconds when zero
}

func places() []string {
	return []string{"/usr/local/bin", "/usr/local/PPU_SDK/bin", "/usr/local/sbin"}
}

func (r Reader) tool(ctx context.Context, args ...string) (string, *accelerator.Fault) {
	return child.Run(ctx, child.Command{Path: child.Find("ppu-smi", r.Tools, places()...), Args: args, Deadline: cmp.Or(r.Deadline, 30*time.Second), Output: 4 << 20})
}

// Read asks the driver for its cards: as XML, as text where a release has no XML, as a short table where it has neither. It always returns: what
// went wrong is in the result.
func (r Reader) Read(ctx context.Context, _ accelerator.Bus) accelerator.Driver {
	d := accelerator.Driver{Vendor: Vendor, Cards: []accelerator.Card{}}
	var fault *accelerator.Fault
	for _, form := range []struct {
		args  []string
		parse func(string) (overview, error)
	}{
		{[]string{"-q", "-x"}, parseXML},
		{[]string{"-q"}, parseText},
		{[]string{"--query-ppu=gpu_bus_id,memory.total,power.limit,gpu_serial", "--format=csv,noheader,nounits"}, parseCSV},
	} {
		text, f := r.tool(ctx, form.args...)
		if f != nil && f.Kind != accelerator.FaultRefused {
			d.Fault = f // a tool that hangs once is not asked again
			return d
		}
		if word := failure(text); word != "" {
			fault = cmp.Or(fault, &accelerator.Fault{Kind: accelerator.FaultRefused, During: "ppu-smi " + form.args[0], Detail: word})
			continue
		}
		o, err := form.parse(text)
		if err != nil {
			fault = cmp.Or(fault, f, &accelerator.Fault{Kind: accelerator.FaultProbe, During: "ppu-smi " + form.args[0], Detail: err.Error()})
			continue
		}
		d.Version, d.Count, d.Cards = o.version, accelerator.Measured(int64(len(o.cards)), "", source), o.cards
		r.links(ctx, &d)
		return d
	}
	d.Fault = fault
	return d
}

// failure returns the line in which the tool says that it failed, which its exit status does not.
func failure(text string) string {
	for line := range strings.Lines(text) {
		low := strings.ToLower(line)
		for _, word := range []string{"init hgml error", "no devices were found", "failed to initialize", "couldn't communicate with", "driver not loaded"} {
			if strings.Contains(low, word) {
				return strings.TrimSpace(line[:min(len(line), 200)])
			}
		}
	}
	return ""
}

// links asks for the links between cards: their state, and their error counters. A machine without any has no such answer.
func (r Reader) links(ctx context.Context, d *accelerator.Driver) {
	state, fault := r.tool(ctx, "icn", "-s")
	if fault != nil || failure(state) != "" {
		return
	}
	errors, fault := r.tool(ctx, "icn", "-e")
	if fault != nil || failure(errors) != "" {
		errors = ""
	}
	for index, links := range parseLinks(state, errors) {
		if index < len(d.Cards) {
			d.Cards[index].Links = links
		}
	}
}

// known tells a value from the words for none and for trouble.
func known[T any](s string) (accelerator.Value[T], bool) {
	switch strings.ToUpper(strings.Trim(strings.TrimSpace(s), "[]")) {
	case "", "-", "N/A", "NA", "NOT SUPPORTED":
		return accelerator.Unsupported[T](source), false
	case "ERR!", "UNKNOWN ERROR", "ERROR", "GPU IS LOST", "PPU IS LOST":
		return accelerator.Unreadable[T](source, "ppu-smi says "+strings.TrimSpace(s)), false
	}
	return accelerator.Value[T]{}, true
}

func word(s string) accelerator.Value[string] {
	if v, ok := known[string](s); !ok {
		return v
	}
	return accelerator.Measured(strings.TrimSpace(s), "", source)
}

// number reads the number that a value begins with: "98304 MiB", "74.00 W", "16x", "40 C".
func number(s, unit string) accelerator.Value[int64] {
	if v, ok := known[int64](s); !ok {
		return v
	}
	s = strings.TrimSpace(s)
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(s)
	}
	f, err := strconv.ParseFloat(s[:end], 64)
	if err != nil || f > 1e15 {
		return accelerator.Unreadable[int64](source, fmt.Sprintf("not a number: %.40q", s))
	}
	return accelerator.Measured(int64(f+0.5), unit, source)
}

func mebibytes(s string) accelerator.Value[int64] {
	v := number(s, "bytes")
	if v.Known() && v.Value > 1<<30 {
		return accelerator.Unreadable[int64](source, fmt.Sprintf("%d MiB of memory", v.Value))
	}
	v.Value <<= 20
	return v
}

// flag reads Enabled and Disabled, Yes and No.
func flag(s string) accelerator.Value[bool] {
	if v, ok := known[bool](s); !ok {
		return v
	}
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "enabled", "yes", "on", "active":
		return accelerator.Measured(true, "", source)
	case "disabled", "no", "off", "inactive":
		return accelerator.Measured(false, "", source)
	}
	return accelerator.Unreadable[bool](source, fmt.Sprintf("neither yes nor no: %.40q", s))
}
