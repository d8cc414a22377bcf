// Package httpboot serves files to firmware and loaders over HTTP, within what their HTTP clients can do.
package httpboot

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// Path returns the path of a request as boot clients mean it: repeated slashes and "." taken out, since firmware
// joins a folder that ends in a slash with a name that begins with one, and follows no redirect to the clean form.
// ok is false for a path that climbs or hides what it is: those are not answered.
//
// http.ServeMux must not see boot requests: it answers a path that is not clean with a redirect.
func Path(r *http.Request) (clean string, ok bool) {
	p := r.URL.Path
	if !strings.HasPrefix(p, "/") || strings.Contains(p, `\`) {
		return "", false
	}
	for i := range len(p) {
		if p[i] < ' ' || p[i] == 0x7f {
			return "", false
		}
	}
	for part := range strings.SplitSeq(p, "/") {
		if strings.Trim(part, ".") == "" && len(part) > 1 { // "..", and "...." of those who hope to be cleaned twice
			return "", false
		}
	}
	clean = path.Clean(p)
	if clean != "/" && strings.HasSuffix(p, "/") {
		clean += "/"
	}
	return clean, true
}

// File serves an open file with its length, ranges and conditions (206, 304, 416). Its ETag changes with its size or
// time, so that a resumed download of a changed file starts over. The caller closes f.
func File(w http.ResponseWriter, r *http.Request, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at boot file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("serve boot file: %s is not a file", f.Name())
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", fmt.Sprintf(`"%x-%x"`, st.Size(), st.ModTime().UnixNano()))
	http.ServeContent(w, r, "", st.ModTime(), f)
	return nil
}

// Bytes serves a small answer that must not be kept by anybody.
func Bytes(w http.ResponseWriter, r *http.Request, contentType string, b []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b) // the client is gone: nobody to tell
	}
}

// Fail answers with a status and one line.
func Fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	h := w.Header()
	for _, k := range []string{"ETag", "Last-Modified", "Accept-Ranges"} {
		h.Del(k)
	}
	b := []byte(text + "\n")
	h.Set("Content-Type", "text/plain")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b)
	}
}

// NewServer returns an HTTP server for boot clients: small request headers, no time limit on a whole download (see
// Steady), idle connections closed after two minutes.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 20 * time.Second,
		ReadTimeout:       time.Minute, // boot requests have no bodies
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
}
