package bmctest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/bmc-toolbox/bmclib/v2"
	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func redfishServer(t *testing.T) (*bmctest.Redfish, *bmctest.Memory, *httptest.Server) {
	t.Helper()
	m := bmctest.NewMemory(bmctest.Identity{UUID: "a1234567-89ab-cdef-a123-456789abcdef", Serial: "BY-1", Model: "Test"})
	r := &bmctest.Redfish{User: "admin", Password: "secret", Chassis: m}
	s := httptest.NewTLSServer(r)
	t.Cleanup(s.Close)
	return r, m, s
}

// TestGofish drives the Redfish server with gofish.
func TestGofish(t *testing.T) {
	r, m, s := redfishServer(t)
	c, err := gofish.ConnectContext(t.Context(), gofish.ClientConfig{Endpoint: s.URL, Username: "admin", Password: "secret", HTTPClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	systems, err := c.Service.Systems()
	if err != nil || len(systems) != 1 {
		t.Fatalf("systems = %v, %v", systems, err)
	}
	sys := systems[0]
	if sys.SerialNumber != "BY-1" || sys.PowerState != redfish.OffPowerState || len(sys.SupportedResetTypes) == 0 {
		t.Errorf("system = %+v", sys)
	}
	if err := sys.SetBoot(redfish.Boot{BootSourceOverrideEnabled: redfish.OnceBootSourceOverrideEnabled, BootSourceOverrideTarget: redfish.PxeBootSourceOverrideTarget}); err != nil {
		t.Fatal(err)
	}
	if err := sys.Reset(redfish.OnResetType); err != nil {
		t.Fatal(err)
	}
	if s := m.Starts(); len(s) != 1 || s[0] != (bmctest.Boot{Device: ipmi.DevicePXE, Once: true, UEFI: true}) {
		t.Errorf("starts = %+v", s)
	}
	for name, get := range map[string]func() error{
		"chassis":    func() error { _, err := c.Service.Chassis(); return err },
		"managers":   func() error { _, err := c.Service.Managers(); return err },
		"interfaces": func() error { _, err := sys.EthernetInterfaces(); return err },
		"bios":       func() error { _, err := sys.Bios(); return err },
		"update":     func() error { _, err := c.Service.UpdateService(); return err },
		"sessions":   func() error { _, err := c.Service.Sessions(); return err },
		"accounts":   func() error { _, err := c.Service.AccountService(); return err },
	} {
		if err := get(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.Logout()
	if opened, closed := r.Sessions(); opened != 1 || closed != 1 {
		t.Errorf("%d sessions opened, %d closed", opened, closed)
	}
}

// TestBmclib drives the Redfish server with bmclib.
func TestBmclib(t *testing.T) {
	r, m, s := redfishServer(t)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: s.Client().Transport}
	cl := bmclib.NewClient(u.Hostname(), "admin", "secret", bmclib.WithRedfishPort(u.Port()), bmclib.WithRedfishHTTPClient(client))
	cl.Registry.Drivers = cl.Registry.For("gofish")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := cl.Open(ctx); err != nil {
		t.Fatal(err)
	}
	if ok, err := cl.SetBootDevice(ctx, "pxe", false, true); !ok || err != nil {
		t.Fatalf("boot device: %t, %v", ok, err)
	}
	if ok, err := cl.SetPowerState(ctx, "on"); !ok || err != nil {
		t.Fatalf("power on: %t, %v", ok, err)
	}
	if state, err := cl.GetPowerState(ctx); state != "On" || err != nil {
		t.Errorf("power = %q, %v", state, err)
	}
	if ok, err := cl.SetPowerState(ctx, "cycle"); !ok || err != nil {
		t.Errorf("cycle: %t, %v", ok, err)
	}
	if ok, err := cl.SetPowerState(ctx, "off"); !ok || err != nil {
		t.Errorf("off: %t, %v", ok, err)
	}
	if err := cl.Close(ctx); err != nil {
		t.Error(err)
	}
	if s := m.Starts(); len(s) != 2 || s[0].Device != ipmi.DevicePXE || s[1].Device != ipmi.DeviceNone {
		t.Errorf("starts = %+v", s)
	}
	if opened, closed := r.Sessions(); opened != 1 || closed != 1 {
		t.Errorf("%d sessions opened, %d closed", opened, closed)
	}
}
