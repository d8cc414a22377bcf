package main

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"go.yaml.in/yaml/v3"
)

// decodeStrict reads one YAML document into the struct that into points to. It knows strings, booleans, unsigned numbers, lists, structs and what
// reads itself from text; an unknown key, a key given twice and a value of the wrong kind are errors that name file, line and key. It
// returns the line of each key that was given, by its dotted name.
func decodeStrict(file string, text []byte, into any) (map[string]int, error) {
	d := &decoder{file: file, lines: map[string]int{}}
	stream := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	err := stream.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return d.lines, nil // nothing but comments
	}
	if err != nil {
		return nil, d.syntax(err)
	}
	var more yaml.Node
	if err := stream.Decode(&more); err == nil {
		return nil, d.wrong(&more, "", "a second document", "keep one document in the file")
	} else if !errors.Is(err, io.EOF) {
		return nil, d.syntax(err)
	}
	return d.lines, d.value(doc.Content[0], "", reflect.ValueOf(into).Elem())
}

type decoder struct {
	file  string
	lines map[string]int
}

// syntax is the error of text that is not YAML; the parser's own words hold the line.
func (d *decoder) syntax(err error) error {
	return &machine.Error{
		Code:    machine.Invalid,
		Field:   "config",
		Message: fmt.Sprintf("%s: %s", d.file, strings.TrimPrefix(err.Error(), "yaml: ")),
		Hint:    "YAML wants spaces, not tabs, and quotes around values that begin with a special character",
	}
}

func (d *decoder) wrong(n *yaml.Node, key, problem, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: key, Message: fmt.Sprintf("%s:%d: %s", d.file, n.Line, problem), Hint: hint}
}

// value sets v from a node. A key without a value keeps the default.
func (d *decoder) value(n *yaml.Node, key string, v reflect.Value) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return d.text(n, key, text)
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.fields(n, key, v)
	case reflect.Slice:
		return d.items(n, key, v)
	case reflect.String:
		if n.Kind != yaml.ScalarNode {
			return d.wrong(n, key, key+" wants one value", "")
		}
		v.SetString(n.Value)
		return nil
	case reflect.Bool:
		on, err := strconv.ParseBool(n.Value)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || err != nil {
			return d.wrong(n, key, fmt.Sprintf("%s wants true or false, not %q", key, n.Value), "")
		}
		v.SetBool(on)
		return nil
	case reflect.Uint16:
		number, err := strconv.ParseUint(n.Value, 10, 16)
		if n.Kind != yaml.ScalarNode || err != nil || number == 0 {
			return d.wrong(n, key, fmt.Sprintf("%s wants a number from 1 to 65535, not %q", key, n.Value), "")
		}
		v.SetUint(number)
		return nil
	}
	panic("bareyard: no way to read a " + v.Type().String() + " from the configuration")
}

// text sets what reads itself from text, e.g. an address.
func (d *decoder) text(n *yaml.Node, key string, v encoding.TextUnmarshaler) error {
	err := errors.New("one value is wanted")
	if n.Kind == yaml.ScalarNode {
		err = v.UnmarshalText([]byte(n.Value))
	}
	if err != nil {
		return d.wrong(n, key, fmt.Sprintf("%s: %v", key, err), "")
	}
	return nil
}

func (d *decoder) items(n *yaml.Node, key string, v reflect.Value) error {
	if n.Kind != yaml.SequenceNode {
		return d.wrong(n, key, key+" wants a list", fmt.Sprintf("write it as %s: [a, b]", key[strings.LastIndex(key, ".")+1:]))
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", key, i)
		d.lines[at] = item.Line
		if err := d.value(item, at, v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) fields(n *yaml.Node, key string, v reflect.Value) error {
	if n.Kind != yaml.MappingNode {
		name := key
		if name == "" {
			name = "the file"
		}
		return d.wrong(n, key, name+" wants keys and values", "write them as key: value")
	}
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		fields[v.Type().Field(i).Tag.Get("yaml")] = v.Field(i)
	}
	for i := 0; i < len(n.Content); i += 2 {
		name := n.Content[i]
		full := strings.TrimPrefix(key+"."+name.Value, ".")
		field, known := fields[name.Value]
		if !known {
			return d.wrong(name, full, fmt.Sprintf("unknown key %s", full), d.suggest(key, name.Value, fields))
		}
		if line, twice := d.lines[full]; twice {
			return d.wrong(name, full, fmt.Sprintf("%s is already set in line %d", full, line), "keep one of them")
		}
		d.lines[full] = name.Line
		if err := d.value(n.Content[i+1], full, field); err != nil {
			return err
		}
	}
	return nil
}

// suggest names the key that was probably meant, or all that there are.
func (d *decoder) suggest(key, name string, fields map[string]reflect.Value) string {
	best, nearest := "", len(name)/2+1
	var all []string
	for known := range fields {
		all = append(all, known)
		if n := distance(name, known); n < nearest || n == nearest && known < best {
			best, nearest = known, n
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", strings.TrimPrefix(key+"."+best, "."))
	}
	return "the keys here are: " + strings.Join(slices.Sorted(slices.Values(all)), ", ")
}

// distance is how many letters must be put in, taken out or changed to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
