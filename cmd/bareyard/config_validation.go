package main

import (
	"fmt"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/provisioner"
)

// validationConfig is how machines are validated.
type validationConfig struct {
	Plan     string   `yaml:"plan"`     // after each installation: postboot, or health, which puts no load on cards
	Load     duration `yaml:"load"`     // under the burn after each installation
	Profiles string   `yaml:"profiles"` // folder of the operator's profiles of cards
	Health   period   `yaml:"health"`   // machines in stock are looked at so often
}

// period is a length of time that may be switched off.
type period struct {
	every time.Duration
	set   bool
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *period) UnmarshalText(text []byte) error {
	p.set, p.every = true, 0
	if string(text) == "off" {
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is no length of time: write it as 24h, or off", text)
	}
	p.every = d
	return nil
}

func (v *validationConfig) fill(folder string) {
	if v.Load == 0 {
		v.Load = duration(time.Minute)
	}
	if !v.Health.set {
		v.Health = period{every: 24 * time.Hour, set: true}
	}
	if v.Profiles != "" {
		v.Profiles = absolute(folder, v.Profiles)
	}
}

func (v *validationConfig) problem() (key, problem, hint string) {
	if v.Plan != "" && v.Plan != "postboot" && v.Plan != "health" {
		return "validation.plan", fmt.Sprintf("is %q", v.Plan), "say postboot or health"
	}
	if load := time.Duration(v.Load); load < time.Second || load > 2*time.Minute {
		return "validation.load", fmt.Sprintf("is %s", load), "choose 1s to 2m: a customer waits for it; an acceptance is for more"
	}
	if every := v.Health.every; every > 0 && every < time.Hour {
		return "validation.health", fmt.Sprintf("is %s", every), "choose 1h or longer, or off: each look powers a machine on for some minutes"
	}
	if v.Profiles == "" {
		return "", "", ""
	}
	if _, err := accelerator.ReadProfiles(v.Profiles); err != nil {
		return "validation.profiles", fmt.Sprintf("cannot be used: %v", err), "docs/validation.md says how a profile is written"
	}
	return "", "", ""
}

func (v *validationConfig) rules() provisioner.Validation {
	return provisioner.Validation{Plan: accelerator.Plan(v.Plan), Load: time.Duration(v.Load), Profiles: v.Profiles, HealthEvery: v.Health.every}
}
