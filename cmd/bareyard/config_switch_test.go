package main

import (
	"testing"

	"github.com/bareyard/bareyard/network/manual"
	"github.com/bareyard/bareyard/network/switchcli"
)

func TestSwitchConfig(t *testing.T) {
	c, err := parseConfig("/srv/yard/bareyard.yaml", []byte(`
switches:
  - name: sw1
    address: 10.98.0.10:2222
    dialect: huawei
    user: bareyard
    password_file: sw1.password
    known_hosts: /etc/ssh/known
    algorithms: legacy
    snmp: {port: 1161, user: b, auth_file: a, priv_file: p}
  - {name: sw2, address: "2001:db8::1", dialect: arista, user: b, key_file: k, known_hosts: h}
  - {name: sw9, dialect: manual}
  - {name: core, address: 10.98.0.1, snmp: {community_file: c}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := switchcli.Switch{Dialect: "huawei", Host: "10.98.0.10", Port: 2222, User: "bareyard", PasswordFile: "/srv/yard/sw1.password", KnownHosts: "/etc/ssh/known", Legacy: true}
	if got := c.Switches[0].cli(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := c.Switches[1].cli(); got.Host != "2001:db8::1" || got.Port != 0 || got.KeyFile != "/srv/yard/k" {
		t.Errorf("got %+v", got)
	}
	if got := c.Switches[0].meter(); got.Address != "10.98.0.10:1161" || got.AuthFile != "/srv/yard/a" {
		t.Errorf("got %+v", got)
	}
	if got := c.Switches[3].meter(); got.Address != "10.98.0.1" || got.CommunityFile != "/srv/yard/c" {
		t.Errorf("got %+v", got)
	}
	w, err := newPorts(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := w.Switches["sw9"].(manual.Ports); !ok || len(w.Switches) != 3 {
		t.Errorf("the switches are %v", w.Switches)
	}
	if _, ok := w.Switches["sw1"].(*switchcli.Driver); !ok || w.Switches["core"] != nil {
		t.Errorf("the switches are %v", w.Switches)
	}
}
