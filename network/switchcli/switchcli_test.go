package switchcli_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/switchcli"
)

// ports is a port of each dialect as its transcripts name it.
var ports = map[string]string{
	"huawei": "GigabitEthernet0/0/7", "huawei-ce": "10GE1/0/7", "h3c": "GigabitEthernet1/0/7", "ruijie": "GigabitEthernet 0/7",
	"cisco-ios": "GigabitEthernet1/0/7", "cisco-nxos": "Ethernet1/7", "arista": "Ethernet7",
}

// TestReplay replays each dialect's sessions. The transcripts are not recordings: no real switch was used.
func TestReplay(t *testing.T) {
	open := func(want bool) func(*switchcli.Driver, string) error {
		return func(d *switchcli.Driver, port string) error { return d.Set(context.Background(), port, want) }
	}
	rate := func(up, down int) func(*switchcli.Driver, string) error {
		return func(d *switchcli.Driver, port string) error { return d.Rate(context.Background(), port, up, down) }
	}
	describe := func(d *switchcli.Driver, port string) error {
		return d.Describe(context.Background(), port, "node-7.sha1")
	}
	for _, c := range []struct {
		dialects string
		session  string
		do       func(*switchcli.Driver, string) error
		fails    string // a part of the error
	}{
		{"huawei huawei-ce h3c ruijie cisco-ios cisco-nxos arista", "open", open(true), ""},
		{"huawei huawei-ce h3c ruijie cisco-ios cisco-nxos arista", "close", open(false), ""},
		{"huawei", "closed", open(false), ""},
		{"cisco-ios", "enable", open(false), ""},
		{"huawei h3c", "no port", open(true), "Wrong parameter found"},
		{"ruijie cisco-ios cisco-nxos arista", "no port", open(true), "Invalid"},
		{"huawei", "refused", open(false), "not permitted on a member"},
		{"cisco-ios", "refused", open(false), "Command authorization failed"},
		{"huawei", "not done", open(false), "did not do what they say"},
		{"huawei", "not saved", open(false), "The flash is full"},
		{"cisco-ios", "not saved", open(false), "does not say that it saved"},
		{"huawei-ce", "commit fails", open(false), "being committed by another user"},
		{"huawei ruijie", "rate", rate(100_000, 50_001), ""},
		{"huawei", "unrate", rate(0, 0), ""},
		{"huawei", "describe", describe, ""},
	} {
		for dialect := range strings.FieldsSeq(c.dialects) {
			t.Run(dialect+"/"+c.session, func(t *testing.T) {
				r := newReplay(t, session(t, dialect, c.session))
				err := c.do(driver(t, r.config1(t, dialect)), "sw1:"+ports[dialect])
				if c.fails == "" && err != nil {
					t.Error(err)
				}
				if c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || !strings.Contains(err.Error(), "switch sw1, port "+ports[dialect])) {
					t.Errorf("got %v, want an error about %q", err, c.fails)
				}
				if c.fails == "" {
					r.done(t)
				}
			})
		}
	}
}

func TestOpen(t *testing.T) {
	r := newReplay(t, session(t, "huawei", "closed"))
	open, err := driver(t, r.config1(t, "huawei")).Open(t.Context(), "sw1:GigabitEthernet0/0/7")
	if err != nil || open {
		t.Errorf("a closed port is open: %v, %v", open, err)
	}
	r.done(t)
}

// TestNoSecretGetsOut fails in every way that it can and looks for the passwords in what is said.
func TestNoSecretGetsOut(t *testing.T) {
	const port = "sw1:GigabitEthernet1/0/7"
	for name, c := range map[string]struct {
		session string
		edit    func(*switchcli.Switch)
		code    machine.Code
	}{
		"NotEnabled": {"not enabled", func(*switchcli.Switch) {}, machine.Unavailable},
		"Denied":     {"open", func(s *switchcli.Switch) { s.PasswordFile = write(t, "Zq9!wrong") }, machine.Unavailable},
		"OtherHostKey": {"open", func(s *switchcli.Switch) {
			s.KnownHosts = write(t, "10.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJjR0sKZc1UeUyWmdDUTBcyiG0PcOmgEvsmxj0bKcXv")
		}, machine.Unavailable},
		"NobodyThere": {"open", func(s *switchcli.Switch) { s.Port = 1 }, machine.Unavailable},
		"NoFile":      {"open", func(s *switchcli.Switch) { s.PasswordFile = "/nonexistent" }, ""},
		"EmptyFile":   {"open", func(s *switchcli.Switch) { s.PasswordFile = write(t, "") }, machine.Invalid},
		"Refused":     {"refused", func(*switchcli.Switch) {}, machine.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplay(t, session(t, "cisco-ios", c.session))
			s := r.config1(t, "cisco-ios")
			c.edit(&s)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err := driver(t, s).Set(ctx, port, false)
			if err == nil || c.code != "" && machine.CodeOf(err) != c.code {
				t.Errorf("got %v, want %s", err, c.code)
			}
			var me *machine.Error
			said := fmt.Sprintf("%v %+v", err, err)
			if errors.As(err, &me) {
				said += me.Hint
			}
			if strings.Contains(said, "Zq9") {
				t.Errorf("a secret is in %q", said)
			}
		})
	}
}

// TestGivesUp has a switch that says nothing.
func TestGivesUp(t *testing.T) {
	r := newReplay(t, session(t, "huawei", "open"))
	r.silent = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	if err := driver(t, r.config1(t, "huawei")).Set(ctx, "sw1:GigabitEthernet0/0/7", true); err == nil {
		t.Error("a switch that says nothing did what it was told")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s to give up after a second", took)
	}
}

// TestTurns opens several ports of one switch at once: its sessions come one by one.
func TestTurns(t *testing.T) {
	r := newReplay(t, session(t, "huawei", "closed"), session(t, "huawei", "closed"), session(t, "huawei", "closed"))
	d := driver(t, r.config1(t, "huawei"))
	errs := make(chan error)
	for range 3 {
		go func() { errs <- d.Set(context.Background(), "sw1:GigabitEthernet0/0/7", false) }()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	r.done(t)
}

func TestRefuses(t *testing.T) {
	r := newReplay(t)
	d := driver(t, r.config1(t, "arista"))
	for port, code := range map[string]machine.Code{
		"Ethernet7": machine.NotFound, "sw2:Ethernet7": machine.NotFound, "sw1:": machine.Invalid, "sw1:Ethernet7\nno ip routing": machine.Invalid,
		"sw1:Ethernet7 ; reload": machine.Invalid, "sw1:Ethernet7-9": machine.Invalid, "sw1:range Ethernet7": machine.Invalid, "sw1:7": machine.Invalid,
	} {
		if err := d.Set(t.Context(), port, true); machine.CodeOf(err) != code {
			t.Errorf("port %q: %v, want %s", port, err, code)
		}
	}
	for _, text := range []string{"a b", "a\nreload", "?", strings.Repeat("x", 61)} {
		if err := d.Describe(t.Context(), "sw1:Ethernet7", text); machine.CodeOf(err) != machine.Invalid {
			t.Errorf("description %q: %v", text, err)
		}
	}
	r.done(t)
	good := r.config1(t, "huawei")
	for field, edit := range map[string]func(*switchcli.Switch){
		"dialect": func(s *switchcli.Switch) { s.Dialect = "junos" }, "address": func(s *switchcli.Switch) { s.Host = "" }, "user": func(s *switchcli.Switch) { s.User = "" },
		"password_file": func(s *switchcli.Switch) { s.PasswordFile, s.KeyFile = "", "" }, "known_hosts": func(s *switchcli.Switch) { s.KnownHosts = "" },
	} {
		bad := good
		edit(&bad)
		var me *machine.Error
		if _, err := switchcli.New(map[string]switchcli.Switch{"sw1": bad}); !errors.As(err, &me) || me.Code != machine.Invalid || me.Field != field || !strings.Contains(me.Message, "sw1") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
