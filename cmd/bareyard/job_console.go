package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/provisioner/console"
)

type jobConsole struct {
	remote
	Job string `arg:"" help:"The job."`
	Raw bool   `help:"Print every byte, also those that move a terminal's cursor or do worse to it."`
}

// Run prints what the console showed while a job ran.
func (j *jobConsole) Run(ctx context.Context, t *terminal) error {
	return j.call(ctx, func(ctx context.Context, c *client.Client) error {
		rec, err := c.JobConsole(ctx, j.Job)
		if err != nil {
			return err
		}
		if j.JSON {
			return j.show(t, rec, nil)
		}
		return printRecord(t.out, rec, j.Raw)
	})
}

// printRecord prints a record; each place where bytes may be missing is a line of its own.
func printRecord(w io.Writer, rec console.Record, raw bool) error {
	clean := &plainText{}
	if rec.Cut {
		if _, err := fmt.Fprintln(w, "[the beginning was dropped: the record was full]"); err != nil {
			return err
		}
	}
	for _, p := range rec.Pieces {
		text := p.Data
		switch {
		case p.Gap != "":
			text = fmt.Appendf(nil, "\n[%s]\n", p.Gap)
		case !raw:
			text = clean.filter(p.Data)
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// plainText takes out what is an order to a terminal and not text: a machine that somebody else had may have written it. It
// remembers a sequence, or a letter, that a piece breaks off in.
type plainText struct {
	state byte   // 0 text, 'e' after ESC, '[' in a control sequence, ']' in a string, '\\' in a string after ESC
	rest  []byte // the beginning of a letter
}

func (t *plainText) filter(in []byte) []byte {
	text := t.rest
	for _, b := range in {
		if t.state != 0 {
			t.skip(b)
			continue
		}
		switch {
		case b == 0x1b:
			t.state = 'e'
		case b == '\n' || b == '\t' || b >= 0x20 && b != 0x7f:
			text = append(text, b)
		}
	}
	whole := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if last := text[len(text)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				whole -= n
			}
			break
		}
	}
	t.rest = bytes.Clone(text[whole:])
	return bytes.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return '?'
		case r >= 0x80 && r < 0xa0: // orders in eight bits
			return -1
		}
		return r
	}, text[:whole])
}

// skip takes a byte of a sequence.
func (t *plainText) skip(b byte) {
	switch t.state {
	case 'e':
		switch {
		case b == '[':
			t.state = '['
		case b == ']' || b == 'P' || b == 'X' || b == '^' || b == '_':
			t.state = ']'
		case b < 0x20 || b >= 0x30: // not an intermediate byte
			t.state = 0
		}
	case '[':
		if b >= 0x40 && b < 0x7f {
			t.state = 0
		}
	default:
		switch {
		case b == 7 || t.state == '\\' && b == '\\':
			t.state = 0
		case b == 0x1b:
			t.state = '\\'
		default:
			t.state = ']'
		}
	}
}
