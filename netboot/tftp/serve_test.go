package tftp

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	pin "github.com/pin/tftp/v3"
)

// TestPinClient: an independent client reads what we serve.
func TestPinClient(t *testing.T) {
	f := serve(t, &Server{})
	for _, test := range []struct{ size, block int }{{0, 0}, {1, 0}, {173792, 1468}, {1024 * 3, 1024}} {
		cl, err := pin.NewClient(f.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if test.block != 0 {
			cl.SetBlockSize(test.block)
			cl.RequestTSize(true)
		}
		wt, err := cl.Receive(strconv.Itoa(test.size), "octet")
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := wt.(pin.IncomingTransfer).Size(); test.block != 0 && (!ok || n != int64(test.size)) {
			t.Errorf("size %d, %v", n, ok)
		}
		var got bytes.Buffer
		if _, err := wt.WriteTo(&got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), pattern(test.size)) {
			t.Errorf("%d bytes arrived as %d, damaged", test.size, got.Len())
		}
		f.next(t)
	}
	cl, err := pin.NewClient(f.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Receive("nothing", "octet"); err == nil || !strings.Contains(err.Error(), "code: 1") {
		t.Errorf("missing file: %v", err)
	}
	f.next(t)
	wr, err := cl.Send("upload", "octet")
	if err == nil {
		_, err = wr.ReadFrom(io.LimitReader(strings.NewReader("x"), 1))
	}
	if err == nil {
		t.Error("write accepted")
	}
}

// TestRubbish: packets of no transfer get no answer.
func TestRubbish(t *testing.T) {
	f := serve(t, &Server{})
	c := f.client(t)
	for _, s := range []string{"", "\x00", "\x00\x04\x00\x01", "\x00\x05\x00\x01x\x00", "\x00\x03\x00\x01data", "\xff\xff", "\x00\x06a\x00b\x00"} {
		c.send([]byte(s))
	}
	c.silent()
	c.ask("9", "octet")
	c.want(1, 9)
}

// TestK01Traversal: nothing outside the folder, by any spelling; TFTP says error 2.
func TestK01Traversal(t *testing.T) {
	top := t.TempDir()
	root := filepath.Join(top, "data")
	for path, content := range map[string]string{
		"data/undionly.kpxe": "loader", "data/sub/y": "deeper", "data-private/f": "secret", "secret": "secret",
	} {
		path = filepath.Join(top, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"l": "/", "up": "../secret", "abs": filepath.Join(top, "secret"), "good": "undionly.kpxe"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	f := serve(t, &Server{Open: inDir(root)})
	for _, name := range []string{
		"../../etc/passwd", `..\..\etc\passwd`, "/etc/passwd", "x/../../y", "../data-private/f", "l/etc/passwd", "....//",
		"sub/y", "sub", "l", "up", "abs", ".", "..", "/", "//", "/..", "C:\\x", "\xff", "..\xff", "//undionly.kpxe", "a\nb",
	} {
		c := f.client(t)
		c.ask(name, "octet")
		c.wantError(codeForbidden)
		if tr := f.next(t); tr.Err == nil {
			t.Errorf("%q served", name)
		}
	}
	for _, name := range []string{"missing", "undionly.kpxe\xff\xff"} {
		if _, err := Dir(root)(name); err == nil {
			t.Errorf("%q served", name)
		}
	}
	nul := f.client(t)
	nul.ask("undionly.kpxe\x00/../secret", "octet")
	nul.wantError(codeIllegal)
	// A13: old ROMs read past option 67 and append the end option; others put a slash in front.
	for _, name := range []string{"undionly.kpxe", "undionly.kpxe\xff", "/undionly.kpxe", "good"} {
		c := f.client(t)
		c.ask(name, "octet")
		c.want(1, 6)
		c.ack(1)
		f.next(t)
	}
}
