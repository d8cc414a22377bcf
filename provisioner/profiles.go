package provisioner

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// Fleet is what the kept reports tell of all cards.
type Fleet interface {
	// Rates returns what each card of the models reached in each test by its newest report; retired machines are left out.
	Rates(ctx context.Context, models []string) ([]accelerator.FleetRate, error)
	// CardModels counts the cards on record by model.
	CardModels(ctx context.Context) (map[string]int, error)
}

// CardProfile is a profile as this server judges by it.
type CardProfile struct {
	Name      string              `json:"name"`
	Revision  int64               `json:"revision"`
	File      string              `json:"file,omitempty"` // builtin/…, or the operator's; empty: there is no profile for these cards
	Match     []accelerator.Match `json:"match"`
	Published int                 `json:"published"`  // limits of rates that the maker or others published
	Own       int                 `json:"calibrated"` // limits that were measured on a fleet
	Cards     int                 `json:"cards"`      // of the model on record here
}

// profiles are those of the program and the operator's, as they were read.
func (e *Engine) profiles() (accelerator.Rules, []accelerator.Profile, error) {
	rules := e.inForce().rules
	if bad := e.folder.trouble(); bad != nil {
		return rules, nil, &machine.Error{Code: machine.Conflict, Message: bad.Error(), Hint: "correct the file; machines are judged by the profiles that could be read last"}
	}
	return rules, append(accelerator.BuiltinProfiles(), rules.Profiles...), nil
}

// CardProfiles lists the profiles, and the models of cards that there is none for.
func (e *Engine) CardProfiles(ctx context.Context) ([]CardProfile, error) {
	_, all, err := e.profiles()
	if err != nil {
		return nil, err
	}
	models, err := e.Fleet.CardModels(ctx)
	if err != nil {
		return nil, err
	}
	out, known := []CardProfile{}, map[string]bool{}
	for _, p := range all {
		c := CardProfile{Name: p.Name, Revision: p.Revision, File: p.File, Match: p.Match}
		for _, l := range p.Limits {
			switch l.Status {
			case accelerator.Published:
				c.Published++
			case accelerator.Calibrated:
				c.Own++
			}
		}
		for _, id := range devices(p.Match) {
			c.Cards += models[id]
			known[id] = true
		}
		out = append(out, c)
	}
	var strange []CardProfile
	for id, n := range models {
		if !known[id] {
			strange = append(strange, CardProfile{Name: id, Match: []accelerator.Match{{Device: id}}, Cards: n})
		}
	}
	slices.SortFunc(strange, func(a, b CardProfile) int { return strings.Compare(a.Name, b.Name) })
	return append(out, strange...), nil
}

func devices(list []accelerator.Match) []string {
	var out []string
	for _, m := range list {
		if !slices.Contains(out, m.Device) {
			out = append(out, m.Device)
		}
	}
	return out
}

// matches finds the cards that a profile's name, or a PCI vendor:device, is of.
func (e *Engine) matches(ctx context.Context, name string) ([]accelerator.Match, accelerator.Rules, error) {
	rules, all, err := e.profiles()
	if err != nil {
		return nil, rules, err
	}
	var out []accelerator.Match
	for _, p := range all {
		for _, m := range p.Match {
			if (strings.EqualFold(p.Name, name) || strings.EqualFold(m.Device, name)) && !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	if len(out) > 0 {
		return out, rules, nil
	}
	models, err := e.Fleet.CardModels(ctx)
	if err != nil {
		return nil, rules, err
	}
	if id := strings.ToLower(name); models[id] > 0 {
		return []accelerator.Match{{Device: id}}, rules, nil
	}
	return nil, rules, &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no profile and no card %q", machine.CleanText(name)), Hint: "list them with `bareyard profile list`; a PCI vendor:device does, too"}
}

// ProfileText is what is known of cards, as a file of profiles: the operator's values lie over the program's.
func (e *Engine) ProfileText(ctx context.Context, name string) (string, error) {
	matches, rules, err := e.matches(ctx, name)
	if err != nil {
		return "", err
	}
	var list []accelerator.Profile
	for _, m := range matches {
		if p, ok := rules.Profile(m.Device, m.Subsystem); ok {
			p.Match = []accelerator.Match{m}
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return "", &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("there is no profile for cards %s", machine.CleanText(name)), Hint: "docs/validation.md says how one is written; `bareyard profile fleet` shows what they reach"}
	}
	return profileText(list)
}

func profileText(list []accelerator.Profile) (string, error) {
	var b bytes.Buffer
	err := accelerator.WriteProfiles(&b, list)
	return b.String(), err
}

// FleetBaselines is what this server's cards of a profile, or of a PCI vendor:device, reach.
func (e *Engine) FleetBaselines(ctx context.Context, name string) ([]accelerator.Baseline, error) {
	matches, _, err := e.matches(ctx, name)
	if err != nil {
		return nil, err
	}
	rates, err := e.Fleet.Rates(ctx, devices(matches))
	return accelerator.Baselines(rates), err
}

// Calibration is a file of profiles that was made from the fleet.
type Calibration struct {
	Text  string   `json:"text"`  // YAML
	Notes []string `json:"notes"` // what is not in it, and what to mind
}

// Calibrate makes an operator's profile of each model that a name is of: his own as it is, and limits from the fleet's medians for all tests that have
// no published one.
func (e *Engine) Calibrate(ctx context.Context, name string, least int, now time.Time) (Calibration, error) {
	out := Calibration{Notes: []string{}}
	matches, rules, err := e.matches(ctx, name)
	if err != nil {
		return out, err
	}
	var list []accelerator.Profile
	var refused error
	for _, id := range devices(matches) {
		rates, err := e.Fleet.Rates(ctx, []string{id})
		if err != nil {
			return out, err
		}
		known, _ := rules.Profile(id, "")
		made, notes, err := accelerator.CalibrateRates(rates, name, "", least)
		if err != nil {
			refused = err
			out.Notes = append(out.Notes, id+": "+err.Error())
			continue
		}
		p := accelerator.Profile{Name: known.Name, Match: []accelerator.Match{{Device: id}}}
		for _, o := range rules.Profiles {
			if slices.ContainsFunc(o.Match, func(m accelerator.Match) bool { return m.Device == id && m.Subsystem == "" }) {
				p = o
				out.Notes = append(out.Notes, fmt.Sprintf("%s: it replaces profile %q of %s", id, o.Name, o.File))
			}
		}
		if p.Name == "" {
			p.Name = id
		}
		p.Revision, p.Limits = p.Revision+1, slices.Clone(p.Limits)
		n := 0
		for _, l := range made.Limits {
			if at, ok := known.Limit(l.Test, l.Tool, l.Version); ok && at.Status == accelerator.Published {
				notes = append(notes, fmt.Sprintf("%s of %s %s: has a published limit, which stays", l.Test, l.Tool, l.Version))
				continue
			}
			l.Source = fmt.Sprintf("fleet, %d cards, %s", l.Cards, now.UTC().Format(time.DateOnly))
			p.Limits = slices.DeleteFunc(p.Limits, func(o accelerator.Limit) bool { return o.Test == l.Test && o.Tool == l.Tool && o.Version == l.Version })
			p.Limits = append(p.Limits, l)
			n++
		}
		for _, note := range notes {
			out.Notes = append(out.Notes, id+": "+note)
		}
		if n > 0 {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		why := "nothing to calibrate"
		if refused != nil {
			why = refused.Error()
		}
		return out, &machine.Error{Code: machine.Conflict, Message: why, Hint: "validate more machines; `bareyard profile fleet` shows what was measured so far"}
	}
	out.Text, err = profileText(list)
	return out, err
}
