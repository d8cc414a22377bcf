package agent

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestParseBoot(t *testing.T) {
	ok := `{"server":"https://10.0.0.1:8443","ca":"PEM","nonce":"Zq9canary","mac":"52:54:00:AA:00:01"}`
	b, err := ParseBoot([]byte(ok))
	if err != nil || b.MAC != "52:54:00:aa:00:01" {
		t.Fatalf("ParseBoot: %+v, %v", b, err)
	}
	for _, bad := range []string{
		``, `[]`, `{"server":"https://x","ca":"PEM","nonce":["Zq9canary"],"mac":"52:54:00:aa:00:01"}`,
		strings.Replace(ok, "https://10.0.0.1:8443", "ftp://x", 1),
		strings.Replace(ok, "PEM", "", 1),
		strings.Replace(ok, "Zq9canary", "", 1),
		strings.Replace(ok, "52:54:00:AA:00:01", "00:01", 1),
	} {
		if _, err := ParseBoot([]byte(bad)); err == nil {
			t.Errorf("ParseBoot(%s): no error", bad)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("the error shows the nonce: %v", err)
		}
	}
}

// K09: the nonce is a secret of this boot.
func TestK09NonceIsNeverShown(t *testing.T) {
	b := Boot{Server: "https://10.0.0.1", Nonce: "Zq9canary", MAC: "52:54:00:aa:00:01"}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("boot", "boot", b)
	slog.New(slog.NewTextHandler(&out, nil)).Info("boot", "boot", b)
	fmt.Fprintf(&out, "%v %+v %#v %s", b, b, b, b)
	if strings.Contains(out.String(), "canary") {
		t.Errorf("shown: %s", out.String())
	}
}

func FuzzParseBoot(f *testing.F) {
	f.Add([]byte(`{"server":"https://10.0.0.1:8443","ca":"PEM","nonce":"n","mac":"52:54:00:aa:00:01"}`))
	f.Add([]byte(`{"server":"http://x","nonce":"n","mac":"52-54-00-aa-00-01"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := ParseBoot(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := ParseBoot(again); err != nil || c != b {
			t.Errorf("%+v came back as %+v, %v", b, c, err)
		}
	})
}

// authority makes a CA and a server certificate for 127.0.0.1.
func authority(t *testing.T, from, to time.Time) (*x509.Certificate, *x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: from, NotAfter: to,
		DNSNames: []string{"server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	made := make([]*x509.Certificate, 2)
	for i, c := range []*x509.Certificate{ca, leaf} {
		raw, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		if made[i], err = x509.ParseCertificate(raw); err != nil {
			t.Fatal(err)
		}
	}
	return made[0], made[1], key
}

func TestVerifyServer(t *testing.T) {
	now := time.Now()
	ca, leaf, _ := authority(t, now.Add(-time.Hour), now.Add(time.Hour))
	other, _, _ := authority(t, now.Add(-time.Hour), now.Add(time.Hour))
	tests := []struct {
		name  string
		root  *x509.Certificate
		host  string
		clock time.Time
		ok    bool
	}{
		{"good", ca, "server", now, true},
		{"a clock at 2000", ca, "server", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), true},
		{"expired", ca, "server", now.Add(2 * time.Hour), false},
		{"another CA", other, "server", now, false},
		{"another CA and a clock at 2000", other, "server", time.Unix(0, 0), false},
		{"another host", ca, "imposter", now, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AddCert(tt.root)
			if err := verifyServer([]*x509.Certificate{leaf}, roots, tt.host, tt.clock); (err == nil) != tt.ok {
				t.Errorf("verifyServer: %v, want ok %v", err, tt.ok)
			}
		})
	}
	if err := verifyServer(nil, x509.NewCertPool(), "server", now); err == nil {
		t.Error("no certificate is accepted")
	}
}

func TestClientTalksToItsServerOnly(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "/", http.StatusTemporaryRedirect)
		}
	}))
	defer s.Close()
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	own := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	stranger, _, _ := authority(t, time.Now(), time.Now().Add(time.Hour))
	for name, tt := range map[string]struct {
		ca, path string
		ok       bool
	}{
		"own":      {own, "/", true},
		"redirect": {own, "/away", false},
		"stranger": {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.Raw})), "/", false},
	} {
		c, err := Boot{Server: s.URL, CA: tt.ca}.Client()
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Get(s.URL + tt.path)
		if err == nil {
			res.Body.Close()
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v, want ok %v", name, err, tt.ok)
		}
		c.CloseIdleConnections()
	}
	if _, err := (Boot{Server: s.URL, CA: "no certificate"}).Client(); err == nil {
		t.Error("a CA without a certificate is accepted")
	}
}

// K11: the other side of the wire is not trusted with the agent's memory either.
func TestK11AnswerIsCapped(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 100 {
			w.Write(bytes.Repeat([]byte(" "), 1<<20))
		}
	}))
	defer s.Close()
	var out any
	err := (&server{base: s.URL, http: s.Client()}).post(t.Context(), "/", nil, &out)
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("post: %v", err)
	}
}
