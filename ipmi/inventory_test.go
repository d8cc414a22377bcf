package ipmi_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func lan() ipmi.LAN {
	return ipmi.LAN{MAC: "02:00:00:00:06:23", Source: "static", Address: netip.MustParsePrefix("192.0.2.7/24"), Gateway: netip.MustParseAddr("192.0.2.1")}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	t.Run("IPMI", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			w.board.SetLAN(lan())
			inv, err := quick().Inventory(long(t), w.target)
			must(t, err)
			if inv.Serial != "BY-1" || inv.Model != "Test" || inv.Manufacturer != "Bareyard" || inv.BMCVersion == "" || inv.UUID == "" {
				t.Errorf("inventory = %+v", inv)
			}
			if len(inv.LAN) != 1 {
				t.Fatalf("LAN = %+v", inv.LAN)
			}
			want := lan()
			want.ID = "1"
			if d := cmp.Diff(want, inv.LAN[0], cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); w.name == "IPMI" && d != "" {
				t.Errorf("LAN: %s", d)
			}
		}, "IPMI", "ipmi_sim")
	})
	vendors(t, func(t *testing.T, w *world) {
		w.board.SetLAN(lan())
		inv, err := quick().Inventory(long(t), w.target)
		must(t, err)
		if inv.Serial != "BY-1" || inv.Model != "Test" || inv.Manufacturer == "" || inv.UUID != "a1234567-89ab-cdef-a123-456789abcdef" || inv.BIOSVersion != "2.7" || inv.BMCVersion != "1.11" || len(inv.Unread) > 0 {
			t.Errorf("inventory = %+v", inv)
		}
		want := []ipmi.Firmware{{ID: "BIOS", Name: "BIOS", Version: "2.7"}, {ID: "BMC", Name: "BMC", Version: "1.11"}}
		if !slices.Equal(inv.Firmware, want) || len(inv.LAN) != 1 || inv.LAN[0].Address != lan().Address || inv.LAN[0].MAC != lan().MAC || inv.LAN[0].Gateway != lan().Gateway {
			t.Errorf("firmware %+v, LAN %+v", inv.Firmware, inv.LAN)
		}
	})
	// E09 again: what cannot be read is named, and the rest is there.
	for name, fault := range map[string]bmctest.Fault{"odd types": {OddTypes: true}, "members that are not there": {EmptyCollection: true}} {
		t.Run(name, func(t *testing.T) {
			redfish(t, fault, func(t *testing.T, w *world) {
				inv, err := quick().Inventory(long(t), w.target)
				must(t, err)
				if inv.Model != "Test" || inv.BMCVersion != "1.11" {
					t.Errorf("inventory = %+v", inv)
				}
				if fault.OddTypes && (inv.Serial != "123" || inv.UUID != "" || !strings.Contains(strings.Join(inv.Unread, ";"), "UUID") || len(inv.Firmware) != 2) {
					t.Errorf("inventory = %+v", inv)
				}
			})
		})
	}
}

func reading(t *testing.T, h ipmi.Health, name string) ipmi.Reading {
	t.Helper()
	i := slices.IndexFunc(h.Readings, func(r ipmi.Reading) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("no %s among %+v", name, h.Readings)
	}
	return h.Readings[i]
}

func TestHealth(t *testing.T) {
	t.Parallel()
	body := func(t *testing.T, w *world) {
		c := quick()
		h, err := c.Health(long(t), w.target)
		must(t, err)
		want := map[string]ipmi.Reading{
			"CPU1 Temp": {Kind: ipmi.Temperature, Value: 45, Unit: "Cel"}, "FAN1": {Kind: ipmi.Fan, Value: 5400, Unit: "RPM"},
			"P12V": {Kind: ipmi.Voltage, Value: 12.1, Unit: "V"}, "PSU1 Input": {Kind: ipmi.PowerDraw, Value: 360, Unit: "W"},
		}
		for name, want := range want {
			got := reading(t, h, name)
			if got.Kind != want.Kind || got.Unit != want.Unit || !got.Known || got.Value < want.Value-0.01 || got.Value > want.Value+0.01 || got.State != ipmi.OK {
				t.Errorf("%s = %+v, want %+v", name, got, want)
			}
		}
		if p := reading(t, h, "PSU1"); p.Kind != ipmi.PowerSupply || p.Known || p.State != ipmi.OK {
			t.Errorf("PSU1 = %+v", p)
		}
		if h.Overall != ipmi.OK || h.Power != ipmi.Off || len(h.Unread) > 0 {
			t.Errorf("health = %+v", h)
		}
		ids := map[string]bool{}
		for _, r := range h.Readings {
			if ids[r.ID] || r.ID == "" {
				t.Errorf("ID %q twice, or none", r.ID)
			}
			ids[r.ID] = true
		}
		if w.name == "ipmi_sim" {
			return // its board does not change
		}
		w.board.Set(bmctest.Sensor{Name: "CPU1 Temp", Kind: ipmi.Temperature, Value: 97, State: ipmi.Critical})
		w.board.Set(bmctest.Sensor{Name: "FAN2", Kind: ipmi.Fan, Absent: true})
		w.board.Set(bmctest.Sensor{Name: "PSU2", Kind: ipmi.PowerSupply, State: ipmi.Critical})
		w.board.Set(bmctest.Sensor{Name: "Inlet Temp", Kind: ipmi.Temperature, Value: 38, State: ipmi.Warning})
		h, err = c.Health(long(t), w.target)
		must(t, err)
		if r := reading(t, h, "CPU1 Temp"); r.Value != 97 || r.State != ipmi.Critical {
			t.Errorf("CPU1 Temp = %+v", r)
		}
		if r := reading(t, h, "Inlet Temp"); r.State != ipmi.Warning {
			t.Errorf("Inlet Temp = %+v", r)
		}
		if r := reading(t, h, "FAN2"); r.Known || r.State != ipmi.Unclear {
			t.Errorf("FAN2 = %+v", r)
		}
		if r := reading(t, h, "PSU2"); r.State != ipmi.Critical {
			t.Errorf("PSU2 = %+v", r)
		}
		if h.Overall != ipmi.Critical {
			t.Errorf("overall = %s", h.Overall)
		}
	}
	t.Run("IPMI", func(t *testing.T) { worlds(t, body, "IPMI", "ipmi_sim") })
	vendors(t, body)
	t.Run("odd types", func(t *testing.T) {
		redfish(t, bmctest.Fault{OddTypes: true}, func(t *testing.T, w *world) {
			w.board.Set(bmctest.Sensor{Name: "FAN2", Kind: ipmi.Fan, Absent: true}) // "N/A"
			h, err := quick().Health(long(t), w.target)
			must(t, err)
			if r := reading(t, h, "FAN1"); !r.Known || r.Value != 5400 {
				t.Errorf("FAN1 = %+v", r)
			}
			if r := reading(t, h, "FAN2"); r.Known {
				t.Errorf("FAN2 = %+v", r)
			}
		})
	})
}
