package lab

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/postgres"
)

// leaks gathers whatever a server lets out, and says where a secret is in it.
type leaks struct {
	t       *testing.T
	secrets map[string]string // shape: what it is
}

// shapes of a secret in which it could leak.
func (l *leaks) watch(secret string) {
	quoted, _ := json.Marshal(secret)
	for _, shape := range []string{secret, strings.Trim(string(quoted), `"`), strings.Trim(fmt.Sprintf("%q", secret), `"`), url.QueryEscape(secret), url.PathEscape(secret),
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(bmcUser + ":" + secret)), fmt.Sprintf("%x", secret), strings.ReplaceAll(secret, "'", "''")} {
		l.secrets[shape] = secret
	}
}

func (l *leaks) look(where, text string) {
	l.t.Helper()
	if text == "" {
		l.t.Errorf("%s is empty: that shows nothing", where)
	}
	for shape := range l.secrets {
		if i := strings.Index(text, shape); i >= 0 {
			l.t.Errorf("%s holds a password: …%s…", where, text[max(0, i-120):min(len(text), i+60)])
		}
	}
}

// started notes the argument vectors and the environments of all processes.
func started(all map[string]bool) {
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			b, _ := os.ReadFile(f) // processes end meanwhile
			all[string(b)] = true
		}
	}
}

// TestK05WholeServer: a password of a BMC is in nothing that a server says, shows, logs, keeps in clear or starts, through a customer's whole
// life with a machine and BMCs that refuse, are silent and lie.
func TestK05WholeServer(t *testing.T) {
	t.Parallel()
	const canary = `Zq9!canary'"%s`
	l := &leaks{t: t, secrets: map[string]string{}}
	l.watch(canary)
	l.watch("Xk7-wrong-one'%d")
	y := newYard(t, "ks", nil, MachineConfig{Class: "one", Password: canary}, MachineConfig{Class: "two", BMC: Redfish, Password: canary})
	stop, seen := make(chan struct{}), make(chan string, 1)
	go func() { // ends with stop
		all := map[string]bool{}
		for {
			started(all)
			select {
			case <-stop:
				seen <- strings.Join(slices.Collect(maps.Keys(all)), "\n")
				return
			case <-time.After(time.Second):
			}
		}
	}()
	token := insist(y, func(ctx context.Context) (string, error) { return y.client.NewToken(ctx, "customer", "p") })
	var said strings.Builder // errors
	fails := func(name string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error: the case shows nothing", name)
			return
		}
		fmt.Fprintf(&said, "%v %+v %#v\n", err, err, err)
		if me := (*machine.Error)(nil); errors.As(err, &me) {
			fmt.Fprintf(&said, "%+v\n", *me)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*yardPatience)
	defer cancel()
	var orders []machine.Order
	for _, class := range []string{"one", "two"} {
		orders = append(orders, y.placeClass(class))
	}
	for i := range orders {
		o := y.settled(orders[i].ID, machine.OrderActive, machine.Active)
		m := y.machine(o.MachineID)
		faults := y.Faults(m.Name)
		// Refused: what an operator records is tried, and is wrong; then a privilege, then silence.
		fails("wrong credentials", y.client.SetBMCCredentials(ctx, m.ID, api.Credentials{Password: "Xk7-wrong-one'%d"}))
		faults.Set(func(f *bmctest.Fault) { f.RefuseWeak = true })
		fails("a refused password", y.client.RotateBMC(ctx, m.ID))
		faults.Set(func(f *bmctest.Fault) { f.RefuseWeak, f.Unreachable = false, true })
		short, done := context.WithTimeout(ctx, 2*time.Second)
		_, err := y.client.CheckBMC(short, m.ID)
		done()
		fails("a silent BMC", err)
		// Lied: at return, so that the machine is kept out of stock; an operator sends it back when the BMC is honest.
		faults.Set(func(f *bmctest.Fault) { f.Unreachable, f.DropPassword = false, true })
		insist(y, func(ctx context.Context) (machine.Machine, error) {
			_, err := y.client.CheckBMC(ctx, m.ID)
			return m, err
		})
		insist(y, func(ctx context.Context) (machine.Order, error) { return y.client.Act(ctx, o.ID, "release") })
	}
	for _, o := range orders {
		m := y.machine(y.order(o.ID).MachineID)
		y.until("the machine of a lying BMC is quarantined", yardPatience, func() bool { return y.machine(m.ID).State == machine.Quarantined })
		if why := y.machine(m.ID).Reason; !strings.Contains(why, "accepted but not done") {
			t.Errorf("%s is quarantined for %q", m.Name, why)
		}
		y.Faults(m.Name).Set(func(f *bmctest.Fault) { f.DropPassword = false })
		insist(y, func(ctx context.Context) (machine.Machine, error) {
			return y.client.Move(ctx, m.ID, "return", "checked")
		})
		y.until("the machine is back in stock", yardPatience, func() bool { return y.machine(m.ID).State == machine.Available })
	}

	url, seal := y.databaseURL(), filepath.Join(y.cfg.Dir, "server", "secret.key")
	key, err := postgres.LoadSeal(seal)
	y.must(err)
	db, err := postgres.Open(ctx, url, key, slog.New(slog.DiscardHandler), postgres.Tuning{})
	y.must(err)
	defer db.Close()
	for _, o := range orders {
		m := y.machine(y.order(o.ID).MachineID)
		s, err := db.Secrets(ctx, m.ID)
		y.must(err)
		if s.Current == canary || s.Next != "" {
			t.Errorf("the password of %s was not changed at return", m.Name)
		}
		l.watch(s.Current) // nor may the new one be anywhere
		y.gather(l, "", "/v1/machines/"+m.ID, "/v1/machines/"+m.ID+"/bmc", "/v1/machines/"+m.ID+"/bmc/baseline?now=true", "/v1/machines/"+m.ID+"/health", "/v1/events?machine="+m.ID, "/v1/jobs?machine="+m.ID)
		y.gather(l, token, "/v1/orders/"+o.ID, "/v1/events?order="+o.ID, "/v1/machines/"+m.ID+"/bmc")
	}
	y.gather(l, "", "/v1/machines", "/v1/orders", "/openapi.json", "/metrics")
	l.look("the errors", said.String())
	close(stop)
	l.look("the processes' arguments and environments", <-seen)
	logged, err := os.ReadFile(filepath.Join(y.cfg.Dir, "serve.log"))
	y.must(err)
	l.look("the log", string(logged))
	dump, err := exec.CommandContext(ctx, pgDump(), "--dbname="+url).CombinedOutput()
	if err != nil {
		t.Fatalf("dump the database: %v: %.300s", err, dump)
	}
	l.look("the dump of the database", string(dump))
}

// pgDump is the newest pg_dump of the box.
func pgDump() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
	if len(found) == 0 {
		return "pg_dump"
	}
	return found[len(found)-1]
}

// gather asks the server for pages as somebody with a token, or as an operator, and looks at what comes.
func (y *yard) gather(l *leaks, token string, paths ...string) {
	y.t.Helper()
	base, c := "http://bareyard", &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(y.cfg.Dir, serverSocket))
	}}}
	if token != "" { // whoever comes by the socket is an operator
		at := Controller.String() + ":" + apiPort
		base, c = "https://"+at, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return y.Dial(ctx, Mgmt, "tcp", at)
		}}}
	}
	defer c.CloseIdleConnections()
	for _, path := range paths {
		req, err := http.NewRequestWithContext(y.t.Context(), http.MethodGet, base+path, nil)
		y.must(err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := c.Do(req)
		y.must(err)
		body, err := io.ReadAll(res.Body)
		y.must(errors.Join(err, res.Body.Close()))
		l.look(path, string(body))
	}
}
