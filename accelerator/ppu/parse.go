package ppu

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/bareyard/bareyard/accelerator"
)

type overview struct {
	version accelerator.Value[string]
	cards   []accelerator.Card
}

const (
	maxCards = 64
	maxNodes = 1 << 16
)

// node is a name with a value, or with more below it. Both of the tool's long forms are trees of them: `-q` by indentation, `-q -x` as XML.
type node struct {
	name  string // lower case, words joined by _
	value string
	below []*node
}

func canonical(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == ' ' || r == '_' || r == '-' || r == '\t' }), "_")
}

// get returns the value below a path; each part is one name or several, the first that is there.
func (n *node) get(path ...string) string {
	if n == nil {
		return ""
	}
	if len(path) == 0 {
		return n.value
	}
	for name := range strings.SplitSeq(path[0], "|") {
		for _, b := range n.below {
			if b.name == name {
				return b.get(path[1:]...)
			}
		}
	}
	return ""
}

func (n *node) find(names string) *node {
	if n == nil {
		return nil
	}
	for name := range strings.SplitSeq(names, "|") {
		for _, b := range n.below {
			if b.name == name {
				return b
			}
		}
	}
	return nil
}

var cardHead = regexp.MustCompile(`^(?:PPU|GPU|XPU)\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$`)

// parseText reads `ppu-smi -q`, which is built like nvidia-smi's: "PPU 00000000:08:00.0" begins a card, four blanks more are one level down.
func parseText(text string) (overview, error) {
	root := &node{}
	type level struct {
		indent int
		n      *node
	}
	stack := []level{{-1, root}}
	nodes := 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		body := strings.TrimLeft(line, " \t")
		if body == "" || strings.HasPrefix(body, "=") {
			continue
		}
		indent := len(line) - len(body)
		n := &node{}
		if m := cardHead.FindStringSubmatch(body); m != nil {
			n.name, n.value = "ppu", m[1]
		} else {
			key, value, _ := strings.Cut(body, " : ")
			if k, ok := strings.CutSuffix(key, " :"); ok {
				key = k
			}
			n.name, n.value = canonical(key), strings.TrimSpace(value)
		}
		for len(stack) > 1 && stack[len(stack)-1].indent >= indent {
			stack = stack[:len(stack)-1]
		}
		if nodes++; nodes > maxNodes || len(stack) > 32 {
			return overview{}, errors.New("the answer is longer than any machine's")
		}
		parent := stack[len(stack)-1].n
		parent.below = append(parent.below, n)
		stack = append(stack, level{indent, n})
	}
	return cardsOf(root)
}

// parseXML reads `ppu-smi -q -x`.
func parseXML(text string) (overview, error) {
	dec := xml.NewDecoder(strings.NewReader(text))
	dec.Strict = true
	dec.Entity = map[string]string{} // nothing from a document type
	dec.CharsetReader = func(string, io.Reader) (io.Reader, error) { return nil, errors.New("another character set than UTF-8") }
	root := &node{}
	stack := []*node{root}
	nodes := 0
	for {
		t, err := dec.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return overview{}, fmt.Errorf("read XML: %w", err)
		}
		switch t := t.(type) {
		case xml.StartElement:
			n := &node{name: canonical(t.Name.Local)}
			for _, a := range t.Attr {
				if a.Name.Local == "id" {
					n.value = a.Value
				}
			}
			if nodes++; nodes > maxNodes || len(stack) > 32 {
				return overview{}, errors.New("the answer is longer than any machine's")
			}
			parent := stack[len(stack)-1]
			parent.below = append(parent.below, n)
			stack = append(stack, n)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			if s := strings.TrimSpace(string(t)); s != "" && len(stack) > 1 && len(s) < 4096 {
				stack[len(stack)-1].value = s
			}
		}
	}
	if len(root.below) != 1 {
		return overview{}, errors.New("no XML document")
	}
	return cardsOf(root.below[0])
}

// cardsOf reads the cards of a tree.
func cardsOf(root *node) (overview, error) {
	o := overview{version: word(root.get("driver_version"))}
	for _, n := range root.below {
		if n.name != "ppu" && n.name != "gpu" && n.name != "xpu" || accelerator.Slot(n.value) == "" {
			continue
		}
		if len(o.cards) >= maxCards {
			return overview{}, errors.New("more cards than any machine has")
		}
		o.cards = append(o.cards, cardOf(len(o.cards), n))
	}
	if len(o.cards) == 0 {
		return overview{}, errors.New("the answer has no card")
	}
	return o, nil
}

func cardOf(index int, n *node) accelerator.Card {
	k := accelerator.Card{
		Index: index, Slot: accelerator.Slot(n.value),
		Name: word(n.get("product_name")), Serial: word(n.get("serial_number|serial")), UUID: word(n.get("ppu_uuid|gpu_uuid|uuid")), VBIOS: word(n.get("vbios_version")),
		Memory:      mebibytes(n.get("fb_memory_usage|memory_usage|hbm_memory_usage", "total")),
		ECC:         flag(n.get("ecc_mode", "current|current_ecc")),
		ECCPending:  flag(n.get("ecc_mode", "pending|pending_ecc")),
		Persistence: flag(n.get("persistence_mode")),
		MIG:         flag(n.get("mig_mode", "current|current_mig")),
		ComputeMode: word(strings.ToLower(n.get("compute_mode"))),
		Recovery:    recovery(n),

		Uncorrected:     number(n.get("ecc_errors", "volatile", "dram_uncorrectable"), ""),
		UncorrectedEver: number(n.get("ecc_errors", "aggregate", "dram_uncorrectable"), ""),
		Corrected:       number(n.get("ecc_errors", "volatile", "dram_correctable"), ""),
		RemapPending:    flag(n.get("remapped_rows|row_remapper", "pending|remapped_row_pending")),
		RemapFailed:     flag(n.get("remapped_rows|row_remapper", "remapping_failure_occurred|remapped_row_failure")),
		RemappedRows:    number(n.get("remapped_rows|row_remapper", "uncorrectable_error|remapped_row_unc"), ""),

		Temperature:  number(suffix(n.find("temperature"), "current_temp|_temp"), "°C"),
		Power:        number(n.get("power_readings|ppu_power_readings|gpu_power_readings", "power_draw|instant_power_draw"), "W"),
		PowerLimit:   number(n.get("power_readings|ppu_power_readings|gpu_power_readings", "enforced_power_limit|current_power_limit|power_limit"), "W"),
		PowerDefault: number(n.get("power_readings|ppu_power_readings|gpu_power_readings", "default_power_limit"), "W"),
	}
	pci := n.find("pci")
	link := pci.find("ppu_link_info|gpu_link_info|pci_gpu_link_info|pci_ppu_link_info")
	gen, width := link.find("pcie_generation|pcie_gen"), link.find("link_width|link_widths")
	k.LinkGen, k.MaxGen = number(gen.get("current|current_link_gen"), ""), number(gen.get("max|max_link_gen"), "")
	k.LinkWidth, k.MaxWidth = number(width.get("current|current_link_width"), ""), number(width.get("max|max_link_width"), "")
	k.Replays = number(pci.get("replays_since_reset|replay_counter"), "")
	k.ID = pciID(pci.get("device_id|pci_device_id"))
	k.Processes = processes(n.find("processes"))
	return k
}

func recovery(n *node) accelerator.Value[string] {
	v := word(strings.ToLower(n.get("ppu_recovery_action|gpu_recovery_action")))
	if v.Known() && strings.Contains(v.Value, "none") {
		v.Value = "none"
	}
	return v
}

// suffix returns the value of the first child whose name ends in one of some words.
func suffix(n *node, ends string) string {
	if n == nil {
		return ""
	}
	for end := range strings.SplitSeq(ends, "|") {
		for _, b := range n.below {
			if strings.HasSuffix(b.name, end) {
				return b.value
			}
		}
	}
	return ""
}

var hexID = regexp.MustCompile(`^0x([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})$`)

// pciID reads the number that holds device and vendor, 0x60011DED.
func pciID(s string) accelerator.Value[string] {
	if v, ok := known[string](s); !ok {
		return v
	}
	m := hexID.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return accelerator.Unsupported[string](source)
	}
	return accelerator.Measured(strings.ToLower(m[2]+":"+m[1]), "", source)
}

// processes counts what uses a card: "Process ID" of the text, process_info of the XML.
func processes(n *node) accelerator.Value[int64] {
	if n == nil {
		return accelerator.Unsupported[int64](source)
	}
	count := int64(0)
	var walk func(*node)
	walk = func(n *node) {
		for _, b := range n.below {
			if b.name == "process_id" || b.name == "pid" {
				count++
			}
			walk(b)
		}
	}
	walk(n)
	return accelerator.Measured(count, "", source)
}

// parseCSV reads gpu_bus_id, memory.total, power.limit, gpu_serial, one card a line.
func parseCSV(text string) (overview, error) {
	o := overview{version: accelerator.Unsupported[string](source)}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), ",")
		if len(cells) < 4 || accelerator.Slot(cells[0]) == "" {
			continue
		}
		if len(o.cards) >= maxCards {
			return overview{}, errors.New("more cards than any machine has")
		}
		o.cards = append(o.cards, accelerator.Card{Index: len(o.cards), Slot: accelerator.Slot(cells[0]), Memory: mebibytes(cells[1]), PowerLimit: number(cells[2], "W"), Serial: word(cells[3])})
	}
	if len(o.cards) == 0 {
		return overview{}, fmt.Errorf("the answer has no card: %.120q", strings.TrimSpace(text))
	}
	return o, nil
}

var (
	linkCard   = regexp.MustCompile(`^(?:PPU|GPU|XPU)\s+(\d{1,3})\b`)
	linkLine   = regexp.MustCompile(`^Link\s+(\d{1,3}):\s*(.*)$`)
	linkErrors = regexp.MustCompile(`^(\d{1,18})\s+(.*)errors?$`)
)

// parseLinks reads `ppu-smi icn -s` and `-e` into the links of each card by index:
//
//	PPU 0: PPU-ZW810E (UUID: …)
//	    Link 0: 50 GB/s
//	    Link 0: 0 FEC uncorrectable errors
func parseLinks(state, errors string) map[int][]accelerator.Link {
	out := map[int][]accelerator.Link{}
	each := func(text string, line func(card, link int, rest string)) {
		card := -1
		for l := range strings.Lines(text) {
			l = strings.TrimSpace(l)
			if m := linkCard.FindStringSubmatch(l); m != nil {
				fmt.Sscan(m[1], &card)
			} else if m := linkLine.FindStringSubmatch(l); m != nil && card >= 0 && card < maxCards {
				var link int
				fmt.Sscan(m[1], &link)
				line(card, link, m[2])
			}
		}
	}
	at := func(card, link int) *accelerator.Link {
		for i := range out[card] {
			if out[card][i].Index == link {
				return &out[card][i]
			}
		}
		if len(out[card]) >= 64 {
			return &accelerator.Link{}
		}
		out[card] = append(out[card], accelerator.Link{Index: link, Active: accelerator.Unsupported[bool](source), Errors: accelerator.Unsupported[int64](source)})
		return &out[card][len(out[card])-1]
	}
	each(state, func(card, link int, rest string) {
		low := strings.ToLower(rest)
		up := strings.Contains(low, "b/s") || low == "active" || low == "up"
		if _, ok := known[bool](rest); !ok {
			at(card, link).Active, _ = known[bool](rest)
			return
		}
		at(card, link).Active = accelerator.Measured(up && !strings.HasPrefix(low, "0 "), "", source)
	})
	each(errors, func(card, link int, rest string) {
		m := linkErrors.FindStringSubmatch(rest)
		if m == nil || !strings.Contains(strings.ToLower(m[2]), "uncorrectable") && !strings.Contains(strings.ToLower(m[2]), "crc") {
			return // corrected errors are a link's daily bread
		}
		n := number(m[1], "")
		l := at(card, link)
		l.Errors = accelerator.Measured(l.Errors.Value+n.Value, "", source)
	})
	return out
}
