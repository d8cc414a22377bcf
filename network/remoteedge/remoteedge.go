// Package remoteedge is an edge on another box: the box keeps what it was told last and serves it over mutual TLS, the server dials it.
//
// The server dials, and not the box: the box then holds no address of a server and no password, any of several servers can
// reach it, and an answer is the edge's own word. A server that was away asks anew; it remembers nothing of the box.
package remoteedge

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// ServerName is the DNS name in the certificates by which servers show edges who they are. No other certificate of the same
// authority is for clients.
const ServerName = "server.bareyard.internal"

// Hostname is the DNS name in the certificate of an edge.
func Hostname(edge string) string { return edge + ".edge.bareyard.internal" }

// Paths of the protocol. The version changes when an older side could not read a newer one.
const (
	pathPorts    = "/v1/ports"
	pathApply    = "/v1/apply"
	pathCounters = "/v1/counters"
	pathCaps     = "/v1/caps"
	pathProbe    = "/v1/probe"
)

// maxBody bounds what either side takes: fifteen thousand ports with a dozen addresses each.
const maxBody = 32 << 20

// change is what Apply asks for.
type change struct {
	Set    []network.Port `json:"set"`
	Remove []string       `json:"remove"`
}

// reading is what Counters answers.
type reading struct {
	Now      time.Time         `json:"now"` // by the edge's clock
	Counters []network.Counter `json:"counters"`
}

// problem is an error on the wire.
type problem struct {
	Code    machine.Code `json:"code"`
	Message string       `json:"message"`
	Field   string       `json:"field,omitempty"`
	Hint    string       `json:"hint,omitempty"`
	Pending bool         `json:"pending,omitempty"` // network.ErrPending
	Blind   bool         `json:"blind,omitempty"`   // network.ErrCannotProbe
}

func problemOf(err error) (int, problem) {
	p := problem{Message: err.Error(), Pending: errors.Is(err, network.ErrPending), Blind: errors.Is(err, network.ErrCannotProbe)}
	var e *machine.Error
	if errors.As(err, &e) {
		p.Code, p.Field, p.Hint = e.Code, e.Field, e.Hint
	}
	switch p.Code {
	case machine.Invalid:
		return http.StatusUnprocessableEntity, p
	case machine.NotFound:
		return http.StatusNotFound, p
	case machine.Conflict, machine.Exhausted:
		return http.StatusConflict, p
	case machine.Unavailable:
		return http.StatusServiceUnavailable, p
	}
	return http.StatusInternalServerError, p
}

func (p problem) err(edge string) error {
	message := fmt.Sprintf("edge %s: %s", edge, p.Message)
	if p.Pending {
		return fmt.Errorf("%s: %w", message, network.ErrPending)
	}
	if p.Blind {
		return fmt.Errorf("%s%w", strings.TrimSuffix(message, network.ErrCannotProbe.Error()), network.ErrCannotProbe)
	}
	if p.Code == "" {
		return errors.New(message)
	}
	return &machine.Error{Code: p.Code, Message: message, Field: p.Field, Hint: p.Hint}
}

// Credentials are what an edge needs to be dialled: the authority's certificate, its own and its key, in one PEM file, as
// `bareyard edge issue` prints them.
type Credentials struct{ File string }

// load reads the file. The first certificate that is an authority is trusted; the other one is ours.
func (c Credentials) load() (tls.Certificate, *x509.CertPool, error) {
	bad := func(format string, a ...any) (tls.Certificate, *x509.CertPool, error) {
		return tls.Certificate{}, nil, &machine.Error{Code: machine.Invalid, Field: "credentials", Message: c.File + ": " + fmt.Sprintf(format, a...),
			Hint: "write the file anew on a server: bareyard edge issue NAME > FILE"}
	}
	text, err := os.ReadFile(c.File)
	if err != nil {
		return bad("%v", err)
	}
	var own, key, ca []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			key = pem.EncodeToMemory(block)
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return bad("%v", err)
		}
		if cert.IsCA {
			ca = pem.EncodeToMemory(block)
		} else {
			own = pem.EncodeToMemory(block)
		}
	}
	if own == nil || key == nil || ca == nil {
		return bad("it must hold an authority, a certificate and its key")
	}
	cert, err := tls.X509KeyPair(own, key)
	if err != nil {
		return bad("%v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return cert, pool, nil
}

// TLS returns how an edge serves. The file is read at every handshake, so that new credentials need no restart.
func (c Credentials) TLS() (*tls.Config, error) {
	if _, _, err := c.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, pool, err := c.load()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
				SessionTicketsDisabled: true, // whoever comes is checked, each time
				VerifyConnection: func(s tls.ConnectionState) error {
					return s.PeerCertificates[0].VerifyHostname(ServerName)
				},
			}, nil
		},
	}, nil
}

func decode(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields() // a field that we do not know may be a guard that we would not keep
	if err := d.Decode(into); err != nil {
		return &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("the request cannot be read: %v", err), Hint: "server and edge must be of versions that understand each other"}
	}
	return nil
}
