package netbox_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/network/netbox"
)

// fake is NOT NetBox: it is what its REST API documentation (versions 3.7 and 4.2) says of the few requests that we make. No real
// NetBox was tried.
type fake struct {
	t  *testing.T
	v4 bool

	mu      sync.Mutex
	next    int
	objects map[string][]map[string]any // by path
	page    int                         // the most that it gives at once
	trouble []int                       // answers to the next requests; 0 is none. -1 does what is asked and loses the answer, -2 breaks it off
	asked   []string
}

const token = "Zq9canary"

func newFake(t *testing.T, v4 bool) (*fake, *netbox.Client) {
	t.Helper()
	f := &fake{t: t, v4: v4, objects: map[string][]map[string]any{}, page: 2}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, &netbox.Client{URL: server.URL, Token: token, Pause: time.Millisecond}
}

// fail sets how the next requests are answered.
func (f *fake) fail(trouble ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble = trouble
}

// have puts an object in and returns its id.
func (f *fake) have(path string, o map[string]any) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.add(path, o)
}

func (f *fake) add(path string, o map[string]any) int {
	f.next++
	o["id"] = float64(f.next)
	f.objects[path] = append(f.objects[path], o)
	return f.next
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	if r.Header.Get("Authorization") != "Token "+token {
		http.Error(w, `{"detail":"Invalid token"}`, http.StatusForbidden)
		return
	}
	trouble := 0
	if len(f.trouble) > 0 {
		trouble = f.trouble[0]
		f.trouble = f.trouble[1:]
	}
	if trouble > 0 {
		w.Header().Set("Retry-After", "0")
		http.Error(w, `{"detail":"busy"}`, trouble)
		return
	}
	code, answer := f.answer(r, body)
	if trouble == -2 {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"id":`)
		w.(http.Flusher).Flush()
	}
	if trouble < 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fake) answer(r *http.Request, body []byte) (int, any) {
	path, id := strings.TrimPrefix(r.URL.Path, "/api"), 0
	if parts := strings.Split(strings.Trim(path, "/"), "/"); len(parts) == 3 {
		id, _ = strconv.Atoi(parts[2])
		path = "/" + parts[0] + "/" + parts[1] + "/"
	}
	if !strings.HasSuffix(r.URL.Path, "/") {
		return http.StatusMovedPermanently, nil
	}
	var in map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &in); err != nil {
			return http.StatusBadRequest, map[string]any{"detail": err.Error()}
		}
	}
	at := slices.IndexFunc(f.objects[path], func(o map[string]any) bool { return o["id"] == float64(id) })
	switch {
	case r.Method == http.MethodGet:
		return f.list(path, r.URL.Query(), "http://"+r.Host+r.URL.Path)
	case r.Method == http.MethodPost:
		o := map[string]any{}
		if problem := f.write(o, in); problem != "" {
			return http.StatusBadRequest, map[string]any{"tags": problem}
		}
		f.add(path, o)
		return http.StatusCreated, o
	case at < 0:
		return http.StatusNotFound, map[string]any{"detail": "Not found."}
	case r.Method == http.MethodPatch:
		if problem := f.write(f.objects[path][at], in); problem != "" {
			return http.StatusBadRequest, map[string]any{"tags": problem}
		}
		return http.StatusOK, f.objects[path][at]
	default:
		f.objects[path] = slices.Delete(f.objects[path], at, at+1)
		return http.StatusNoContent, nil
	}
}

// write changes an object as NetBox would answer it: choices and tags are nested.
func (f *fake) write(o, in map[string]any) (problem string) {
	for k, v := range in {
		switch k {
		case "status":
			o[k] = map[string]any{"value": v}
		case "tags":
			var tags []any
			for _, t := range v.([]any) {
				slug := t.(map[string]any)["slug"].(string)
				if !slices.ContainsFunc(f.objects["/extras/tags/"], func(o map[string]any) bool { return o["slug"] == slug }) {
					return fmt.Sprintf("Related object not found using the provided attributes: {'slug': '%s'}", slug)
				}
				tags = append(tags, map[string]any{"slug": slug, "name": slug})
			}
			o[k] = tags
		default:
			o[k] = v
		}
	}
	return ""
}

func (f *fake) list(path string, q url.Values, self string) (int, any) {
	var match []map[string]any
	for _, o := range f.objects[path] {
		ok := true
		for k, want := range q {
			switch k {
			case "limit", "offset":
			case "tag":
				tags, _ := o["tags"].([]any)
				ok = ok && slices.ContainsFunc(tags, func(t any) bool { return t.(map[string]any)["slug"] == want[0] })
			case "status":
				s, _ := o["status"].(map[string]any)
				ok = ok && s["value"] == want[0]
			case "site":
				s, _ := o["site"].(map[string]any)
				ok = ok && s["slug"] == want[0]
			case "device_id":
				d, _ := o["device"].(map[string]any)
				ok = ok && fmt.Sprint(d["id"]) == want[0]
			case "vrf_id":
				ok = ok && (want[0] == "null") == (o["vrf"] == nil)
			case "address": // as NetBox's lookup NetIn: with a length the whole of it, without one the host
				have := fmt.Sprint(o[k])
				if !strings.Contains(want[0], "/") {
					have, _, _ = strings.Cut(have, "/")
				}
				ok = ok && have == want[0]
			case "parent": // addresses within a prefix: the tests have one
			default:
				ok = ok && fmt.Sprint(o[k]) == want[0]
			}
		}
		if ok {
			match = append(match, o)
		}
	}
	offset, _ := strconv.Atoi(q.Get("offset"))
	end := min(offset+f.page, len(match))
	out := map[string]any{"count": len(match), "next": nil, "previous": nil, "results": match[min(offset, len(match)):end]}
	if end < len(match) {
		out["next"] = strings.Replace(self, "127.0.0.1", "netbox.internal", 1) + "?offset=" + strconv.Itoa(end) // as it is called behind a proxy
	}
	return http.StatusOK, out
}
