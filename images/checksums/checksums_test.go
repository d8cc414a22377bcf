package checksums

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

const (
	name  = "debian-12.qcow2"
	at256 = "0f5a84ab62ab1a8a4d2b76ac6ca4b60d9f4a1a4c1a3d4de2a4cbd7e0a1b2c3d4"
	b256  = "1111111111111111111111111111111111111111111111111111111111111111"
	md5   = "d41d8cd98f00b204e9800998ecf8427e"
	sha1  = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
)

var at512 = strings.Repeat("ab", 64)

func TestFindDialects(t *testing.T) {
	for dialect, text := range map[string]string{
		"GNU":             at256 + "  " + name + "\n" + b256 + "  other\n",
		"GNU, binary":     at256 + " *" + name + "\n",
		"GNU, folder":     b256 + "  other\n" + at256 + "  ./amd64/" + name,
		"GNU, upper case": strings.ToUpper(at256) + "  " + name + "\n",
		"CRLF":            "# sums\r\n" + at256 + "  " + name + "\r\n" + b256 + " *other\r\n",
		"byte order mark": "\xef\xbb\xbf" + at256 + "  " + name + "\n",
		"BSD":             "SHA256 (" + name + ") = " + at256 + "\nSHA256 (other) = " + b256 + "\n",
		"BSD, no blanks":  "SHA256(" + name + ")= " + at256 + "\n",
		"CentOS":          "# " + name + ": 1289748480 bytes\nSHA256 (" + name + ") = " + at256 + "\n# other: 1 bytes\nSHA256 (other) = " + b256 + "\n",
		"with md5 beside": "MD5 (" + name + ") = " + md5 + "\nSHA1 (" + name + ") = " + sha1 + "\nSHA256 (" + name + ") = " + at256 + "\n",
		"alone":           at256 + "\n",
		"alone, upper":    strings.ToUpper(at256),
		"twice the same":  at256 + "  " + name + "\n" + at256 + " *" + name + "\n",
		"clear-signed":    "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# " + name + ": 5 bytes\nSHA256 (" + name + ") = " + at256 + "\n-----BEGIN PGP SIGNATURE-----\n\niQ==\n=aaaa\n-----END PGP SIGNATURE-----\n",
	} {
		if sum, err := Find([]byte(text), name); err != nil || sum != (Sum{SHA256: at256}) {
			t.Errorf("%s: %+v, %v", dialect, sum, err)
		}
	}
	if sum, err := Find([]byte(at512+"  "+name+"\n"+at256+"  "+name+"\n"), name); err != nil || sum != (Sum{SHA256: at256, SHA512: at512}) {
		t.Errorf("both: %+v, %v", sum, err)
	}
	for want, line := range map[string]string{"a\\b": `\` + at256 + `  a\\b`, "a\nb": `\` + at256 + `  a\nb`, `a\n`: `\SHA256 (a\\n) = ` + at256} {
		if sum, err := Find([]byte(line+"\n"), want); err != nil || sum.SHA256 != at256 {
			t.Errorf("escaped %q: %+v, %v", want, sum, err)
		}
	}
	// The distribution's own tools write what is read.
	dir := t.TempDir()
	odd := "back\\slash\nline"
	if err := os.WriteFile(filepath.Join(dir, odd), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"sha256sum"}, {"sha256sum", "-b"}, {"sha256sum", "--tag"}, {"sha512sum"}, {"sha512sum", "--tag"}} {
		cmd := exec.Command(args[0], append(args[1:], odd)...)
		cmd.Dir = dir
		text, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		sum, err := Find(text, odd)
		if err != nil || !strings.HasPrefix(sum.SHA256+sum.SHA512, "e3b0c4") && !strings.HasPrefix(sum.SHA512, "cf83e1") {
			t.Errorf("%v: %+v, %v", args, sum, err)
		}
	}
}

func TestFindRefuses(t *testing.T) {
	for text, word := range map[string]string{
		"":                         "has none",
		"# nothing\n":              "has none",
		at256 + "  other\n":        `are of ["other"]`,
		at256 + "\n" + b256 + "\n": "no named file",
		at256 + "  " + name + "\n" + b256 + "  x/" + name + "\n": "two different sha256",
		md5 + "  " + name + "\n":                                 "only digest of \"debian-12.qcow2\" is its md5",
		sha1 + "  " + name + "\n":                                "its sha1",
		md5 + "\n":                                               "its md5",
		"SHA256 (" + name + ") = " + md5 + "\n":                  "line 1",
		at256[:60] + "  " + name + "\n":                          "line 1",
		"<!DOCTYPE html>\n":                                      "line 1",
		strings.Repeat("x", MaxSize+1):                           "4 MiB",
		at256 + "  a\n" + at256 + "  b\n" + at256 + "  c\n" + at256 + "  d\n" + at256 + "  e\n" + at256 + "  f\n": "and 1 more",
	} {
		refused(t, text[:min(len(text), 40)], "sums", word)(Find([]byte(text), name))
	}
}

func refused(t *testing.T, what, field, word string) func(Sum, error) {
	return func(sum Sum, err error) {
		t.Helper()
		var e *machine.Error
		if !errors.As(err, &e) || e.Field != field || !strings.Contains(e.Message, word) || e.Hint == "" || sum != (Sum{}) {
			t.Errorf("%s: %+v, %v; want an error on %q with %q", what, sum, err, field, word)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(at256+"  "+name+"\nSHA512 ("+name+") = "+at512+"\n"), name)
	f.Add([]byte(`\`+at256+`  a\\b`), `a\b`)
	f.Add([]byte("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n- x\n-----BEGIN PGP SIGNATURE-----\n\niQ==\n=aaaa\n-----END PGP SIGNATURE-----\n"), "")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		sum, err := Find(text, name)
		if (err == nil) == (sum == Sum{}) || sum.SHA256 != "" && len(sum.SHA256) != 64 || sum.SHA512 != "" && len(sum.SHA512) != 128 {
			t.Fatalf("%+v, %v", sum, err)
		}
	})
}
