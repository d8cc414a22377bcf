package accelerator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Bounds of a report that came over the wire. The largest honest one, of 16 cards after a day of stress, has about 1 MB.
const (
	maxReport = 8 << 20 // bytes
	maxItems  = 4096    // of any list
	maxString = 8 << 10 // bytes
	maxNumber = 128     // bytes of what tells a card from all others
)

// DecodeReport reads a report that came over the wire, of this schema or the one before. What it holds was written by a machine that a customer
// may have had in hand: it is bounded, no key may be given twice, what could steer a terminal is replaced, and the outcome is worked out
// again from the checks, so that a report cannot claim to be better than what it holds.
func DecodeReport(data []byte) (Report, error) {
	var r Report
	if len(data) > maxReport {
		return Report{}, fmt.Errorf("decode validation report: %d bytes, %d at most", len(data), maxReport)
	}
	if err := uniqueKeys(data); err != nil {
		return Report{}, fmt.Errorf("decode validation report: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Report{}, fmt.Errorf("decode validation report: %w", err)
	}
	switch r.Schema {
	case Schema:
	case schemaOne:
		for i, c := range r.Checks {
			r.Checks[i].Advice, r.Checks[i].Action = string(c.Action), ActNone
		}
	default:
		return Report{}, fmt.Errorf("decode validation report: schema %q, want %q or %q", printable(r.Schema), Schema, schemaOne)
	}
	if err := tame(reflect.ValueOf(&r).Elem(), "report"); err != nil {
		return Report{}, fmt.Errorf("decode validation report: %w", err)
	}
	if err := r.sane(); err != nil {
		return Report{}, fmt.Errorf("decode validation report: %w", err)
	}
	for i := range r.Checks {
		r.Checks[i].Outcome = known(r.Checks[i].Outcome)
	}
	for i := range r.Cards {
		r.Cards[i].Outcome = known(r.Cards[i].Outcome)
	}
	r.Outcome = overall(r.Checks)
	return r, nil
}

// DecodeFacts reads what a RAM disk saw, bounded as a report is.
func DecodeFacts(data []byte) (Facts, error) {
	var f Facts
	if len(data) > maxReport {
		return Facts{}, fmt.Errorf("decode facts: %d bytes, %d at most", len(data), maxReport)
	}
	if err := uniqueKeys(data); err != nil {
		return Facts{}, fmt.Errorf("decode facts: %w", err)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return Facts{}, fmt.Errorf("decode facts: %w", err)
	}
	if err := tame(reflect.ValueOf(&f).Elem(), "facts"); err != nil {
		return Facts{}, fmt.Errorf("decode facts: %w", err)
	}
	for i, c := range f.PCI.Cards {
		if Slot(c.Slot) != c.Slot || slices.ContainsFunc(f.PCI.Cards[:i], func(o PCICard) bool { return o.Slot == c.Slot }) {
			return Facts{}, fmt.Errorf("decode facts: pci.cards[%d].slot: %q is no PCI address, or is there twice", i, c.Slot)
		}
	}
	for i, c := range f.PCI.Cards {
		if len(c.Number.Value) > maxNumber {
			return Facts{}, fmt.Errorf("decode facts: pci.cards[%d].number: more than %d bytes", i, maxNumber)
		}
	}
	// A RAM disk asks no driver, puts on no load and waives nothing.
	f.Driver, f.Loads, f.Series, f.Diagnoses, f.BMC, f.Before, f.Stages, f.Seconds, f.Asked = nil, nil, nil, nil, nil, nil, nil, 0, 0
	return f, nil
}

// known returns an outcome, or Fail for a word that is none: nobody can say what it lets pass.
func known(o Outcome) Outcome {
	if slices.Contains([]Outcome{Pass, Warn, Skip, Error, Fail}, o) {
		return o
	}
	return Fail
}

// sane refuses what no machine can have.
func (r Report) sane() error {
	slots := map[string]bool{}
	for i, c := range r.Cards {
		if c.Slot != "" && Slot(c.Slot) != c.Slot {
			return fmt.Errorf("cards[%d].slot: %q is no PCI address", i, c.Slot)
		}
		if c.Slot != "" && slots[c.Slot] {
			return fmt.Errorf("cards[%d].slot: %s is there twice", i, c.Slot)
		}
		slots[c.Slot] = true
		if c.Card != nil && (len(c.Card.Serial.Value) > maxNumber || len(c.Card.UUID.Value) > maxNumber) || c.PCI != nil && len(c.PCI.Number.Value) > maxNumber {
			return fmt.Errorf("cards[%d]: a serial number or UUID of more than %d bytes", i, maxNumber)
		}
		if c.Card != nil && c.Card.Memory.Value < 0 {
			return fmt.Errorf("cards[%d].card.memory: %d bytes", i, c.Card.Memory.Value)
		}
	}
	if r.Host.Memory.Value < 0 || r.Host.Cores.Value < 0 {
		return errors.New("host: memory and cores cannot be negative")
	}
	for i, d := range r.Host.Disks {
		if d.Size.Value < 0 {
			return fmt.Errorf("host.disks[%d].size: %d bytes", i, d.Size.Value)
		}
	}
	for i, l := range r.Loads {
		if l.Rate.Value < 0 || l.Errors < 0 || l.Seconds < 0 {
			return fmt.Errorf("loads[%d]: rate, errors and seconds cannot be negative", i)
		}
	}
	return nil
}

// tame walks over everything that was read: it bounds lists and texts and replaces what is not printable.
func tame(v reflect.Value, where string) error {
	switch v.Kind() {
	case reflect.String:
		if v.Len() > maxString {
			return fmt.Errorf("%s: a text of %d bytes, %d at most", where, v.Len(), maxString)
		}
		if s := printable(v.String()); s != v.String() {
			v.SetString(s)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return tame(v.Elem(), where)
		}
	case reflect.Struct:
		t := v.Type()
		for i := range v.NumField() {
			if t.Field(i).IsExported() {
				if err := tame(v.Field(i), where+"."+t.Field(i).Name); err != nil {
					return err
				}
			}
		}
	case reflect.Slice:
		if v.Len() > maxItems {
			return fmt.Errorf("%s: %d items, %d at most", where, v.Len(), maxItems)
		}
		for i := range v.Len() {
			if err := tame(v.Index(i), fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		if v.Len() > maxItems {
			return fmt.Errorf("%s: %d items, %d at most", where, v.Len(), maxItems)
		}
		for _, k := range v.MapKeys() {
			if k.Kind() == reflect.String && printable(k.String()) != k.String() {
				return fmt.Errorf("%s: %q is no name", where, k.String())
			}
		}
	}
	return nil
}

// uniqueKeys refuses an object that gives a key twice: two readers could take two different values for it.
func uniqueKeys(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := uniqueValue(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something follows the report")
	}
	return nil
}

func uniqueValue(dec *json.Decoder, depth int) error {
	if depth > 32 {
		return errors.New("nested too deep")
	}
	t, err := dec.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return err
			}
			key, _ := k.(string)
			if seen[strings.ToLower(key)] { // encoding/json takes either for the field
				return fmt.Errorf("key %q is given twice", printable(key))
			}
			seen[strings.ToLower(key)] = true
			if err := uniqueValue(dec, depth+1); err != nil {
				return err
			}
		}
		_, err = dec.Token()
	case json.Delim('['):
		for n := 0; dec.More(); n++ {
			if n >= maxItems { // before the rest is read
				return fmt.Errorf("a list of more than %d items", maxItems)
			}
			if err := uniqueValue(dec, depth+1); err != nil {
				return err
			}
		}
		_, err = dec.Token()
	}
	return err
}
