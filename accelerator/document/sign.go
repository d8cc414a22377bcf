package document

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/accelerator"
)

// SignedSchema names the form of a signed report.
const SignedSchema = "bareyard.signed/1"

// signed is a report with its signature, which is over the canonical form of the report behind the schema's name and a zero byte.
type signed struct {
	Schema    string          `json:"schema"`
	Key       string          `json:"key"` // of SHA-256 of the public key, 16 hex digits: which one to verify with
	Signature string          `json:"signature"`
	Report    json.RawMessage `json:"report"`
}

// KeyID names a public key.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// Sign writes a report as JSON with a signature. The report may be laid out anew on its way (other blanks, keys in another order) and still
// verifies; a value that was changed does not.
func Sign(r accelerator.Report, key ed25519.PrivateKey) ([]byte, error) { return sign(r, key) }

func sign(report any, key ed25519.PrivateKey) ([]byte, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("sign report: not an Ed25519 key")
	}
	text, err := json.Marshal(report)
	if err != nil {
		return nil, fmt.Errorf("sign report: %w", err)
	}
	canonical, err := Canonical(text)
	if err != nil {
		return nil, fmt.Errorf("sign report: %w", err)
	}
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("sign report: not an Ed25519 key")
	}
	out, err := json.Marshal(signed{SignedSchema, KeyID(public), base64.StdEncoding.EncodeToString(ed25519.Sign(key, message(canonical))), text})
	if err != nil {
		return nil, fmt.Errorf("sign report: %w", err)
	}
	return append(out, '\n'), nil
}

func message(canonical []byte) []byte { return append([]byte(SignedSchema+"\x00"), canonical...) }

// ErrSignature says that a report was changed, or signed by nobody whose key is known.
var ErrSignature = errors.New("the signature does not fit")

// ErrUnsigned says that a file carries no signature at all.
var ErrUnsigned = errors.New("the file carries no signature")

// Verify reads a signed report. It is returned only when one of the keys signed exactly this.
func Verify(data []byte, keys ...ed25519.PublicKey) (accelerator.Report, error) {
	raw, err := verify(data, keys...)
	if err != nil {
		return accelerator.Report{}, err
	}
	return accelerator.DecodeReport(raw)
}

func verify(data []byte, keys ...ed25519.PublicKey) (json.RawMessage, error) {
	var s signed
	if json.Unmarshal(data, &s) == nil && s.Signature == "" && s.Key == "" {
		return nil, fmt.Errorf("verify report: %w", ErrUnsigned)
	}
	if err := strict(data, &s); err != nil {
		return nil, fmt.Errorf("verify report: %w", err)
	}
	if s.Schema != SignedSchema {
		return nil, fmt.Errorf("verify report: schema %q, want %q", s.Schema, SignedSchema)
	}
	signature, err := base64.StdEncoding.DecodeString(s.Signature)
	if err != nil || len(signature) != ed25519.SignatureSize {
		return nil, fmt.Errorf("verify report: %w: it is no Ed25519 signature", ErrSignature)
	}
	canonical, err := Canonical(s.Report)
	if err != nil {
		return nil, fmt.Errorf("verify report: %w", err)
	}
	for _, k := range keys {
		if len(k) == ed25519.PublicKeySize && ed25519.Verify(k, message(canonical), signature) {
			return s.Report, nil
		}
	}
	return nil, fmt.Errorf("verify report: %w: it names key %.16q, %d known", ErrSignature, s.Key, len(keys))
}

func strict(data []byte, into any) error {
	if _, err := Canonical(data); err != nil { // refuses keys given twice
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// Canonical returns the one form of a JSON value that is signed: keys in the order of their bytes, no blanks, numbers as they are written, texts
// with the escapes of encoding/json without those for HTML. A key given twice, or something after the value, is an error.
func Canonical(data []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var out bytes.Buffer
	if err := canonical(dec, &out, 0); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("read JSON: something follows the value")
	}
	return out.Bytes(), nil
}

func canonical(dec *json.Decoder, out *bytes.Buffer, depth int) error {
	if depth > 64 {
		return errors.New("nested too deep")
	}
	t, err := dec.Token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			out.WriteByte('[')
			for i := 0; dec.More(); i++ {
				if i > 0 {
					out.WriteByte(',')
				}
				if err := canonical(dec, out, depth+1); err != nil {
					return err
				}
			}
			out.WriteByte(']')
			_, err = dec.Token()
			return err
		}
		return object(dec, out, depth)
	case string:
		out.Write(quote(t))
	case json.Number:
		out.WriteString(t.String())
	case bool:
		fmt.Fprint(out, t)
	case nil:
		out.WriteString("null")
	}
	return nil
}

func object(dec *json.Decoder, out *bytes.Buffer, depth int) error {
	values := map[string][]byte{}
	var keys []string
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string) // the decoder gives nothing else here
		if _, twice := values[key]; twice {
			return fmt.Errorf("key %.40q is given twice", key)
		}
		var v bytes.Buffer
		if err := canonical(dec, &v, depth+1); err != nil {
			return err
		}
		values[key] = v.Bytes()
		keys = append(keys, key)
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	slices.SortFunc(keys, strings.Compare)
	out.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(quote(k))
		out.WriteByte(':')
		out.Write(values[k])
	}
	out.WriteByte('}')
	return nil
}

func quote(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a text always can be
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
