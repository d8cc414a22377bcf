package ipmi_test

import (
	"errors"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

const iso = "http://192.0.2.1/boot.iso"

func TestMedia(t *testing.T) {
	t.Parallel()
	vendors(t, func(t *testing.T, w *world) {
		c := quick()
		m, err := c.InsertMedia(long(t), w.target, iso)
		must(t, err)
		if m.Image != iso || !m.Inserted || w.redfish.Image() != iso {
			t.Errorf("media = %+v, in the drive %q", m, w.redfish.Image())
		}
		again, err := c.InsertMedia(long(t), w.target, iso)
		must(t, err)
		if again.ID != m.ID {
			t.Errorf("the same image went into %s and %s", m.ID, again.ID)
		}
		if _, err := c.InsertMedia(long(t), w.target, iso+"2"); !errors.Is(err, ipmi.ErrBusy) {
			t.Errorf("another image: %v, want ErrBusy", err)
		}
		must(t, c.EjectMedia(long(t), w.target))
		must(t, c.EjectMedia(long(t), w.target))
		if got := w.redfish.Image(); got != "" {
			t.Errorf("still %q", got)
		}
		if w.vendor == bmctest.ILO {
			return // its boot mode cannot be changed, and it is UEFI already
		}
		must(t, c.BootMedia(long(t), w.target, iso, true))
		want := bmctest.Boot{Device: ipmi.DeviceMedia, Once: true, UEFI: true}
		if s := w.memory.Starts(); len(s) != 1 || s[0] != want {
			t.Errorf("starts = %+v, want %+v", s, want)
		}
	})
	for name, tt := range map[string]struct {
		fault bmctest.Fault
		want  error
	}{
		"refused": {bmctest.Fault{MediaRefused: true}, ipmi.ErrUnsupported}, "accepted and not fetched": {bmctest.Fault{MediaIgnored: true}, ipmi.ErrLied},
		"by PATCH": {bmctest.Fault{MediaPatchOnly: true}, nil}, "by PATCH with ETag": {bmctest.Fault{MediaPatchOnly: true, RequireETag: true, StaleETags: 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			redfish(t, tt.fault, func(t *testing.T, w *world) {
				_, err := quick().InsertMedia(brief(t, 2*time.Second), w.target, iso)
				if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
					t.Errorf("err = %v, want %v", err, tt.want)
				}
				if tt.want == nil {
					must(t, quick().EjectMedia(long(t), w.target))
				}
			})
		})
	}
	t.Run("a full drive that refuses to be emptied", func(t *testing.T) {
		redfish(t, bmctest.Fault{MediaRefused: true}, func(t *testing.T, w *world) {
			w.redfish.Leave(iso)
			if err := quick().EjectMedia(long(t), w.target); !errors.Is(err, ipmi.ErrBusy) || errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("err = %v, want ErrBusy: the disc is still in it", err)
			}
		})
	})
	t.Run("bad address", func(t *testing.T) {
		redfish(t, bmctest.Fault{}, func(t *testing.T, w *world) {
			for _, bad := range []string{"", "boot.iso", "ftp://192.0.2.1/x", "http://u:" + canary[:4] + "@192.0.2.1/x"} {
				if _, err := quick().InsertMedia(long(t), w.target, bad); !errors.Is(err, ipmi.ErrUnsupported) {
					t.Errorf("%q: %v, want ErrUnsupported", bad, err)
				}
			}
		})
	})
	t.Run("IPMI has none", func(t *testing.T) {
		worlds(t, func(t *testing.T, w *world) {
			if _, err := quick().Media(long(t), w.target); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("err = %v, want ErrUnsupported", err)
			}
			if _, err := quick().BIOS(long(t), w.target); !errors.Is(err, ipmi.ErrUnsupported) {
				t.Errorf("err = %v, want ErrUnsupported", err)
			}
			if p, err := quick().Power(long(t), w.target); p != ipmi.Off || err != nil { // and the session lives on
				t.Errorf("%s, %v", p, err)
			}
		}, "IPMI")
	})
}
