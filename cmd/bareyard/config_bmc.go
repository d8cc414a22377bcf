package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// bmcConfig is how the machines' BMCs are treated.
type bmcConfig struct {
	SeenWithin duration `yaml:"seen_within"` // from power on to the first packet, before another boot method is tried
}

// duration is a time.Duration that is written as 90s, 5m or 2h.
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no length of time: write it as 90s, 5m or 2h", text)
	}
	*d = duration(v)
	return nil
}

func (b *bmcConfig) fill() {
	b.SeenWithin = cmp.Or(b.SeenWithin, duration(machine.SeenWithin))
}

func (b *bmcConfig) problem() (key, problem, hint string) {
	for key, d := range map[string]struct{ is, least, most duration }{
		"bmc.seen_within": {b.SeenWithin, duration(time.Second), duration(14 * time.Minute)},
	} {
		if d.is < d.least || d.is > d.most {
			return key, fmt.Sprintf("is %s", time.Duration(d.is)), fmt.Sprintf("choose %s to %s", time.Duration(d.least), time.Duration(d.most))
		}
	}
	return "", "", ""
}
