package api

import (
	"net/http"

	"github.com/bareyard/bareyard/images"
)

// importImage takes an image from the body and puts it into the catalogue once all of it has been checked and stored.
// Query: sha256 and digest_of ("downloaded" or "written"), format, default_user, driver ("true": it brings the
// accelerators' driver).
func (s *Server) importImage(w http.ResponseWriter, r *http.Request) {
	if err := operator(r.Context()); err != nil {
		s.answer(w, nil, err)
		return
	}
	q := r.URL.Query()
	done, err := s.Store.Import(r.Context(), images.Import{
		Name: r.PathValue("name"), DefaultUser: q.Get("default_user"), Reader: r.Body,
		SHA256: q.Get("sha256"), DigestOf: images.DigestOf(q.Get("digest_of")), Format: images.Format(q.Get("format")),
	})
	if err == nil {
		done.Image.Driver = q.Get("driver") == "true"
		err = s.Shelf.PutImage(r.Context(), done.Image)
	}
	s.answer(w, done.Image, err)
}
