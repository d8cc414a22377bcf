package ipmi

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// rfMembers bounds what is read of a collection.
const rfMembers = 256

// resource is a Redfish resource and where it is.
type resource struct {
	path string
	rfAnswer
}

// getter reads resources.
type getter interface {
	get(ctx context.Context, path string) (resource, error)
}

// get reads a resource.
func (c *rfConn) get(ctx context.Context, path string) (resource, error) {
	a, err := c.read(ctx, path)
	return resource{path, a}, err
}

// turns is a getter that takes its turn for each resource, so that others can speak to the BMC in between.
type turns struct{ l *link }

func (t turns) get(ctx context.Context, path string) (r resource, err error) {
	err = t.l.redfish(ctx, func(c *rfConn) error {
		r, err = c.get(ctx, path)
		return err
	})
	return r, err
}

// follow reads the resource that a property links to; a resource without that link is ErrUnsupported.
func follow(ctx context.Context, g getter, from object, property string) (resource, error) {
	path := from.obj(property).str("@odata.id")
	if !strings.HasPrefix(path, "/") {
		return resource{}, failf(ErrUnsupported, "it has no %s", property)
	}
	return g.get(ctx, path)
}

// links is the paths in a property that is a list of links.
func (o object) links(property string) []string {
	var out []string
	for _, l := range o.objs(property) {
		if p := l.str("@odata.id"); strings.HasPrefix(p, "/") {
			out = append(out, p)
		}
	}
	return out
}

// each reads the members of a collection, page by page and at most limit of them, and calls fn for each until it returns false.
// Members that are written out in the collection are not read again. more is whether there were more than limit.
func each(ctx context.Context, g getter, path string, limit int, fn func(resource) bool) (more bool, err error) {
	for seen, pages := 0, map[string]bool{}; path != "" && !pages[path]; {
		pages[path] = true
		page, err := g.get(ctx, path)
		if err != nil {
			return false, err
		}
		for _, m := range page.body.objs("Members") {
			if seen++; seen > limit {
				return true, nil
			}
			one := resource{m.str("@odata.id"), rfAnswer{status: page.status, body: m}}
			if len(m) <= 1 {
				if !strings.HasPrefix(one.path, "/") {
					continue
				}
				if one, err = g.get(ctx, one.path); err != nil {
					if errors.Is(err, ErrUnsupported) {
						continue // listed and not there
					}
					return false, err
				}
			}
			if !fn(one) {
				return false, nil
			}
		}
		path = page.body.str("Members@odata.nextLink")
	}
	return false, nil
}

// expanded is the path of a collection with its members written out, where the service can.
func expanded(root object, path string) string {
	if root.obj("ProtocolFeaturesSupported").obj("ExpandQuery").flag("NoLinks", false) {
		return path + "?$expand=.($levels=1)"
	}
	return path
}

// patch changes a resource whose last GET is res, with the ETag of that GET where it had one. Where the service wants another one, it is
// read again and sent once more.
func (c *rfConn) patch(ctx context.Context, path string, res rfAnswer, body any) (rfAnswer, error) {
	a, err := c.do(ctx, http.MethodPatch, path, body, ifMatch(res))
	if err != nil || !a.wantsETag() {
		return a, err
	}
	if res, err = c.read(ctx, path); err != nil {
		return a, err
	}
	header := ifMatch(res)
	if header == nil {
		header = http.Header{"If-Match": {"*"}}
	}
	return c.do(ctx, http.MethodPatch, path, body, header)
}

// change is patch with a refusal as an error.
func (c *rfConn) change(ctx context.Context, r resource, body any) (rfAnswer, error) {
	a, err := c.patch(ctx, r.path, r.rfAnswer, body)
	if err == nil && !a.ok() {
		err = a.refusal()
	}
	return a, err
}
