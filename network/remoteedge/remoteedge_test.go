package remoteedge_test

import (
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
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/remoteedge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs certificates as a server's does.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, cert, key}
}

func (a *authority) sign(host string, usage x509.ExtKeyUsage, age time.Duration) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{host}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour - age),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// credentials writes the file of an edge.
func (a *authority) credentials(path string, cert tls.Certificate) {
	a.t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	var b strings.Builder
	for _, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, {Type: "PRIVATE KEY", Bytes: key}, {Type: "CERTIFICATE", Bytes: a.cert.Raw}} {
		b.Write(pem.EncodeToMemory(block))
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// serve serves an edge by the name e1 and returns its address.
func (a *authority) serve(path string, edge network.Edge) string {
	a.t.Helper()
	config, err := remoteedge.Credentials{File: path}.TLS()
	if err != nil {
		a.t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- remoteedge.Serve(ctx, l, edge, slog.New(slog.DiscardHandler)) }()
	a.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			a.t.Errorf("serving ended with %v", err)
		}
	})
	return l.Addr().String()
}

func (a *authority) dial(name, address string, cert tls.Certificate) *remoteedge.Client {
	a.t.Helper()
	c, err := remoteedge.Dial(name, address, cert, a.roots())
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(c.Close)
	return c
}

func (a *authority) server() tls.Certificate {
	return a.sign(remoteedge.ServerName, x509.ExtKeyUsageClientAuth, 0)
}

func port(id string, n int) network.Port {
	return network.Port{
		Machine: id, Site: "s1", MAC: fmt.Sprintf("02:00:00:00:02:%02x", n), Mode: network.On, Up: network.Fixed(100_000), Down: network.Bandwidth{Kbit: 10_000, Burst: 200_000},
		Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", n)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/64", n))},
	}
}

// memory is an edge that remembers, and fails when it is told to.
type memory struct {
	mu      sync.Mutex
	ports   map[string]network.Port
	fail    error // of Apply
	applied int
	at      []time.Time
}

func (m *memory) Read(context.Context) ([]network.Port, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []network.Port
	for _, p := range m.ports {
		p.Until, p.Then, p.Site = time.Time{}, "", ""
		out = append(out, p)
	}
	return out, nil
}

func (m *memory) Apply(_ context.Context, set []network.Port, remove []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied++
	m.at = append(m.at, time.Now())
	if m.fail != nil {
		return m.fail
	}
	if m.ports == nil {
		m.ports = map[string]network.Port{}
	}
	for _, id := range remove {
		delete(m.ports, id)
	}
	for _, p := range set {
		m.ports[p.Machine] = p.At(time.Now())
	}
	return nil
}

func (m *memory) Counters(context.Context) ([]network.Counter, error) {
	return []network.Counter{{Machine: "a", Direction: network.Up, Bytes: 1 << 60, Epoch: 1796019615417457915, At: time.Now()}, {Machine: "a", Direction: network.Down, Doubt: "why not"}}, nil
}

func (m *memory) Caps(context.Context) (network.Caps, error) {
	return network.Caps{Driver: "memory", Modes: network.Modes(), Burst: true, Counts: "delivered"}, nil
}

func (m *memory) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.ports[id]
	return ok
}

func (m *memory) mode(id string) network.Mode {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ports[id].Mode
}

func TestRemote(t *testing.T) {
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "edge.pem")
	a.credentials(path, a.sign(remoteedge.Hostname("e1"), x509.ExtKeyUsageServerAuth, 0))
	edge := &memory{}
	c := a.dial("e1", a.serve(path, edge), a.server())

	p := port("a", 1)
	p.Mode, p.Until, p.Then = network.Blackhole, time.Now().Add(time.Hour), network.Limited
	want := []network.Port{p, port("b", 2)}
	if err := network.Reconcile(t.Context(), c, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, edge.ports["a"], cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateApproxTime(time.Millisecond)); diff != "" {
		t.Errorf("a port changed on the way (-sent +got):\n%s", diff)
	}
	have, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if set, remove := network.Diff(want, have); len(set)+len(remove) > 0 {
		t.Errorf("read back: to set %v, to remove %v", set, remove)
	}
	cs, err := c.Counters(t.Context())
	if err != nil || len(cs) != 2 || cs[0].Bytes != 1<<60 || cs[0].Epoch != 1796019615417457915 || cs[0].Doubt != "" || cs[1].Doubt != "why not" {
		t.Errorf("counters are %+v, %v", cs, err)
	}
	if caps, err := c.Caps(t.Context()); err != nil || caps.Driver != "memory" || !caps.Burst {
		t.Errorf("caps are %+v, %v", caps, err)
	}
	if err := c.Apply(t.Context(), nil, []string{"a"}); err != nil || edge.has("a") {
		t.Errorf("remove: %v", err)
	}

	for name, e := range map[string]error{
		"Conflict": &machine.Error{Code: machine.Conflict, Field: "addrs", Message: "taken", Hint: "do this"},
		"Invalid":  &machine.Error{Code: machine.Invalid, Field: "mac", Message: "no"},
		"Internal": errors.New("kernel says no"),
		"Pending":  fmt.Errorf("task: %w", network.ErrPending),
	} {
		t.Run(name, func(t *testing.T) {
			edge.fail = e
			defer func() { edge.fail = nil }()
			err := c.Apply(t.Context(), want, nil)
			if machine.CodeOf(err) != machine.CodeOf(e) || !strings.Contains(err.Error(), e.Error()) && name != "Pending" || errors.Is(err, network.ErrPending) != (name == "Pending") {
				t.Errorf("got %v, want %v", err, e)
			}
			var me *machine.Error
			if name == "Conflict" && (!errors.As(err, &me) || me.Field != "addrs" || me.Hint != "do this") {
				t.Errorf("field and hint are lost: %+v", me)
			}
		})
	}
}

// TestWhoIsWho has everybody who must not get in, and every edge that is not the one that was asked for.
func TestWhoIsWho(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	path := filepath.Join(t.TempDir(), "edge.pem")
	own := a.sign(remoteedge.Hostname("e1"), x509.ExtKeyUsageServerAuth, 0)
	a.credentials(path, own)
	address := a.serve(path, &memory{})
	for name, c := range map[string]struct {
		dial *remoteedge.Client
	}{
		"NoCertificate":  {a.dial("e1", address, tls.Certificate{})},
		"OtherAuthority": {a.dial("e1", address, other.server())},
		"AnEdge":         {a.dial("e1", address, own)},
		"NotForClients":  {a.dial("e1", address, a.sign(remoteedge.ServerName, x509.ExtKeyUsageServerAuth, 0))},
		"NotAServer":     {a.dial("e1", address, a.sign("agent.bareyard.internal", x509.ExtKeyUsageClientAuth, 0))},
		"Expired":        {a.dial("e1", address, a.sign(remoteedge.ServerName, x509.ExtKeyUsageClientAuth, 90*time.Minute))},
		"OtherEdge":      {a.dial("e2", address, a.server())},
		"ForeignEdge":    {other.dial("e1", address, other.server())},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.dial.Read(t.Context())
			var me *machine.Error
			if !errors.As(err, &me) || me.Code != machine.Unavailable || !strings.Contains(me.Hint, "edge issue") {
				t.Errorf("got %v, want to be told to issue credentials", err)
			}
		})
	}
	c := a.dial("e1", address, a.server())
	if _, err := c.Read(t.Context()); err != nil {
		t.Fatalf("the right one: %v", err)
	}

	// New credentials are taken up without a restart.
	a.credentials(path, a.sign(remoteedge.Hostname("e2"), x509.ExtKeyUsageServerAuth, 0))
	if _, err := a.dial("e2", address, a.server()).Read(t.Context()); err != nil {
		t.Errorf("with new credentials: %v", err)
	}
	for name, text := range map[string]string{"Missing": "", "Empty": "\n", "NoKey": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))} {
		bad := filepath.Join(t.TempDir(), "bad.pem")
		if text != "" {
			if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var me *machine.Error
		if _, err := (remoteedge.Credentials{File: bad}).TLS(); !errors.As(err, &me) || me.Code != machine.Invalid || !strings.Contains(me.Message, bad) {
			t.Errorf("%s: %v, want an Invalid error that names the file", name, err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	a := newAuthority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	c := a.dial("e1", l.Addr().String(), a.server())
	if _, err := c.Read(t.Context()); machine.CodeOf(err) != machine.Unavailable || !strings.Contains(err.Error(), "edge e1") {
		t.Errorf("got %v", err)
	}
	if _, err := remoteedge.Dial("e1", "10.0.0.1", a.server(), a.roots()); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("an address without a port: %v", err)
	}
}
