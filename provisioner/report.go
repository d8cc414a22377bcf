package provisioner

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
)

// Verdict is what is known of a kept report without opening it.
type Verdict struct {
	ID        string              `json:"id"`
	MachineID string              `json:"machine_id"`
	OrderID   string              `json:"order_id,omitempty"` // that held the machine then
	JobID     string              `json:"job_id,omitempty"`
	RunID     string              `json:"run_id,omitempty"` // of an acceptance of many machines
	Class     string              `json:"class"`
	Plan      accelerator.Plan    `json:"plan"`
	Taken     time.Time           `json:"taken"` // by the machine's clock
	Kept      time.Time           `json:"kept"`
	Outcome   accelerator.Outcome `json:"outcome"`
	Blocks    bool                `json:"blocks"` // the machine must not be handed over
	Reason    string              `json:"reason,omitempty"`
	Cards     int                 `json:"cards"`
	Checks    int                 `json:"checks"`
	Key       string              `json:"key,omitempty"` // which key signed it
}

// Kept is a report as it is stored: what is known of it, what is in it, and its bytes.
type Kept struct {
	Verdict
	Report accelerator.Report
	Body   []byte   // bareyard.signed/1, or the report alone where no key signed it
	Strays []string // serial numbers of its cards whose place is in dispute: the record of where they are is left as it is
}

// ReportFilter says which reports to list, newest first; empty fields do not filter.
type ReportFilter struct {
	MachineID string
	OrderID   string
	RunID     string
	Class     string
	Plan      accelerator.Plan
	Limit     int // zero means 100
}

// Reports keeps the reports of validations, and what was learned from them. New ones come in through a transition's Work, or
// through KeepReport where no machine changes its state with it.
type Reports interface {
	Reports(ctx context.Context, f ReportFilter) ([]Verdict, error)
	// Report returns a report by its id.
	Report(ctx context.Context, id string) (Kept, error)
	// KeepReport stores a report. One that is there already under its id is left as it is.
	KeepReport(ctx context.Context, k Kept) error
	// Background is what a new report of a machine is judged by, beside itself.
	Background(ctx context.Context, machineID string, serials []string) (Background, error)
	// ExamineDue lists machines in stock that nobody has looked at for so long, as many as may be looked at now.
	ExamineDue(ctx context.Context, every time.Duration, atOnce int) ([]string, error)
	// ForgetReports drops reports that were kept before a time. The newest of a machine by each plan stays, and so do those of orders that are not over.
	ForgetReports(ctx context.Context, before time.Time) (int64, error)
	// HandOver returns the newest report of an order's machine that did not block, with ok false when there is none.
	HandOver(ctx context.Context, orderID, machineID string) (k Kept, ok bool, err error)
}

// Background is what the server knows of a machine and of the cards that a report found in it.
type Background struct {
	Here      []Place  // the cards on this machine's record
	Elsewhere []Place  // cards of the report that are on another machine's record
	Waivers   []Waiver // of the machine that hold now
}

// Place is where a card is, as it was last seen.
type Place struct {
	Serial    string    `json:"serial"`
	MachineID string    `json:"machine_id"`
	Machine   string    `json:"machine"` // name
	Slot      string    `json:"slot"`
	Model     string    `json:"model"` // PCI vendor:device
	ReportID  string    `json:"report_id"`
	OrderID   string    `json:"order_id,omitempty"` // that held the machine then
	FirstSeen time.Time `json:"first_seen"`         // in this machine
	LastSeen  time.Time `json:"last_seen"`
}

// CardHistory is where a card is, and where it was.
type CardHistory struct {
	Serial string         `json:"serial"`
	Now    *Place         `json:"now,omitempty"` // as it is on record; nil: on no machine's
	Seen   []CardSighting `json:"seen"`          // newest first
}

// CardSighting is what one report said of a card.
type CardSighting struct {
	Report    string              `json:"report"`
	At        time.Time           `json:"at"`
	Plan      accelerator.Plan    `json:"plan"`
	MachineID string              `json:"machine_id"`
	Machine   string              `json:"machine"`
	OrderID   string              `json:"order_id,omitempty"`
	Slot      string              `json:"slot"`
	Model     string              `json:"model"`
	Name      string              `json:"name,omitempty"`
	Firmware  string              `json:"firmware,omitempty"`
	Outcome   accelerator.Outcome `json:"outcome"`
	Problems  []string            `json:"problems,omitempty"`
}

// Waiver is an operator's decision that a check shall not block for a while.
type Waiver struct {
	ID        string    `json:"id"`
	MachineID string    `json:"machine_id"`
	Check     string    `json:"check"`
	Card      string    `json:"card,omitempty"` // slot or serial number; "" for the whole check
	Who       string    `json:"who"`
	Why       string    `json:"why"`
	Made      time.Time `json:"made"`
	Until     time.Time `json:"until"`
	Withdrawn time.Time `json:"withdrawn,omitzero"`
}

// NewKept makes what is stored of a report, and signs it where there is a key. The rest of the Verdict is the caller's: id,
// machine, order, job, run and class.
func NewKept(v Verdict, r accelerator.Report, key ed25519.PrivateKey) (Kept, error) {
	if r.Subject == (accelerator.Subject{}) {
		r.Subject = accelerator.Subject{Report: v.ID, Machine: v.MachineID, Class: v.Class, Order: v.OrderID, Job: v.JobID}
	}
	v.Plan, v.Taken, v.Outcome, v.Blocks, v.Reason = r.Plan, r.Taken, r.Outcome, r.Blocks(), clip(r.Reason())
	v.Cards, v.Checks = len(r.Cards), len(r.Checks)
	k := Kept{Verdict: v, Report: r}
	var err error
	if len(key) == 0 {
		if k.Body, err = json.Marshal(r); err != nil {
			return k, fmt.Errorf("keep report: %w", err)
		}
		return k, nil
	}
	if k.Body, err = document.Sign(r, key); err != nil {
		return k, fmt.Errorf("keep report: %w", err)
	}
	if public, ok := key.Public().(ed25519.PublicKey); ok {
		k.Key = document.KeyID(public)
	}
	return k, nil
}

// OpenReport reads the bytes of a stored report. Whether its signature fits is document.Verify's to say.
func OpenReport(body []byte) (accelerator.Report, error) {
	var s struct {
		Schema string          `json:"schema"`
		Report json.RawMessage `json:"report"`
	}
	if err := json.Unmarshal(body, &s); err == nil && s.Schema == document.SignedSchema {
		body = s.Report
	}
	return accelerator.DecodeReport(body)
}

// CardSerial is what tells a card from all others: its serial number, or its UUID where it has none, or only what the maker
// prints on every card: "" where the driver was not asked.
func CardSerial(k accelerator.CardResult) string {
	if k.Card == nil {
		return ""
	}
	for _, v := range []accelerator.Value[string]{k.Card.Serial, k.Card.UUID} {
		if v.Known() && !placeholder(v.Value) {
			return v.Value
		}
	}
	return ""
}

// placeholder reports whether a number is none: words for nothing, one digit over and over, or nearly all zeros.
func placeholder(s string) bool {
	s = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "gpu-")
	switch s {
	case "", "n/a", "none", "null", "unknown", "[n/a]", "not available", "not specified", "to be filled by o.e.m.", "default string":
		return true
	}
	digits := map[rune]int{}
	n, most := 0, 0
	for _, r := range s {
		if r == '-' || r == ' ' || r == ':' {
			continue
		}
		n++
		digits[r]++
		most = max(most, digits[r])
	}
	return n < 4 || most == n || digits['0']*10 >= n*7
}
