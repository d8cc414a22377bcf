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

	rfUEFIPath = "UefiTargetBootSourceOverride"
)

var rfTargets = map[Device]redfish.BootSourceOverrideTarget{
	DevicePXE:   redfish.PxeBootSourceOverrideTarget,
	DeviceDisk:  redfish.HddBootSourceOverrideTarget,
	DeviceMedia: redfish.CdBootSourceOverrideTarget,
	DeviceNone:  redfish.NoneBootSourceOverrideTarget,
}

// rfTarget is what the override is aimed at.
func (o override) rfTarget() redfish.BootSourceOverrideTarget {
	switch o.method {
	case BootTarget:
		return redfish.UefiTargetBootSourceOverrideTarget
	case BootHTTP:
		return redfish.UefiHTTPBootSourceOverrideTarget
	}
	return rfTargets[o.device]
}

func (o override) rfEnabled() redfish.BootSourceOverrideEnabled {
	switch {
	case o.device == DeviceNone:
		return redfish.DisabledBootSourceOverrideEnabled
	case o.persistent():
		return redfish.ContinuousBootSourceOverrideEnabled
	}
	return redfish.OnceBootSourceOverrideEnabled
}

// networkOption is the UEFI path of the first boot option that is a network card's own PXE.
func (c *rfConn) networkOption(ctx context.Context, boot object) (string, error) {
	list := boot.obj("BootOptions").str("@odata.id")
	if list == "" {
		return "", failf(ErrUnsupported, "this BMC shows no boot options")
	}
	found := ""
	_, err := each(ctx, c, list, 64, func(r resource) bool {
		p := r.body.str("UefiDevicePath")
		if strings.Contains(p, "MAC(") && strings.Contains(p, "IPv4(") && !strings.Contains(p, "Uri(") && r.body.flag("BootOptionEnabled", true) {
			found = p
		}
		return found == ""
	})
	if err == nil && found == "" {
		return "", failf(ErrUnsupported, "no boot option of this BMC is a network card")
	}
	return found, err
}

func (o override) rfMode() string {
	if o.asUEFI() {
		return string(redfish.UEFIBootSourceOverrideMode)
	}
	return string(redfish.LegacyBootSourceOverrideMode)
}

// setBoot sets the override where the service wants it set, its settings resource first, and believes what it reads after.
func (c *rfConn) setBoot(ctx context.Context, o override) error {
	system, err := c.read(ctx, c.system)
	if err != nil {
		return err
	}
	boot := system.body.obj("Boot")
	if allowed, told := boot.strs(rfTarget + "@Redfish.AllowableValues"); told && o.device != DeviceNone && !slices.Contains(allowed, string(o.rfTarget())) {
		return failf(ErrUnsupported, "this BMC cannot boot from %s by %s", o.device, o.rfTarget())
	}
	uefiPath := ""
	if o.method == BootTarget {
		if uefiPath, err = c.networkOption(ctx, boot); err != nil {
			return err
		}
	}
	if settings := settingsPath(system.body); settings != "" {
		res, err := c.read(ctx, settings)
		if err == nil && res.body.has("Boot") {
			err = c.patchBoot(ctx, settings, res, o, uefiPath, c.powerOf(system.body))
			if err == nil {
				if kept, err := c.keepsBoot(ctx, o); err != nil || kept {
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
	if err := c.patchBoot(ctx, c.system, system, o, uefiPath, c.powerOf(system.body)); err != nil {
		return err
	}
	kept, err := c.keepsBoot(ctx, o)
	if err == nil && !kept {
		return c.notKept(ctx, o)
	}
	return err
}

// notKept words what is there instead of the override that was set.
func (c *rfConn) notKept(ctx context.Context, o override) error {
	if system, err := c.read(ctx, c.system); err == nil {
		boot := system.body.obj("Boot")
		if mode := boot.str(rfMode); mode != "" && mode != o.rfMode() && boot.str(rfTarget) == string(o.rfTarget()) {
			return failf(ErrLied, "the boot mode stays %s, and %s was asked for: does the machine's record say how its firmware boots?", clip(mode, 20), o.rfMode())
		}
	}
	return failf(ErrLied, "the override read back is not the one that was set")
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
func (c *rfConn) patchBoot(ctx context.Context, path string, res rfAnswer, o override, uefiPath string, now Power) error {
	current := res.body.obj("Boot").str(rfMode)
	override := map[string]string{rfEnabled: string(o.rfEnabled()), rfTarget: string(o.rfTarget())}
	if uefiPath != "" {
		override[rfUEFIPath] = uefiPath
	}
	if o.device != DeviceNone && current != "" && current != o.rfMode() {
		override[rfMode] = o.rfMode()
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
				override[rfMode] = o.rfMode()
				if o.device == DeviceNone && current != "" {
					override[rfMode] = current
				}
			}
		case a.status == http.StatusBadRequest && o.device == DeviceNone && override[rfTarget] != "":
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
func (c *rfConn) keepsBoot(ctx context.Context, o override) (bool, error) {
	system, err := c.read(ctx, c.system)
	if err != nil {
		return false, err
	}
	shows := showsBoot(system.body.obj("Boot"), o)
	settings := settingsPath(system.body)
	if settings == "" || shows != (o.device == DeviceNone) {
		return shows, nil
	}
	pending, err := c.read(ctx, settings)
	switch {
	case isAny(err, ErrUnreachable, ErrCredentials, ErrLocked):
		return false, err
	case err != nil || !pending.body.has("Boot"): // it has no say
		return shows, nil
	}
	return showsBoot(pending.body.obj("Boot"), o), nil
}

// showsBoot reports whether a Boot object holds the override. A mode that is not told is not held against it.
func showsBoot(boot object, o override) bool {
	enabled, target, mode := boot.str(rfEnabled), boot.str(rfTarget), boot.str(rfMode)
	if o.device == DeviceNone {
		return enabled == string(redfish.DisabledBootSourceOverrideEnabled) || target == string(redfish.NoneBootSourceOverrideTarget)
	}
	return enabled == string(o.rfEnabled()) && target == string(o.rfTarget()) && (mode == "" || mode == o.rfMode())
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
