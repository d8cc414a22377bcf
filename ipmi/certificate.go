package ipmi

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net"
	"net/url"
	"time"
)

// Certificate is what a Redfish BMC shows of itself.
type Certificate struct {
	Pin     string // its SHA-256, in hex: Target.CertPin
	Vouched bool   // this system trusts it for this address, so that no pin is needed
	Subject string
	Expires time.Time
}

// Certificate asks a Redfish BMC for its certificate. Nothing secret is sent, and nothing is trusted by asking.
func (c *Controller) Certificate(ctx context.Context, t Target) (Certificate, error) {
	doing := "read certificate"
	u, err := url.Parse(t.Address)
	if err != nil || t.Protocol != Redfish || u.Scheme != "https" || u.Host == "" {
		return Certificate{}, t.on(doing, failf(ErrUnsupported, "the address is not an https URL"))
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	port := u.Port()
	if port == "" {
		port = "443"
	}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: u.Hostname(), InsecureSkipVerify: true, // it is judged below, and nothing is said to it
	}}
	raw, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return Certificate{}, t.on(doing, orOver(ctx, httpError(err)))
	}
	defer func() { _ = raw.Close() }()
	shown := raw.(*tls.Conn).ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return Certificate{}, t.on(doing, failf(ErrUntrusted, "it shows none"))
	}
	sum := sha256.Sum256(shown[0].Raw)
	between := x509.NewCertPool()
	for _, cert := range shown[1:] {
		between.AddCert(cert)
	}
	_, err = shown[0].Verify(x509.VerifyOptions{DNSName: u.Hostname(), Intermediates: between})
	return Certificate{Pin: hex.EncodeToString(sum[:]), Vouched: err == nil, Subject: clean(shown[0].Subject.String()), Expires: shown[0].NotAfter}, nil
}
