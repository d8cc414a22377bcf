package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// What identifies a BMC is made once and kept with its machine, so that a controller which has enrolled the lab's machines
// still knows them when the lab comes up again.

// keptPassword returns the password in a file, and makes one up where there is none.
func keptPassword(path, first string) (string, error) {
	b, err := kept(path, func() ([]byte, error) {
		if first != "" {
			return []byte(first + "\n"), nil
		}
		raw := make([]byte, 8) // 16 characters; IPMI takes no more than 20
		rand.Read(raw)
		return []byte(hex.EncodeToString(raw) + "\n"), nil
	})
	if err != nil {
		return "", fmt.Errorf("keep BMC password: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// keptCertificate returns the certificate and key in a file, and makes a self-signed one where there is none.
func keptCertificate(path string, addr netip.Addr) (*tls.Certificate, error) {
	b, err := kept(path, func() ([]byte, error) { return selfSigned(addr) })
	if err != nil {
		return nil, fmt.Errorf("keep BMC certificate: %w", err)
	}
	cert, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, fmt.Errorf("read BMC certificate: %w", err)
	}
	return &cert, nil
}

func kept(path string, invent func() ([]byte, error)) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err = invent(); err != nil {
		return nil, err
	}
	return b, os.WriteFile(path, b, 0o600)
}

// selfSigned makes a certificate as a BMC has it from the factory: for itself, by itself, for long. PEM, with its key.
func selfSigned(addr netip.Addr) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: "bmc"},
		NotBefore:    now.AddDate(0, 0, -1),
		NotAfter:     now.AddDate(10, 0, 0),
		IPAddresses:  []net.IP{addr.AsSlice()},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})...), nil
}
