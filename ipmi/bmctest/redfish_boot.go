package bmctest

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/bareyard/bareyard/ipmi"
)

func (r *Redfish) getSettings(w http.ResponseWriter, req *http.Request) {
	fault := r.fault()
	if !fault.SettingsBoot {
		fail(w, http.StatusNotFound, "Base.1.18.ResourceMissingAtURI", "The resource was not found.")
		return
	}
	r.mu.Lock()
	b := r.boot
	if r.pending != nil {
		b = *r.pending
	}
	r.mu.Unlock()
	out := doc{"@odata.id": r.p.system + "/Settings", "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": "Settings", "Name": "System", "Boot": b.doc()}
	if fault.RequireETag {
		r.stamp(w, req, out, fault)
	}
	reply(w, http.StatusOK, out)
}

func (r *Redfish) patchSystem(w http.ResponseWriter, req *http.Request) {
	r.patchBoot(w, req, r.fault().SettingsBoot)
}

func (r *Redfish) patchSettings(w http.ResponseWriter, req *http.Request) {
	if !r.fault().SettingsBoot {
		fail(w, http.StatusNotFound, "Base.1.18.ResourceMissingAtURI", "The resource was not found.")
		return
	}
	r.patchBoot(w, req, false)
}

// patchBoot takes a boot override; drop accepts it and forgets it.
func (r *Redfish) patchBoot(w http.ResponseWriter, req *http.Request, drop bool) {
	const enabled, target, mode = "BootSourceOverrideEnabled", "BootSourceOverrideTarget", "BootSourceOverrideMode"
	var in struct{ Boot map[string]string }
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, "Base.1.18.MalformedJSON", "The request body could not be parsed.")
		return
	}
	if !r.matches(w, req) {
		return
	}
	fault := r.fault()
	on, err := r.Chassis.Power(req.Context())
	if err != nil || !on && fault.RefuseBootOff {
		fail(w, http.StatusInternalServerError, "Base.1.18.InternalError", "The request failed due to an internal service error.")
		return
	}
	m, hasMode := in.Boot[mode]
	switch {
	case hasMode && fault.Mode == ModeReadOnly:
		fail(w, http.StatusBadRequest, "Base.1.18.PropertyNotWritable", "The property is read only.", "#/Boot/"+mode)
		return
	case !hasMode && fault.Mode == ModeRequired:
		fail(w, http.StatusBadRequest, "Base.1.18.PropertyMissing", "The property is required.", "#/Boot/"+mode)
		return
	case in.Boot[target] == "UefiTarget" && in.Boot["UefiTargetBootSourceOverride"] != nicPath:
		fail(w, http.StatusBadRequest, "Base.1.18.PropertyValueNotInList", "The device path is not known.", "#/Boot/UefiTargetBootSourceOverride")
		return
	case in.Boot[target] != "" && !slices.Contains(rfTargets, in.Boot[target]):
		fail(w, http.StatusBadRequest, "Base.1.18.PropertyValueNotInList", "The value is not in the list.", "#/Boot/"+target)
		return
	case fault.DropBoot || drop:
		w.WriteHeader(http.StatusOK)
		return
	}
	r.mu.Lock()
	b := r.boot
	if v, ok := in.Boot[enabled]; ok {
		b.Enabled = v
	}
	if v, ok := in.Boot[target]; ok {
		b.Target = v
	}
	if hasMode {
		b.Mode = m
	}
	if b.Enabled == "Disabled" {
		b.Target = "None"
	}
	if fault.SettingsBoot {
		r.pending = &b
	} else {
		r.boot = b
	}
	r.mu.Unlock()
	boot := b.boot()
	if fault.ignores(boot, map[string]string{"UefiTarget": IgnoreTarget, "UefiHttp": IgnoreHTTP}[b.Target]) {
		boot = Boot{Device: ipmi.DeviceNone}
	}
	if err := r.Chassis.SetNextBoot(req.Context(), boot); err != nil {
		fail(w, http.StatusInternalServerError, "Base.1.18.InternalError", "The override cannot be set.")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (b rfBoot) boot() Boot {
	out := Boot{Device: ipmi.DeviceNone}
	if b.Enabled == "Disabled" {
		return out
	}
	switch b.Target {
	case "Pxe", "UefiTarget", "UefiHttp":
		out.Device = ipmi.DevicePXE
	case "Hdd":
		out.Device = ipmi.DeviceDisk
	case "Cd":
		out.Device = ipmi.DeviceMedia
	default:
		return out
	}
	out.Once, out.UEFI = b.Enabled == "Once", b.Mode == "UEFI"
	return out
}
