package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/remoteedge"
	"github.com/bareyard/bareyard/postgres"
)

// authority is the CA that all servers of one database share; agents and validators trust it alone.
type authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	certPEM []byte
}

// loadAuthority reads the CA from the database, where its key is sealed; the first server makes it.
func loadAuthority(ctx context.Context, db *postgres.DB) (*authority, error) {
	bundle, err := db.Setting(ctx, "agent-ca", func() ([]byte, error) { return newAuthority(time.Now()) })
	if err != nil {
		return nil, err
	}
	return parseAuthority(bundle)
}

func parseAuthority(bundle []byte) (*authority, error) {
	certBlock, rest := pem.Decode(bundle)
	keyBlock, _ := pem.Decode(rest)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("read CA: it is damaged in the database")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	return &authority{cert: cert, key: key, certPEM: pem.EncodeToMemory(certBlock)}, nil
}

func newAuthority(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "Bareyard agents"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(20, 0, 0), // a machine's clock may be off by a day
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode CA key: %w", err)
	}
	var b bytes.Buffer
	b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	b.Write(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
	return b.Bytes(), nil
}

// issue makes the certificate of this server for its address on the provisioning network and for this host.
func (a *authority) issue(addr netip.Addr, now time.Time) (tls.Certificate, error) {
	return a.sign(now, x509.Certificate{
		Subject:     pkix.Name{CommonName: "bareyard"},
		IPAddresses: []net.IP{net.IP(bootAddr(addr).AsSlice()), net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// issueDialler makes the certificate by which this server shows edges who it is. Nobody else gets one for clients.
func (a *authority) issueDialler(now time.Time) (tls.Certificate, error) {
	return a.sign(now, x509.Certificate{
		Subject: pkix.Name{CommonName: remoteedge.ServerName}, DNSNames: []string{remoteedge.ServerName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// issueEdge makes the credentials of an edge on another box, as PEM.
func (a *authority) issueEdge(name string) (string, error) {
	if !isEdgeName(name) {
		return "", &machine.Error{Code: machine.Invalid, Field: "name", Message: fmt.Sprintf("%q is not the name of an edge", name), Hint: "use up to 63 lower-case letters, digits and dashes"}
	}
	cert, err := a.sign(time.Now(), x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{remoteedge.Hostname(name)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return "", err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("encode key: %w", err)
	}
	var b bytes.Buffer
	b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	b.Write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	b.Write(a.certPEM)
	return b.String(), nil
}

// sign makes a key and its certificate, for two years.
func (a *authority) sign(now time.Time, template x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make key: %w", err)
	}
	template.SerialNumber, template.KeyUsage = big.NewInt(now.UnixNano()), x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = now.Add(-24*time.Hour), now.AddDate(2, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("issue certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
