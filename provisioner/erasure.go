package provisioner

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
)

// KeptErasure is the certificate of an erasure as it is stored.
type KeptErasure struct {
	machine.ErasureCertificate
	Key  string // which key signed it; "" for none
	Body []byte // bareyard.signed/1, or the certificate alone where no key signed it
}

// certify draws the certificate of each disk on record, whatever else the RAM disk speaks of, once it was read back or the RAM disk has given up.
func (e *Engine) certify(w *Work, r machine.Report) error {
	if r.Step == machine.StepEraseAll && r.Phase != machine.Failed {
		return nil // yet to be read back
	}
	var found []machine.Erasure
	if json.Unmarshal(r.Result, &found) != nil {
		found = nil // it gave up before it came to single disks
	}
	var erased []machine.Erasure // what was done, should the RAM disk that reads back be another boot than the one that erased
	if r.Step == machine.StepProve && json.Unmarshal(w.Job.Result, &erased) != nil {
		erased = nil
	}
	for n, d := range w.Machine.Hardware.Disks {
		f := machine.Erasure{Serial: d.Serial}
		if i := slices.IndexFunc(found, func(f machine.Erasure) bool { return f.Serial == d.Serial }); i >= 0 {
			f = found[i]
		}
		if i := slices.IndexFunc(erased, func(e machine.Erasure) bool { return e.Serial == d.Serial }); i >= 0 && f.Method == "" {
			f.Model, f.Method, f.Level, f.Lacks = erased[i].Model, erased[i].Method, erased[i].Level, erased[i].Lacks
		}
		if f.Detail == "" && (r.Phase == machine.Failed && !f.Clean || r.Step == machine.StepEraseAll) {
			f.Detail = "not read back: " + r.Error
		}
		f.Size, f.Sampled = d.Size, min(max(f.Sampled, 0), d.Size)
		f.Model, f.Method, f.Detail = clip(f.Model), clip(f.Method), clip(f.Detail)
		f.Lacks = slices.Clone(f.Lacks[:min(len(f.Lacks), 16)])
		for k := range f.Lacks {
			f.Lacks[k] = clip(f.Lacks[k])
		}
		f.Clean = f.Clean && f.Sampled > 0 && r.Step == machine.StepProve
		if !f.Clean || f.Method == "" || f.Level != machine.Purge && f.Level != machine.Clear {
			f.Level = ""
		}
		k, err := newErasure(machine.ErasureCertificate{
			Schema: machine.ErasureSchema, ID: fmt.Sprintf("e-%s-%d-%d", strings.TrimPrefix(w.Job.ID, "j-"), w.Job.Attempt, n+1),
			Machine: w.Machine.ID, Name: w.Machine.Name, System: w.Machine.Hardware.Serial, Order: w.Job.OrderID, Job: w.Job.ID, Attempt: w.Job.Attempt,
			Erasure: f, At: w.Now.UTC(),
		}, e.ReportKey)
		if err != nil {
			return err
		}
		w.Erased = append(w.Erased, k)
	}
	return nil
}

func newErasure(c machine.ErasureCertificate, key ed25519.PrivateKey) (k KeptErasure, err error) {
	k.ErasureCertificate = c
	if len(key) == 0 {
		k.Body, err = json.Marshal(c)
	} else if public, ok := key.Public().(ed25519.PublicKey); ok {
		k.Key = document.KeyID(public)
		k.Body, err = document.SignErasure(c, key)
	}
	if err != nil {
		return k, fmt.Errorf("draw certificate of erasure: %w", err)
	}
	return k, nil
}

// ErasureFilter says which certificates to list, newest first; empty fields do not filter.
type ErasureFilter struct {
	MachineID string
	OrderID   string
	Serial    string // of the disk
	Limit     int
}
