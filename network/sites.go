package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Sites is an edge for each site, taken together for one. Each is asked on its own: one that does not answer holds up nobody at
// another site.
type Sites struct {
	Edges  map[string]Edge                                           // by site; "" is for every site that has none
	SiteOf func(ctx context.Context, machine string) (string, error) // "" when nobody knows the machine
}

// UnreachableError says which sites could not be read: what is known of the others is returned beside it.
type UnreachableError struct {
	Sites []string // "" is every site that has no edge of its own
	Has   func(site string) bool
	err   error
}

func (e *UnreachableError) Error() string { return e.err.Error() }
func (e *UnreachableError) Unwrap() error { return e.err }

// Covers reports whether the site is one that could not be read.
func (e *UnreachableError) Covers(site string) bool {
	if !e.Has(site) {
		site = ""
	}
	return slices.Contains(e.Sites, site)
}

func (s *Sites) has(site string) bool { _, ok := s.Edges[site]; return ok }

// at returns the name of the edge of a site.
func (s *Sites) at(site string) (string, error) {
	if s.has(site) {
		return site, nil
	}
	if s.has("") {
		return "", nil
	}
	return "", invalid("site", fmt.Sprintf("site %q has no edge", site), "configure one, or an edge for all sites")
}

// each calls fn for edges at once and returns their errors by site.
func (s *Sites) each(sites []string, fn func(site string, e Edge) error) map[string]error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := map[string]error{}
	for _, site := range sites {
		wg.Go(func() {
			if err := fn(site, s.Edges[site]); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs[site] = err
			}
		})
	}
	wg.Wait()
	return errs
}

func (s *Sites) unreachable(errs map[string]error) error {
	if len(errs) == 0 {
		return nil
	}
	sites := slices.Sorted(maps.Keys(errs))
	return &UnreachableError{Sites: sites, Has: s.has, err: errors.Join(slices.Collect(maps.Values(errs))...)}
}

func gather[T any](s *Sites, ask func(Edge) ([]T, error), stamp func(*T, string), order func(a, b T) int) ([]T, error) {
	var mu sync.Mutex
	var all []T
	errs := s.each(slices.Collect(maps.Keys(s.Edges)), func(site string, e Edge) error {
		got, err := ask(e)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range got {
			stamp(&got[i], site)
		}
		all = append(all, got...)
		return nil
	})
	slices.SortStableFunc(all, order)
	return all, s.unreachable(errs)
}

// Read implements Edge. When some sites cannot be read the error is an UnreachableError, and the ports are those of the others.
func (s *Sites) Read(ctx context.Context) ([]Port, error) {
	return gather(s, func(e Edge) ([]Port, error) { return e.Read(ctx) },
		func(p *Port, site string) { p.Site = cmp.Or(p.Site, site) },
		func(a, b Port) int { return cmp.Compare(a.Machine, b.Machine) })
}

// Counters implements Edge, with errors as Read has.
func (s *Sites) Counters(ctx context.Context) ([]Counter, error) {
	return gather(s, func(e Edge) ([]Counter, error) { return e.Counters(ctx) }, func(*Counter, string) {},
		func(a, b Counter) int {
			return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Direction, b.Direction))
		})
}

// CountersAt reads the counters of the edge of one site, and of no other.
func CountersAt(ctx context.Context, edge Edge, site string) ([]Counter, error) {
	sites, ok := edge.(*Sites)
	if !ok {
		return edge.Counters(ctx)
	}
	name, err := sites.at(site)
	if err != nil {
		return nil, err
	}
	return sites.Edges[name].Counters(ctx)
}

// Apply implements Edge. A port is set where its site says, and taken away where its machine is.
func (s *Sites) Apply(ctx context.Context, set []Port, remove []string) error {
	type change struct {
		set    []Port
		remove []string
	}
	changes := map[string]*change{}
	to := func(site string) *change {
		if changes[site] == nil {
			changes[site] = &change{}
		}
		return changes[site]
	}
	if len(set)+len(remove) == 0 { // what all ports share is repaired everywhere
		for name := range s.Edges {
			to(name)
		}
	}
	for _, p := range set {
		site, err := s.at(p.Site)
		if err != nil {
			return err
		}
		to(site).set = append(to(site).set, p)
	}
	for _, id := range remove {
		site, err := s.SiteOf(ctx, id)
		if err != nil {
			return err
		}
		name, err := s.at(site)
		if site != "" && err == nil {
			to(name).remove = append(to(name).remove, id)
			continue
		}
		for name := range s.Edges { // nobody knows where it stood
			to(name).remove = append(to(name).remove, id)
		}
	}
	errs := s.each(slices.Collect(maps.Keys(changes)), func(site string, e Edge) error {
		return e.Apply(ctx, changes[site].set, changes[site].remove)
	})
	if len(errs) == 0 {
		return nil
	}
	if len(errs) == 1 {
		for _, err := range errs {
			return err // with its code
		}
	}
	return errors.Join(slices.Collect(maps.Values(errs))...)
}

// Caps implements Edge: what every edge can do.
func (s *Sites) Caps(ctx context.Context) (Caps, error) {
	var mu sync.Mutex
	var all []Caps
	errs := s.each(slices.Collect(maps.Keys(s.Edges)), func(_ string, e Edge) error {
		c, err := e.Caps(ctx)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, c)
		return err
	})
	if len(errs) > 0 {
		return Caps{}, s.unreachable(errs)
	}
	if len(all) == 0 {
		return Caps{Driver: "none"}, nil
	}
	least := all[0]
	for _, c := range all[1:] {
		if c.Driver != least.Driver {
			least.Driver = "several"
		}
		least.Modes = slices.DeleteFunc(slices.Clone(least.Modes), func(m Mode) bool { return !slices.Contains(c.Modes, m) })
		least.Burst, least.IPv6, least.Person = least.Burst && c.Burst, least.IPv6 && c.IPv6, least.Person || c.Person
		if least.Ports += c.Ports; c.Ports == 0 || least.Ports == c.Ports {
			least.Ports = 0
		}
		least.Announces, least.Probes = least.Announces && c.Announces, least.Probes && c.Probes
		least.Trouble = slices.Concat(least.Trouble, c.Trouble)
		if c.Counts != least.Counts {
			least.Counts = ""
		}
	}
	return least, nil
}
