package bmctest

import (
	"net/http"
	"path"
	"strings"
)

// Values of profile.hostAccess: whose switch it is.
const (
	hostDell       = "dell"       // an attribute of the manager
	hostHPE        = "hpe"        // a property of NetworkProtocol
	hostSupermicro = "supermicro" // a resource of its own, beside the HostInterface
)

// dellLocal is the attribute by which iDRACs shut local configuration. Enabled is shut.
const dellLocal = "LocalSecurity.1.LocalConfig"

// linkHost puts the links to the switches into the manager.
func (r *Redfish) linkHost(manager doc) {
	m := r.p.manager
	switch r.p.hostAccess {
	case hostDell:
		links, _ := manager["Links"].(doc)
		oem, ok := links["Oem"].(doc)
		if !ok {
			oem = doc{}
			links["Oem"] = oem
		}
		dell, ok := oem["Dell"].(doc)
		if !ok {
			dell = doc{}
			oem["Dell"] = dell
		}
		dell["DellAttributes"] = []doc{link(m + "/Oem/Dell/DellAttributes/" + path.Base(m))}
	case hostSupermicro:
		manager["Oem"] = doc{"Supermicro": doc{"KCSInterface": link(m + "/Oem/Supermicro/KCSInterface")}}
		manager["HostInterfaces"] = link(m + "/HostInterfaces")
	case "":
		manager["HostInterfaces"] = link(m + "/HostInterfaces")
	}
}

// hostSwitches is the state of the switches as the service shows them: two on some.
type hostSwitches struct{ iface, kcs bool } // shut

// serveHost serves the switches of the host's own ways to this BMC. The board's way is shut when all of them are.
func (r *Redfish) serveHost() {
	m := r.p.manager
	r.mux.HandleFunc("GET "+m+"/HostInterfaces", func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, collection(m+"/HostInterfaces/1"))
	})
	r.hostSwitch(m+"/HostInterfaces/1", func(s *hostSwitches) *bool { return &s.iface }, func(shut bool) doc {
		return doc{"@odata.type": "#HostInterface.v1_3_0.HostInterface", "Id": "1", "Name": "Host Interface", "InterfaceEnabled": !shut}
	}, func(in doc) (shut, given bool) { v, ok := in["InterfaceEnabled"].(bool); return !v, ok })
	kcs := func(s *hostSwitches) *bool { return &s.kcs }
	switch r.p.hostAccess {
	case hostSupermicro:
		r.hostSwitch(m+"/Oem/Supermicro/KCSInterface", kcs, func(shut bool) doc {
			return doc{"Id": "KCSInterface", "Name": "KCS Interface", "Privilege": map[bool]string{true: "Callback", false: "Administrator"}[shut]}
		}, func(in doc) (shut, given bool) { v, ok := in["Privilege"].(string); return v == "Callback", ok })
	case hostDell:
		r.hostSwitch(m+"/Oem/Dell/DellAttributes/"+path.Base(m), kcs, func(shut bool) doc {
			return doc{"Id": path.Base(m), "Attributes": doc{dellLocal: map[bool]string{true: "Enabled", false: "Disabled"}[shut], "Lockdown.1.SystemLockdown": "Disabled"}}
		}, func(in doc) (shut, given bool) {
			attributes, _ := in["Attributes"].(map[string]any)
			v, ok := attributes[dellLocal].(string)
			return v == "Enabled", ok
		})
	case hostHPE:
		r.mux.HandleFunc("PATCH "+m+"/NetworkProtocol", func(w http.ResponseWriter, req *http.Request) {
			r.patchHost(w, req, kcs, func(in doc) (shut, given bool) {
				oem, _ := in["Oem"].(map[string]any)
				hpe, _ := oem["Hpe"].(map[string]any)
				v, ok := hpe["KcsEnabled"].(bool)
				return !v, ok
			})
		})
	}
}

// hostSwitch serves one switch as a resource.
func (r *Redfish) hostSwitch(at string, which func(*hostSwitches) *bool, shown func(shut bool) doc, read func(doc) (shut, given bool)) {
	r.mux.HandleFunc("GET "+at, func(w http.ResponseWriter, req *http.Request) { r.show(w, req, shown(r.hostShut(which))) })
	r.mux.HandleFunc("PATCH "+at, func(w http.ResponseWriter, req *http.Request) { r.patchHost(w, req, which, read) })
}

func (r *Redfish) hostShut(which func(*hostSwitches) *bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *which(&r.host)
}

func (r *Redfish) patchHost(w http.ResponseWriter, req *http.Request, which func(*hostSwitches) *bool, read func(doc) (shut, given bool)) {
	var in doc
	if !decode(w, req, &in) || !r.matches(w, req) {
		return
	}
	shut, given := read(in)
	if !given {
		fail(w, http.StatusBadRequest, "Base.1.18.PropertyUnknown", "The property is not known.")
		return
	}
	fault := r.fault()
	r.mu.Lock()
	if !fault.DropHost && (fault.DropHostAt == "" || !strings.HasSuffix(req.URL.Path, fault.DropHostAt)) {
		*which(&r.host) = shut
	}
	now := r.host
	r.mu.Unlock()
	all := now.kcs || now.iface
	if r.p.hostAccess == hostSupermicro {
		all = now.kcs && now.iface
	}
	if !fault.KeepHost {
		r.Board.SetHostAccess(!all)
	}
	w.WriteHeader(http.StatusNoContent)
}

// hostProtocol adds a switch that is part of NetworkProtocol.
func (r *Redfish) hostProtocol(out doc) {
	if r.p.hostAccess == hostHPE {
		out["Oem"] = doc{"Hpe": doc{"KcsEnabled": !r.hostShut(func(s *hostSwitches) *bool { return &s.kcs })}}
	}
}
