package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

// config is the server's one configuration file. Every key is optional; docs/bareyard.yaml shows each with its default. A path that is not
// absolute starts at the file's own folder.
type config struct {
	DataDir     string `yaml:"data_dir"`     // the embedded database, images and boot files
	DatabaseURL string `yaml:"database_url"` // a PostgreSQL that several servers may share; empty means our own
	APIListen   string `yaml:"api_listen"`   // host:port of the HTTPS API and console
	Socket      string `yaml:"socket"`       // unix socket for operators on this machine

	Boot     bootConfig       `yaml:"boot"`
	Edge     edgeConfig       `yaml:"edge"`
	Edges    []siteEdgeConfig `yaml:"edges"` // of sites that have one of their own
	Ports    portsConfig      `yaml:"ports"`
	Switches []switchConfig   `yaml:"switches"` // to which machines are wired
	BMC      bmcConfig        `yaml:"bmc"`

	Acceptance acceptanceConfig `yaml:"acceptance"` // how new hardware is tried

	RDNS    rdnsConfig    `yaml:"rdns"`
	NetBox  netboxConfig  `yaml:"netbox"`
	Traffic trafficConfig `yaml:"traffic"`
	Console consoleConfig `yaml:"console"`

	Validation validationConfig `yaml:"validation"`

	ImageDir  string `yaml:"image_dir"` // the chunked store of images
	Validator string `yaml:"validator"` // the bareyard-validate that is put on machines
	LogLevel  string `yaml:"log_level"`
	LogFormat string `yaml:"log_format"`
}

// portsConfig is where the machines' ports are bridged.
type portsConfig struct {
	Netns string `yaml:"netns"` // name as in `ip netns`; empty is our own
}

// standardConfig is read when no other file is named.
const standardConfig = "/etc/bareyard/bareyard.yaml"

// standardValidator is put on machines where the configuration names no other.
const standardValidator = "/usr/lib/bareyard/bareyard-validate"

// loadConfig reads the file; path "" means the standard one, or nothing but defaults where that is not there. Errors are Invalid and name
// file, line and key.
func loadConfig(path string) (config, error) {
	file := cmp.Or(path, standardConfig)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		if path != "" {
			return config{}, &machine.Error{Code: machine.Invalid, Field: "config", Message: fmt.Sprintf("no configuration file %s", path), Hint: "every key is optional: an empty file will do"}
		}
		text, err = nil, nil
	}
	if err != nil {
		return config{}, fmt.Errorf("read configuration: %w", err)
	}
	return parseConfig(file, text)
}

// parseConfig reads the text of a file, fills in defaults and checks what can be checked without touching the machine.
func parseConfig(file string, text []byte) (config, error) {
	var c config
	lines, err := decodeStrict(file, text, &c)
	if err != nil {
		return config{}, err
	}
	folder, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return config{}, fmt.Errorf("find folder of configuration: %w", err)
	}
	c.fill(folder)
	if key, problem, hint := c.problem(); problem != "" {
		where := file
		if line := lines[key]; line > 0 {
			where = fmt.Sprintf("%s:%d", file, line)
		}
		return config{}, &machine.Error{Code: machine.Invalid, Field: key, Message: fmt.Sprintf("%s: %s %s", where, key, problem), Hint: hint}
	}
	return c, nil
}

// fill sets the defaults and makes paths absolute.
func (c *config) fill(folder string) {
	c.DataDir = cmp.Or(c.DataDir, "/var/lib/bareyard")
	c.DataDir = absolute(folder, c.DataDir)
	c.APIListen = cmp.Or(c.APIListen, ":8443")
	c.LogLevel = cmp.Or(c.LogLevel, "info")
	c.LogFormat = cmp.Or(c.LogFormat, "text")
	c.Boot.fill(folder)
	c.Acceptance.fill()
	c.RDNS.fill(folder)
	c.NetBox.fill(folder)
	c.Traffic.SampleDays = cmp.Or(c.Traffic.SampleDays, 100)
	c.Traffic.HourDays = cmp.Or(c.Traffic.HourDays, 800)
	c.BMC.fill()
	c.Console.fill()
	c.Validation.fill(folder)
	c.fillSwitches(folder)
	for _, p := range []struct {
		path     *string
		standard string
	}{
		{&c.Socket, filepath.Join(c.DataDir, "bareyard.sock")},
		{&c.ImageDir, filepath.Join(c.DataDir, "images")},
		{&c.Validator, standardValidator},
		{&c.Boot.LoaderDir, "/usr/lib/ipxe"},
		{&c.Boot.Shim, "/usr/lib/shim/shimx64.efi.signed"},
		{&c.Boot.GRUB, "/usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"},
		{&c.Boot.Kernel, filepath.Join(c.DataDir, "boot", "vmlinuz")},
		{&c.Boot.MediaISO, filepath.Join(c.DataDir, "boot", "bareyard.iso")},
		{&c.Boot.RAMDisk, filepath.Join(c.DataDir, "boot", "ramdisk.cpio.zst")},
	} {
		*p.path = absolute(folder, cmp.Or(*p.path, p.standard))
	}
}

func absolute(folder, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(folder, path)
}

// maxSocketPath is what the kernel takes in a unix socket's address.
const maxSocketPath = 107

// problem returns the first key that cannot be right, what is wrong with it and what to write instead.
func (c *config) problem() (key, problem, hint string) {
	if c.DatabaseURL != "" {
		// The URL may hold a password: it is never repeated.
		if u, err := url.Parse(c.DatabaseURL); err != nil || !slices.Contains([]string{"postgres", "postgresql"}, u.Scheme) {
			return "database_url", "is not a PostgreSQL URL", "write it as postgres://user@host:5432/name"
		}
	}
	if host, port, err := net.SplitHostPort(c.APIListen); err != nil || !isPort(port) || strings.Contains(host, " ") {
		return "api_listen", fmt.Sprintf("%q is not host:port", c.APIListen), `write it as ":8443" or "192.0.2.1:8443"`
	}
	if len(c.Socket) > maxSocketPath {
		return "socket", fmt.Sprintf("is %d bytes long, and the kernel takes %d", len(c.Socket), maxSocketPath), "choose a shorter path, e.g. /run/bareyard.sock"
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return "log_level", fmt.Sprintf("%q is no level", c.LogLevel), "debug, info, warn or error"
	}
	if !slices.Contains([]string{"text", "json"}, c.LogFormat) {
		return "log_format", fmt.Sprintf("%q is no format", c.LogFormat), "text or json"
	}
	if key, problem, hint := c.Boot.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.BMC.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.Console.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.RDNS.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.NetBox.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.Traffic.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.Validation.problem(); problem != "" {
		return key, problem, hint
	}
	if key, problem, hint := c.switchesProblem(); problem != "" {
		return key, problem, hint
	}
	return c.edgesProblem()
}

// isDevice reports whether Linux takes name for a network device.
func isDevice(name string) bool {
	return name != "" && len(name) < 16 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n")
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}
