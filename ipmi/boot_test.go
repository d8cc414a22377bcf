package ipmi_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// A machine that was not seen on the wire is told in another way the next time, and what works is remembered.
func TestBootMethods(t *testing.T) {
	t.Parallel()
	const o, p, u, b, tg, h = bmctest.IgnoreOnce, bmctest.IgnorePersistent, bmctest.IgnoreUEFI, bmctest.IgnoreBIOS, bmctest.IgnoreTarget, bmctest.IgnoreHTTP
	for _, tt := range []struct {
		name   string
		world  string
		ignore []string
		want   []ipmi.BootMethod // in the order of the attempts; the last one works
	}{
		{"honest", "IPMI", nil, []ipmi.BootMethod{ipmi.BootOnce}},
		{"once ignored", "IPMI", []string{o}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootPersistent}},
		{"UEFI ignored", "IPMI", []string{u}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootPersistent, ipmi.BootOtherMode}},
		{"honest", "Redfish", nil, []ipmi.BootMethod{ipmi.BootOnce}},
		{"once ignored", "Redfish", []string{o}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootTarget}},
		{"once and the card ignored", "Redfish", []string{o, tg}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootTarget, ipmi.BootHTTP}},
		{"all but persistent ignored", "Redfish", []string{o, tg, h}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootTarget, ipmi.BootHTTP, ipmi.BootPersistent}},
		{"all of UEFI ignored", "Redfish", []string{u, tg, h}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootTarget, ipmi.BootHTTP, ipmi.BootPersistent, ipmi.BootOtherMode}},
		{"everything ignored", "IPMI", []string{o, p, u, b}, []ipmi.BootMethod{ipmi.BootOnce, ipmi.BootPersistent, ipmi.BootOtherMode, ipmi.BootOnce}},
	} {
		t.Run(tt.world+": "+tt.name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				w.faults.Set(func(f *bmctest.Fault) { f.IgnoreBoot = tt.ignore })
				c := quick()
				for i := range tt.want {
					must(t, c.SetPower(long(t), w.target, ipmi.OpOff))
					must(t, c.SetNextBoot(long(t), w.target, ipmi.DevicePXE, true))
					must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
					starts := w.memory.Starts()
					seen := starts[len(starts)-1].Device == ipmi.DevicePXE
					if last := i == len(tt.want)-1; seen != last && tt.name != "everything ignored" {
						t.Fatalf("attempt %d (%s): seen %v", i+1, tt.want[i], seen)
					}
					c.BootSeen(w.target, seen)
					c.BootSeen(w.target, seen) // said twice
				}
				k := c.Known(w.target)
				for i, m := range tt.want {
					last := i == len(tt.want)-1 && tt.name != "everything ignored"
					if n := k.Ignored[m]; last && n != 0 || !last && n == 0 {
						t.Errorf("%s was ignored %d times: %+v", m, n, k)
					}
				}
				if tt.name == "everything ignored" {
					return
				}
				if k.Boot != tt.want[len(tt.want)-1] {
					t.Errorf("known = %+v", k)
				}
				// It is remembered, also by a server that was restarted and told.
				raw, err := json.Marshal(k)
				must(t, err)
				var kept ipmi.Knowledge
				must(t, json.Unmarshal(raw, &kept))
				later := quick()
				later.Learn(w.target, kept)
				must(t, later.BootFrom(long(t), w.target, ipmi.DevicePXE, true))
				starts := w.memory.Starts()
				if starts[len(starts)-1].Device != ipmi.DevicePXE {
					t.Errorf("the next start is from %+v", starts[len(starts)-1])
				}
				// A boot from disk is told plainly, and ends what was persistent.
				w.faults.Set(func(f *bmctest.Fault) { f.IgnoreBoot = nil })
				must(t, later.BootFrom(long(t), w.target, ipmi.DeviceDisk, true))
				must(t, later.SetPower(long(t), w.target, ipmi.OpCycle))
				starts = w.memory.Starts()
				if got := starts[len(starts)-2:]; got[0].Device != ipmi.DeviceDisk || got[1].Device != ipmi.DeviceNone {
					t.Errorf("the next starts are from %+v", got)
				}
			}, tt.world)
		})
	}
}

func TestQuirks(t *testing.T) {
	t.Parallel()
	redfish(t, bmctest.Fault{RefuseBootOff: true}, func(t *testing.T, w *world) {
		c := quick()
		must(t, c.BootFrom(long(t), w.target, ipmi.DevicePXE, true))
		if k := c.Known(w.target); !slices.Contains(k.Quirks, "takes a boot override only while the host is on") {
			t.Errorf("known = %+v", k)
		}
	})
}
