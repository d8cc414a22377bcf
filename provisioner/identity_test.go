package provisioner_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/provisioner"
)

// TestResolve: which machine a sighting is of.
func TestResolve(t *testing.T) {
	const uuid, swapped, reversed, other = "00112233-4455-6677-8899-aabbccddeeff", "33221100-5544-7766-8899-AABBCCDDEEFF", "ffeeddcc-bbaa-9988-7766-554433221100", "a0112233-4455-6677-8899-aabbccddee00"
	const m1, m2, m3, usb = "3c:ec:ef:00:00:01", "3c:ec:ef:00:00:02", "3c:ec:ef:00:00:03", "02:00:00:0b:00:01"
	type id = provisioner.Identity
	seen := func(change func(*id)) id {
		s := id{UUID: uuid, Serial: "SN-1", MACs: []string{m1, m2}, Boot: m1}
		if change != nil {
			change(&s)
		}
		return s
	}
	for _, tt := range []struct {
		name   string
		seen   id
		others []id
		want   provisioner.Resolution
		doubt  string
	}{
		{name: "never seen", seen: seen(nil)},
		{name: "seen before", seen: seen(nil), others: []id{{ID: "d1", UUID: uuid, Serial: "SN-1", MACs: []string{m1, m2}}}, want: provisioner.Resolution{ID: "d1"}},
		{name: "A05: another byte order", seen: seen(func(s *id) { s.UUID = swapped }), others: []id{{ID: "d1", UUID: uuid, MACs: []string{m1}}}, want: provisioner.Resolution{ID: "d1"}},
		{name: "A05: reversed, and all ports are new", seen: seen(func(s *id) { s.UUID = reversed }), others: []id{{ID: "d1", UUID: swapped, Serial: "sn-1", MACs: []string{m3}}}, want: provisioner.Resolution{ID: "d1"}},
		{name: "the same UUID and nothing else", seen: seen(func(s *id) { s.Serial = "" }), others: []id{{ID: "d1", UUID: uuid, Serial: "SN-2", MACs: []string{m3}}}},
		{name: "the same serial number and nothing else", seen: seen(nil), others: []id{{ID: "d1", UUID: other, Serial: "SN-1", MACs: []string{m3}}}},
		{name: "a BIOS update changed the UUID", seen: seen(nil), others: []id{{ID: "d1", UUID: other, Serial: "SN-1", MACs: []string{m1}}}, want: provisioner.Resolution{ID: "d1"}},
		{name: "vendors' defaults say nothing", seen: seen(func(s *id) { s.UUID, s.Serial = "03000200-0400-0500-0006-000700080009", "To Be Filled By O.E.M." }),
			others: []id{{ID: "d1", UUID: "03000200-0400-0500-0006-000700080009", Serial: "To Be Filled By O.E.M.", MACs: []string{m3}}}},
		{name: "nor against it", seen: seen(func(s *id) { s.UUID, s.Serial = "", "Default string" }), others: []id{{ID: "d1", UUID: uuid, Serial: "SN-9", MACs: []string{m2}}}, want: provisioner.Resolution{ID: "d1"}},
		{name: "an enrolled machine, by a port that is not on its record", seen: seen(func(s *id) { s.Boot = m3; s.MACs = append(s.MACs, m3) }),
			others: []id{{ID: "m1", Known: true, UUID: uuid, Serial: "SN-1", MACs: []string{m1, m2}}}, want: provisioner.Resolution{ID: "m1", Known: true}},
		{name: "discovered twice, and it is one", seen: seen(nil), others: []id{{ID: "d1", MACs: []string{m1}}, {ID: "d2", MACs: []string{m2}}}, want: provisioner.Resolution{ID: "d1", Same: []string{"d2"}}},
		{name: "A25: a BMC's port that got through", seen: seen(func(s *id) { s.MACs = append(s.MACs, usb) }), others: []id{{ID: "d1", UUID: other, Serial: "SN-2", MACs: []string{m3, usb}}}, want: provisioner.Resolution{Leave: []string{usb}}},
		{name: "A25: and of an enrolled machine", seen: seen(func(s *id) { s.MACs = append(s.MACs, usb) }), others: []id{{ID: "m1", Known: true, UUID: other, Serial: "SN-2", MACs: []string{m3, usb}}}, want: provisioner.Resolution{Leave: []string{usb}}},
		{name: "A25: and nothing else", seen: id{UUID: uuid, MACs: []string{usb}}, others: []id{{ID: "d1", UUID: other, MACs: []string{m3, usb}}}, doubt: "no network port"},
		{name: "a card was moved before either was enrolled", seen: seen(nil), others: []id{{ID: "d1", UUID: other, Serial: "SN-2", MACs: []string{m1, m3}}}, want: provisioner.Resolution{Take: []string{m1}}},
		{name: "a card was moved out of an enrolled machine", seen: seen(nil), others: []id{{ID: "m1", Known: true, UUID: other, Serial: "SN-2", MACs: []string{m1, m3}}}, doubt: "on record for machine m1"},
		{name: "ports of two enrolled machines", seen: seen(nil), others: []id{{ID: "m1", Known: true, MACs: []string{m1}}, {ID: "m2", Known: true, MACs: []string{m2}}}, doubt: "machines m1 and m2"},
		{name: "no port at all", seen: id{UUID: uuid, Serial: "SN-1"}, doubt: "no network port"},
	} {
		got := provisioner.Resolve(tt.seen, tt.others)
		if tt.doubt != "" {
			if !strings.Contains(got.Doubt, tt.doubt) || got.ID != "" {
				t.Errorf("%s: %+v, want a doubt about %q", tt.name, got, tt.doubt)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
