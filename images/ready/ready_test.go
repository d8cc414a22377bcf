package ready

import (
	"regexp"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

func TestDefinitions(t *testing.T) {
	list, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
		if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`).MatchString(d.Name) || d.Name != d.Family+"-"+d.Version {
			t.Errorf("%s is not the name of %s %s", d.Name, d.Family, d.Version)
		}
		if !strings.Contains(d.URL, "amd64") && !strings.Contains(d.URL, "x86_64") {
			t.Errorf("%s is not for amd64", d.URL)
		}
		if got, err := Find(d.Name); err != nil || got != d {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if got, want := strings.Join(names, " "), "debian-12 debian-13 ubuntu-22.04 ubuntu-24.04 centos-stream-9 rocky-9"; got != want {
		t.Errorf("definitions %s, want %s", got, want)
	}
	if _, err := Find("templeos"); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("an unknown one: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	good := "- {name: a-1, family: a, version: \"1\", url: \"https://example.org/a.qcow2\", sums: \"https://example.org/SUMS\", user: a}\n"
	if _, err := parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"plain http":       strings.Replace(good, "https://example.org/a", "http://example.org/a", 1),
		"a folder":         strings.Replace(good, "a.qcow2", "", 1),
		"a password":       strings.Replace(good, "https://", "https://me:secret@", 1),
		"no user":          strings.Replace(good, "user: a", "user: \"\"", 1),
		"an unknown field": strings.Replace(good, "user: a", "user: a, colour: red", 1),
		"twice":            good + good,
		"an odd family":    strings.Replace(good, "family: a", "family: a b", 1),
	} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s passes", what)
		}
	}
}
