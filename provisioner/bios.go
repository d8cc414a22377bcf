package provisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// BIOSSettings reads and changes the settings of machines' firmware; answered by ipmi.Controller.
type BIOSSettings interface {
	BIOS(ctx context.Context, t ipmi.Target) (ipmi.BIOS, error)
	SetBIOS(ctx context.Context, t ipmi.Target, want map[string]any) (ipmi.BIOSChange, error)
	CheckBIOS(ctx context.Context, t ipmi.Target, want map[string]any) (ipmi.BIOSChange, error)
}

// BIOSProfiles keeps the settings that classes want. A class without a profile has one without settings.
type BIOSProfiles interface {
	ClassBIOS(ctx context.Context, class string) (machine.BIOSProfile, error)
	// PutClassBIOS replaces a profile, and tells in an event what changed.
	PutClassBIOS(ctx context.Context, class string, p machine.BIOSProfile) error
}

// profile is the settings that a machine shall have; none where it can have none.
func (e *Engine) profile(ctx context.Context, m machine.Machine) (machine.BIOSProfile, error) {
	if e.Settings == nil || e.Profiles == nil || m.BMC.Protocol != ipmi.Redfish {
		return machine.BIOSProfile{}, nil
	}
	return e.Profiles.ClassBIOS(ctx, m.Class)
}

// settled is what came of a step about the firmware's settings: for operators alone.
type settled struct {
	note    string // "" where there is nothing to tell
	finding bool   // the note keeps the machine out of stock
	first   bool   // it is the step that asks for the settings: what an attempt before found counts no more
}

// tell writes it down.
func (s *settled) tell(w *Work) {
	if s.first {
		w.Job.Finding = ""
	}
	if s.note == "" {
		return
	}
	w.tellOperators("bmc.bios", w.Machine.Name+": "+s.note)
	if s.finding {
		w.Job.Finding = also(clip(s.note), w.Job.Finding)
	}
}

// also joins two findings, either of which may be empty.
func also(one, other string) string {
	if one == "" || other == "" {
		return one + other
	}
	return one + "; " + other
}

// settleBIOS carries out a step about the firmware's settings. A BMC that refuses, or does not do, what the class wants is a finding and no failure:
// a machine that comes back is wiped all the same. Where the class wants nothing the BMC is not asked.
func (e *Engine) settleBIOS(ctx context.Context, m machine.Machine, j machine.Job) (*settled, error) {
	s := &settled{first: j.Step == machine.StepBIOS}
	p, err := e.profile(ctx, m)
	if err != nil {
		return nil, err
	}
	if len(p.Attributes) == 0 || !s.first && j.Finding != "" { // the step before has found it already
		return s, nil
	}
	step, _, _ := e.step(j.Kind, j.Step)
	last := j.Try >= step.Tries
	if s.first {
		s.note, s.finding, err = e.askFor(ctx, m, p.Attributes)
	} else {
		s.note, s.finding, err = e.verify(ctx, m, j, p.Attributes, last)
		if s.finding && p.Updated.After(j.Started) {
			s.note, s.finding = "the profile of class "+m.Class+" was changed during this job, and its settings do not all hold yet: the next job sets them", false
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, ipmi.ErrForbidden): // the password is right; the account may not do this
		s.note, s.finding = fmt.Sprintf("the BIOS settings of class %s are not set: %v", m.Class, err), true
	case errors.Is(err, ipmi.ErrCredentials), errors.Is(err, ipmi.ErrLocked), untrusted(err), !last:
		return nil, err
	default:
		s.note, s.finding = fmt.Sprintf("the BIOS settings of class %s are not known to hold: %v", m.Class, err), true
	}
	if p.Policy == machine.BIOSWarn {
		s.finding = false
	}
	return s, nil
}

// askFor asks a BMC for settings that do not hold; they hold after the next start.
func (e *Engine) askFor(ctx context.Context, m machine.Machine, want map[string]any) (note string, finding bool, err error) {
	var wrong []ipmi.Difference
	can, asked := false, false
	err = e.bmc(ctx, m, func(t ipmi.Target) error {
		b, err := e.Settings.BIOS(ctx, t)
		if err != nil {
			return err
		}
		can, wrong = true, b.Differences(want)
		if b.Holds(want) {
			return nil
		}
		asked = true
		if err := e.expectBIOS(ctx, m, time.Now().Add(holdWithin)); err != nil {
			return err
		}
		_, err = e.Settings.SetBIOS(ctx, t, want) // what came of it shows after the start
		return err
	})
	switch {
	case errors.Is(err, ipmi.ErrUnsupported) && !can:
		return "its BIOS settings are left as they are: " + err.Error(), false, nil
	case errors.Is(err, ipmi.ErrUnsupported):
		return fmt.Sprintf("the BIOS settings of class %s were refused, and none was changed: %v", m.Class, err), true, nil
	case err != nil || !asked:
		return "", false, err
	case len(wrong) == 0:
		return "a change of BIOS settings that nobody here wants was called off", false, nil
	}
	var words []string
	for _, d := range wrong {
		words = append(words, fmt.Sprintf("%s %s → %s", machine.CleanText(d.Path), orNone(machine.CleanText(d.Was)), machine.CleanText(d.Is)))
	}
	return "BIOS settings asked for, for the next start: " + brief(words), false, nil
}

// holdWithin is how long settings that were asked for may take to hold: the start into the RAM disk, and the looks after it.
const holdWithin = time.Hour

// expectBIOS keeps until when the settings that are asked for must hold; zero where none are any more.
func (e *Engine) expectBIOS(ctx context.Context, m machine.Machine, until time.Time) error {
	if e.BMCs == nil {
		return nil
	}
	return e.BMCs.PutBMC(ctx, m.ID, func(b *BMC) ([]Event, error) {
		b.BIOSUntil = until
		return nil, nil
	})
}

// unseenBIOS is what a BMC comes to that shows no settings after the start: where this job asked it for some they are not known to hold, at last.
func (e *Engine) unseenBIOS(ctx context.Context, m machine.Machine, j machine.Job, last bool, failure error) (note string, finding bool, err error) {
	if e.BMCs == nil {
		return "", false, nil
	}
	kept, err := e.BMCs.BMC(ctx, m.ID)
	switch {
	case err != nil:
		return "", false, err
	case kept.BIOSUntil.Before(j.Started):
		return "", false, nil // nothing was asked for, and the step before has told why
	case !last:
		return "", false, fmt.Errorf("%w: %w", errNotYet, failure)
	}
	return fmt.Sprintf("the BIOS settings of class %s were asked for and are not known to hold: %v", m.Class, failure), true, nil
}

// errNotYet says that settings do not hold yet, by the BMC's word.
var errNotYet = errors.New("the BIOS settings do not hold yet")

// verify looks whether the settings hold after the start. Some BMCs learn late what their firmware did: only at last, or when the BMC's own job
// failed, is a difference one.
func (e *Engine) verify(ctx context.Context, m machine.Machine, j machine.Job, want map[string]any, last bool) (note string, finding bool, err error) {
	var c ipmi.BIOSChange
	err = e.bmc(ctx, m, func(t ipmi.Target) (err error) {
		c, err = e.Settings.CheckBIOS(ctx, t, want)
		return err
	})
	switch {
	case errors.Is(err, ipmi.ErrUnsupported):
		return e.unseenBIOS(ctx, m, j, last, err)
	case err != nil:
		return "", false, err
	case c.State == ipmi.BIOSApplied:
		if err := e.expectBIOS(ctx, m, time.Time{}); err != nil {
			return "", false, err
		}
		return fmt.Sprintf("%s as class %s wants, read back", count(len(want), "BIOS setting"), m.Class), false, nil
	case !last && (c.State != ipmi.BIOSFailed || c.Job == ""):
		return "", false, fmt.Errorf("%w: %s", errNotYet, c.State)
	}
	why := machine.CleanText(c.Text)
	switch {
	case c.State == ipmi.BIOSPending:
		why = also("the BMC took the change, the machine was started, and the change still waits", why)
	case why == "":
		why = "the BMC took the change and did not apply it"
	case c.Job != "":
		why = "the BMC took the change and did not apply it: " + why
	}
	var words []string
	for _, d := range c.Wrong {
		words = append(words, fmt.Sprintf("BIOS setting %s is %s, the class wants %s", machine.CleanText(d.Path), orNone(machine.CleanText(d.Was)), machine.CleanText(d.Is)))
	}
	return brief(words) + ": " + why, true, nil
}

// asWanted reports whether a difference from the baseline is a setting that is now as the class wants it: that is nobody's tampering.
func asWanted(p machine.BIOSProfile, d ipmi.Difference) bool {
	name, ok := strings.CutPrefix(d.Path, "bios/")
	if !ok {
		return false
	}
	name, waits := strings.CutSuffix(name, "/pending")
	for attribute, value := range p.Attributes {
		if strings.ReplaceAll(attribute, "/", "_") == name { // as a baseline has it
			return d.Is == ipmi.BIOSText(value) || waits && d.Is == ""
		}
	}
	return false
}

// BIOSSetting is one setting of a machine's firmware.
type BIOSSetting struct {
	Name    string           `json:"name"`
	Is      string           `json:"is,omitempty"`      // what holds; "" where the BMC shows no such setting
	Want    string           `json:"want,omitempty"`    // by the class's profile
	Pending string           `json:"pending,omitempty"` // what will hold after the next start
	State   BIOSSettingState `json:"state,omitempty"`   // "" where the class wants nothing
}

// BIOSSettingState is how a setting is to what the class wants.
type BIOSSettingState string

// States of a setting.
const (
	SettingRight   BIOSSettingState = "right"
	SettingWrong   BIOSSettingState = "wrong"
	SettingPending BIOSSettingState = "pending" // right after the next start
	SettingAbsent  BIOSSettingState = "absent"  // the BMC shows no such setting
)

// MachineBIOS is the settings of a machine's firmware beside what its class wants.
type MachineBIOS struct {
	Machine  string             `json:"machine"`
	Class    string             `json:"class"`
	Policy   machine.BIOSPolicy `json:"policy,omitempty"`
	Version  string             `json:"version,omitempty"` // of the firmware
	Settings []BIOSSetting      `json:"settings"`          // by name
}

// speaksBIOS refuses a machine whose BMC has no settings to speak of.
func (e *Engine) speaksBIOS(m machine.Machine) error {
	if m.BMC.Protocol != ipmi.Redfish {
		return &machine.Error{Code: machine.Invalid, Field: "bmc.protocol", Message: fmt.Sprintf("the BMC of %s speaks IPMI only; BIOS settings need Redfish", m.Name),
			Hint: "record its Redfish address where it has one, or set the firmware by hand on the console"}
	}
	if e.Settings == nil || e.Profiles == nil {
		return &machine.Error{Code: machine.Invalid, Message: "this server reads no BIOS settings", Hint: "ask the one that drives the BMCs"}
	}
	return nil
}

// BIOS reads the settings of a machine's firmware now: those of its class's profile, or all.
func (e *Engine) BIOS(ctx context.Context, machineID string, all bool) (MachineBIOS, error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return MachineBIOS{}, err
	}
	out := MachineBIOS{Machine: m.Name, Class: m.Class, Settings: []BIOSSetting{}}
	if err := e.speaksBIOS(m); err != nil {
		return out, err
	}
	p, err := e.profile(ctx, m)
	if err != nil {
		return out, err
	}
	var b ipmi.BIOS
	err = e.bmc(ctx, m, func(t ipmi.Target) (err error) {
		b, err = e.Settings.BIOS(ctx, t)
		return err
	})
	if errors.Is(err, ipmi.ErrUnsupported) {
		return out, &machine.Error{Code: machine.Invalid, Message: err.Error(), Hint: "this BMC shows no BIOS settings by Redfish; set the firmware by hand on the console"}
	}
	if err != nil {
		return out, &machine.Error{Code: machine.Unavailable, Message: err.Error(), Hint: "nothing was changed"}
	}
	out.Policy, out.Version = p.Policy, machine.CleanText(b.Version)
	names := slices.Collect(maps.Keys(p.Attributes))
	if all {
		names = slices.AppendSeq(names, maps.Keys(b.Attributes))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		s := BIOSSetting{Name: machine.CleanText(name)}
		is, there := b.Attributes[name]
		waiting, waits := b.Pending[name]
		want, wanted := p.Attributes[name]
		if there {
			s.Is = machine.CleanText(ipmi.BIOSText(is))
		}
		if waits {
			s.Pending = machine.CleanText(ipmi.BIOSText(waiting))
		}
		if wanted {
			s.Want = ipmi.BIOSText(want)
			switch {
			case !there:
				s.State = SettingAbsent
			case waits && ipmi.BIOSText(waiting) == s.Want:
				s.State = SettingPending
			case waits, ipmi.BIOSText(is) != s.Want:
				s.State = SettingWrong
			default:
				s.State = SettingRight
			}
		}
		out.Settings = append(out.Settings, s)
	}
	return out, nil
}

// ApplyBIOS gives a machine that nobody holds the settings of its class: the job that looks at it sets them, starts it and reads them back.
func (e *Engine) ApplyBIOS(ctx context.Context, machineID string) (machine.Job, error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return machine.Job{}, err
	}
	if err := e.speaksBIOS(m); err != nil {
		return machine.Job{}, err
	}
	p, err := e.profile(ctx, m)
	if err != nil {
		return machine.Job{}, err
	}
	if len(p.Attributes) == 0 {
		return machine.Job{}, &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("class %s has no BIOS profile", m.Class), Hint: fmt.Sprintf("make one: bareyard class bios %s --set NAME=VALUE", m.Class)}
	}
	return e.beginExamination(ctx, m.ID, "an operator wants its BIOS settings as its class has them",
		"BIOS settings are changed only while nobody holds the machine: enrolled, available or quarantined. A rented one gets them when it comes back",
		machine.Enrolled, machine.Available, machine.Quarantined)
}

// ClassBIOS returns the settings that a class wants.
func (e *Engine) ClassBIOS(ctx context.Context, class string) (machine.BIOSProfile, error) {
	if e.Profiles == nil {
		return machine.BIOSProfile{}, errNoProfiles
	}
	if _, err := e.Shelf.Class(ctx, class); err != nil {
		return machine.BIOSProfile{}, err
	}
	return e.Profiles.ClassBIOS(ctx, class)
}

// PutClassBIOS replaces them. No machine is touched by it: each gets them when a job looks at it next.
func (e *Engine) PutClassBIOS(ctx context.Context, class string, p machine.BIOSProfile) (machine.BIOSProfile, error) {
	p, err := p.Clean()
	if err != nil {
		return p, err
	}
	if _, err := e.ClassBIOS(ctx, class); err != nil {
		return p, err
	}
	if err := e.Profiles.PutClassBIOS(ctx, class, p); err != nil {
		return p, err
	}
	return e.Profiles.ClassBIOS(ctx, class)
}

var errNoProfiles = &machine.Error{Code: machine.Invalid, Message: "this server keeps no BIOS profiles", Hint: "ask the one that drives the BMCs"}
