package ipmi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

const (
	canary     = `Zq9!canary'"%s`
	canaryUser = "canaryuser"
)

// canaries is the password in the shapes in which it could leak.
func canaries() []string {
	quoted, _ := json.Marshal(canary)
	return []string{
		canary, "canary'", canaryUser, url.QueryEscape(canary), url.PathEscape(canary), strings.Trim(string(quoted), `"`), strings.Trim(fmt.Sprintf("%q", canary), `"`),
		base64.StdEncoding.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canaryUser + ":" + canary)),
		base64.URLEncoding.EncodeToString([]byte(canary)), fmt.Sprintf("%x", canary),
	}
}

func noCanary(t *testing.T, where, text string) {
	t.Helper()
	for _, c := range canaries() {
		if i := strings.Index(text, c); i >= 0 {
			t.Errorf("%s holds %q: …%s…", where, c, text[max(0, i-200):min(len(text), i+100)])
		}
	}
}

// lockedBuffer is a buffer for logs of many goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// cmdlines is the argument vectors of all processes.
func cmdlines(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatal("no /proc to look at")
	}
	var all strings.Builder
	for _, f := range files {
		b, _ := os.ReadFile(f) // processes end meanwhile
		all.Write(b)
		all.WriteByte('\n')
	}
	return all.String()
}

// K05: whatever fails, the password and the user are in no error, no log and no argument vector.
func TestK05(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if req.URL.Path == "/redfish/v1/" {
			_, _ = io.WriteString(w, `{"Systems":{"@odata.id":"/redfish/v1/Systems"}}`)
			return
		}
		status := http.StatusInternalServerError
		switch req.Host {
		case "bad":
			status = http.StatusBadRequest
		}
		w.Header().Set("Location", "/"+url.PathEscape(canary))
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": canary, "message": string(body), "@Message.ExtendedInfo": []any{
			map[string]any{"MessageId": canary, "Message": canary, "MessageArgs": []string{canary, canaryUser, req.Header.Get("Authorization")}},
		}}})
	}))
	t.Cleanup(echo.Close)
	garbage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, `{"`+canary)
	}))
	t.Cleanup(garbage.Close)

	targets := map[string]ipmi.Target{
		"redfish that echoes":     {Protocol: ipmi.Redfish, Address: echo.URL},
		"redfish with garbage":    {Protocol: ipmi.Redfish, Address: garbage.URL},
		"redfish, nobody there":   {Protocol: ipmi.Redfish, Address: "https://127.0.0.1:9"},
		"redfish, bad address":    {Protocol: ipmi.Redfish, Address: "https://" + canaryUser + ":" + url.QueryEscape(canary) + "@127.0.0.1:9"},
		"redfish, worse address":  {Protocol: ipmi.Redfish, Address: "://" + canaryUser + ":" + canary + "@127.0.0.1:9"},
		"ipmi, nobody there":      {Protocol: ipmi.IPMI, Address: "127.0.0.1:9"},
		"ipmi, bad address":       {Protocol: ipmi.IPMI, Address: canaryUser + ":" + canary + "@127.0.0.1"},
		"no protocol":             {Protocol: "telnet", Address: "127.0.0.1"},
		"ipmi, user too long":     {Protocol: ipmi.IPMI, Address: "127.0.0.1:9", Username: canaryUser + strings.Repeat("x", 20)},
		"ipmi, password too long": {Protocol: ipmi.IPMI, Address: "127.0.0.1:9", Password: canary + strings.Repeat("x", 20)},
	}
	for _, name := range []string{"IPMI", "ipmi_sim", "Redfish"} {
		w := newWorld(t, name)
		targets[name+", 401"] = ipmi.Target{Protocol: w.target.Protocol, Address: w.target.Address, CertPin: w.target.CertPin}
		for kind, fault := range map[string]bmctest.Fault{"silent": {Unreachable: true}, "full": {SessionsFull: true, NoBasic: true}, "locked": {LockAfter: 1}, "login page": {LoginPage: true}} {
			if name == "ipmi_sim" {
				continue // it cannot show them
			}
			faults := &bmctest.Faults{}
			m := bmctest.NewMemory(bmctest.Identity{})
			var s server
			if name == "IPMI" {
				s = &bmctest.IPMI{Addr: "127.0.0.1:0", User: canaryUser, Password: canary, Chassis: m, Faults: faults}
			} else {
				s = &bmctest.Redfish{Addr: "127.0.0.1:0", User: canaryUser, Password: canary, Chassis: m, Faults: faults}
			}
			serve(t, s)
			faults.Set(func(f *bmctest.Fault) { *f = fault })
			targets[name+", "+kind] = s.Target()
		}
	}
	for name, target := range targets {
		if target.Username == "" {
			target.Username = canaryUser
		}
		if target.Password == "" {
			target.Password = canary
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logs lockedBuffer
			for _, h := range []slog.Handler{
				slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}),
				slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}),
			} {
				c := quick()
				c.Answer, c.Log = 100*time.Millisecond, slog.New(h)
				if strings.HasPrefix(target.Address, "http") && !strings.Contains(name, "silent") {
					c.Answer = 0
				}
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				_, powerErr := c.Power(ctx, target)
				_, inventoryErr := c.Inventory(ctx, target)
				_, usersErr := c.Users(ctx, target)
				_, healthErr := c.Health(ctx, target)
				_, eventsErr := c.Events(ctx, target, canary)
				_, mediaErr := c.InsertMedia(ctx, target, "http://"+canaryUser+":"+url.QueryEscape(canary)+"@192.0.2.1/x")
				_, biosErr := c.SetBIOS(ctx, target, map[string]any{"AdminPassword": canary})
				baseline, baselineErr := c.Baseline(ctx, target)
				_, consoleErr := c.OpenConsole(ctx, target, ipmi.ConsoleOptions{})
				noCanary(t, "baseline", strings.ReplaceAll(fmt.Sprint(baseline), canaryUser, "")) // which lists the accounts
				noCanary(t, "knowledge", fmt.Sprint(c.Known(target)))
				for i, err := range []error{
					powerErr, c.Check(ctx, target), c.SetPower(ctx, target, ipmi.OpCycle), c.SetPower(ctx, target, ipmi.Op("no")),
					c.SetNextBoot(ctx, target, ipmi.DevicePXE, true), c.BootFrom(ctx, target, ipmi.DevicePXE, true),
					inventoryErr, usersErr, healthErr, eventsErr, mediaErr, biosErr, baselineErr, consoleErr, c.SetPassword(ctx, target, canaryUser, canary), c.EnableUser(ctx, target, canaryUser, true),
				} {
					if err == nil && (i < 6) && name != "IPMI, login page" && name != "IPMI, locked" && name != "Redfish, locked" {
						t.Error("no error: the case shows nothing")
					}
					c.Log.Error("failed", "err", err, "target", target, "controller", fmt.Sprintf("%+v", c))
					for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
						noCanary(t, "error", fmt.Sprintf(verb, err))
					}
					public := ipmi.Public(err)
					noCanary(t, "public reason", public)
					if strings.Contains(public, "127.0.0.1") || strings.Contains(public, "192.0.2") || public == "" {
						t.Errorf("public reason %q of %v", public, err)
					}
				}
				cancel()
			}
			noCanary(t, "log", logs.String())
			noCanary(t, "argument vectors", cmdlines(t))
		})
	}
}

func TestTargetIsRedacted(t *testing.T) {
	target := ipmi.Target{Protocol: ipmi.Redfish, Address: "https://" + canaryUser + ":" + url.QueryEscape(canary) + "@10.0.0.1/x", Username: canaryUser, Password: canary}
	nested := struct {
		T ipmi.Target
		P *ipmi.Target
		L []ipmi.Target
	}{target, &target, []ipmi.Target{target}}
	for _, v := range []any{target, &target, nested, []any{target}, map[string]ipmi.Target{"a": target}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			noCanary(t, verb, fmt.Sprintf(verb, v))
		}
		var b bytes.Buffer
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
		if text := b.String(); strings.Contains(text, "canary'") || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(canary))) {
			t.Errorf("slog prints the password: %s", text)
		}
	}
	if got, want := target.String(), "redfish https://10.0.0.1/x"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}
