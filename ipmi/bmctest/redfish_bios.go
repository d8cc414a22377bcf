package bmctest

import (
	"maps"
	"net/http"
	"strconv"

	"github.com/bareyard/bareyard/ipmi"
)

const (
	rfRegistries = "/redfish/v1/Registries"
	rfRegistry   = "BiosAttributeRegistry.1.0.0"
)

// rfJob is a job that will put settings into force at the next start.
type rfJob struct {
	id       string
	settings map[string]any
	done     bool
	failed   bool
}

// serveBIOS serves the firmware settings, their settings resource, the registry that says what there is, and jobs.
func (r *Redfish) serveBIOS() {
	bios := r.p.system + "/Bios"
	r.waiting, r.staged = map[string]any{}, map[string]any{}
	r.mux.HandleFunc("GET "+bios, func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, doc{"@odata.type": "#Bios.v1_2_1.Bios", "Id": "Bios", "Name": "BIOS Settings", "AttributeRegistry": rfRegistry, "Attributes": r.Board.BIOS(),
			"@Redfish.Settings": doc{"@odata.type": "#Settings.v1_3_0.Settings", "SettingsObject": link(bios + "/Settings"), "SupportedApplyTimes": []string{"OnReset"}}})
	})
	r.mux.HandleFunc("GET "+bios+"/Settings", func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		attributes := r.Board.BIOS()
		maps.Copy(attributes, r.staged)
		maps.Copy(attributes, r.waiting)
		r.mu.Unlock()
		r.show(w, req, doc{"@odata.type": "#Bios.v1_2_1.Bios", "Id": "Settings", "Name": "BIOS Settings", "AttributeRegistry": rfRegistry, "Attributes": attributes})
	})
	r.mux.HandleFunc("PATCH "+bios+"/Settings", r.patchBIOS)
	r.mux.HandleFunc("POST "+r.p.manager+"/Jobs", func(w http.ResponseWriter, req *http.Request) {
		var in struct{ TargetSettingsURI string }
		if !decode(w, req, &in) {
			return
		}
		r.mu.Lock()
		staged := r.staged
		r.staged = map[string]any{}
		r.mu.Unlock()
		if !r.fault().BIOSNeedsJob || in.TargetSettingsURI != bios+"/Settings" || len(staged) == 0 {
			fail(w, http.StatusBadRequest, "IDRAC.2.8.SYS428", "No pending data for the settings.")
			return
		}
		w.Header().Set("Location", r.p.manager+"/Jobs/"+r.job(staged))
		w.WriteHeader(http.StatusAccepted)
	})
	for _, at := range []string{r.p.manager + "/Jobs", rfTasks} {
		r.mux.HandleFunc("GET "+at+"/{id}", r.getJob)
	}
	r.mux.HandleFunc("GET "+rfRegistries, func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, collection(rfRegistries+"/"+rfRegistry))
	})
	r.mux.HandleFunc("GET "+rfRegistries+"/"+rfRegistry, func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, doc{"@odata.type": "#MessageRegistryFile.v1_1_3.MessageRegistryFile", "Id": rfRegistry, "Name": "BIOS", "Registry": rfRegistry,
			"Location": []doc{{"Language": "en", "Uri": rfRegistries + "/" + rfRegistry + "/file.json"}}})
	})
	r.mux.HandleFunc("GET "+rfRegistries+"/"+rfRegistry+"/file.json", func(w http.ResponseWriter, req *http.Request) {
		list := []doc{}
		for name, value := range r.Board.BIOS() {
			a := doc{"AttributeName": name, "ReadOnly": false, "ResetRequired": true}
			switch value.(type) {
			case bool:
				a["Type"] = "Boolean"
			case int64:
				a["Type"], a["LowerBound"], a["UpperBound"] = "Integer", 0, 16
			case nil:
				a["Type"] = "Password"
			default:
				a["Type"] = "Enumeration"
				values := []doc{{"ValueName": "Enabled"}, {"ValueName": "Disabled"}}
				if name == "BootMode" {
					values = []doc{{"ValueName": "Uefi"}, {"ValueName": "Bios"}}
				}
				a["Value"] = values
			}
			list = append(list, a)
		}
		r.show(w, req, doc{"@odata.type": "#AttributeRegistry.v1_3_6.AttributeRegistry", "Id": rfRegistry, "Name": "BIOS", "RegistryEntries": doc{"Attributes": list}})
	})
}

func (r *Redfish) patchBIOS(w http.ResponseWriter, req *http.Request) {
	var in struct{ Attributes map[string]any }
	if !decode(w, req, &in) || !r.matches(w, req) {
		return
	}
	now := r.Board.BIOS()
	for name, value := range in.Attributes {
		if _, ok := now[name]; !ok {
			fail(w, http.StatusBadRequest, "Base.1.18.PropertyUnknown", "The property "+name+" is not known.", "#/Attributes/"+name)
			return
		}
		if name == r.fault().BIOSRefuses {
			fail(w, http.StatusBadRequest, "Base.1.18.PropertyValueConflict", "The property "+name+" could not be written while Secure Boot is on.", "#/Attributes/"+name)
			return
		}
		if f, ok := value.(float64); ok {
			in.Attributes[name] = int64(f)
		}
	}
	if r.fault().BIOSNeedsJob {
		r.mu.Lock()
		maps.Copy(r.staged, in.Attributes)
		r.mu.Unlock()
		reply(w, http.StatusOK, doc{"@Message.ExtendedInfo": []doc{{"MessageId": "IDRAC.2.8.SYS410", "Message": "The operation is successfully completed."}}})
		return
	}
	id := r.job(in.Attributes)
	switch place := r.Faults.Now().TaskPlace; place {
	case "":
		w.Header().Set("Location", rfTasks+"/"+id)
	case "absolute":
		scheme := "http://"
		if req.TLS != nil {
			scheme = "https://"
		}
		w.Header().Set("Location", scheme+req.Host+rfTasks+"/"+id)
	}
	w.WriteHeader(http.StatusAccepted)
}

// job makes a job of settings.
func (r *Redfish) job(settings map[string]any) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := "JID_" + strconv.Itoa(len(r.jobs)+1)
	r.jobs = append(r.jobs, &rfJob{id: id, settings: settings})
	maps.Copy(r.waiting, settings)
	return id
}

func (r *Redfish) getJob(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		if j.id != req.PathValue("id") {
			continue
		}
		out := doc{"@odata.id": req.URL.Path, "@odata.type": "#Task.v1_7_3.Task", "Id": j.id, "Name": "Configure: BIOS", "TaskState": "Pending", "TaskStatus": "OK", "PercentComplete": 0}
		switch {
		case j.done && r.Faults.Now().TaskGone:
			missing(w)
			return
		case j.failed:
			out["TaskState"], out["TaskStatus"], out["PercentComplete"] = "Completed", "Critical", 100
			out["Messages"] = []doc{{"MessageId": "IDRAC.2.8.JCP052", "Message": "Job made no progress."}}
		case j.done:
			out["TaskState"], out["PercentComplete"] = "Completed", 100
		}
		reply(w, http.StatusOK, out)
		return
	}
	missing(w)
}

// setUp plays the firmware, which takes up its settings at a start.
func (r *Redfish) setUp(op ipmi.Op, wasOn bool) {
	if !boots(op, wasOn) {
		return
	}
	fault := r.Faults.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		if j.done {
			continue
		}
		j.done, j.failed = true, fault.BIOSJobFails
		if fault.BIOSJobFails || fault.BIOSDropped {
			continue
		}
		for name, value := range j.settings {
			r.Board.SetBIOS(name, value)
		}
	}
	r.waiting = map[string]any{}
}
