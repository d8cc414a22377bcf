package accelerator

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// ProfileSchema names the form of a file of profiles.
const ProfileSchema = "bareyard.profile/1"

// Status says how a profile came by a value.
type Status string

// Statuses.
const (
	Published  Status = "published"  // by the maker, or seen in captured output of many machines
	Calibrated Status = "calibrated" // measured on a fleet, with the tool and the version that it holds for
	NotKnown   Status = "unknown"    // measured and reported, not judged; the zero value is the same
)

// Known is a value of a profile and where it comes from.
type Known[T int64 | float64 | string] struct {
	Value  T
	Status Status
	Source string
}

// Judges reports whether there is a value to judge by.
func (k Known[T]) Judges() bool { return k.Status == Published || k.Status == Calibrated }

// Answers of a profile to what a card has.
const (
	Yes = "yes"
	No  = "no"
)

// Match says which cards a profile is for.
type Match struct {
	Device    string `json:"device"`              // PCI vendor:device, four lower-case hex digits each
	Subsystem string `json:"subsystem,omitempty"` // vendor:device of the board; "" for every board
}

func (m Match) String() string {
	if m.Subsystem == "" {
		return m.Device
	}
	return m.Device + " subsystem " + m.Subsystem
}

// Profile is what is known of a card. What is unknown is measured and reported, and not judged.
type Profile struct {
	Name     string
	Revision int64
	Match    []Match
	File     string // where it was read, "" for one made in a program

	Memory     Known[int64]   `yaml:"memory" unit:"MiB"` // as the driver reports it
	MemoryKind Known[string]  `yaml:"memory_kind"`
	ECC        Known[string]  `yaml:"ecc" words:"yes no"`  // memory error correction that the driver can count
	Peer       Known[string]  `yaml:"peer" words:"yes no"` // the maker's driver lets cards reach each other over PCIe or a link
	LinkGen    Known[int64]   `yaml:"link_gen"`            // PCIe generation
	LinkWidth  Known[int64]   `yaml:"link_width"`          // lanes
	Links      Known[int64]   `yaml:"links"`               // NVLinks, HCCS or ICN links, all of them active
	Power      Known[int64]   `yaml:"power" unit:"W"`      // limit as it leaves the factory
	Slowdown   Known[int64]   `yaml:"slowdown" unit:"°C"`  // the card throttles itself from here on
	Margin     Known[int64]   `yaml:"margin" unit:"°C"`    // Hopper: distance to the limit at which it throttles
	Bandwidth  Known[float64] `yaml:"bandwidth" unit:"GB/s"`
	PeerRate   Known[float64] `yaml:"peer_bandwidth" unit:"GB/s"` // of all links together, both ways

	// Of the datasheet, without sparsity: recorded beside what was measured, never judged by. A threshold belongs to a card, a tool and its version.
	FP32 Known[float64] `yaml:"fp32" unit:"TFLOPS"`
	TF32 Known[float64] `yaml:"tf32" unit:"TFLOPS"`
	BF16 Known[float64] `yaml:"bf16" unit:"TFLOPS"`
	FP8  Known[float64] `yaml:"fp8" unit:"TFLOPS"`
	INT8 Known[float64] `yaml:"int8" unit:"TOPS"`

	Limits []Limit
}

// Limit is the least that a test must reach on a card, for one tool in one version.
type Limit struct {
	Test    string  // e.g. mma-bf16, memory-read, host-to-device
	Tool    string  // bareyard-burn, nvbandwidth, nccl-tests
	Version string  // "" for any
	Unit    string  // of Min, Median and Spread
	Min     float64 // the card fails below
	Median  float64 // of the fleet, 0 for a published one
	Spread  float64 // of the fleet: median distance from the median, made comparable to a standard deviation
	Cards   int64   // that were measured
	Status  Status
	Source  string
}

//go:embed profiles/*.yaml
var builtin embed.FS

// builtinProfiles reads them once: parsing takes longer than a whole judgement.
var builtinProfiles = sync.OnceValue(func() []Profile {
	files, err := profileFiles(builtin, "profiles", "builtin")
	if err != nil {
		panic("accelerator: " + err.Error()) // they are in the program
	}
	out, err := ParseFolder("builtin", files)
	if err != nil {
		panic("accelerator: " + err.Error()) // a test reads them all
	}
	return out
})

// BuiltinProfiles returns the profiles that are part of the program.
func BuiltinProfiles() []Profile { return slices.Clone(builtinProfiles()) }

// ReadProfiles reads the profiles of an operator's folder. A file with a mistake is an error that names file, line and field; nothing of the folder is
// used then, as a profile that is silently missing would judge by another.
func ReadProfiles(dir string) ([]Profile, error) {
	files, err := ProfileFiles(dir)
	if err != nil {
		return nil, err
	}
	return ParseFolder(dir, files)
}

// ProfileFiles returns the texts of an operator's folder that hold profiles, by the name of their file: NAME.yaml or NAME.yml.
func ProfileFiles(dir string) (map[string]string, error) {
	return profileFiles(os.DirFS(dir), ".", dir)
}

func profileFiles(files fs.FS, dir, shown string) (map[string]string, error) {
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, fmt.Errorf("read profiles: %s: %w", shown, err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".yaml") && !strings.HasSuffix(e.Name(), ".yml") {
			continue
		}
		text, err := fs.ReadFile(files, path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read profiles: %s: %w", shown, err)
		}
		out[e.Name()] = string(text)
	}
	return out, nil
}

// ParseFolder reads the profiles of the files of a folder, whose name is shown in what is wrong with them.
func ParseFolder(dir string, files map[string]string) ([]Profile, error) {
	var out []Profile
	owner := map[Match]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		shown := name
		if dir != "" {
			shown = strings.TrimSuffix(dir, "/") + "/" + name
		}
		list, err := ParseProfiles(shown, []byte(files[name]))
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			for _, m := range p.Match {
				if at, twice := owner[m]; twice {
					return nil, fmt.Errorf("read profiles: %s: %s is already in %s: keep one of them", p.File, m, at)
				}
				owner[m] = p.File
			}
		}
		out = append(out, list...)
	}
	return out, nil
}

// Profile returns what is known of a card on a board: of the built-in profiles, then of the operator's, that of the device and over it that
// of device and board, each replacing the values that it gives. An operator's "unknown" takes a value out of the judgement.
func (r Rules) Profile(id, subsystem string) (Profile, bool) {
	var out Profile
	found := false
	for _, list := range [][]Profile{BuiltinProfiles(), r.Profiles} {
		for _, board := range []string{"", subsystem} {
			for _, p := range list {
				if slices.ContainsFunc(p.Match, func(m Match) bool { return strings.EqualFold(m.Device, id) && strings.EqualFold(m.Subsystem, board) }) {
					out.overlay(p)
					found = true
				}
			}
			if subsystem == "" {
				break
			}
		}
	}
	return out, found
}

// overlay puts the values that another profile gives over its own.
func (p *Profile) overlay(o Profile) {
	p.Name, p.Revision, p.Match = cmp.Or(o.Name, p.Name), cmp.Or(o.Revision, p.Revision), o.Match
	if p.File = strings.TrimPrefix(p.File+" + "+o.File, " + "); o.File == "" {
		p.File = strings.TrimSuffix(p.File, " + ")
	}
	mine, theirs := reflect.ValueOf(p).Elem(), reflect.ValueOf(o)
	for i := range mine.NumField() {
		if mine.Type().Field(i).Tag.Get("yaml") != "" && !theirs.Field(i).IsZero() {
			mine.Field(i).Set(theirs.Field(i))
		}
	}
	limits := slices.Clone(p.Limits)
	for _, l := range o.Limits {
		i := slices.IndexFunc(limits, func(k Limit) bool { return k.Test == l.Test && k.Tool == l.Tool && k.Version == l.Version })
		if i < 0 {
			limits = append(limits, l)
			continue
		}
		limits[i] = l
	}
	p.Limits = limits
}

// Limit returns the least that a test of a tool in a version must reach. A limit without a version is for all that have none of their own.
func (p Profile) Limit(test, tool, version string) (Limit, bool) {
	for _, v := range []string{version, ""} {
		for _, l := range p.Limits {
			if l.Test == test && l.Tool == tool && l.Version == v {
				return l, l.Status == Published || l.Status == Calibrated
			}
		}
	}
	return Limit{}, false
}
