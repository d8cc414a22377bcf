package checksums

import (
	"bytes"
	"crypto"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

var made = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func config() *packet.Config {
	return &packet.Config{Time: func() time.Time { return made }, Algorithm: packet.PubKeyAlgoEdDSA, DefaultHash: crypto.SHA512}
}

func publisher(t *testing.T, lifetime time.Duration) *openpgp.Entity {
	t.Helper()
	c := config()
	c.KeyLifetimeSecs = uint32(lifetime / time.Second)
	e, err := openpgp.NewEntity("Publisher", "", "cd@example.org", c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func armored(t *testing.T, kind string, write func(*bytes.Buffer) error) []byte {
	t.Helper()
	var raw, out bytes.Buffer
	if err := write(&raw); err != nil {
		t.Fatal(err)
	}
	if kind == "" {
		return raw.Bytes()
	}
	w, err := armor.Encode(&out, kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(raw.Bytes())
	w.Close()
	return out.Bytes()
}

func TestVerify(t *testing.T) {
	text := []byte(at256 + "  " + name + "\n")
	good, stranger, brief := publisher(t, 0), publisher(t, 0), publisher(t, 24*time.Hour)
	ring := func(kind string, keys ...*openpgp.Entity) []byte {
		return armored(t, kind, func(b *bytes.Buffer) error {
			for _, k := range keys {
				if err := k.Serialize(b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	sign := func(kind string, key *openpgp.Entity) []byte {
		return armored(t, kind, func(b *bytes.Buffer) error { return openpgp.DetachSign(b, key, bytes.NewReader(text), config()) })
	}
	clear := func(key *openpgp.Entity) []byte {
		var b bytes.Buffer
		w, err := clearsign.Encode(&b, key.PrivateKey, config())
		if err != nil {
			t.Fatal(err)
		}
		w.Write(text)
		w.Close()
		return b.Bytes()
	}
	now := made.Add(48 * time.Hour)
	binary, asc := ring("", good), ring(openpgp.PublicKeyType, good)
	for what, try := range map[string]struct{ text, sig, keys []byte }{
		"binary":          {text, sign("", good), binary},
		"armored":         {text, sign(openpgp.SignatureType, good), asc},
		"one of two keys": {text, sign("", good), ring("", stranger, good)},
		"clear-signed":    {clear(good), nil, asc},
	} {
		signed, by, err := Verify(try.text, try.sig, try.keys, now)
		if err != nil || by[:len("Publisher")] != "Publisher" {
			t.Errorf("%s: by %q, %v", what, by, err)
			continue
		}
		if sum, err := Find(signed, name); err != nil || sum.SHA256 != at256 {
			t.Errorf("%s: %+v, %v", what, sum, err)
		}
	}
	around := append([]byte(b256+"  "+name+"\n"), clear(good)...)
	if signed, _, err := Verify(around, nil, asc, now); err != nil || bytes.Contains(signed, []byte(b256)) {
		t.Errorf("what is not signed counts: %q, %v", signed, err)
	}
	revoked := publisher(t, 0)
	byRevoked := sign("", revoked)
	if err := revoked.RevokeKey(packet.KeyCompromised, "stolen", config()); err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(clear(good), []byte(at256), []byte(b256), 1)
	for what, try := range map[string]struct {
		text, sig, keys []byte
		field, word     string
	}{
		"unknown":               {text, sign("", stranger), binary, "sums_signature", "not in the keyring"},
		"unknown, clear":        {clear(stranger), nil, binary, "sums_signature", "not in the keyring"},
		"expired":               {text, sign("", brief), ring("", brief), "sums_signature", "has expired"},
		"expired, clear":        {clear(brief), nil, ring("", brief), "sums_signature", "has expired"},
		"revoked":               {text, byRevoked, ring("", revoked), "sums_signature", "revoked"},
		"changed":               {[]byte(b256 + "  " + name + "\n"), sign("", good), binary, "sums_signature", "not good"},
		"changed, clear":        {changed, nil, binary, "sums_signature", "not good"},
		"none":                  {text, nil, binary, "sums_signature", "carry no signature"},
		"empty":                 {text, []byte{}, binary, "sums_signature", "signature"},
		"no signature":          {text, text, binary, "sums_signature", "signature"},
		"no keys":               {text, sign("", good), nil, "sums_key", "no key"},
		"a page, not a keyring": {text, sign("", good), []byte("<html>"), "sums_key", "no key"},
	} {
		signed, _, err := Verify(try.text, try.sig, try.keys, now)
		if signed != nil {
			t.Errorf("%s: text comes back", what)
		}
		refused(t, what, try.field, try.word)(Sum{}, err)
	}
}
