package main

import (
	"cmp"
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
	Health   often    `yaml:"health"`   // machines in stock are looked at so often

	ReportDays uint16 `yaml:"report_days"` // how long reports are kept
}

func (v *validationConfig) fill(folder string) {
	v.Load = cmp.Or(v.Load, duration(time.Minute))
	v.Plan = cmp.Or(v.Plan, string(accelerator.PlanPostboot))
	v.Health = cmp.Or(v.Health, often(24*time.Hour))
	v.ReportDays = cmp.Or(v.ReportDays, 1100)
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
	if every := time.Duration(v.Health); every >= 0 && every < time.Hour {
		return "validation.health", fmt.Sprintf("is %s", every), "choose 1h or longer, or off: each look powers a machine on for some minutes"
	}
	if v.ReportDays < 90 {
		return "validation.report_days", fmt.Sprintf("%d days do not hold a card's history until its maker asks for it", v.ReportDays), "give 90 or more"
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
	return provisioner.Validation{Plan: accelerator.Plan(v.Plan), Load: time.Duration(v.Load), Profiles: v.Profiles, HealthEvery: time.Duration(v.Health),
		KeepReports: time.Duration(v.ReportDays) * 24 * time.Hour}
}
