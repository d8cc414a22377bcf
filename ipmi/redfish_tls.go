package ipmi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

var errPin = errors.New("certificate does not match the pin")

// newTransport trusts the one certificate whose SHA-256 is pin, or without a pin those that the system trusts. It goes
// through no proxy.
func newTransport(pin string, answer time.Duration) (*http.Transport, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if pin != "" {
		want, err := hex.DecodeString(strings.ReplaceAll(pin, ":", ""))
		if err != nil || len(want) != sha256.Size {
			return nil, failf(ErrUnsupported, "the certificate pin is not a SHA-256 in hex")
		}
		conf.InsecureSkipVerify = true // the pin says more than a name: BMCs sign themselves
		conf.VerifyConnection = func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errPin
			}
			got := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], want) != 1 {
				return errPin
			}
			return nil
		}
	}
	dialer := &net.Dialer{Timeout: min(answer, 5*time.Second)}
	return &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: conf, TLSHandshakeTimeout: answer,
		MaxConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}, nil
}

// sameHost follows a redirect only within the BMC: the token is for it alone.
func sameHost(req *http.Request, via []*http.Request) error {
	if len(via) > 5 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme || req.Method != http.MethodGet {
		return http.ErrUseLastResponse
	}
	return nil
}

// httpError describes a request that got no answer.
func httpError(err error) *failure {
	var (
		op       *net.OpError
		call     *os.SyscallError
		unknown  x509.UnknownAuthorityError
		name     x509.HostnameError
		invalid  x509.CertificateInvalidError
		mismatch *tls.CertificateVerificationError
	)
	dial := errors.As(err, &op) && op.Op == "dial"
	switch {
	case errors.Is(err, errPin):
		return failf(ErrUntrusted, "it does not match the pin")
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid), errors.As(err, &mismatch):
		return failf(ErrUntrusted, "nobody that this system trusts vouches for it")
	case errors.As(err, &call):
		return &failure{kind: ErrUnreachable, detail: call.Err.Error(), sent: !dial}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{kind: ErrUnreachable, detail: "no answer", sent: !dial}
	}
	return &failure{kind: ErrUnreachable, detail: "the connection broke", sent: !dial}
}
