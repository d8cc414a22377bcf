// Package checksums reads the files in which publishers tell the digests of their images, and verifies who signed them.
package checksums

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp/clearsign"

	"github.com/bareyard/bareyard/machine"
)

// MaxSize bounds a file of checksums, in bytes: Ubuntu's largest has some 10 KiB.
const MaxSize = 4 << 20

// Sum is what a publisher says of a file. At least one is set.
type Sum struct {
	SHA256 string // hex, lower case
	SHA512 string
}

// entry is a line of a file of checksums.
type entry struct {
	name   string // empty for a digest on its own
	kind   string // "sha256", or another in lower case
	digest string // hex, lower case
}

// bsd is a line as BSD's sha256, CentOS, Rocky and Fedora write it; gnu one as coreutils do. A backslash before it means that the name is
// escaped.
var (
	bsd = regexp.MustCompile(`^(\\?)([A-Za-z0-9/-]+) ?\((.+)\) ?= ?([0-9A-Fa-f]+)$`)
	gnu = regexp.MustCompile(`^(\\?)([0-9A-Fa-f]{32,128})(?:[ \t]+\*?(.+))?$`)
)

// kinds are the digests that coreutils write, by their length in hex.
var kinds = map[int]string{32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}

// Find returns what a file of checksums says of the file called name, whatever folder it names it in. A file with one digest and no name
// speaks of any file.
func Find(text []byte, name string) (Sum, error) {
	list, err := parse(text)
	if err != nil {
		return Sum{}, err
	}
	var sum Sum
	var weak []string
	found := false
	for _, e := range list {
		if path.Base(e.name) != name && (e.name != "" || len(list) > 1) {
			continue
		}
		found = true
		at := &sum.SHA256
		switch e.kind {
		case "sha256":
		case "sha512":
			at = &sum.SHA512
		default:
			weak = append(weak, e.kind)
			continue
		}
		if *at != "" && *at != e.digest {
			return Sum{}, invalid(fmt.Sprintf("two different %s digests are given for %q", e.kind, name), "fetch the checksums again, or give the right digest by --sha256")
		}
		*at = e.digest
	}
	switch {
	case !found:
		return Sum{}, invalid(fmt.Sprintf("no digest of %q is among the checksums; they are of %s", name, names(list)), "give the image the name that its publisher gave it, or fetch the checksums of its release")
	case sum == Sum{}:
		return Sum{}, invalid(fmt.Sprintf("the only digest of %q is its %s, which is not taken", name, strings.Join(weak, " and ")), "give the publisher's sha256 or sha512 checksums: files with the same md5 or sha1 can be made")
	}
	return sum, nil
}

// parse reads the lines of every dialect. Text that is clear-signed is read without the signature; what is around it does not count.
func parse(text []byte) ([]entry, error) {
	if len(text) > MaxSize {
		return nil, invalid("the file of checksums is larger than 4 MiB", "see what was fetched: it is not the image that is meant here")
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if block, _ := clearsign.Decode(text); block != nil {
		text = block.Plaintext
	}
	var list []entry
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n \t")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, ok := parseLine(line)
		if !ok {
			return nil, invalid(fmt.Sprintf("line %d of the checksums is none: %.60q", n, line), "give the publisher's file, e.g. SHA512SUMS or CHECKSUM")
		}
		list = append(list, e)
	}
	if len(list) == 0 {
		return nil, invalid("the file of checksums has none", "give the publisher's file, e.g. SHA512SUMS or CHECKSUM")
	}
	return list, nil
}

func parseLine(line string) (entry, bool) {
	var e entry
	var escaped string
	if m := bsd.FindStringSubmatch(line); m != nil {
		escaped, e.kind, e.name, e.digest = m[1], strings.ToLower(m[2]), m[3], m[4]
	} else if m := gnu.FindStringSubmatch(line); m != nil {
		escaped, e.digest, e.name = m[1], m[2], m[3]
		e.kind = kinds[len(e.digest)]
	}
	e.digest = strings.ToLower(e.digest)
	raw, err := hex.DecodeString(e.digest)
	if err != nil || e.kind == "" || e.kind == "sha256" && len(raw) != 32 || e.kind == "sha512" && len(raw) != 64 {
		return e, false
	}
	if escaped != "" {
		e.name = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r").Replace(e.name)
	}
	return e, true
}

// names lists of which files there are digests.
func names(list []entry) string {
	var all []string
	for _, e := range list {
		if e.name != "" && !slices.Contains(all, e.name) {
			all = append(all, e.name)
		}
	}
	more := ""
	if len(all) > 5 {
		all, more = all[:5], fmt.Sprintf(" and %d more", len(all)-5)
	}
	if len(all) == 0 {
		return "no named file"
	}
	return fmt.Sprintf("%q", all) + more
}

func invalid(message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: "sums", Message: message, Hint: hint}
}
