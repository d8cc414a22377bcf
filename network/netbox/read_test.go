package netbox_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bareyard/bareyard/network/netbox"
)

type object = map[string]any

// TestRead reads the same site in the shapes of version 3 and of version 4.2, page by page.
func TestRead(t *testing.T) {
	tags := []any{object{"slug": "bareyard"}}
	for name, v4 := range map[string]bool{"3.7": false, "4.2": true} {
		t.Run(name, func(t *testing.T) {
			f, c := newFake(t, v4)
			for _, s := range []string{"sha1", "sha2", "bj1"} {
				f.have("/dcim/sites/", object{"slug": s, "name": s})
			}
			prefix := func(p, site, status string, more object) {
				o := object{"prefix": p, "status": object{"value": status}, "tags": tags, "custom_fields": object{"bareyard_line": "bgp"}}
				if v4 {
					o["scope_type"], o["scope"] = "dcim.site", object{"slug": site}
				} else {
					o["site"] = object{"slug": site}
				}
				for k, v := range more {
					o[k] = v
				}
				f.have("/ipam/prefixes/", o)
			}
			prefix("203.0.113.0/24", "sha1", "active", nil)
			prefix("198.51.100.0/24", "bj1", "active", nil)
			prefix("192.0.2.0/24", "sha1", "deprecated", nil)
			prefix("2001:db8::/40", "sha1", "container", nil)
			prefix("2001:db8:7::/64", "sha1", "active", object{"description": "Bareyard: order o-1 of acme, machine n1"}) // told by us
			prefix("2001:db8:8::/60", "sha1", "active", nil)
			prefix("10.0.0.0/8", "sha1", "active", object{"tags": []any{}})
			f.have("/ipam/ip-addresses/", object{"address": "203.0.113.1/24", "status": object{"value": "active"}})
			f.have("/ipam/ip-addresses/", object{"address": "203.0.113.7/32", "status": object{"value": "active"}, "tags": tags})
			f.have("/ipam/ip-addresses/", object{"address": "203.0.113.9/24", "status": object{"value": "deprecated"}})
			id := f.have("/dcim/devices/", object{"name": "GPU-01", "serial": "SN1", "site": object{"slug": "sha1"}, "rack": object{"name": "A07"}, "device_type": object{"slug": "g493"},
				"oob_ip": object{"address": "10.98.0.11/24"}, "custom_fields": object{"bareyard_class": nil}, "tags": tags})
			f.have("/dcim/devices/", object{"name": "tor1", "site": object{"slug": "sha1"}, "tags": []any{}})
			port := func(name, mac string, management bool) {
				o := object{"name": name, "mgmt_only": management, "device": object{"id": id}, "mac_address": nil}
				if v4 && mac != "" {
					o["primary_mac_address"] = object{"mac_address": mac}
				} else if mac != "" {
					o["mac_address"] = mac
				}
				f.have("/dcim/interfaces/", o)
			}
			port("bmc", "02:00:5E:00:00:01", true)
			port("eth9", "", false)
			port("eth0", "02:00:5E:00:00:02", false)
			got, err := c.Read(t.Context(), "sha1")
			if err != nil {
				t.Fatal(err)
			}
			want := netbox.Stock{Sites: []string{"sha1"}, Prefixes: []netbox.Prefix{
				{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Site: "sha1", Line: "bgp", Taken: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}},
				{Prefix: netip.MustParsePrefix("2001:db8::/40"), Site: "sha1", Line: "bgp"}},
				Small:   []netbox.Prefix{{Prefix: netip.MustParsePrefix("2001:db8:8::/60"), Site: "sha1", Line: "bgp"}},
				Devices: []netbox.Device{{Name: "gpu-01", Serial: "SN1", Site: "sha1", Rack: "A07", Class: "g493", BMC: "10.98.0.11", MAC: "02:00:5e:00:00:02"}}}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("(- want, + got)\n%s", diff)
			}
			for _, asked := range f.asked {
				if asked[:3] != "GET" {
					t.Errorf("reading changes NetBox: %s", asked)
				}
			}
		})
	}
}
