package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/machine"
)

// ImageSource is the body of an import, as application/json, when the server is to fetch the file itself. The address is not in the query,
// because it may hold a password.
type ImageSource struct {
	URL string `json:"url"`
}

func (s *Server) imageRoutes(api huma.API, mux *http.ServeMux) {
	route(s, api, http.MethodGet, "/v1/images", "list-images", "Operating systems that can be put on a machine", func(ctx context.Context, _ *struct{}) (*reply[[]machine.Image], error) {
		c, err := caller(ctx)
		if err != nil {
			return nil, err
		}
		list, err := s.Shelf.Images(ctx)
		if c.Role != Operator {
			list = slices.DeleteFunc(list, func(i machine.Image) bool { return i.Visibility == machine.Community || !i.UsableBy(c.Project) })
		}
		for i := range list {
			list[i] = shownImage(c, list[i])
		}
		return &reply[[]machine.Image]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/images/{name}", "get-image", "One image, also one that is in no list", func(ctx context.Context, in *NamePath) (*reply[machine.Image], error) {
		c, err := caller(ctx)
		if err != nil {
			return nil, err
		}
		i, err := s.Shelf.Image(ctx, in.Name)
		if err == nil && c.Role != Operator && !i.UsableBy(c.Project) {
			err = &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no image %q", in.Name), Hint: "list what there is with `bareyard image list`"}
		}
		return &reply[machine.Image]{shownImage(c, i)}, err
	})
	mux.HandleFunc("PUT /v1/images/{name}", s.importImage) // not huma's: the body must not be held in memory
}

// shownImage is an image as a caller sees it: to whom else it is lent is no customer's business.
func shownImage(c Caller, i machine.Image) machine.Image {
	if c.Role != Operator {
		i.Projects = nil
	}
	return i
}

// importImage takes an image from the body, or from the address in it, and puts it into the catalogue once all of it has been checked and
// stored. Query: sha256, sha512 and digest_of ("downloaded" or "written"), format, default_user, driver ("true": it brings the
// accelerators' driver), family, version, architecture, min_disk (bytes), drivers, visibility, projects; drivers and projects may be repeated.
func (s *Server) importImage(w http.ResponseWriter, r *http.Request) {
	if err := operator(r.Context()); err != nil {
		s.answer(w, nil, err)
		return
	}
	image, err := s.takeImage(r)
	s.answer(w, image, err)
}

var imageName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`) // as NamePath has it

func (s *Server) takeImage(r *http.Request) (machine.Image, error) {
	if !imageName.MatchString(r.PathValue("name")) {
		return machine.Image{}, &machine.Error{Code: machine.Invalid, Field: "name", Message: fmt.Sprintf("image name %.70q is not valid", r.PathValue("name")),
			Hint: "use 1 to 63 lower-case letters, digits and . _ -, e.g. debian-12"}
	}
	q := r.URL.Query()
	facts, err := imageFacts(q)
	if err != nil {
		return machine.Image{}, err
	}
	in := images.Import{
		Name: r.PathValue("name"), DefaultUser: q.Get("default_user"), Reader: r.Body,
		SHA256: q.Get("sha256"), SHA512: q.Get("sha512"), DigestOf: images.DigestOf(q.Get("digest_of")), Format: images.Format(q.Get("format")),
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		var source ImageSource
		if err := json.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&source); err != nil || source.URL == "" {
			return machine.Image{}, &machine.Error{Code: machine.Invalid, Field: "url", Message: "the body names no address of an image", Hint: `send {"url": "https://…"}, or the file as application/octet-stream`}
		}
		in.Reader, in.URL = nil, source.URL
	}
	done, err := s.Store.Import(r.Context(), in)
	if err != nil {
		return machine.Image{}, err
	}
	done.Image.ImageFacts = facts
	done.Image.Driver = q.Get("driver") == "true" || len(facts.Drivers) > 0
	return done.Image, s.Shelf.PutImage(r.Context(), done.Image)
}

// imageFacts reads what is said of an image, before a long import begins.
func imageFacts(q url.Values) (machine.ImageFacts, error) {
	f := machine.ImageFacts{
		Family: q.Get("family"), Version: q.Get("version"), Architecture: machine.Architecture(q.Get("architecture")),
		Drivers: q["drivers"], Visibility: machine.Visibility(q.Get("visibility")), Projects: q["projects"],
	}
	if text := q.Get("min_disk"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return f, &machine.Error{Code: machine.Invalid, Field: "min_disk", Message: fmt.Sprintf("min_disk %q is no number of bytes", text)}
		}
		f.MinDisk = n
	}
	return f, f.Check()
}
