package powerdns_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/powerdns"
)

// server is a real PowerDNS on loopback with a database of its own.
type server struct {
	t        *testing.T
	api, dns string
	dir      string
}

const key = "Zq9!canary'\"%s"

func start(t *testing.T, zones ...string) *server {
	t.Helper()
	for _, program := range []string{"pdns_server", "pdnsutil", "sqlite3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v; apt-get install pdns-server pdns-backend-sqlite3 sqlite3", err)
		}
	}
	s := &server{t: t, dir: t.TempDir()}
	schema, err := os.ReadFile("/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql")
	if err != nil {
		t.Fatal(err)
	}
	s.run(string(schema), "sqlite3", filepath.Join(s.dir, "db"))
	s.api, s.dns = freePort(t, "tcp"), freePort(t, "udp")
	conf := fmt.Sprintf("launch=gsqlite3\ngsqlite3-database=%s/db\nlocal-address=%s\napi=yes\napi-key=%s\nwebserver-address=127.0.0.1\nwebserver-port=%s\nwebserver-allow-from=127.0.0.0/8\n"+
		"socket-dir=%s\nguardian=no\ndaemon=no\nquery-cache-ttl=0\ncache-ttl=0\nnegquery-cache-ttl=0\nzone-cache-refresh-interval=0\n", s.dir, s.dns, key, s.api[strings.LastIndex(s.api, ":")+1:], s.dir)
	if err := os.WriteFile(filepath.Join(s.dir, "pdns.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, z := range zones {
		s.run("", "pdnsutil", "--config-dir="+s.dir, "create-zone", z, "ns1.example.com")
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("pdns_server", "--config-dir="+s.dir)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s", text)
		}
	})
	late := time.After(30 * time.Second)
	for {
		conn, err := net.Dial("tcp", s.api)
		if err == nil {
			conn.Close()
			return s
		}
		select {
		case <-late:
			t.Fatalf("PowerDNS does not come up: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) run(in, program string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

func freePort(t *testing.T, network string) string {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.LocalAddr().String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *server) client() *powerdns.Client { return &powerdns.Client{URL: "http://" + s.api, Key: key} }

// lookUp asks the server itself, over DNS.
func (s *server) lookUp(addr string) []string {
	s.t.Helper()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", s.dns)
	}}
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	names, err := r.LookupAddr(ctx, addr)
	if dns, ok := err.(*net.DNSError); ok && dns.IsNotFound {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return names
}

// TestReverseDNS: names come and go in the answers of a real name server, IPv4 and IPv6, in the longest zone that there is.
func TestReverseDNS(t *testing.T) {
	s := start(t, "0.203.in-addr.arpa", "113.0.203.in-addr.arpa", "8.b.d.0.1.0.0.2.ip6.arpa")
	c := s.client()
	for _, step := range []struct {
		addr, name string
		want       []string
	}{
		{"203.0.113.7", "gpu1.example.com", []string{"gpu1.example.com."}},
		{"203.0.113.7", "gpu1.example.com", []string{"gpu1.example.com."}},
		{"203.0.113.7", "gpu2.example.com", []string{"gpu2.example.com."}},
		{"203.0.113.8", "other.example.com", []string{"other.example.com."}},
		{"203.0.113.7", "", nil},
		{"203.0.113.7", "", nil},
		{"203.0.99.1", "wide.example.com", []string{"wide.example.com."}},
		{"2001:db8:7::5", "six.example.com", []string{"six.example.com."}},
		{"2001:db8:7::5", "", nil},
	} {
		if err := c.SetPTR(t.Context(), netip.MustParseAddr(step.addr), step.name); err != nil {
			t.Fatalf("%s to %q: %v", step.addr, step.name, err)
		}
		if got := s.lookUp(step.addr); !slices.Equal(got, step.want) {
			t.Errorf("%s to %q: the server says %v", step.addr, step.name, got)
		}
	}
	if got := s.lookUp("203.0.113.8"); !slices.Equal(got, []string{"other.example.com."}) {
		t.Errorf("another address became %v", got)
	}
}

// TestK05KeyDoesNotShow: what goes wrong is said without the key, and with what to do.
func TestK05KeyDoesNotShow(t *testing.T) {
	s := start(t, "113.0.203.in-addr.arpa")
	addr := netip.MustParseAddr("203.0.113.7")
	wrong := s.client()
	wrong.Key = key + "x"
	gone := s.client()
	gone.URL = "http://" + freePort(t, "tcp")
	zone := s.client()
	for name, c := range map[string]struct {
		client *powerdns.Client
		addr   netip.Addr
		name   string
		code   machine.Code
		want   string
	}{
		"wrong key":      {wrong, addr, "a.example.com", machine.Unavailable, "refuses the API key"},
		"not there":      {gone, addr, "a.example.com", machine.Unavailable, "does not answer"},
		"no zone":        {zone, netip.MustParseAddr("198.51.100.1"), "a.example.com", machine.Unavailable, "no zone for 1.100.51.198.in-addr.arpa"},
		"no such name":   {zone, addr, "white space.example.com", "", "answers 422"},
		"another server": {&powerdns.Client{URL: "http://" + s.api, Key: key, Server: "elsewhere"}, addr, "a.example.com", "", "answers 404"},
	} {
		err := c.client.SetPTR(t.Context(), c.addr, c.name)
		if err == nil || machine.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), "canary") {
			t.Errorf("%s: the key shows: %v", name, err)
		}
	}
}
