package machine

import (
	"errors"
	"testing"
)

func TestImageFacts(t *testing.T) {
	for field, f := range map[string]ImageFacts{
		"family":       {Family: "debian linux"},
		"version":      {Version: "\n12"},
		"drivers":      {Drivers: []string{"nvidia-570.86", ""}},
		"architecture": {Architecture: "riscv64"},
		"min_disk":     {MinDisk: -1},
		"visibility":   {Visibility: "secret"},
		"projects":     {Visibility: ForProjects},
	} {
		var e *Error
		if err := f.Check(); !errors.As(err, &e) || e.Field != field || e.Code != Invalid || e.Hint == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := (&ImageFacts{Projects: []string{"acme"}}).Check(); err == nil {
		t.Error("a public image names projects")
	}
	var f ImageFacts
	if err := f.Check(); err != nil || f.Architecture != AMD64 || f.Visibility != Public {
		t.Errorf("%+v, %v", f, err)
	}
	i := Image{Size: 10, BIOS: true, UEFI: true}
	if !i.Boots(BIOS) || !i.Boots(UEFI) || i.DiskNeeded() != 10 || !i.UsableBy("acme") {
		t.Errorf("%+v", i)
	}
	i.ImageFacts = ImageFacts{Architecture: ARM64, MinDisk: 20, Visibility: ForProjects, Projects: []string{"acme"}}
	if i.Boots(UEFI) || i.DiskNeeded() != 20 || !i.UsableBy("acme") || i.UsableBy("other") {
		t.Errorf("%+v", i)
	}
}
