package ipmi

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/redfish"
)

// The properties of a Boot object that make an override.
const (
	rfEnabled = "BootSourceOverrideEnabled"
	rfTarget  = "BootSourceOverrideTarget"
	rfMode    = "BootSourceOverrideMode"
)

var rfTargets = map[Device]redfish.BootSourceOverrideTarget{
	DevicePXE:   redfish.PxeBootSourceOverrideTarget,
	DeviceDisk:  redfish.HddBootSourceOverrideTarget,
	DeviceMedia: redfish.CdBootSourceOverrideTarget,
	DeviceNone:  redfish.NoneBootSourceOverrideTarget,
}

func rfModeOf(uefi bool) string {
	if uefi {
		return string(redfish.UEFIBootSourceOverrideMode)
	}
	return string(redfish.LegacyBootSourceOverrideMode)
}

// setBoot sets the override where the service wants it set, its settings resource first, and believes what it reads after.
func (c *rfConn) setBoot(ctx context.Context, d Device, uefi bool) error {
	system, err := c.read(ctx, c.system)
	if err != nil {
		return err
	}
	if allowed, told := system.body.obj("Boot").strs(rfTarget + "@Redfish.AllowableValues"); told && d != DeviceNone && !slices.Contains(allowed, string(rfTargets[d])) {
		return failf(ErrUnsupported, "this BMC cannot boot from %s", d)
	}
	if settings := settingsPath(system.body); settings != "" {
		res, err := c.read(ctx, settings)
		if err == nil && res.body.has("Boot") {
			err = c.patchBoot(ctx, settings, res, d, uefi, c.powerOf(system.body))
			if err == nil {
				if kept, err := c.keepsBoot(ctx, d, uefi); err != nil || kept {
					return err
				}
			}
		}
		if isAny(err, ErrUnreachable, ErrCredentials, ErrLocked, ErrOff) {
			return err
		}
		if system, err = c.read(ctx, c.system); err != nil { // the settings resource does not do it
			return err
		}
	}
	if err := c.patchBoot(ctx, c.system, system, d, uefi, c.powerOf(system.body)); err != nil {
		return err
	}
	kept, err := c.keepsBoot(ctx, d, uefi)
	if err == nil && !kept {
		return failf(ErrLied, "the override read back is not the one that was set")
	}
	return err
}

func settingsPath(system object) string {
	p := system.obj("@Redfish.Settings").obj("SettingsObject").str("@odata.id")
	if !strings.HasPrefix(p, "/") {
		return ""
	}
	return p
}

// patchBoot sets the override on the resource at path, whose last GET is res. A service may want the ETag of that GET, the
// mode, or not the mode; each of these is tried once, and only when the service says so.
func (c *rfConn) patchBoot(ctx context.Context, path string, res rfAnswer, d Device, uefi bool, now Power) error {
	current := res.body.obj("Boot").str(rfMode)
	override := map[string]string{rfEnabled: string(redfish.OnceBootSourceOverrideEnabled), rfTarget: string(rfTargets[d])}
	if d == DeviceNone {
		override[rfEnabled] = string(redfish.DisabledBootSourceOverrideEnabled)
	} else if current != "" && current != rfModeOf(uefi) {
		override[rfMode] = rfModeOf(uefi)
	}
	remoded := false
	for {
		a, err := c.patch(ctx, path, res, map[string]any{"Boot": override})
		switch {
		case err != nil:
			return err
		case a.ok():
			return nil
		case a.status == http.StatusBadRequest && !remoded && a.about(rfMode):
			remoded = true
			if _, has := override[rfMode]; has {
				delete(override, rfMode)
			} else {
				override[rfMode] = rfModeOf(uefi)
				if d == DeviceNone && current != "" {
					override[rfMode] = current
				}
			}
		case a.status == http.StatusBadRequest && d == DeviceNone && override[rfTarget] != "":
			delete(override, rfTarget) // nothing to aim at
		case now == Off && (a.status == http.StatusInternalServerError || a.status == http.StatusConflict):
			return failf(ErrOff, "HTTP %d", a.status)
		default:
			return a.refusal()
		}
	}
}

// about reports whether a refusal is about a property, or does not say what it is about.
func (a rfAnswer) about(property string) bool {
	said := false
	for _, m := range a.messages() {
		related, ok := m.strs("RelatedProperties")
		args, _ := m.strs("MessageArgs")
		for _, p := range append(related, args...) {
			if strings.HasSuffix(p, property) {
				return true
			}
		}
		said = said || ok && len(related) > 0
	}
	return !said
}

// keepsBoot reports whether the next start will see the override: the system shows it, or its settings resource does. To
// see none, neither may show one.
func (c *rfConn) keepsBoot(ctx context.Context, d Device, uefi bool) (bool, error) {
	system, err := c.read(ctx, c.system)
	if err != nil {
		return false, err
	}
	shows := showsBoot(system.body.obj("Boot"), d, uefi)
	settings := settingsPath(system.body)
	if settings == "" || shows != (d == DeviceNone) {
		return shows, nil
	}
	pending, err := c.read(ctx, settings)
	switch {
	case isAny(err, ErrUnreachable, ErrCredentials, ErrLocked):
		return false, err
	case err != nil || !pending.body.has("Boot"): // it has no say
		return shows, nil
	}
	return showsBoot(pending.body.obj("Boot"), d, uefi), nil
}

// showsBoot reports whether a Boot object holds the override. A mode that is not told is not held against it.
func showsBoot(boot object, d Device, uefi bool) bool {
	enabled, target, mode := boot.str(rfEnabled), boot.str(rfTarget), boot.str(rfMode)
	if d == DeviceNone {
		return enabled == string(redfish.DisabledBootSourceOverrideEnabled) || target == string(redfish.NoneBootSourceOverrideTarget)
	}
	return enabled == string(redfish.OnceBootSourceOverrideEnabled) && target == string(rfTargets[d]) && (mode == "" || mode == rfModeOf(uefi))
}

func (a rfAnswer) wantsETag() bool {
	return a.status == http.StatusPreconditionRequired || a.status == http.StatusPreconditionFailed
}

// ifMatch is the ETag of an answer as a header, that of the header before that of the body, or nil where there is none.
func ifMatch(a rfAnswer) http.Header {
	tag := a.header.Get("ETag")
	if tag == "" {
		tag = a.body.str("@odata.etag")
	}
	if tag == "" {
		return nil
	}
	return http.Header{"If-Match": {tag}}
}
