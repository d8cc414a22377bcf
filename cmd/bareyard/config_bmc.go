package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// bmcConfig is how the machines' BMCs are treated.
type bmcConfig struct {
	SeenWithin duration `yaml:"seen_within"` // from power on to the first packet, before another boot method is tried
	ObeyWithin duration `yaml:"obey_within"` // from a command to the state that was asked for, before the try counts as failed
	Poll       often    `yaml:"poll"`        // between two reads of a BMC's sensors and event log

	KeepPassword   bool     `yaml:"keep_password"`    // it is not changed at return
	KeepPasswordAt []string `yaml:"keep_password_at"` // nor at these sites
	LeaveInBand    bool     `yaml:"leave_in_band"`    // the machines' own ways to their BMCs are not shut
	Ignore         []string `yaml:"ignore"`           // paths of the baseline that do not count
}

// often is a duration, or off, which is less than none.
type often duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *often) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*o = -1
		return nil
	}
	return (*duration)(o).UnmarshalText(text)
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
	b.ObeyWithin = cmp.Or(b.ObeyWithin, duration(time.Minute))
	b.Poll = cmp.Or(b.Poll, often(5*time.Minute))
}

func (b *bmcConfig) problem() (key, problem, hint string) {
	for key, d := range map[string]struct{ is, least, most duration }{
		"bmc.seen_within": {b.SeenWithin, duration(time.Second), duration(14 * time.Minute)},
		"bmc.obey_within": {b.ObeyWithin, duration(2 * time.Second), duration(time.Minute)},
	} {
		if d.is < d.least || d.is > d.most {
			return key, fmt.Sprintf("is %s", time.Duration(d.is)), fmt.Sprintf("choose %s to %s", time.Duration(d.least), time.Duration(d.most))
		}
	}
	if d := time.Duration(b.Poll); d >= 0 && (d < 10*time.Second || d > 24*time.Hour) {
		return "bmc.poll", fmt.Sprintf("is %s", d), "choose 10s to 24h, or off"
	}
	for _, p := range b.Ignore {
		if p == "" || strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.ContainsAny(p, "*? ") {
			return "bmc.ignore", fmt.Sprintf("holds %q", p), "write a path as `bareyard machine baseline` shows it, e.g. bios/BootOrder; what is below it is left out too"
		}
	}
	return "", "", ""
}

// care is what is left out between two customers.
func (b *bmcConfig) care() provisioner.Care {
	return provisioner.Care{KeepPassword: b.KeepPassword, KeepPasswordAt: b.KeepPasswordAt, LeaveInBand: b.LeaveInBand, Ignore: b.Ignore}
}
