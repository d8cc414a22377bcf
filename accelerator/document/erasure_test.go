package document

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

func certificate() machine.ErasureCertificate {
	return machine.ErasureCertificate{Schema: machine.ErasureSchema, ID: "e-1-1-1", Machine: "m-1", Name: evil, Order: "o-1", Job: "j-1", Attempt: 1, At: time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC),
		Erasure: machine.Erasure{Serial: evil, Model: evil, Size: 4e12, Method: "nvme-sanitize-block+zeroout", Sampled: 1 << 26, Clean: true, Level: machine.Purge, Lacks: []string{evil}}}
}

func TestErasureIsSigned(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := SignErasure(certificate(), private)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := VerifyErasure(body, public); err != nil || !reflect.DeepEqual(c, certificate()) {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := VerifyErasure(bytes.Replace(body, []byte(`"attempt":1`), []byte(`"attempt":2`), 1), public); !errors.Is(err, ErrSignature) {
		t.Errorf("a changed certificate: %v", err)
	}
	if _, err := Verify(body, public); err == nil {
		t.Error("a certificate passes for a report of a validation")
	}
	if c, key, err := OpenErasure(body); err != nil || key != KeyID(public) || c.ID != "e-1-1-1" {
		t.Errorf("%+v, %q, %v", c, key, err)
	}
	plain, err := json.Marshal(certificate())
	if err != nil {
		t.Fatal(err)
	}
	if c, key, err := OpenErasure(plain); err != nil || key != "" || c.ID != "e-1-1-1" {
		t.Errorf("unsigned: %+v, %q, %v", c, key, err)
	}
	if _, _, err := OpenErasure([]byte(`{"schema":"bareyard.report/1"}`)); err == nil {
		t.Error("another document passes for a certificate")
	}
}

func TestK04ErasureHTMLIsEscaped(t *testing.T) {
	var b bytes.Buffer
	if err := ErasureHTML(&b, certificate(), "cafe"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<img", "ZgotmplZ", "http"} {
		if strings.Contains(b.String(), bad) && bad != "http" || strings.Contains(b.String(), bad+"s://") {
			t.Errorf("the page holds %q", bad)
		}
	}
	for _, good := range []string{"This disk was erased", "purge: it erased itself", "4000 GB (4000000000000 bytes)", "every byte was zero", "Signed with key cafe"} {
		if !strings.Contains(b.String(), good) {
			t.Errorf("the page lacks %q in\n%s", good, b.String())
		}
	}
	c := certificate()
	c.Clean, c.Detail = false, "data is left on it"
	b.Reset()
	if err := ErasureHTML(&b, c, ""); err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{"This disk was not erased", "none: not proven clean", "data is left on it", "No key signed this"} {
		if !strings.Contains(b.String(), good) {
			t.Errorf("the page of a failure lacks %q", good)
		}
	}
}
