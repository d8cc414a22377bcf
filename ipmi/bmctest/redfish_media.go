package bmctest

import (
	"net/http"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
)

// rfMedia is a virtual drive.
type rfMedia struct {
	id    string
	types []string
	image string
}

func (r *Redfish) mediaPath() string {
	if r.p.mediaUnderSystem {
		return r.p.system + "/VirtualMedia"
	}
	return r.p.manager + "/VirtualMedia"
}

func (r *Redfish) serveMedia() {
	for i, id := range r.p.media {
		types := []string{"Floppy", "USBStick"}
		if i == len(r.p.media)-1 {
			types = []string{"CD", "DVD"}
		}
		r.media = append(r.media, &rfMedia{id: id, types: types})
	}
	at := r.mediaPath()
	r.mux.HandleFunc("GET "+at, func(w http.ResponseWriter, req *http.Request) {
		var paths []string
		for _, id := range r.p.media {
			paths = append(paths, at+"/"+id)
		}
		r.show(w, req, collection(paths...))
	})
	r.mux.HandleFunc("GET "+at+"/{id}", func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		m := r.drive(req.PathValue("id"))
		var out doc
		if m != nil {
			out = doc{"@odata.type": "#VirtualMedia.v1_6_0.VirtualMedia", "Id": m.id, "Name": "Virtual Media", "MediaTypes": m.types, "Image": nil, "Inserted": m.image != "",
				"WriteProtected": true, "ConnectedVia": "NotConnected"}
			if m.image != "" {
				out["Image"], out["ConnectedVia"] = m.image, "URI"
			}
			if !r.Faults.Now().MediaPatchOnly {
				out["Actions"] = doc{"#VirtualMedia.InsertMedia": doc{"target": at + "/" + m.id + "/Actions/VirtualMedia.InsertMedia"},
					"#VirtualMedia.EjectMedia": doc{"target": at + "/" + m.id + "/Actions/VirtualMedia.EjectMedia"}}
			}
		}
		r.mu.Unlock()
		if out == nil {
			missing(w)
			return
		}
		r.show(w, req, out)
	})
	insert := func(w http.ResponseWriter, req *http.Request, image string) {
		fault := r.Faults.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		m := r.drive(req.PathValue("id"))
		switch {
		case m == nil:
			missing(w)
		case fault.MediaRefused || image != "" && !strings.HasPrefix(image, "http"):
			fail(w, http.StatusBadRequest, "Base.1.18.ActionParameterValueFormatError", "The image "+image+" is not supported.", "#/Image")
		case image != "" && m.image != "":
			fail(w, http.StatusBadRequest, "Base.1.18.ResourceInUse", "The drive is in use.")
		default:
			if !fault.MediaIgnored {
				m.image = image
			}
			w.WriteHeader(http.StatusNoContent)
		}
	}
	r.mux.HandleFunc("POST "+at+"/{id}/Actions/VirtualMedia.InsertMedia", func(w http.ResponseWriter, req *http.Request) {
		var in struct{ Image string }
		if decode(w, req, &in) {
			insert(w, req, in.Image)
		}
	})
	r.mux.HandleFunc("POST "+at+"/{id}/Actions/VirtualMedia.EjectMedia", func(w http.ResponseWriter, req *http.Request) { insert(w, req, "") })
	r.mux.HandleFunc("PATCH "+at+"/{id}", func(w http.ResponseWriter, req *http.Request) {
		var in struct{ Image *string }
		if !decode(w, req, &in) || !r.matches(w, req) {
			return
		}
		image := ""
		if in.Image != nil {
			image = *in.Image
		}
		insert(w, req, image)
	})
}

// Disc is the URL of the image in the virtual CD drive, or "".
func (r *Redfish) Disc() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.media {
		if m.image != "" {
			return m.image
		}
	}
	return ""
}

// Leave puts an image into the virtual CD drive, as somebody before us did.
func (r *Redfish) Leave(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.media[len(r.media)-1].image = image
}

// drive is the virtual drive of an ID, or nil. r.mu is held.
func (r *Redfish) drive(id string) *rfMedia {
	for _, m := range r.media {
		if m.id == id {
			return m
		}
	}
	return nil
}

// Image is what the virtual CD drive holds; "" is nothing.
func (r *Redfish) Image() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.media {
		if m.image != "" {
			return m.image
		}
	}
	return ""
}

func (r *Redfish) logPath() string {
	if r.p.logUnderSystem {
		return r.p.system + "/LogServices"
	}
	return r.p.manager + "/LogServices"
}

var rfSeverity = map[ipmi.Severity]string{ipmi.OK: "OK", ipmi.Warning: "Warning", ipmi.Critical: "Critical"}

// serveLog serves the event log, newest first as some services do, in pages.
func (r *Redfish) serveLog() {
	at := r.logPath()
	log := at + "/" + r.p.log
	for _, p := range []string{r.p.system + "/LogServices", r.p.manager + "/LogServices"} {
		members := []string{}
		if p == at {
			members = append(members, log)
		}
		r.mux.HandleFunc("GET "+p, func(w http.ResponseWriter, req *http.Request) { r.show(w, req, collection(members...)) })
	}
	r.mux.HandleFunc("GET "+log, func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, doc{"@odata.type": "#LogService.v1_4_0.LogService", "Id": r.p.log, "Name": "System Event Log", "LogEntryType": "SEL", "ServiceEnabled": true,
			"OverWritePolicy": "WrapsWhenFull", "Overflow": r.Faults.Now().FullLog, "MaxNumberOfRecords": 500, "Entries": link(log + "/Entries"),
			"Actions": doc{"#LogService.ClearLog": doc{"target": log + "/Actions/LogService.ClearLog"}}})
	})
	r.mux.HandleFunc("POST "+log+"/Actions/LogService.ClearLog", func(w http.ResponseWriter, req *http.Request) {
		r.Board.Clear()
		w.WriteHeader(http.StatusNoContent)
	})
	r.mux.HandleFunc("GET "+log+"/Entries", func(w http.ResponseWriter, req *http.Request) {
		const page = 100
		skip := 0
		if s := req.URL.Query().Get("$skip"); s != "" {
			for _, c := range s {
				skip = skip*10 + int(c-'0')
			}
		}
		events := r.Board.Events()
		list := []doc{}
		for i := len(events) - 1; i >= 0; i-- {
			e := events[i]
			entry := doc{"@odata.id": log + "/Entries/" + e.ID, "@odata.type": "#LogEntry.v1_15_0.LogEntry", "Id": e.ID, "Name": "Log Entry", "EntryType": "SEL",
				"Severity": rfSeverity[e.Severity], "Created": e.At.Format(time.RFC3339), "Message": e.Message, "SensorType": e.Kind, "EntryCode": "Assert"}
			if e.Cleared {
				entry["EntryCode"] = "Deassert"
			}
			if r.Faults.Now().OddTypes {
				entry["Id"], entry["SensorNumber"], entry["Links"], entry["MessageArgs"] = i+1, "N/A", []any{}, "x"
			}
			list = append(list, entry)
		}
		out := doc{"@odata.type": "#LogEntryCollection.LogEntryCollection", "Name": "Log Entries", "Members@odata.count": len(list)}
		if skip < len(list) {
			list = list[skip:]
		} else {
			list = []doc{}
		}
		if len(list) > page {
			list = list[:page]
			out["Members@odata.nextLink"] = log + "/Entries?$skip=" + itoa(skip+page)
		}
		out["Members"] = list
		r.show(w, req, out)
	})
}
