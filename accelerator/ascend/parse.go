package ascend

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/accelerator"
)

// chip is one row pair of `npu-smi info`, as text: it may say ERR! or N/A in any place.
type chip struct {
	npu, name, health, power, temperature string
	chip, bus, memory                     string // memory: MB in all
	processes                             int64
}

type overview struct {
	version string
	chips   []chip
}

const maxChips = 128

var (
	versionLine = regexp.MustCompile(`\bnpu-smi\s+(\S+)\s+Version:\s*(\S+)`)
	usage       = regexp.MustCompile(`(\S+)\s*/\s*(\S+)\s*$`)
	busID       = regexp.MustCompile(`^(?:[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|ERR!|N/?A|-)$`)
)

// parseInfo reads the table of `npu-smi info`. A row pair is
//
//	| 0     910B2               | OK            | 91.1        49                0    / 0             |
//	| 0                         | 0000:C1:00.0  | 0           0    / 0          3372 / 65536         |
//
// and the processes come in a table of their own below, "| 0       0                 | 115133        | python   | 2048 |".
func parseInfo(text string) (overview, error) {
	var o overview
	if m := versionLine.FindStringSubmatch(text); m != nil {
		o.version = m[1]
	}
	processes := false
	var open *chip // a first row that waits for its second
	npu := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "Process id") {
			processes = true
			continue
		}
		cells := cellsOf(line)
		if len(cells) < 3 {
			continue
		}
		first := strings.Fields(cells[0])
		switch {
		case processes:
			if len(cells) >= 4 && len(first) == 2 && digits(first[0]) && digits(cells[1]) {
				for i := range o.chips {
					if o.chips[i].npu == first[0] && o.chips[i].chip == first[1] {
						o.chips[i].processes++
					}
				}
			}
		case len(first) == 1 && digits(first[0]) && busID.MatchString(cells[1]):
			if open == nil { // a second chip of one card: its row carries no name
				if npu == "" {
					continue
				}
				open = &chip{npu: npu}
			}
			open.chip, open.bus = first[0], cells[1]
			if m := usage.FindStringSubmatch(cells[2]); m != nil {
				open.memory = m[2]
			}
			if len(o.chips) >= maxChips {
				return o, errors.New("the table has more chips than any machine")
			}
			o.chips = append(o.chips, *open)
			open = nil
		case len(first) >= 2 && digits(first[0]):
			npu = first[0]
			open = &chip{npu: npu, name: strings.Join(first[1:], " "), health: cells[1]}
			if values := strings.Fields(cells[2]); len(values) >= 2 {
				open.power, open.temperature = values[0], values[1]
			}
		}
	}
	if len(o.chips) == 0 {
		return o, fmt.Errorf("the table has no chip: %.120q", strings.TrimSpace(text))
	}
	return o, nil
}

// cellsOf splits a row at its bars.
func cellsOf(line string) []string {
	inner, ok := strings.CutPrefix(line, "|")
	if !ok {
		return nil
	}
	cells := strings.Split(strings.TrimSuffix(inner, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

func digits(s string) bool {
	return s != "" && len(s) < 10 && strings.Trim(s, "0123456789") == ""
}

// fields is what `npu-smi info -t …` and hccn_tool print: one "Key : value" a line.
type fields map[string]string

func parseFields(text string) fields {
	out := fields{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		key = strings.TrimSpace(key)
		if _, twice := out[key]; ok && key != "" && !twice && len(out) < 256 {
			out[key] = strings.TrimSpace(value)
		}
	}
	return out
}

// text returns the first of some keys that is there.
func (f fields) text(keys ...string) accelerator.Value[string] {
	for _, key := range keys {
		if v, ok := f[key]; ok {
			return word(v)
		}
	}
	return accelerator.Unsupported[string](source)
}

func (f fields) count(keys ...string) accelerator.Value[int64] {
	for _, key := range keys {
		if v, ok := f[key]; ok {
			n := whole(v, "")
			if n.Known() && n.Value < 0 {
				return accelerator.Unreadable[int64](source, "a negative count")
			}
			return n
		}
	}
	return accelerator.Unsupported[int64](source)
}

// outcomes are the words of ascend-dmi.
func outcomeOf(s string) (accelerator.Outcome, bool) {
	switch strings.ToUpper(strings.TrimSpace(s)) {
	case "PASS":
		return accelerator.Pass, true
	case "WARN", "GENERAL_WARN":
		return accelerator.Warn, true
	case "FAIL", "IMPORTANT_WARN", "EMERGENCY_WARN":
		return accelerator.Fail, true
	case "SKIP":
		return accelerator.Skip, true
	}
	return "", false
}

// parseDiagnosis reads the answer of `ascend-dmi --dg`. Releases nest their JSON differently, so every object or list entry that holds one of the
// tool's outcomes is a test, named by the keys that lead to it. Text is taken where there is no JSON: a name, its outcome below, remarks after ***.
func parseDiagnosis(text string) []accelerator.ToolTest {
	if i := strings.IndexAny(text, "{["); i >= 0 {
		var v any
		if json.NewDecoder(strings.NewReader(text[i:])).Decode(&v) == nil {
			var out []accelerator.ToolTest
			walk(v, nil, &out, 0)
			if len(out) > 0 {
				return out
			}
		}
	}
	return parseDiagnosisText(text)
}

const maxTests = 512

func walk(v any, path []string, out *[]accelerator.ToolTest, depth int) {
	if depth > 16 || len(*out) >= maxTests {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		name, card, detail := strings.Join(path, " "), "", ""
		var found accelerator.Outcome
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			s, isText := v[k].(string)
			switch low := strings.ToLower(k); {
			case low == "name" || low == "item" || low == "diagnosis item" || low == "test":
				if isText {
					name = strings.TrimSpace(name + " " + s)
				}
			case low == "device" || low == "device id" || low == "device_id" || low == "npu" || low == "card":
				card = fmt.Sprint(v[k])
			case low == "detail" || low == "message" || low == "reason" || low == "info":
				detail = fmt.Sprint(v[k])
			}
			if o, ok := outcomeOf(s); isText && ok {
				switch strings.ToLower(k) {
				case "result", "status", "state", "outcome":
					found = o
				default: // {"aicore": "PASS"}
					add(out, strings.Join(append(slices.Clone(path), k), " "), "", o, "")
				}
			}
		}
		if found != "" {
			add(out, name, card, found, detail)
		}
		for _, k := range keys {
			switch v[k].(type) {
			case map[string]any, []any:
				walk(v[k], append(slices.Clone(path), k), out, depth+1)
			}
		}
	case []any:
		for _, item := range v {
			walk(item, path, out, depth+1)
		}
	}
}

func add(out *[]accelerator.ToolTest, name, card string, o accelerator.Outcome, detail string) {
	if len(*out) < maxTests {
		*out = append(*out, accelerator.ToolTest{Name: clip(name), Card: clip(card), Outcome: o, Detail: clip(detail)})
	}
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 300)], "") }

func parseDiagnosisText(text string) []accelerator.ToolTest {
	var out []accelerator.ToolTest
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if o, ok := outcomeOf(line); ok && name != "" {
			add(&out, name, "", o, "")
			continue
		}
		if remark, ok := strings.CutPrefix(line, "***"); ok && len(out) > 0 {
			last := &out[len(out)-1]
			last.Detail = clip(strings.TrimSpace(last.Detail + " " + strings.TrimSpace(remark)))
			continue
		}
		if head, ok := strings.CutSuffix(line, ":"); ok {
			name = head
			continue
		}
		if head, tail, ok := strings.Cut(line, ":"); ok {
			if o, known := outcomeOf(tail); known {
				add(&out, strings.TrimSpace(head), "", o, "")
			}
		}
	}
	return out
}
