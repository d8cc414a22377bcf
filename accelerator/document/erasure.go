package document

import (
	"crypto/ed25519"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/bareyard/bareyard/machine"
)

//go:embed erasure.html
var erasurePage string

// SignErasure is Sign for the certificate of an erasure.
func SignErasure(c machine.ErasureCertificate, key ed25519.PrivateKey) ([]byte, error) {
	return sign(c, key)
}

// VerifyErasure is Verify for the certificate of an erasure.
func VerifyErasure(data []byte, keys ...ed25519.PublicKey) (machine.ErasureCertificate, error) {
	raw, err := verify(data, keys...)
	if err != nil {
		return machine.ErasureCertificate{}, err
	}
	return decodeErasure(raw)
}

// OpenErasure reads a certificate that was kept, signed or not. Whether a signature fits is VerifyErasure's to say.
func OpenErasure(body []byte) (c machine.ErasureCertificate, key string, err error) {
	var s signed
	if strict(body, &s) == nil && s.Schema == SignedSchema {
		body, key = s.Report, s.Key
	}
	c, err = decodeErasure(body)
	return c, key, err
}

func decodeErasure(raw []byte) (machine.ErasureCertificate, error) {
	var c machine.ErasureCertificate
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("read certificate of erasure: %w", err)
	}
	if c.Schema != machine.ErasureSchema {
		return c, fmt.Errorf("read certificate of erasure: schema %.40q, want %q", c.Schema, machine.ErasureSchema)
	}
	return c, nil
}

// ErasureHTML writes a certificate as a page to print. key names the one that signed it, or is "".
func ErasureHTML(w io.Writer, c machine.ErasureCertificate, key string) error {
	t, err := template.New("erasure").Funcs(template.FuncMap{
		"time":  func(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" },
		"size":  func(n int64) string { return fmt.Sprintf("%.4g GB (%d bytes)", float64(n)/1e9, n) },
		"level": func(c machine.ErasureCertificate) string { return levelText(c) },
	}).Parse(erasurePage)
	if err == nil {
		err = t.Execute(w, struct {
			machine.ErasureCertificate
			Key string
		}{c, key})
	}
	if err != nil {
		return fmt.Errorf("write certificate of erasure: %w", err)
	}
	return nil
}

func levelText(c machine.ErasureCertificate) string {
	switch {
	case !c.Clean:
		return "none: not proven clean"
	case c.Level == machine.Purge:
		return "purge: it erased itself, and every address was overwritten"
	case c.Level == machine.Clear:
		return "clear: every address was overwritten"
	}
	return "not known"
}
