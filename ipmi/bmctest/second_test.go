package bmctest_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bmc-toolbox/bmclib/v2"
	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// TestIpmitoolReads compares what we read of a BMC with what ipmitool reads: accounts, sensors, event log, FRU and LAN.
func TestIpmitoolReads(t *testing.T) {
	if _, err := exec.LookPath("ipmitool"); err != nil {
		t.Fatal("ipmitool not found: install the package ipmitool")
	}
	for _, name := range []string{"go-ipmi", "ipmi_sim"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, board := bmctest.NewMemory(bmctest.Identity{UUID: "a1234567-89ab-4def-a123-456789abcdef", Serial: "BY-1", Model: "Test"}), bmctest.NewBoard()
			board.Log(ipmi.Event{At: time.Now(), Severity: ipmi.Critical, Sensor: "PSU2"})
			board.Set(bmctest.Sensor{Name: "CPU1 Temp", Kind: ipmi.Temperature, Value: 97, State: ipmi.Critical})
			var s server = &bmctest.IPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: m, Board: board}
			if name == "ipmi_sim" {
				s = &bmctest.OpenIPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: m, Board: board}
			}
			target := start(t, s)
			host, port, _ := net.SplitHostPort(target.Address)
			tool := func(args ...string) string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "ipmitool", append([]string{"-I", "lanplus", "-H", host, "-p", port, "-U", "admin", "-E", "-C", "3", "-N", "5", "-R", "5"}, args...)...)
				cmd.Env = []string{"IPMITOOL_PASSWORD=secret"}
				out, err := cmd.Output()
				if err != nil {
					t.Errorf("ipmitool %v: %v", args, err)
				}
				return string(out)
			}
			c := &ipmi.Controller{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			theirs := tool("user", "list", "1")
			users, err := c.Users(ctx, target)
			if err != nil || len(users) == 0 {
				t.Fatalf("users = %+v, %v", users, err)
			}
			for _, u := range users {
				if !strings.Contains(theirs, u.Name) {
					t.Errorf("ipmitool does not list %s: %s", u.Name, theirs)
				}
			}
			theirs = tool("sensor", "list")
			h, err := c.Health(ctx, target)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range h.Readings {
				line := ""
				for l := range strings.Lines(theirs) {
					if name, _, _ := strings.Cut(l, "|"); strings.TrimSpace(name) == r.Name {
						line = l
					}
				}
				if line == "" || r.Known && !strings.Contains(line, fmt.Sprintf("%.3f", r.Value)) {
					t.Errorf("%+v; ipmitool says %q", r, line)
				}
			}
			theirs = tool("sel", "list")
			page, err := c.Events(ctx, target, "")
			if err != nil || len(page.Events) != 1 || !strings.Contains(theirs, "Power Supply") || !strings.Contains(theirs, "Failure detected") || !strings.Contains(page.Events[0].Message, "Failure detected") {
				t.Errorf("events = %+v, %v; ipmitool says %q", page, err, theirs)
			}
			theirs = tool("fru", "print", "0")
			inv, err := c.Inventory(ctx, target)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range []string{inv.Serial, inv.Model, inv.Manufacturer} {
				if v == "" || !strings.Contains(theirs, v) {
					t.Errorf("%q is not in ipmitool's FRU: %s", v, theirs)
				}
			}
			if theirs = tool("lan", "print", "1"); inv.LAN[0].MAC == "" || !strings.Contains(strings.ToLower(theirs), inv.LAN[0].MAC) {
				t.Errorf("LAN = %+v; ipmitool says %s", inv.LAN, theirs)
			}
		})
	}
}

// TestRedfishReads compares what we read of each vendor's service with what bmclib and gofish read.
func TestRedfishReads(t *testing.T) {
	for _, v := range bmctest.Vendors() {
		t.Run("of "+string(v), func(t *testing.T) {
			t.Parallel()
			m, board := bmctest.NewMemory(bmctest.Identity{UUID: "a1234567-89ab-4def-a123-456789abcdef", Serial: "BY-1", Model: "Test"}), bmctest.NewBoard()
			board.Log(ipmi.Event{At: time.Now(), Severity: ipmi.Critical, Kind: "power supply", Message: "PSU2 failed"})
			r := &bmctest.Redfish{Addr: "127.0.0.1:0", TLS: true, User: "admin", Password: "secret-pass", Chassis: m, Board: board, Vendor: v}
			target := start(t, r)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := &ipmi.Controller{Poll: 50 * time.Millisecond}
			inv, err := c.Inventory(ctx, target)
			if err != nil {
				t.Fatal(err)
			}
			g, err := gofish.ConnectContext(ctx, gofish.ClientConfig{Endpoint: target.Address, Username: "admin", Password: "secret-pass", HTTPClient: anyCertificate(t)})
			if err != nil {
				t.Fatal(err)
			}
			systems, err := g.Service.Systems()
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(systems, func(s *redfish.ComputerSystem) bool { return s.SerialNumber == "BY-1" }) // which is the host gofish does not say
			if at < 0 {
				t.Fatalf("systems = %+v", systems)
			}
			host := systems[at]
			bios, err := host.Bios()
			if err != nil || host.SerialNumber != inv.Serial || host.BIOSVersion != inv.BIOSVersion {
				t.Errorf("gofish: %+v, %v; ours %+v", host, err, inv)
			}
			settings, err := c.BIOS(ctx, target)
			if err != nil || bios.Attributes.String("SriovEnable") != settings.Attributes["SriovEnable"] {
				t.Errorf("BIOS settings: gofish %+v, ours %+v, %v", bios.Attributes, settings, err)
			}
			update, err := g.Service.UpdateService()
			if err != nil {
				t.Fatal(err)
			}
			firmware, err := update.FirmwareInventories()
			if err != nil || len(firmware) != len(inv.Firmware) {
				t.Errorf("firmware: gofish %d, %v, ours %d", len(firmware), err, len(inv.Firmware))
			}
			g.Logout()

			if _, err := c.InsertMedia(ctx, target, "http://192.0.2.1/boot.iso"); err != nil {
				t.Error(err)
			}
			u, err := url.Parse(target.Address)
			if err != nil {
				t.Fatal(err)
			}
			cl := bmclib.NewClient(u.Hostname(), "admin", "secret-pass", bmclib.WithRedfishPort(u.Port()), bmclib.WithRedfishHTTPClient(anyCertificate(t)))
			cl.Registry.Drivers = cl.Registry.For("gofish")
			if err := cl.Open(ctx); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cl.Close(ctx) }()
			users, err := cl.ReadUsers(ctx)
			ours, ourErr := c.Users(ctx, target)
			named := 0
			for _, x := range users {
				if x["Username"] != "" {
					named++
				}
			}
			if err != nil || ourErr != nil || named != len(ours) {
				t.Errorf("users: bmclib %v, %v, ours %+v, %v", users, err, ours, ourErr)
			}
		})
	}
}

// anyCertificate is a client that takes the simulators' own certificates.
func anyCertificate(t *testing.T) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
