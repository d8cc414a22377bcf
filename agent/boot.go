package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"
)

// BootPath is where the per-boot archive puts the Boot file.
const BootPath = "/etc/bareyard/boot.json"

// Boot is the file that a machine gets with its RAM disk: how to reach the server in this one boot.
type Boot struct {
	Server string `json:"server"` // e.g. https://10.0.0.1:8443
	CA     string `json:"ca"`     // PEM: who may answer as the server
	Nonce  string `json:"nonce"`  // good for one Hello; never logged
	MAC    string `json:"mac"`    // the port it booted from
}

// ParseBoot reads and checks a Boot file.
func ParseBoot(raw []byte) (Boot, error) {
	var b Boot
	if err := json.Unmarshal(raw, &b); err != nil {
		return Boot{}, errors.New("parse boot file: not JSON of the right shape") // the cause could quote the nonce
	}
	u, err := url.Parse(b.Server)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return Boot{}, fmt.Errorf("parse boot file: no server address in %q", b.Server)
	case b.Nonce == "":
		return Boot{}, errors.New("parse boot file: no nonce")
	case u.Scheme == "https" && b.CA == "":
		return Boot{}, errors.New("parse boot file: no CA")
	}
	mac, err := net.ParseMAC(b.MAC)
	if err != nil || len(mac) != 6 {
		return Boot{}, fmt.Errorf("parse boot file: no MAC address in %q", b.MAC)
	}
	b.MAC = mac.String()
	return b, nil
}

// LogValue keeps the nonce out of logs.
func (b Boot) LogValue() slog.Value {
	return slog.GroupValue(slog.String("server", b.Server), slog.String("mac", b.MAC))
}

// String keeps the nonce out of messages.
func (b Boot) String() string { return fmt.Sprintf("boot of %s at %s", b.MAC, b.Server) }

// GoString keeps the nonce out of %#v.
func (b Boot) GoString() string { return b.String() }

// Client returns an HTTP client that talks to nobody but the server of this boot.
func (b Boot) Client() (*http.Client, error) {
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: requestTime,
		IdleConnTimeout:       time.Minute,
		ForceAttemptHTTP2:     false,
	}
	if b.CA != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(b.CA)) {
			return nil, errors.New("read CA of the boot file: no certificate in it")
		}
		u, err := url.Parse(b.Server)
		if err != nil {
			return nil, fmt.Errorf("read server of the boot file: %w", err)
		}
		transport.TLSClientConfig = &tls.Config{
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: true, // verifyServer does it all, with a clock that is allowed to be wrong
			VerifyConnection: func(s tls.ConnectionState) error {
				return verifyServer(s.PeerCertificates, roots, u.Hostname(), time.Now())
			},
		}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a redirect is not followed") },
	}, nil
}

// verifyServer checks a certificate chain as crypto/tls does, but a clock that is behind does not count against it: many a
// machine with a dead battery wakes up in the year 2000, and the CA came with this very boot.
func verifyServer(chain []*x509.Certificate, roots *x509.CertPool, host string, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("verify server: no certificate")
	}
	opts := x509.VerifyOptions{Roots: roots, DNSName: host, Intermediates: x509.NewCertPool(), CurrentTime: now}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if now.Before(chain[0].NotBefore) {
		opts.CurrentTime = chain[0].NotBefore
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return fmt.Errorf("verify server: %w", err)
	}
	return nil
}
