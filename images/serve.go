package images

import (
	"bytes"
	"errors"
	"net/http"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// Handler serves GET and HEAD of /manifest/DIGEST and /chunk/DIGEST, with exact lengths and ranges. Names are digests of the content,
// so that answers never change and may be kept for ever by any cache, and so that they may travel over plain HTTP: the reader
// checks them. It gives no listing. Mount it with http.StripPrefix.
func (s *Store) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /manifest/{digest}", func(w http.ResponseWriter, r *http.Request) {
		digest := r.PathValue("digest")
		data, err := s.manifestBytes(digest)
		if err != nil {
			refuse(w, err)
			return
		}
		immutable(w, digest, "application/json")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	})
	mux.HandleFunc("GET /chunk/{digest}", func(w http.ResponseWriter, r *http.Request) {
		digest := r.PathValue("digest")
		f, _, err := s.Chunk(digest)
		if err != nil {
			refuse(w, err)
			return
		}
		defer f.Close()
		// Not Content-Encoding: zstd. Clients and proxies would unpack it behind the reader's back.
		immutable(w, digest, "application/zstd")
		http.ServeContent(w, r, "", time.Time{}, f)
	})
	return mux
}

func immutable(w http.ResponseWriter, digest, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("ETag", `"`+digest+`"`)
}

func refuse(w http.ResponseWriter, err error) {
	var e *machine.Error
	if errors.As(err, &e) && e.Code == machine.NotFound {
		http.Error(w, e.Message, http.StatusNotFound)
		return
	}
	http.Error(w, "image store cannot be read", http.StatusInternalServerError)
}
