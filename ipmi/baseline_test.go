package ipmi_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func paths(d []ipmi.Difference) []string {
	var out []string
	for _, x := range d {
		out = append(out, x.Path)
	}
	return out
}

// K07: what a tenant changed from inside shows at return.
func TestK07(t *testing.T) {
	t.Parallel()
	body := func(t *testing.T, w *world) {
		w.board.SetLAN(lan())
		c := quick()
		before, err := c.Baseline(long(t), w.target)
		must(t, err)
		raw, err := json.Marshal(before)
		must(t, err)
		if strings.Contains(string(raw), password) {
			t.Error("the baseline holds the password")
		}
		var kept ipmi.Baseline
		must(t, json.Unmarshal(raw, &kept))
		// What is done to the machine in between is no change by a tenant.
		must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
		logEvents(w.board, 1)
		w.board.Set(bmctest.Sensor{Name: "CPU1 Temp", Kind: ipmi.Temperature, Value: 60, State: ipmi.OK})
		same, err := quick().Baseline(long(t), w.target)
		must(t, err)
		if d := kept.Diff(same); len(d) != 0 {
			t.Fatalf("nothing changed, and it says %+v", d)
		}
		// user set name, set password, priv, enable.
		must(t, w.addUser("backdoor", "Tenant-pass-1", ipmi.PrivilegeAdmin))
		moved := lan()
		moved.Address = netip.MustParsePrefix("192.0.2.66/24")
		w.board.SetLAN(moved)
		var want []string
		if w.redfish != nil {
			w.redfish.SetService("SSH", true)
			w.board.SetBIOS("BootMode", "Bios")
			w.board.Flash(ipmi.Firmware{ID: "BIOS", Name: "BIOS", Version: "2.6-tenant"})
			_, err := c.InsertMedia(long(t), w.target, iso)
			must(t, err)
			want = []string{"bios", "firmware", "lan", "media", "services", "users"}
		} else {
			w.ipmi.SetCommunity("tenant")
			want = []string{"lan", "services", "users"}
		}
		after, err := c.Baseline(long(t), w.target)
		must(t, err)
		d := kept.Diff(after)
		var got []string
		for _, p := range paths(d) {
			s, _, _ := strings.Cut(p, "/")
			got = append(got, s)
		}
		if g := slices.Compact(got); !slices.Equal(g, want) {
			t.Errorf("differences in %v, want %v: %+v", g, want, d)
		}
		i := slices.IndexFunc(d, func(x ipmi.Difference) bool {
			return x.Is == "backdoor" && x.Was == "" && strings.HasPrefix(x.Path, "users/")
		})
		if i < 0 {
			t.Errorf("the new user is not named: %+v", d)
		}
	}
	worlds(t, body, "IPMI")
	vendors(t, body)
	t.Run("persistent override", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			before, err := quick().Baseline(long(t), w.target)
			must(t, err)
			w.ipmi.SetBootFlags([5]byte{0xe0, 0x04})
			after, err := quick().Baseline(long(t), w.target)
			must(t, err)
			if d := before.Diff(after); !slices.Equal(paths(d), []string{"boot/override"}) {
				t.Errorf("%+v", d)
			}
		}, "IPMI")
	})
	t.Run("OpenIPMI's", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			a, err := quick().Baseline(long(t), w.target)
			must(t, err)
			b, err := quick().Baseline(long(t), w.target)
			must(t, err)
			if d := a.Diff(b); len(d) != 0 || a.Facts["users/2/name"] != user {
				t.Errorf("%+v; %+v", d, a.Facts)
			}
		}, "ipmi_sim")
	})
}

func TestDiff(t *testing.T) {
	a := ipmi.Baseline{Facts: map[string]string{"users/2/name": "admin", "lan/1/address": "x", "bios/A": "1"}, Unread: map[string]string{"media": "none"}}
	b := ipmi.Baseline{Facts: map[string]string{"users/2/name": "admin", "users/3/name": "", "lan/1/address": "y", "media/1/image": "z"}, Unread: map[string]string{"bios": "HTTP 500"}}
	want := []ipmi.Difference{
		{Path: "bios", Was: "read", Is: "unread: HTTP 500"}, {Path: "lan/1/address", Was: "x", Is: "y"}, {Path: "users/3/name"},
	}
	if d := cmp.Diff(want, a.Diff(b)); d != "" {
		t.Error(d)
	}
	if d := (ipmi.Baseline{}).Diff(ipmi.Baseline{}); len(d) != 0 {
		t.Error(d)
	}
}
