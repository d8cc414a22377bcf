package bmctest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/ipmi"
)

// Redfish is a BMC that speaks Redfish over HTTP, with the resources that gofish v0.20 and bmclib v2.3.5 need. Set the
// fields before the first method call. As an http.Handler without Run it does power operations before it answers.
type Redfish struct {
	Addr     string // host:port to bind; port 0 takes a free one
	TLS      bool   // serve HTTPS
	User     string
	Password string
	// OnPassword is told of each new password of an account, before the answer: a board that speaks IPMI too has one set of
	// accounts. It must not call back.
	OnPassword func(user, password string)
	Slots      int // how many sessions fit; 0 is 8
	Vendor     Vendor
	Chassis    Chassis
	Board      *Board // nil is a new one
	Faults     *Faults
	Log        *slog.Logger

	Certificate *tls.Certificate // nil is a self-signed one, made anew each time

	once  sync.Once
	err   error
	l     net.Listener
	pin   string
	p     profile
	mux   *http.ServeMux
	front *front
	setup sync.Once

	mu       sync.Mutex
	boot     rfBoot
	pending  *rfBoot // in the settings resource, until the next boot
	sessions map[string]string
	serial   int
	etags    map[string]int // how often each resource changed, by path
	opened   int
	closed   int
	most     int
	logins   int
	failed   int
	resets   []string
	ifMatch  []string
	accounts []*rfAccount
	media    []*rfMedia
	services map[string]any // NetworkProtocol
	waiting  map[string]any // BIOS settings for the next start
	staged   map[string]any // BIOS settings for the next job
	jobs     []*rfJob
	host     hostSwitches
	requests int
}

// Listen binds the address and returns it as host:port. Run does it where nobody did.
func (r *Redfish) Listen() (string, error) {
	r.once.Do(func() { r.err = r.listen() })
	if r.err != nil {
		return "", r.err
	}
	return r.l.Addr().String(), nil
}

func (r *Redfish) listen() error {
	l, err := net.Listen("tcp", r.Addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	r.l = l
	if !r.TLS {
		return nil
	}
	cert := r.Certificate
	if cert == nil {
		if cert, err = selfSigned(); err != nil {
			_ = l.Close()
			return fmt.Errorf("make certificate: %w", err)
		}
	}
	sum := sha256.Sum256(cert.Certificate[0])
	r.pin = hex.EncodeToString(sum[:])
	r.l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12})
	return nil
}

// Run serves until ctx ends, and then returns nil.
func (r *Redfish) Run(ctx context.Context) error {
	if _, err := r.Listen(); err != nil {
		return err
	}
	r.build()
	srv := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(r.front.log.Handler(), slog.LevelDebug)}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.front.run(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		return srv.Close()
	})
	g.Go(func() error {
		if err := srv.Serve(r.l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve Redfish: %w", err)
		}
		return nil
	})
	return g.Wait()
}

// Target says how to reach this BMC. Call it after Listen.
func (r *Redfish) Target() ipmi.Target {
	addr, _ := r.Listen()
	scheme := "http://"
	if r.TLS {
		scheme = "https://"
	}
	return ipmi.Target{Protocol: ipmi.Redfish, Address: scheme + addr, Username: r.User, Password: r.Password, CertPin: r.pin}
}

// Logins counts the attempts to log in so far: POSTs of a session and requests with Basic authentication.
func (r *Redfish) Logins() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logins
}

// Sessions counts the sessions that were opened and those that were closed by their client.
func (r *Redfish) Sessions() (opened, closed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opened, r.closed
}

// Requests counts the requests so far.
func (r *Redfish) Requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// fault is how the BMC misbehaves now, its vendor's habits among it.
func (r *Redfish) fault() Fault { return r.Faults.Now().over(r.p.habits) }

// Resets lists the reset types that were asked for, also those that were refused.
func (r *Redfish) Resets() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.resets...)
}

// IfMatches lists the If-Match header of each PATCH; "" is none.
func (r *Redfish) IfMatches() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.ifMatch...)
}

// MostSessions is the largest number of sessions that were open at once.
func (r *Redfish) MostSessions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// selfSigned makes a certificate for loopback.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "bmc"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
