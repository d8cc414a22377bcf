package ipmi_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// K07: the host's own ways to its BMC are shut where the BMC has a switch, and opened again; what is shown shut by a customer's or by
// nobody's doing shows in a baseline; a BMC that takes it and does nothing is found out, one that only says so is not.
func TestK07HostAccess(t *testing.T) {
	t.Parallel()
	ways := map[bmctest.Vendor][]string{"": {"HostInterface 1"}, bmctest.OpenBMC: {"HostInterface 1"}, bmctest.HGX: {"HostInterface 1"}, bmctest.IDRAC: {"Dell LocalSecurity.1.LocalConfig"},
		bmctest.ILO: {"HPE KcsEnabled"}, bmctest.Supermicro: {"HostInterface 1", "Supermicro KCSInterface"}, bmctest.AMI: nil}
	vendors(t, func(t *testing.T, w *world) {
		c, want := quick(), ways[w.vendor]
		if want == nil {
			if _, err := c.SetHostAccess(long(t), w.target, false, nil); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("%v, want ErrUnsupported", err)
			}
			return
		}
		before, err := c.Baseline(long(t), w.target)
		must(t, err)
		for i, open := range []bool{false, false, true} {
			got, err := c.SetHostAccess(long(t), w.target, open, nil)
			must(t, err)
			changed := want
			if i == 1 { // it was shut already, and not by this call
				changed = nil
			}
			if !slices.Equal(got, changed) || w.board.HostAccess() != open {
				t.Errorf("open %t: ways %q, the board's is open: %t", open, got, w.board.HostAccess())
			}
			if open {
				continue
			}
			shut, err := c.Baseline(long(t), w.target)
			must(t, err)
			d := before.Diff(shut)
			if len(d) != len(want) || !strings.HasPrefix(d[0].Path, "services/host-access/") || d[0].Was != "open" || d[0].Is != "shut" {
				t.Errorf("%+v", d)
			}
		}
		w.faults.Set(func(f *bmctest.Fault) { f.DropHost = true })
		if _, err := c.SetHostAccess(long(t), w.target, false, nil); !errors.Is(err, ipmi.ErrLied) || !strings.Contains(err.Error(), "reads the other way") {
			t.Errorf("taken and not done: %v, want ErrLied", err)
		}
		w.faults.Set(func(f *bmctest.Fault) { f.DropHost, f.KeepHost = false, true })
		got, err := c.SetHostAccess(long(t), w.target, false, nil)
		if must(t, err); !slices.Equal(got, want) || !w.board.HostAccess() {
			t.Errorf("said only: ways %q, the board's is open: %t", got, w.board.HostAccess())
		}
	})
	worlds(t, func(t *testing.T, w *world) {
		if _, err := quick().SetHostAccess(long(t), w.target, false, nil); !errors.Is(err, ipmi.ErrUnsupported) {
			t.Errorf("%v, want ErrUnsupported", err)
		}
		if w.logins() != 0 {
			t.Error("it logged in for what there is no command for")
		}
	}, "IPMI")
}

// One way that does not obey neither keeps the others from being shut nor hides that they were; what is opened is what was named.
func TestHostAccessPartly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Redfish", func(w *world) { w.vendor = bmctest.Supermicro })
	c := quick()
	w.faults.Set(func(f *bmctest.Fault) { f.DropHostAt = "HostInterfaces/1" })
	got, err := c.SetHostAccess(long(t), w.target, false, nil)
	if !errors.Is(err, ipmi.ErrLied) || !slices.Equal(got, []string{"Supermicro KCSInterface"}) {
		t.Errorf("shut: %q, %v", got, err)
	}
	w.faults.Set(func(f *bmctest.Fault) { f.DropHostAt = "" })
	got, err = c.SetHostAccess(long(t), w.target, false, nil)
	if must(t, err); !slices.Equal(got, []string{"HostInterface 1"}) {
		t.Errorf("shut later: %q", got)
	}
	got, err = c.SetHostAccess(long(t), w.target, true, []string{"HostInterface 1"})
	if must(t, err); !slices.Equal(got, []string{"HostInterface 1"}) {
		t.Errorf("opened: %q", got)
	}
	got, err = c.SetHostAccess(long(t), w.target, true, nil)
	if must(t, err); !slices.Equal(got, []string{"Supermicro KCSInterface"}) {
		t.Errorf("left shut: %q", got)
	}
}

// A login that worked is told from a request that was refused: whoever changes a password must not take one for the other.
func TestForbidden(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		c := quick()
		if err := c.Check(long(t), w.withPassword("wrong-password")); !errors.Is(err, ipmi.ErrCredentials) || errors.Is(err, ipmi.ErrForbidden) {
			t.Errorf("a wrong password: %v", err)
		}
		w.faults.Set(func(f *bmctest.Fault) { f.OperatorOnly = true })
		err := c.SetPassword(long(t), w.target, user, "Another-pass-1")
		if !errors.Is(err, ipmi.ErrCredentials) || !errors.Is(err, ipmi.ErrForbidden) {
			t.Errorf("an operator who changes a password: %v", err)
		}
		must(t, c.Check(long(t), w.target))
	}, "IPMI")
}
