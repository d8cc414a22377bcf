// Package bareyard_test holds the floor plan: who may import whom.
package bareyard_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/bareyard/bareyard"

// floors is the plan, from the ground up. A room sees itself and every floor below its own; rooms of one floor do not see each other.
var floors = []struct {
	name  string
	rooms []string
}{
	{"the nouns", []string{"machine"}},
	{"ground floor", []string{"billing", "network", "accelerator", "images", "ipmi"}},
	{"middle floor", []string{"netboot", "pool", "provisioner"}},
	{"upper floor", []string{"agent", "api", "postgres", "web"}},
	{"roof", []string{"cmd", "lab"}}, // sees all
}

// drawers are folder names that say nothing about what is inside.
var drawers = []string{"pkg", "util", "utils", "common", "helper", "helpers", "manager", "managers", "constant", "constants", "data", "conv", "misc"}

// floorOf returns the floor of a folder of the module, or -1.
func floorOf(folder string) int {
	room, _, _ := strings.Cut(folder, "/")
	for i, f := range floors {
		if slices.Contains(f.rooms, room) {
			return i
		}
	}
	return -1
}

// breach says how an import breaks the plan, or "". from is the folder that imports, to the import path; test files of a folder may look up
// to other floors, as an engine is tested on a real database, but never to the roof.
func breach(from, to string, test bool) string {
	here := floorOf(from)
	if here < 0 {
		return "is no room of the floor plan"
	}
	target, ours := strings.CutPrefix(to, module+"/")
	if !ours {
		host, _, _ := strings.Cut(to, "/")
		if from == "machine" && !test && strings.Contains(host, ".") {
			return "holds the nouns, which see the standard library only"
		}
		return ""
	}
	there := floorOf(target)
	room := func(folder string) string { r, _, _ := strings.Cut(folder, "/"); return r }
	roof := len(floors) - 1
	switch {
	case there < 0:
		return "is asking for no room of the floor plan"
	case room(from) == room(target):
		return ""
	case here == roof:
		return ""
	case there == roof:
		return "is below cmd and lab, which nothing imports"
	case test:
		return ""
	case there > here:
		return fmt.Sprintf("is on the %s and looks up to the %s", floors[here].name, floors[there].name)
	case there == here:
		return fmt.Sprintf("is on the %s beside it: declare a small interface and let cmd join them", floors[here].name)
	}
	return ""
}

// drawer returns a part of the folder's path that is a drawer's name, or "".
func drawer(folder string) string {
	for part := range strings.SplitSeq(folder, "/") {
		if slices.Contains(drawers, part) {
			return part
		}
	}
	return ""
}

// TestFloorPlan reads the imports of every Go file, whatever its build tags.
func TestFloorPlan(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			hidden := name != "." && strings.HasPrefix(entry.Name(), ".")
			if hidden || slices.Contains([]string{"testdata", "build", "bin", "node_modules", "vendor"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || path.Dir(name) == "." {
			return nil
		}
		files++
		checkFile(t, filepath.ToSlash(name))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Fatalf("only %d Go files found: the walk is wrong", files)
	}
}

func checkFile(t *testing.T, name string) {
	t.Helper()
	folder := path.Dir(name)
	if d := drawer(folder); d != "" {
		t.Errorf("%s: %q says nothing about what is inside: name the thing", folder, d)
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
	if err != nil {
		t.Error(err)
		return
	}
	for _, spec := range file.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if why := breach(folder, to, strings.HasSuffix(name, "_test.go")); why != "" {
			t.Errorf("%s imports %s: %s %s", name, to, folder, why)
		}
	}
}

// TestBreach proves that the rule can fail.
func TestBreach(t *testing.T) {
	for _, c := range []struct {
		from, to string
		test     bool
		want     string // a part of why; empty: allowed
	}{
		{"machine", "encoding/json", false, ""},
		{"machine", "github.com/google/go-cmp/cmp", false, "standard library only"},
		{"machine", "github.com/google/go-cmp/cmp", true, ""},
		{"machine", module + "/billing", false, "looks up"},
		{"billing", module + "/machine", false, ""},
		{"billing", module + "/network", false, "beside it"},
		{"network/linuxedge", module + "/network", false, ""},
		{"network/linuxedge", module + "/ipmi", false, "beside it"},
		{"ipmi", module + "/provisioner", false, "looks up"},
		{"netboot/dhcp", module + "/netboot", false, ""},
		{"netboot", module + "/provisioner", false, "beside it"},
		{"netboot", module + "/postgres", false, "looks up"},
		{"provisioner", module + "/ipmi", false, ""},
		{"provisioner", module + "/postgres", false, "looks up"},
		{"provisioner", module + "/postgres/postgrestest", true, ""},
		{"postgres", module + "/provisioner", false, ""},
		{"postgres", module + "/api", false, "beside it"},
		{"api", module + "/postgres", false, "beside it"},
		{"agent/disk", module + "/agent", false, ""},
		{"api", module + "/lab", false, "nothing imports"},
		{"api", module + "/lab", true, "nothing imports"},
		{"api", module + "/cmd/bareyard", true, "nothing imports"},
		{"cmd/bareyard", module + "/lab", false, ""},
		{"lab", module + "/api/client", false, ""},
		{"kitchen", "fmt", false, "no room"},
		{"api", module + "/kitchen", false, "no room"},
	} {
		got := breach(c.from, c.to, c.test)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s imports %s (test %t): got %q, want %q", c.from, c.to, c.test, got, c.want)
		}
	}
	for folder, want := range map[string]string{"netboot/util": "util", "pkg/x": "pkg", "network/common": "common", "images/ramdisk": ""} {
		if got := drawer(folder); got != want {
			t.Errorf("%s: drawer %q, want %q", folder, got, want)
		}
	}
}

// TestModulePath: the plan is written for this module.
func TestModulePath(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(text), "module "+module+"\n") {
		t.Error("go.mod names another module: change the constant")
	}
}
