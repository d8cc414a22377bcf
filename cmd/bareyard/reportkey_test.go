package main

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestReportKeyIsMadeOnce: whichever of several servers of a folder makes the key, all of them have the one that is kept, and nothing else is left.
func TestReportKeyIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), reportKeyFile)
	var keys [8][]byte
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			var err error
			if keys[i], err = makeReportKey(path); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		})
	}
	all.Wait()
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if !bytes.Equal(k, kept) {
			t.Errorf("server %d signs with another key than is kept", i)
		}
	}
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(list) != 1 {
		t.Errorf("the folder holds %v, %v", list, err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("the key is %v, %v", i, err)
	}
}
