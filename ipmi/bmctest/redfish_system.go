package bmctest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"

	"github.com/bareyard/bareyard/ipmi"
)

// rfBoot is the Boot object of a ComputerSystem.
type rfBoot struct{ Enabled, Target, Mode string }

var rfTargets = []string{"None", "Pxe", "Hdd", "Cd", "UefiTarget", "UefiHttp"}

// nicPath is the UEFI path of the network card.
const nicPath = "PciRoot(0x0)/Pci(0x1C,0x0)/Pci(0x0,0x0)/MAC(02005E102030,0x0)/IPv4(0.0.0.0)"

// rfOps maps reset types to operations. GracefulRestart is a hard reset here, as on some real machines.
var rfOps = map[string]ipmi.Op{
	"On": ipmi.OpOn, "ForceOn": ipmi.OpOn, "ForceOff": ipmi.OpOff, "GracefulShutdown": ipmi.OpSoft, "ForceRestart": ipmi.OpReset,
	"GracefulRestart": ipmi.OpReset, "PowerCycle": ipmi.OpCycle, "PushPowerButton": "", "Nmi": "",
}

var rfResets = []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "PowerCycle", "PushPowerButton"}

func (r *Redfish) allowed() []string {
	if t := r.Faults.Now().ResetTypes; t != nil {
		return t
	}
	return rfResets
}

func (b rfBoot) doc() doc {
	return doc{
		"BootSourceOverrideEnabled": b.Enabled, "BootSourceOverrideTarget": b.Target, "BootSourceOverrideMode": b.Mode,
		"BootSourceOverrideTarget@Redfish.AllowableValues": rfTargets,
	}
}

func (r *Redfish) getSystem(w http.ResponseWriter, req *http.Request) {
	on, lost, err := r.front.power(req.Context())
	if err != nil {
		fail(w, http.StatusInternalServerError, "Base.1.18.InternalError", "The power state cannot be read.")
		return
	}
	if lost {
		panic(http.ErrAbortHandler)
	}
	fault, id := r.fault(), r.Chassis.Identity()
	state := "Off"
	if on {
		state = "On"
	}
	reset := doc{"target": r.p.system + "/Actions/ComputerSystem.Reset"}
	switch fault.ResetList {
	case "":
		reset["ResetType@Redfish.AllowableValues"] = r.allowed()
	case "actioninfo":
		reset["@Redfish.ActionInfo"] = r.p.system + "/ResetActionInfo"
	}
	r.mu.Lock()
	boot := r.boot.doc()
	r.mu.Unlock()
	boot["BootOptions"], boot["BootOrder"] = link(r.p.system+"/BootOptions"), []string{"Boot0001", "Boot0003"}
	out := doc{
		"@odata.id": r.p.system, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": path.Base(r.p.system), "Name": "System",
		"SystemType": "Physical", "Manufacturer": r.p.manufacturer, "BiosVersion": r.Board.version("BIOS"), "AssetTag": "", "Model": id.Model, "SerialNumber": id.Serial, "UUID": id.UUID,
		"PowerState": state, "Boot": boot, "Status": doc{"State": "Enabled", "Health": "OK"},
		"ProcessorSummary": doc{"Count": 1}, "MemorySummary": doc{"TotalSystemMemoryGiB": 1},
		"EthernetInterfaces": link(r.p.system + "/EthernetInterfaces"), "Bios": link(r.p.system + "/Bios"),
		"Links":       doc{"Chassis": []doc{link(r.p.chassis)}, "ManagedBy": []doc{link(r.p.manager)}},
		"LogServices": link(r.p.system + "/LogServices"),
		"Actions":     doc{"#ComputerSystem.Reset": reset},
	}
	if r.p.mediaUnderSystem {
		out["VirtualMedia"] = link(r.mediaPath())
	}
	if fault.SettingsBoot {
		out["@Redfish.Settings"] = doc{"@odata.type": "#Settings.v1_3_0.Settings", "SettingsObject": link(r.p.system + "/Settings")}
	}
	if fault.OddTypes {
		out["Status"], out["UUID"], out["SerialNumber"] = "OK", nil, 123
		out["ProcessorSummary"], out["MemorySummary"] = doc{"Count": "2"}, doc{"TotalSystemMemoryGiB": nil}
		out["Location"], out["Links"] = doc{"PartLocation": []any{}}, []any{}
	}
	if fault.RequireETag {
		r.stamp(w, req, out, fault)
	}
	if fault.OddTypes {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("\ufeff"))
		_ = json.NewEncoder(w).Encode(out)
		return
	}
	reply(w, http.StatusOK, out)
}

// stamp gives a resource a new ETag.
func (r *Redfish) stamp(w http.ResponseWriter, req *http.Request, out doc, fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.etags == nil {
		r.etags = map[string]int{}
	}
	r.etags[req.URL.Path]++
	if fault.ETagInBody {
		out["@odata.etag"] = r.tag(req)
		return
	}
	w.Header().Set("ETag", r.tag(req))
}

// tag is the ETag of a resource. r.mu is held.
func (r *Redfish) tag(req *http.Request) string {
	return fmt.Sprintf(`"%d"`, 1689255908+r.etags[req.URL.Path])
}

// matches checks If-Match, and answers the request when it does not do.
func (r *Redfish) matches(w http.ResponseWriter, req *http.Request) bool {
	got := req.Header.Get("If-Match")
	stale := r.Faults.take(func(f *Fault) bool {
		if f.StaleETags > 0 {
			f.StaleETags--
			return true
		}
		return false
	})
	needed := r.fault().RequireETag
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ifMatch = append(r.ifMatch, got)
	if stale && r.etags != nil {
		r.etags[req.URL.Path]++
	}
	if !needed {
		return true
	}
	switch got {
	case "":
		fail(w, http.StatusPreconditionRequired, "Base.1.18.PreconditionHeaderMissing", "The request needs an If-Match header.")
		return false
	case r.tag(req):
		return true
	}
	fail(w, http.StatusPreconditionFailed, "Base.1.18.PreconditionFailed", "The ETag does not match.")
	return false
}

// booted plays the firmware, which uses an override up.
func (r *Redfish) booted(op ipmi.Op, wasOn bool) {
	r.setUp(op, wasOn)
	if !boots(op, wasOn) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = nil
	if r.boot.Enabled == "Once" {
		r.boot.Enabled, r.boot.Target = "Disabled", "None"
	}
}

func (r *Redfish) getActionInfo(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, doc{
		"@odata.id": r.p.system + "/ResetActionInfo", "@odata.type": "#ActionInfo.v1_3_0.ActionInfo", "Id": "ResetActionInfo", "Name": "Reset Action Info",
		"Parameters": []doc{{"Name": "ResetType", "Required": true, "DataType": "String", "AllowableValues": r.allowed()}},
	})
}

func (r *Redfish) postReset(w http.ResponseWriter, req *http.Request) {
	var in struct{ ResetType string }
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, "Base.1.18.MalformedJSON", "The request body could not be parsed.")
		return
	}
	r.mu.Lock()
	r.resets = append(r.resets, in.ResetType)
	r.mu.Unlock()
	op, known := rfOps[in.ResetType]
	if !known || !slices.Contains(r.allowed(), in.ResetType) {
		fail(w, http.StatusBadRequest, "Base.1.18.ActionParameterNotSupported", "The reset type is not supported.", "#/ResetType")
		return
	}
	on, err := r.Chassis.Power(req.Context())
	if err != nil {
		fail(w, http.StatusInternalServerError, "Base.1.18.InternalError", "The power state cannot be read.")
		return
	}
	if !on && (op == ipmi.OpReset || op == ipmi.OpCycle) {
		status := http.StatusConflict
		if r.Faults.Now().ResetWhenOff500 {
			status = http.StatusInternalServerError
		}
		fail(w, status, "Base.1.18.OperationNotAllowed", "The host is off.")
		return
	}
	switch {
	case in.ResetType == "PushPowerButton" && on:
		op = ipmi.OpSoft
	case in.ResetType == "PushPowerButton":
		op = ipmi.OpOn
	}
	if op != "" {
		if err := r.front.setPower(req.Context(), op); err != nil {
			fail(w, http.StatusServiceUnavailable, "Base.1.18.ServiceTemporarilyUnavailable", "Try later.")
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}
