package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/provisioner/console"
)

// TestEscapes: a ~ is ours at the start of a line alone, also where keys come one by one.
func TestEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"ls\r":         `"ls\r"`,
		"~.":           `~.`,
		"ls\r~.":       `"ls\r" ~.`,
		"a~.":          `"a~."`,
		"~~.\r~.":      `"~.\r" ~.`,
		"~x~.":         `"~x~."`,
		"~?~B\n~.":     `~? ~B "\n" ~.`,
		"~\r~.":        `"~\r" ~.`,
		"~":            ``,
		"\x03\x04~.\n": `"\x03\x04~.\n"`,
	} {
		for _, step := range []int{1, len(in)} {
			r := escapeReader{atStart: true}
			var keys strings.Builder
			var got []string
			flush := func() {
				if keys.Len() > 0 {
					got = append(got, fmt.Sprintf("%q", keys.String()))
					keys.Reset()
				}
			}
			for part := range slices.Chunk([]byte(in), step) {
				for _, x := range r.take(part) {
					if x.escape == 0 {
						keys.Write(x.keys)
						continue
					}
					flush()
					got = append(got, "~"+string(x.escape))
				}
			}
			flush()
			if text := strings.Join(got, " "); text != want {
				t.Errorf("%q by %d: %s, want %s", in, step, text, want)
			}
		}
	}
}

// TestRecordIsPlainText: a record that somebody else's system wrote gives no orders to the operator's terminal, wherever a piece
// breaks off.
func TestRecordIsPlainText(t *testing.T) {
	const in = "\x1b[2J\x1b[1;31mred\x1b[0m \x1b]52;c;ZXZpbA==\x07clip \x1b]0;title\x1b\\t \x1bP1$r\x1b\\d \x1b(Bset \x1bcreset \x9b31m\u009b5mC1 \x00\x08\x7f\x0e日本\r\nend\x1b"
	const want = "red clip t d set reset ?31m5mC1 日本\nend"
	for step := 1; step <= len(in); step++ {
		rec := console.Record{}
		for part := range slices.Chunk([]byte(in), step) {
			rec.Pieces = append(rec.Pieces, console.Piece{Data: part})
		}
		var out strings.Builder
		if err := printRecord(&out, rec, false); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != want {
			t.Fatalf("in pieces of %d: %q\nwant %q", step, got, want)
		}
	}
	var out strings.Builder
	rec := console.Record{Cut: true, Pieces: []console.Piece{{Data: []byte(in)}, {Gap: "link lost"}, {Data: []byte("on")}}}
	if err := printRecord(&out, rec, true); err != nil || out.String() != "[the beginning was dropped: the record was full]\n"+in+"\n[link lost]\non\n" {
		t.Errorf("raw: %q, %v", out.String(), err)
	}
}
