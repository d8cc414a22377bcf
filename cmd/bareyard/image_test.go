package main

import (
	"testing"

	"github.com/bareyard/bareyard/api/client"
)

// TestFromDefinition: a definition fills in what no argument says.
func TestFromDefinition(t *testing.T) {
	i, u := imageImport{Ready: "ubuntu-24.04"}, client.Upload{}
	if err := i.fromDefinition(&u); err != nil {
		t.Fatal(err)
	}
	if u.Name != "ubuntu-24.04" || u.Family != "ubuntu" || u.Version != "24.04" || u.DefaultUser != "ubuntu" || !isURL(i.Source) || !isURL(i.Sums) {
		t.Errorf("%+v from %s, checksums %s", u, i.Source, i.Sums)
	}
	i, u = imageImport{Ready: "ubuntu-24.04", Source: "noble.img"}, client.Upload{Name: "noble", DefaultUser: "me", SHA256: "ab"}
	if err := i.fromDefinition(&u); err != nil {
		t.Fatal(err)
	}
	if u.Name != "noble" || u.DefaultUser != "me" || i.Source != "noble.img" || i.Sums != "" {
		t.Errorf("%+v from %s, checksums %s", u, i.Source, i.Sums)
	}
}
