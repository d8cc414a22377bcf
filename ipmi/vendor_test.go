package ipmi_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// Each vendor's service is driven from off through the network to the disk, and a fault at a time does not change how it ends.
func TestVendors(t *testing.T) {
	t.Parallel()
	life := func(t *testing.T, w *world) {
		c := quick()
		must(t, c.SetPower(long(t), w.target, ipmi.OpOff))
		must(t, c.BootFrom(long(t), w.target, ipmi.DevicePXE, true))
		must(t, c.BootFrom(long(t), w.target, ipmi.DeviceDisk, true))
		want := []ipmi.Device{ipmi.DevicePXE, ipmi.DeviceDisk}
		starts := w.memory.Starts()
		for _, s := range starts { // what refuses an override when off is started once before
			if len(want) > 0 && s.Device == want[0] {
				want = want[1:]
			}
		}
		if len(want) > 0 {
			t.Errorf("starts = %+v, %v is missing", starts, want)
		}
		must(t, c.SetPassword(long(t), w.target, user, "Rotated-pass-17x"))
		must(t, c.Check(long(t), w.withPassword("Rotated-pass-17x")))
	}
	vendors(t, life)
	for name, fault := range map[string]bmctest.Fault{
		"redirects": {Redirect: true}, "stale": {StalePolls: 4}, "slow off": {SlowOff: 100 * time.Millisecond}, "slots full": {SessionsFull: true}, "ETags that change": {RequireETag: true, StaleETags: 1},
		"refused when off": {RefuseBootOff: true}, "restart refused when off": {ResetWhenOff500: true}, "odd types": {OddTypes: true},
	} {
		for _, v := range []bmctest.Vendor{bmctest.OpenBMC, bmctest.AMI, bmctest.HGX} {
			t.Run(name+": "+string(v), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "Redfish", func(w *world) { w.vendor = v })
				w.faults.Set(func(f *bmctest.Fault) { *f = fault })
				life(t, w)
			})
		}
	}
}

// A board beside the host that comes first in every collection is not the host.
func TestHGX(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Redfish", func(w *world) { w.vendor = bmctest.HGX })
	inv, err := quick().Inventory(long(t), w.target)
	must(t, err)
	if inv.Serial != "BY-1" || inv.Model != "Test" || inv.BMCVersion != "1.11" {
		t.Errorf("inventory = %+v", inv)
	}
	must(t, quick().SetPower(long(t), w.target, ipmi.OpOn))
	wantOps(t, w, ipmi.OpOn)
}

// A service with two hosts is asked which one; a DPU beside the host is not one.
func TestSeveralSystems(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		second string
		want   error
	}{{"Physical", ipmi.ErrUnsupported}, {"DPU", nil}} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			switch strings.TrimSuffix(req.URL.Path, "/") {
			case "/redfish/v1":
				_, _ = w.Write([]byte(`{"Systems":{"@odata.id":"/redfish/v1/Systems"}}`))
			case "/redfish/v1/Systems":
				_, _ = w.Write([]byte(`{"Members":[{"@odata.id":"/redfish/v1/Systems/a"},{"@odata.id":"/redfish/v1/Systems/b"}]}`))
			case "/redfish/v1/Systems/a":
				_, _ = w.Write([]byte(`{"SystemType":"` + tt.second + `","PowerState":"Off"}`))
			case "/redfish/v1/Systems/b":
				_, _ = w.Write([]byte(`{"SystemType":"Physical","PowerState":"On"}`))
			default:
				w.Header().Set("X-Auth-Token", "x")
				w.WriteHeader(http.StatusCreated)
			}
		}))
		p, err := quick().Power(long(t), ipmi.Target{Protocol: ipmi.Redfish, Address: srv.URL, Username: user, Password: password})
		if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || p != ipmi.On) {
			t.Errorf("beside a %s: %s, %v, want %v", tt.second, p, err, tt.want)
		}
		srv.Close()
	}
}

// A BMC that says when it wants to be asked again is not asked before.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
		c := quick()
		must(t, c.Check(long(t), w.target))
		w.faults.Set(func(f *bmctest.Fault) { f.RetryAfter = 1 })
		begin := time.Now()
		must(t, c.SetPower(long(t), w.target, ipmi.OpOn))
		if took := time.Since(begin); took < time.Second {
			t.Errorf("it was asked again after %s, and had asked for a second", took)
		}
		w.faults.Set(func(f *bmctest.Fault) { f.RetryAfter, f.RetryHint = 1, "3600" })
		begin = time.Now()
		_, err := c.Power(long(t), w.target)
		hint, ok := ipmi.RetryAfter(err)
		if !errors.Is(err, ipmi.ErrBusy) || !ok || hint < 59*time.Minute {
			t.Errorf("err = %v, hint %s", err, hint)
		}
		before := w.redfish.Requests()
		if err := c.SetPower(long(t), w.target, ipmi.OpOff); !errors.Is(err, ipmi.ErrBusy) { // at once: an hour is longer than there is
			t.Errorf("SetPower: %v, want ErrBusy", err)
		}
		if n := w.redfish.Requests() - before; n != 0 {
			t.Errorf("%d requests before it wants to be asked again", n)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("it took %s to say so", took)
		}
	})
}

// The pauses between tries on a silent BMC grow and are not those of the next server.
func TestPausesDiffer(t *testing.T) {
	pauses := func() (out []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int32
			c := &ipmi.Controller{}
			last := time.Now()
			_ = c.TryOften(t.Context(), func() error {
				if n.Add(1) > 1 {
					out = append(out, time.Since(last))
				}
				last = time.Now()
				return nil
			})
		})
		return out
	}
	a, b := pauses(), pauses()
	if len(a) < 4 || len(a) > 30 {
		t.Fatalf("pauses %v", a)
	}
	same := 0
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			same++
		}
	}
	if same == min(len(a), len(b)) || a[3] < 2*a[0] {
		t.Errorf("pauses %v and %v", a, b)
	}
}
