package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A server keeps its name, and no two have the same.
func TestNodeName(t *testing.T) {
	dir := t.TempDir()
	first, err := nodeName(dir)
	if err != nil || first == "" {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := nodeName(dir); err != nil || again != first {
		t.Errorf("then %q, %v; was %q", again, err, first)
	}
	if other, err := nodeName(t.TempDir()); err != nil || other == first {
		t.Errorf("another server is called %q, too (%v)", other, err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 1 {
		t.Errorf("left in the data folder: %v, %v", files, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "node"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if name, err := nodeName(dir); err == nil {
		t.Errorf("an empty file is the name %q", name)
	}
}
