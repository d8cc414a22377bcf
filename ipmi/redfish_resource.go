package ipmi

import (
	"context"
	"net/http"
	"strings"
)

// rfMembers bounds what is read of a collection.
const rfMembers = 1000

// resource is a Redfish resource and where it is.
type resource struct {
	path string
	rfAnswer
}

// get reads a resource.
func (c *rfConn) get(ctx context.Context, path string) (resource, error) {
	a, err := c.read(ctx, path)
	return resource{path, a}, err
}

// follow reads the resource that a property links to; a resource without that link is ErrUnsupported.
func (c *rfConn) follow(ctx context.Context, from object, property string) (resource, error) {
	path := from.obj(property).str("@odata.id")
	if !strings.HasPrefix(path, "/") {
		return resource{}, failf(ErrUnsupported, "it has no %s", property)
	}
	return c.get(ctx, path)
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

// each reads the members of a collection, page by page, and calls fn for each until it returns false. Members that are written out in
// the collection are not read again.
func (c *rfConn) each(ctx context.Context, path string, fn func(resource) bool) error {
	for seen := 0; path != ""; {
		page, err := c.get(ctx, path)
		if err != nil {
			return err
		}
		for _, m := range page.body.objs("Members") {
			if seen++; seen > rfMembers {
				return failf(ErrUnsupported, "more than %d members in a collection", rfMembers)
			}
			one := resource{m.str("@odata.id"), rfAnswer{status: page.status, body: m}}
			if len(m) <= 1 {
				if !strings.HasPrefix(one.path, "/") {
					continue
				}
				if one, err = c.get(ctx, one.path); err != nil {
					if isAny(err, ErrUnsupported) {
						continue // listed and not there
					}
					return err
				}
			}
			if !fn(one) {
				return nil
			}
		}
		next := page.body.str("Members@odata.nextLink")
		if next == path || seen == 0 {
			return nil
		}
		path = next
	}
	return nil
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
