package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/provisioner"
)

// acceptanceConfig is how new hardware is tried.
type acceptanceConfig struct {
	Image   string      `yaml:"image"`    // of the catalogue, with the drivers
	Accept  bool        `yaml:"accept"`   // what passes goes to stock without being asked again
	Stagger duration    `yaml:"stagger"`  // between two starts in one rack
	RackKW  []kilowatts `yaml:"rack_kw"`  // what a rack bears, by rack or site/rack
	ClassKW []kilowatts `yaml:"class_kw"` // what a machine draws under full load, by class
}

// kilowatts is a power with the name of what bears or draws it, written as r1=17.3.
type kilowatts struct {
	Name  string
	Watts int
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *kilowatts) UnmarshalText(text []byte) error {
	name, number, ok := strings.Cut(string(text), "=")
	kw, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || name == "" || err != nil || !(kw > 0 && kw < 10_000) {
		return fmt.Errorf("%q is no name with kilowatts: write it as r1=17.3", text)
	}
	*k = kilowatts{strings.TrimSpace(name), int(kw * 1000)}
	return nil
}

func (a *acceptanceConfig) fill() { a.Stagger = cmp.Or(a.Stagger, duration(30*time.Second)) }

// join tells engine and API.
func (a acceptanceConfig) join(e *provisioner.Engine, s *api.Server) {
	watts := func(list []kilowatts) map[string]int {
		out := map[string]int{}
		for _, k := range list {
			out[k.Name] = k.Watts
		}
		return out
	}
	e.AcceptanceConfig = provisioner.AcceptanceConfig{RackWatts: watts(a.RackKW), MachineWatts: watts(a.ClassKW)}
	s.AcceptanceDefaults = api.AcceptanceDefaults{Image: a.Image, Accept: a.Accept, Stagger: time.Duration(a.Stagger)}
}
