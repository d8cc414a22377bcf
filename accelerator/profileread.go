package accelerator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxProfileFile bounds a file of profiles, in bytes.
const maxProfileFile = 1 << 20

// ParseProfiles reads a file of profiles. It is strict: an unknown key, a key given twice, a value of the wrong kind or without its source is
// an error. All mistakes of the file are in the error, one a line, each as FILE:LINE: FIELD: what is wrong.
func ParseProfiles(file string, text []byte) ([]Profile, error) {
	if len(text) > maxProfileFile {
		return nil, fmt.Errorf("%s: %d bytes are more than any profile needs", file, len(text))
	}
	r := &profileReader{file: file}
	stream := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := stream.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: no profile in it", file)
		}
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := stream.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:%d: a second document: keep one in a file", file, more.Line)
	}
	list := r.document(doc.Content[0])
	if len(r.wrong) > 0 {
		return nil, errors.Join(r.wrong...)
	}
	return list, nil
}

type profileReader struct {
	file  string
	wrong []error
}

// complain notes a mistake; beyond the first twenty they are one mistake seen twenty times.
func (r *profileReader) complain(n *yaml.Node, field, format string, a ...any) {
	if len(r.wrong) < 20 {
		r.wrong = append(r.wrong, fmt.Errorf("%s:%d: %s: %s", r.file, n.Line, field, printable(fmt.Sprintf(format, a...))))
	}
}

// fields returns the values of a mapping by key and complains of what is not one of the keys.
func (r *profileReader) fields(n *yaml.Node, field string, keys ...string) map[string]*yaml.Node {
	out := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		r.complain(n, field, "wants keys and values, e.g. %s: …", keys[0])
		return out
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case !slices.Contains(keys, key.Value):
			r.complain(key, under(field, key.Value), "unknown; there are %s", strings.Join(keys, ", "))
		case out[key.Value] != nil:
			r.complain(key, under(field, key.Value), "given twice")
		default:
			out[key.Value] = n.Content[i+1]
		}
	}
	return out
}

func under(field, key string) string { return strings.TrimPrefix(field+"."+key, ".") }

func (r *profileReader) document(n *yaml.Node) []Profile {
	top := r.fields(n, "the file", "schema", "profiles")
	if s := top["schema"]; s == nil {
		r.complain(n, "schema", "missing; write schema: %s", ProfileSchema)
	} else if s.Value != ProfileSchema {
		r.complain(s, "schema", "is %q, this program reads %q", s.Value, ProfileSchema)
	}
	list := top["profiles"]
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		at := cmp.Or(list, n)
		r.complain(at, "profiles", "wants a list of one profile or more")
		return nil
	}
	var out []Profile
	seen := map[Match]bool{}
	for i, item := range list.Content {
		p := r.profile(item, fmt.Sprintf("profiles[%d]", i))
		for _, m := range p.Match {
			if seen[m] {
				r.complain(item, fmt.Sprintf("profiles[%d].match", i), "%s is in the file twice", m)
			}
			seen[m] = true
		}
		out = append(out, p)
	}
	return out
}

// valueKeys are the keys of a profile that hold a Known, in the order of the struct.
func valueKeys() []string {
	var keys []string
	t := reflect.TypeFor[Profile]()
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("yaml"); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

func (r *profileReader) profile(n *yaml.Node, field string) Profile {
	p := Profile{File: r.file}
	f := r.fields(n, field, append([]string{"name", "revision", "match", "limits"}, valueKeys()...)...)
	p.Name = r.word(f["name"], n, under(field, "name"))
	p.Revision = r.whole(f["revision"], n, under(field, "revision"), 1, math.MaxInt32)
	match := f["match"]
	if match == nil || match.Kind != yaml.SequenceNode || len(match.Content) == 0 {
		r.complain(cmp.Or(match, n), under(field, "match"), "wants a list, e.g. - device: 10de:2b85")
	} else {
		for i, item := range match.Content {
			at := fmt.Sprintf("%s.match[%d]", field, i)
			m := r.fields(item, at, "device", "subsystem")
			one := Match{Device: r.pciID(m["device"], item, under(at, "device"))}
			if m["subsystem"] != nil {
				one.Subsystem = r.pciID(m["subsystem"], item, under(at, "subsystem"))
			}
			p.Match = append(p.Match, one)
		}
	}
	v := reflect.ValueOf(&p).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if node := f[tag.Get("yaml")]; tag.Get("yaml") != "" && node != nil {
			r.known(node, under(field, tag.Get("yaml")), tag, v.Field(i).Addr().Interface())
		}
	}
	if list := f["limits"]; list != nil {
		if list.Kind != yaml.SequenceNode {
			r.complain(list, under(field, "limits"), "wants a list")
			return p
		}
		for i, item := range list.Content {
			at := fmt.Sprintf("%s.limits[%d]", field, i)
			l := r.limit(item, at)
			if slices.ContainsFunc(p.Limits, func(k Limit) bool { return k.Test == l.Test && k.Tool == l.Tool && k.Version == l.Version }) {
				r.complain(item, at, "%s of %s %s is given twice", l.Test, l.Tool, l.Version)
			}
			p.Limits = append(p.Limits, l)
		}
	}
	return p
}

// known reads {value: …, unit: …, status: …, source: …} into a *Known.
func (r *profileReader) known(n *yaml.Node, field string, tag reflect.StructTag, into any) {
	f := r.fields(n, field, "value", "unit", "status", "source")
	if u := f["unit"]; u != nil && u.Value != tag.Get("unit") {
		r.complain(u, under(field, "unit"), "is %q, this value is in %q", u.Value, tag.Get("unit"))
	}
	status, source := r.origin(f, n, field)
	value := f["value"]
	if status == NotKnown {
		if value != nil {
			r.complain(value, under(field, "value"), "given although the status is unknown: leave it out, or say published or calibrated")
		}
	} else if value == nil {
		r.complain(n, under(field, "value"), "missing; a value that nobody knows has status: unknown")
		return
	}
	switch k := into.(type) {
	case *Known[int64]:
		k.Status, k.Source = status, source
		if value != nil && status != NotKnown {
			least, most := int64(1), int64(1)<<40
			if strings.HasSuffix(field, ".margin") {
				least, most = -100, 100
			}
			k.Value = r.whole(value, n, under(field, "value"), least, most)
		}
	case *Known[float64]:
		k.Status, k.Source = status, source
		if value != nil && status != NotKnown {
			k.Value = r.number(value, n, under(field, "value"))
		}
	case *Known[string]:
		k.Status, k.Source = status, source
		if value != nil && status != NotKnown {
			k.Value = r.word(value, n, under(field, "value"))
			if words := strings.Fields(tag.Get("words")); len(words) > 0 && !slices.Contains(words, k.Value) {
				r.complain(value, under(field, "value"), "is %q, want one of %s", k.Value, strings.Join(words, ", "))
			}
		}
	}
}

// origin reads status and source, which belong together.
func (r *profileReader) origin(f map[string]*yaml.Node, n *yaml.Node, field string) (Status, string) {
	s := f["status"]
	if s == nil {
		r.complain(n, under(field, "status"), "missing; it is published, calibrated or unknown")
		return NotKnown, ""
	}
	status := Status(s.Value)
	source := ""
	if f["source"] != nil {
		source = r.word(f["source"], n, under(field, "source"))
	}
	switch status {
	case Published, Calibrated:
		if f["source"] == nil {
			r.complain(n, under(field, "source"), "missing; a value that judges says where it comes from")
		}
	case NotKnown:
	default:
		r.complain(s, under(field, "status"), "is %q, want published, calibrated or unknown", s.Value)
		return NotKnown, source
	}
	return status, source
}

func (r *profileReader) limit(n *yaml.Node, field string) Limit {
	f := r.fields(n, field, "test", "tool", "version", "unit", "min", "median", "spread", "cards", "status", "source")
	l := Limit{Test: r.word(f["test"], n, under(field, "test")), Tool: r.word(f["tool"], n, under(field, "tool")), Unit: r.word(f["unit"], n, under(field, "unit"))}
	if f["version"] != nil {
		l.Version = r.word(f["version"], n, under(field, "version"))
	}
	l.Status, l.Source = r.origin(f, n, field)
	if l.Status == NotKnown {
		return l
	}
	l.Min = r.number(f["min"], n, under(field, "min"))
	if f["median"] != nil {
		l.Median = r.number(f["median"], n, under(field, "median"))
	}
	if s := f["spread"]; s != nil && s.Value != "0" {
		l.Spread = r.number(s, n, under(field, "spread"))
	}
	if f["cards"] != nil {
		l.Cards = r.whole(f["cards"], n, under(field, "cards"), 1, math.MaxInt32)
	}
	if l.Median > 0 && l.Min > l.Median {
		r.complain(f["min"], under(field, "min"), "%v is above the fleet's median of %v: every second card would fail", l.Min, l.Median)
	}
	return l
}

// word reads a text of one line.
func (r *profileReader) word(n, parent *yaml.Node, field string) string {
	switch {
	case n == nil:
		r.complain(parent, field, "missing")
		return ""
	case n.Kind != yaml.ScalarNode || n.Value == "" || n.Tag == "!!null":
		r.complain(n, field, "wants a text")
		return ""
	case len(n.Value) > 500 || printable(n.Value) != n.Value:
		r.complain(n, field, "wants one line of 500 printable characters at most")
		return ""
	}
	return n.Value
}

func (r *profileReader) whole(n, parent *yaml.Node, field string, least, most int64) int64 {
	if n == nil {
		r.complain(parent, field, "missing")
		return 0
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || v < least || v > most {
		r.complain(n, field, "wants a whole number from %d to %d, not %q", least, most, n.Value)
		return 0
	}
	return v
}

func (r *profileReader) number(n, parent *yaml.Node, field string) float64 {
	if n == nil {
		r.complain(parent, field, "missing")
		return 0
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	if n.Kind != yaml.ScalarNode || err != nil || !(v > 0) || math.IsInf(v, 0) || v > 1e12 {
		r.complain(n, field, "wants a number above 0, not %q", n.Value)
		return 0
	}
	return v
}

var pciID = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)

// pciID reads vendor:device. YAML takes a plain 1234:5678 for a number in base 60, so only its text counts.
func (r *profileReader) pciID(n, parent *yaml.Node, field string) string {
	if n == nil {
		r.complain(parent, field, "missing")
		return ""
	}
	id := strings.ToLower(n.Value)
	if n.Kind != yaml.ScalarNode || !pciID.MatchString(id) {
		r.complain(n, field, "wants vendor:device of four hex digits each, e.g. 10de:2b85, not %q", n.Value)
		return ""
	}
	return id
}

// WriteProfiles writes profiles as a file that ParseProfiles reads.
func WriteProfiles(w io.Writer, list []Profile) error {
	doc := mapping("schema", plain(ProfileSchema))
	items := &yaml.Node{Kind: yaml.SequenceNode}
	for _, p := range list {
		items.Content = append(items.Content, p.node())
	}
	doc.Content = append(doc.Content, plain("profiles"), items)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("write profiles: %w", err)
	}
	return enc.Close()
}

func (p Profile) node() *yaml.Node {
	match := &yaml.Node{Kind: yaml.SequenceNode}
	for _, m := range p.Match {
		one := mapping("device", quoted(m.Device))
		if m.Subsystem != "" {
			one.Content = append(one.Content, plain("subsystem"), quoted(m.Subsystem))
		}
		match.Content = append(match.Content, one)
	}
	n := mapping("name", quoted(p.Name), "revision", plain(strconv.FormatInt(p.Revision, 10)), "match", match)
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if tag.Get("yaml") == "" || v.Field(i).IsZero() {
			continue
		}
		var value *yaml.Node
		var status Status
		var source string
		switch k := v.Field(i).Interface().(type) {
		case Known[int64]:
			value, status, source = plain(strconv.FormatInt(k.Value, 10)), k.Status, k.Source
		case Known[float64]:
			value, status, source = plain(decimal(k.Value)), k.Status, k.Source
		case Known[string]:
			value, status, source = quoted(k.Value), k.Status, k.Source
		}
		one := mapping()
		one.Style = yaml.FlowStyle
		if status != NotKnown {
			one.Content = append(one.Content, plain("value"), value)
		}
		if tag.Get("unit") != "" {
			one.Content = append(one.Content, plain("unit"), quoted(tag.Get("unit")))
		}
		one.Content = append(one.Content, plain("status"), plain(string(status)))
		if source != "" {
			one.Content = append(one.Content, plain("source"), quoted(source))
		}
		n.Content = append(n.Content, plain(tag.Get("yaml")), one)
	}
	if len(p.Limits) > 0 {
		limits := &yaml.Node{Kind: yaml.SequenceNode}
		for _, l := range p.Limits {
			limits.Content = append(limits.Content, l.node())
		}
		n.Content = append(n.Content, plain("limits"), limits)
	}
	return n
}

func (l Limit) node() *yaml.Node {
	n := mapping("test", quoted(l.Test), "tool", quoted(l.Tool))
	put := func(key string, v *yaml.Node) { n.Content = append(n.Content, plain(key), v) }
	if l.Version != "" {
		put("version", quoted(l.Version))
	}
	put("unit", quoted(l.Unit))
	if l.Status != NotKnown {
		put("min", plain(decimal(l.Min)))
		if l.Median > 0 {
			put("median", plain(decimal(l.Median)))
			put("spread", plain(decimal(l.Spread)))
		}
		if l.Cards > 0 {
			put("cards", plain(strconv.FormatInt(l.Cards, 10)))
		}
	}
	put("status", plain(string(l.Status)))
	if l.Source != "" {
		put("source", quoted(l.Source))
	}
	return n
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// mapping makes a mapping of keys and values in turn.
func mapping(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(pairs); i += 2 {
		n.Content = append(n.Content, plain(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
	return n
}

func plain(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// quoted is a text that YAML must not take for anything else.
func quoted(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
}
