package network_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// sitesOf returns edges a, b and one for all others, and where machines stand.
func sitesOf(where map[string]string) (*network.Sites, map[string]*memory) {
	edges := map[string]*memory{"a": {}, "b": {}, "": {}}
	s := &network.Sites{Edges: map[string]network.Edge{}, SiteOf: func(_ context.Context, id string) (string, error) { return where[id], nil }}
	for site, m := range edges {
		m.ports = map[string]network.Port{}
		s.Edges[site] = m
	}
	return s, edges
}

func at(site string, p network.Port) network.Port { p.Site = site; return p }

func TestSites(t *testing.T) {
	s, edges := sitesOf(map[string]string{"m1": "a", "m2": "b", "m3": "c"})
	want := []network.Port{
		at("a", port("m1", "52:54:00:00:00:01", "203.0.113.1/32")), at("b", port("m2", "52:54:00:00:00:02", "203.0.113.2/32")),
		at("c", port("m3", "52:54:00:00:00:03", "203.0.113.3/32")),
	}
	if err := network.Reconcile(t.Context(), s, want); err != nil {
		t.Fatal(err)
	}
	for site, id := range map[string]string{"a": "m1", "b": "m2", "": "m3"} {
		if _, ok := edges[site].ports[id]; !ok || len(edges[site].ports) != 1 {
			t.Errorf("edge %q carries %v, want %s", site, edges[site].ports, id)
		}
	}
	have, err := s.Read(t.Context())
	if err != nil || !slices.EqualFunc(have, want, network.Port.Equal) {
		t.Errorf("read %v, %v", have, err)
	}

	// What all ports share is repaired everywhere.
	calls := edges["b"].calls
	if err := s.Apply(t.Context(), nil, nil); err != nil || edges["b"].calls != calls+1 {
		t.Errorf("nothing to change reached b %d times, %v", edges["b"].calls-calls, err)
	}
	// One site's edge is down: the others are read and changed, and it is said which is missing.
	edges["b"].err = errors.New("b is down")
	have, err = s.Read(t.Context())
	var lost *network.UnreachableError
	if !errors.As(err, &lost) || !lost.Covers("b") || lost.Covers("a") || lost.Covers("c") || len(have) != 2 {
		t.Errorf("read %v, %v", have, err)
	}
	if err := s.Apply(t.Context(), nil, []string{"m1"}); err != nil || len(edges["a"].ports) != 0 {
		t.Errorf("remove at a while b is down: %v", err)
	}
	// A machine that nobody knows may be anywhere, so all must have said that it is gone.
	edges["a"].ports["ghost"], edges[""].ports["ghost"] = network.Port{Machine: "ghost"}, network.Port{Machine: "ghost"}
	if err := s.Apply(t.Context(), nil, []string{"ghost"}); err != nil || len(edges["a"].ports)+len(edges[""].ports) != 1 {
		t.Errorf("a ghost is left in %v and %v, %v", edges["a"].ports, edges[""].ports, err)
	}

	delete(s.Edges, "")
	if err := s.Apply(t.Context(), []network.Port{want[2]}, nil); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("a site without an edge: %v", err)
	}
}

func TestSitesCaps(t *testing.T) {
	s := &network.Sites{Edges: map[string]network.Edge{
		"a": able{network.Caps{Driver: "linux", Modes: network.Modes(), Burst: true, IPv6: true, Ports: 10, Counts: "delivered"}},
		"b": able{network.Caps{Driver: "manual", Modes: []network.Mode{network.On, network.Off}, Person: true}},
	}}
	got, err := s.Caps(t.Context())
	if err != nil || got.Driver != "several" || !slices.Equal(got.Modes, []network.Mode{network.On, network.Off}) || got.Burst || got.IPv6 || !got.Person || got.Counts != "" || got.Ports != 0 {
		t.Errorf("together they can %+v, %v", got, err)
	}
}

type able struct{ caps network.Caps }

func (a able) Read(context.Context) ([]network.Port, error)          { return nil, nil }
func (a able) Apply(context.Context, []network.Port, []string) error { return nil }
func (a able) Counters(context.Context) ([]network.Counter, error)   { return nil, nil }
func (a able) Caps(context.Context) (network.Caps, error)            { return a.caps, nil }
