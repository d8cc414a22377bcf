package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/snmp"
	"github.com/bareyard/bareyard/network/switchcli"
)

// switchConfig is a switch to which machines are wired; their ports are named NAME:PORT.
type switchConfig struct {
	Name         string     `yaml:"name"`
	Address      string     `yaml:"address"` // host, or host:port of its SSH server
	Dialect      string     `yaml:"dialect"` // of its command line; manual: somebody does it; none: its ports are only counted
	User         string     `yaml:"user"`
	PasswordFile string     `yaml:"password_file"`
	KeyFile      string     `yaml:"key_file"`
	EnableFile   string     `yaml:"enable_file"`
	KnownHosts   string     `yaml:"known_hosts"`
	Algorithms   string     `yaml:"algorithms"` // legacy: also those that are broken
	SNMP         snmpConfig `yaml:"snmp"`
}

// snmpConfig is how a switch's counters are read; without a community or a user they are not.
type snmpConfig struct {
	Port          uint16 `yaml:"port"`
	CommunityFile string `yaml:"community_file"`
	User          string `yaml:"user"`
	AuthFile      string `yaml:"auth_file"`
	PrivFile      string `yaml:"priv_file"`
}

// manualDialect is that of switches that somebody configures by hand.
const manualDialect = "manual"

func (s *switchConfig) counted() bool { return s.SNMP.CommunityFile != "" || s.SNMP.User != "" }

// hostPort splits the address; port is 0 when there is none.
func (s *switchConfig) hostPort() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s.Address)
	if err != nil {
		return s.Address, 0, nil // no port, or an IPv6 address without one
	}
	port, err = strconv.Atoi(text)
	return host, port, err
}

func (s *switchConfig) cli() switchcli.Switch {
	host, port, _ := s.hostPort()
	return switchcli.Switch{Dialect: s.Dialect, Host: host, Port: port, User: s.User, PasswordFile: s.PasswordFile, KeyFile: s.KeyFile, EnableFile: s.EnableFile,
		KnownHosts: s.KnownHosts, Legacy: s.Algorithms == "legacy"}
}

func (s *switchConfig) meter() snmp.Switch {
	host, _, _ := s.hostPort()
	address := host
	if s.SNMP.Port != 0 {
		address = net.JoinHostPort(host, strconv.Itoa(int(s.SNMP.Port)))
	}
	return snmp.Switch{Address: address, CommunityFile: s.SNMP.CommunityFile, User: s.SNMP.User, AuthFile: s.SNMP.AuthFile, PrivFile: s.SNMP.PrivFile}
}

func (c *config) switchesProblem() (key, problem, hint string) {
	names := map[string]bool{}
	for i, s := range c.Switches {
		at := fmt.Sprintf("switches[%d]", i)
		if !isEdgeName(s.Name) {
			return at + ".name", fmt.Sprintf("%q is not the name of a switch", s.Name), "use lower-case letters, digits and dashes: its ports are NAME:PORT in machines' records"
		}
		if names[s.Name] {
			return at + ".name", fmt.Sprintf("%q is there twice", s.Name), "keep one"
		}
		names[s.Name] = true
		if key, problem, hint := s.problem(at); problem != "" {
			return key, problem, hint
		}
	}
	return "", "", ""
}

func (s *switchConfig) problem(at string) (key, problem, hint string) {
	if _, _, err := s.hostPort(); err != nil {
		return at + ".address", fmt.Sprintf("%q is no host or host:port", s.Address), "write it as 10.98.0.10"
	}
	if s.Algorithms != "" && s.Algorithms != "legacy" {
		return at + ".algorithms", fmt.Sprintf("%q are no algorithms", s.Algorithms), "leave it out, or write legacy for a switch that knows only broken ones"
	}
	if s.SNMP.User != "" && s.SNMP.AuthFile == "" {
		return at + ".snmp.auth_file", "is missing", "give the file of the user's password: nobody is asked without"
	}
	if s.counted() && s.Address == "" {
		return at + ".address", "is missing", "give the switch's management address"
	}
	if s.Dialect == manualDialect || s.Dialect == "" {
		if s.Dialect == "" && !s.counted() {
			return at + ".dialect", "is missing, and its counters are not read either", fmt.Sprintf("use manual, or one of %v", switchcli.Dialects())
		}
		return "", "", ""
	}
	if e := (*machine.Error)(nil); errors.As(s.cli().Validate(), &e) {
		return at + "." + e.Field, "is not right: " + e.Message, e.Hint
	}
	return "", "", ""
}

// fillSwitches makes the paths of secrets absolute.
func (c *config) fillSwitches(folder string) {
	for i := range c.Switches {
		s := &c.Switches[i]
		for _, path := range []*string{&s.PasswordFile, &s.KeyFile, &s.EnableFile, &s.KnownHosts, &s.SNMP.CommunityFile, &s.SNMP.AuthFile, &s.SNMP.PrivFile} {
			if *path != "" {
				*path = absolute(folder, *path)
			}
		}
	}
	c.Edge.fill(folder)
	for i := range c.Edges {
		c.Edges[i].Edge.fill(folder)
	}
}
