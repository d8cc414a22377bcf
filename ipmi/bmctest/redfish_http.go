package bmctest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const (
	rfRoot     = "/redfish/v1/"
	rfSystems  = "/redfish/v1/Systems"
	rfChassis  = "/redfish/v1/Chassis"
	rfManagers = "/redfish/v1/Managers"
	rfSession  = "/redfish/v1/SessionService/Sessions"
	rfAccounts = "/redfish/v1/AccountService/Accounts"
	rfFirmware = "/redfish/v1/UpdateService/FirmwareInventory"
	rfTasks    = "/redfish/v1/TaskService/Tasks"
)

// doc is a Redfish resource.
type doc map[string]any

func link(path string) doc { return doc{"@odata.id": path} }

// build makes the handler once.
func (r *Redfish) build() {
	r.setup.Do(func() {
		r.front = newFront(r.Chassis, r.Faults, r.Log)
		r.front.done = r.booted
		r.sessions = map[string]string{}
		r.boot = rfBoot{Enabled: "Disabled", Target: "None", Mode: "UEFI"}
		r.p = r.Vendor.profile()
		if r.Board == nil {
			r.Board = NewBoard()
		}
		r.mux = http.NewServeMux()
		for pattern, handle := range map[string]http.HandlerFunc{
			"POST " + rfSession:                                    r.postSession,
			"DELETE " + rfSession + "/{id}":                        r.deleteSession,
			"GET " + r.p.system:                                    r.getSystem,
			"PATCH " + r.p.system:                                  r.patchSystem,
			"GET " + r.p.system + "/ResetActionInfo":               r.getActionInfo,
			"GET " + r.p.system + "/Settings":                      r.getSettings,
			"PATCH " + r.p.system + "/Settings":                    r.patchSettings,
			"POST " + r.p.system + "/Actions/ComputerSystem.Reset": r.postReset,
		} {
			r.mux.HandleFunc(pattern, handle)
		}
		for path, body := range r.static() {
			r.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, body) })
		}
		r.serveAccounts()
		r.serveMedia()
		r.serveBIOS()
		r.serveLog()
		r.serveReadings()
		r.serveManager()
		r.serveHost()
	})
}

// ServeHTTP answers a request.
func (r *Redfish) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.build()
	if r.Faults.Now().Unreachable {
		panic(http.ErrAbortHandler)
	}
	path := strings.TrimSuffix(req.URL.Path, "/")
	open := path+"/" == rfRoot || path == "/redfish" || path == rfSession && req.Method == http.MethodPost
	if !open && !r.authorised(w, req) {
		return
	}
	if path+"/" == rfRoot {
		path = rfRoot
	}
	r.mu.Lock()
	r.requests++
	r.mu.Unlock()
	if !open && r.detour(w, req) {
		return
	}
	req.URL.Path = path
	if broken := r.Faults.Now().Broken; broken != "" && strings.Contains(path, broken) {
		fail(w, http.StatusInternalServerError, "Base.1.18.InternalError", "The request failed due to an internal service error.")
		return
	}
	if r.Faults.Now().LoginPage && !open && req.Method == http.MethodGet {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!DOCTYPE html><html><body><form action=/login></form></body></html>"))
		return
	}
	r.mux.ServeHTTP(w, req)
}

// detour answers requests that come too soon, or are sent elsewhere first.
func (r *Redfish) detour(w http.ResponseWriter, req *http.Request) bool {
	if r.Faults.take(func(f *Fault) bool {
		if f.RetryAfter == 0 {
			return false
		}
		f.RetryAfter--
		return true
	}) {
		w.Header().Set("Retry-After", cmp.Or(r.Faults.Now().RetryHint, "1"))
		fail(w, http.StatusServiceUnavailable, "Base.1.18.ServiceTemporarilyUnavailable", "The service is temporarily unavailable. Retry in 1 seconds.")
		return true
	}
	if r.Faults.Now().Redirect && req.Method == http.MethodGet && !strings.HasSuffix(req.URL.Path, "/") {
		w.Header().Set("Location", req.URL.Path+"/")
		w.WriteHeader(http.StatusPermanentRedirect)
		return true
	}
	return false
}

// authorised checks a token or Basic credentials, and answers the request when they do not do.
func (r *Redfish) authorised(w http.ResponseWriter, req *http.Request) bool {
	if token := req.Header.Get("X-Auth-Token"); token != "" {
		expire := r.Faults.take(func(f *Fault) bool {
			if f.Unauthorized > 0 {
				f.Unauthorized--
				return true
			}
			return false
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		if expire {
			for id, t := range r.sessions {
				if t == token {
					delete(r.sessions, id)
					r.closed++
				}
			}
		}
		for _, t := range r.sessions {
			if t == token {
				return true
			}
		}
		fail(w, http.StatusUnauthorized, "Base.1.18.NoValidSession", "There is no valid session established with the implementation.")
		return false
	}
	if user, pass, ok := req.BasicAuth(); ok && !r.Faults.Now().NoBasic {
		return r.login(w, user, pass)
	}
	fail(w, http.StatusUnauthorized, "Base.1.18.NoValidSession", "There is no valid session established with the implementation.")
	return false
}

// login checks credentials, and answers the request when they do not do.
func (r *Redfish) login(w http.ResponseWriter, user, pass string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logins++
	if n := r.Faults.Now().LockAfter; n > 0 && r.failed >= n {
		fail(w, http.StatusUnauthorized, "Base.1.18.ResourceAtUriUnauthorized", "The account is locked out after too many failed logins.")
		return false
	}
	if !r.knows(user, pass) {
		r.failed++
		fail(w, http.StatusUnauthorized, "Base.1.18.ResourceAtUriUnauthorized", "The login attempt failed.")
		return false
	}
	r.failed = 0
	return true
}

func (r *Redfish) postSession(w http.ResponseWriter, req *http.Request) {
	slots := r.Slots
	if slots == 0 {
		slots = 8
	}
	r.mu.Lock()
	full := len(r.sessions) >= slots || r.Faults.Now().SessionsFull
	r.mu.Unlock()
	if full {
		if hint := r.Faults.Now().RetryHint; hint != "" {
			w.Header().Set("Retry-After", hint)
		}
		fail(w, http.StatusServiceUnavailable, "IDRAC.2.4.RAC0218", "The maximum number of user sessions is reached.")
		return
	}
	var in struct{ UserName, Password string }
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, "Base.1.18.MalformedJSON", "The request body could not be parsed.")
		return
	}
	if !r.login(w, in.UserName, in.Password) {
		return
	}
	token := rand.Text()
	r.mu.Lock()
	r.serial++
	r.opened++
	r.most = max(r.most, r.opened-r.closed)
	id := fmt.Sprint(r.serial)
	r.sessions[id] = token
	r.mu.Unlock()
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", rfSession+"/"+id)
	reply(w, http.StatusCreated, doc{"@odata.id": rfSession + "/" + id, "@odata.type": "#Session.v1_7_0.Session", "Id": id, "Name": "User Session", "UserName": r.User})
}

func (r *Redfish) deleteSession(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := req.PathValue("id")
	if _, ok := r.sessions[id]; !ok {
		fail(w, http.StatusNotFound, "Base.1.18.ResourceMissingAtURI", "The resource was not found.")
		return
	}
	delete(r.sessions, id)
	r.closed++
	w.WriteHeader(http.StatusNoContent)
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("OData-Version", "4.0")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// fail answers with a Redfish error; related names the properties that it is about.
func fail(w http.ResponseWriter, status int, id, message string, related ...string) {
	info := doc{"MessageId": id, "Message": message, "Severity": "Warning"}
	if len(related) > 0 {
		info["RelatedProperties"] = related
	}
	reply(w, status, doc{"error": doc{"code": id, "message": message, "@Message.ExtendedInfo": []doc{info}}})
}
