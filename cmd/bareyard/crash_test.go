package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCrashCountdown(t *testing.T) {
	c := &crasher{file: filepath.Join(t.TempDir(), "crash")}
	expect := func(want bool) {
		t.Helper()
		if over, err := c.countdown(); over != want || err != nil {
			t.Errorf("over: %v, %v; want %v", over, err, want)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect(false) // not armed
	write("2")
	expect(false)
	expect(true)
	if _, err := os.Stat(c.file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the crash: %v", err)
	}
	expect(false)
	write("1 2")
	for range 2 {
		expect(true)
		expect(false)
	}
	write("soon")
	if _, err := c.countdown(); err == nil {
		t.Error("a file without a number is taken for one")
	}
}
