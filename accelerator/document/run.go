package document

import (
	"crypto/ed25519"
	_ "embed"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// RunSchema names the form of a Run.
const RunSchema = "bareyard.acceptance/1"

// Run is the report of an acceptance run: every machine, every card, and how they stand beside their peers.
type Run struct {
	Schema   string                 `json:"schema"`
	ID       string                 `json:"id"`
	State    machine.RunState       `json:"state"`
	Created  time.Time              `json:"created"`
	Finished time.Time              `json:"finished,omitzero"`
	Image    string                 `json:"image"`
	Digest   string                 `json:"image_digest"`
	Plan     machine.AcceptancePlan `json:"plan"`
	Note     string                 `json:"note,omitempty"`

	Passed     int                       `json:"passed"`
	Failed     int                       `json:"failed"`
	Incomplete int                       `json:"incomplete"` // those that were called off, too
	Open       int                       `json:"open"`       // not done yet
	Machines   []RunMachine              `json:"machines"`
	Slow       []accelerator.Comparison  `json:"slow"`     // too far below the median
	Firmware   []accelerator.Version     `json:"firmware"` // that differs within a rack
	Rates      []accelerator.Comparison  `json:"rates"`    // of the machines, beside each other
	Profiles   []accelerator.ProfileNote `json:"profiles"`
}

// RunMachine is one machine of a run.
type RunMachine struct {
	ID       string             `json:"id"`
	Name     string             `json:"name"`
	Site     string             `json:"site"`
	Rack     string             `json:"rack"`
	Class    string             `json:"class"`
	State    machine.TrialState `json:"state"`
	Try      int                `json:"try"`
	Reason   string             `json:"reason,omitempty"`
	Started  time.Time          `json:"started,omitzero"`
	Finished time.Time          `json:"finished,omitzero"`
	JobID    string             `json:"job_id,omitempty"`
	Findings []machine.Finding  `json:"findings"`

	Outcome  accelerator.Outcome    `json:"outcome,omitempty"` // of its own report; empty when it sent none
	Rules    string                 `json:"rules,omitempty"`
	Stages   []accelerator.Stage    `json:"stages,omitempty"`
	Seconds  float64                `json:"seconds,omitempty"` // under load
	Drivers  []string               `json:"drivers,omitempty"`
	Checks   []accelerator.Check    `json:"checks,omitempty"`
	Cards    []RunCard              `json:"cards,omitempty"`
	Firmware []accelerator.Firmware `json:"firmware,omitempty"`
}

// RunCard is one card of a machine.
type RunCard struct {
	Slot     string              `json:"slot"`
	Name     string              `json:"name,omitempty"`
	Serial   string              `json:"serial,omitempty"`
	VBIOS    string              `json:"vbios,omitempty"`
	Outcome  accelerator.Outcome `json:"outcome"`
	Problems []string            `json:"problems,omitempty"`
	Action   string              `json:"action,omitempty"` // the heaviest that was asked for
	Rates    map[string]string   `json:"rates,omitempty"`  // by test
	Hottest  float64             `json:"hottest,omitempty"`
}

// NewRun makes the report of a run out of its trials and of the reports that its machines sent.
func NewRun(run machine.AcceptanceRun, members []accelerator.FleetMember) Run {
	d := Run{Schema: RunSchema, ID: run.ID, State: run.State, Created: run.Created, Finished: run.Finished, Image: run.Image, Digest: run.ImageDigest,
		Plan: run.Plan, Note: run.Note, Machines: []RunMachine{}, Slow: []accelerator.Comparison{}, Rates: []accelerator.Comparison{}, Profiles: []accelerator.ProfileNote{}}
	for _, c := range accelerator.CompareFleet(members) {
		if c.Slow() {
			d.Slow = append(d.Slow, c)
		}
		if c.Slot == "" {
			d.Rates = append(d.Rates, c)
		}
	}
	if d.Firmware = accelerator.CompareFirmware(members); d.Firmware == nil {
		d.Firmware = []accelerator.Version{}
	}
	for _, t := range run.Trials {
		m := RunMachine{ID: t.MachineID, Name: t.Name, Site: t.Site, Rack: t.Rack, Class: t.Class, State: t.State, Try: t.Try, Reason: t.Reason,
			Started: t.Started, Finished: t.Finished, JobID: t.JobID, Findings: append([]machine.Finding{}, t.Findings...)}
		switch {
		case t.State == machine.TrialPassed:
			d.Passed++
		case t.State == machine.TrialFailed:
			d.Failed++
		case t.State.Open():
			d.Open++
		default:
			d.Incomplete++
		}
		if i := slices.IndexFunc(members, func(f accelerator.FleetMember) bool { return f.Machine == t.MachineID }); i >= 0 {
			m.fill(members[i].Report)
			for _, p := range members[i].Report.Profiles {
				if !slices.Contains(d.Profiles, p) {
					d.Profiles = append(d.Profiles, p)
				}
			}
		}
		d.Machines = append(d.Machines, m)
	}
	return d
}

func (m *RunMachine) fill(r accelerator.Report) {
	m.Outcome, m.Rules, m.Stages, m.Seconds, m.Checks = r.Outcome, r.Rules, r.Stages, r.Seconds, r.Checks
	for _, dr := range r.Drivers {
		m.Drivers = append(m.Drivers, strings.TrimSpace(dr.Vendor+" "+dr.Version.String()))
	}
	if r.BMC != nil {
		m.Firmware = r.BMC.Firmware
	}
	action := map[string]accelerator.Action{}
	for _, c := range r.Checks {
		action[c.ID] = c.Action
	}
	for _, k := range r.Cards {
		card := RunCard{Slot: k.Slot, Outcome: k.Outcome, Problems: k.Problems}
		if k.Card != nil {
			card.Name, card.Serial, card.VBIOS = k.Card.Name.Value, k.Card.Serial.Value, k.Card.VBIOS.Value
		}
		heaviest := accelerator.ActNone
		for _, p := range k.Problems {
			id, _, _ := strings.Cut(p, ": ")
			heaviest = accelerator.Heavier(heaviest, action[id])
		}
		if heaviest != accelerator.ActNone {
			card.Action = string(heaviest)
		}
		for _, l := range r.Loads {
			if l.Slot == k.Slot && l.Peer == "" && l.Rate.Known() {
				if card.Rates == nil {
					card.Rates = map[string]string{}
				}
				card.Rates[l.Test] = rateText(l)
			}
		}
		for _, s := range r.Series {
			if s.Slot != k.Slot {
				continue
			}
			for _, v := range s.Temperature {
				if v.Known() {
					card.Hottest = max(card.Hottest, float64(v))
				}
			}
		}
		m.Cards = append(m.Cards, card)
	}
}

// SignRun writes the report of a run as JSON with a signature, as Sign does.
func SignRun(d Run, key ed25519.PrivateKey) ([]byte, error) { return sign(d, key) }

// VerifyRun reads the signed report of a run. It is returned only when one of the keys signed exactly this.
func VerifyRun(data []byte, keys ...ed25519.PublicKey) (Run, error) {
	raw, err := verify(data, keys...)
	if err != nil {
		return Run{}, err
	}
	var d Run
	if err := json.Unmarshal(raw, &d); err != nil {
		return Run{}, fmt.Errorf("verify report: %w", err)
	}
	if d.Schema != RunSchema {
		return Run{}, fmt.Errorf("verify report: schema %.40q, want %q", d.Schema, RunSchema)
	}
	return d, nil
}

//go:embed run.html
var runPage string

// RunHTML writes the report of a run as one page that needs nothing from elsewhere.
func RunHTML(w io.Writer, d Run) error {
	t, err := template.New("run").Funcs(template.FuncMap{
		"time": func(t time.Time) string {
			if t.IsZero() {
				return "–"
			}
			return t.UTC().Format(time.DateTime) + " UTC"
		},
		"percent": func(c accelerator.Comparison) string { return fmt.Sprintf("%.1f %%", 100*c.Rate/c.Median) },
		"name": func(id string) string {
			for _, m := range d.Machines {
				if m.ID == id {
					return m.Name
				}
			}
			return id
		},
		"rates": func(c RunCard) string {
			var parts []string
			for test, rate := range c.Rates {
				parts = append(parts, test+" "+rate)
			}
			slices.Sort(parts)
			return strings.Join(parts, ", ")
		},
	}).Parse(runPage)
	if err != nil {
		return fmt.Errorf("write report of run: %w", err)
	}
	if err := t.Execute(w, d); err != nil {
		return fmt.Errorf("write report of run: %w", err)
	}
	return nil
}

type testSuites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Suites   []testSuite
}

// RunJUnit writes a run as JUnit test suites, one a machine. A machine of which there is no report is one error or failure that says why.
func RunJUnit(w io.Writer, d Run) error {
	all := testSuites{Name: "bareyard.acceptance " + d.ID}
	for _, m := range d.Machines {
		s := suite(m.Name, m.Started, m.Seconds, m.Checks)
		t := testCase{Class: "bareyard.acceptance", Name: "verdict"}
		v := &verdict{Message: string(m.State), Text: m.Reason}
		s.Tests++
		switch {
		case m.State == machine.TrialFailed:
			t.Failure = v
			s.Failures++
		case m.State != machine.TrialPassed:
			t.Error = v
			s.Errors++
		default:
			t.Out = strings.TrimSpace("passed\n" + m.Reason)
		}
		s.Cases = append(s.Cases, t)
		all.Tests, all.Failures, all.Errors = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors
		all.Suites = append(all.Suites, s)
	}
	return writeXML(w, all)
}
