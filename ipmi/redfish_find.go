package ipmi

import (
	"context"
	"path"
	"slices"
	"strings"
)

// notTheHost reports whether a member of a collection of systems, managers or chassis is known not to be the host's: an NVIDIA HGX
// board beside it, or a DPU.
func notTheHost(p string) bool { return strings.HasPrefix(path.Base(p), "HGX_") }

// host chooses the host among systems, of which some may be told apart only by reading them.
func host(ctx context.Context, g getter, paths []string) (string, error) {
	paths = slices.DeleteFunc(paths, notTheHost)
	if len(paths) > 1 {
		var physical []string
		for _, p := range paths {
			r, err := g.get(ctx, p)
			if err != nil {
				return "", err
			}
			if t := r.body.str("SystemType"); t == "" || t == "Physical" {
				physical = append(physical, p)
			}
		}
		paths = physical
	}
	switch len(paths) {
	case 0:
		return "", failf(ErrUnreachable, "the service lists no system")
	case 1:
		return paths[0], nil
	}
	// To guess is to switch off somebody else's machine.
	return "", failf(ErrUnsupported, "the service has %d systems: put the path of one into the address", len(paths))
}

// rfRoot is the service root, which was read at the login.
func (l *link) rfRoot(ctx context.Context) (root object, err error) {
	err = l.redfish(ctx, func(c *rfConn) error { root = c.root; return nil })
	return root, err
}

// rfSystem reads the host's system.
func (l *link) rfSystem(ctx context.Context) (r resource, err error) {
	err = l.redfish(ctx, func(c *rfConn) error {
		r, err = c.get(ctx, c.system)
		return err
	})
	return r, err
}

// rfManager reads the host's BMC.
func (l *link) rfManager(ctx context.Context) (resource, error) {
	system, err := l.rfSystem(ctx)
	if err != nil {
		return resource{}, err
	}
	paths := slices.DeleteFunc(system.body.obj("Links").links("ManagedBy"), notTheHost)
	if len(paths) == 0 {
		if paths, err = l.rfOnly(ctx, "Managers"); err != nil {
			return resource{}, err
		}
	}
	if len(paths) == 0 {
		return resource{}, failf(ErrUnsupported, "it shows no manager")
	}
	return turns{l}.get(ctx, paths[0])
}

// rfOnly lists a collection of the root, without what is not the host's.
func (l *link) rfOnly(ctx context.Context, name string) ([]string, error) {
	root, err := l.rfRoot(ctx)
	if err != nil {
		return nil, err
	}
	list, err := follow(ctx, turns{l}, root, name)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.body.links("Members"), notTheHost), nil
}
