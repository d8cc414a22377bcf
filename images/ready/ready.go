// Package ready lists publishers' images that need only be fetched: where they are, who vouches for them, and what is to be known of them.
package ready

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/url"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"go.yaml.in/yaml/v3"
)

//go:embed ready.yaml
var file []byte

// Definition is an image that a publisher offers.
type Definition struct {
	Name    string `yaml:"name" json:"name"`
	Family  string `yaml:"family" json:"family"`
	Version string `yaml:"version" json:"version"`
	URL     string `yaml:"url" json:"url"`
	Sums    string `yaml:"sums" json:"sums"`               // address of the publisher's checksums
	Signed  bool   `yaml:"signed" json:"signed,omitempty"` // they have a signature beside them
	User    string `yaml:"user" json:"user"`               // the account that cloud-init gives the key
}

// Definitions returns all of them, in the order of the file. They are for amd64.
func Definitions() ([]Definition, error) { return parse(file) }

// Find returns one.
func Find(name string) (Definition, error) {
	list, err := Definitions()
	if err != nil {
		return Definition{}, err
	}
	var known []string
	for _, d := range list {
		if d.Name == name {
			return d, nil
		}
		known = append(known, d.Name)
	}
	return Definition{}, &machine.Error{Code: machine.NotFound, Field: "ready", Message: fmt.Sprintf("no definition %q", name), Hint: "there are " + strings.Join(known, ", ")}
}

func parse(text []byte) ([]Definition, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var list []Definition
	if err := dec.Decode(&list); err != nil {
		return nil, fmt.Errorf("read definitions of images: %w", err)
	}
	seen := map[string]bool{}
	for _, d := range list {
		if err := d.check(); err != nil {
			return nil, fmt.Errorf("definition %q of an image: %w", d.Name, err)
		}
		if seen[d.Name] {
			return nil, fmt.Errorf("definition %q of an image is there twice", d.Name)
		}
		seen[d.Name] = true
	}
	return list, nil
}

func (d Definition) check() error {
	for _, address := range []string{d.URL, d.Sums} {
		if u, err := url.Parse(address); err != nil || u.Scheme != "https" || u.Host == "" || strings.HasSuffix(u.Path, "/") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("address %q is no plain https URL of a file", address)
		}
	}
	if d.Name == "" || d.Family == "" || d.Version == "" || d.User == "" {
		return fmt.Errorf("name, family, version or user is left out")
	}
	facts := machine.ImageFacts{Family: d.Family, Version: d.Version}
	return facts.Check()
}
