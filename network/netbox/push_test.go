package netbox_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/netbox"
)

const addresses = "/ipam/ip-addresses/"

func held(p string) network.Assignment {
	return network.Assignment{Prefix: netip.MustParsePrefix(p), Held: true, Name: "gpu1.example.com", OrderID: "o-1", Project: "acme", Machine: "n1"}
}

// brief is what the tests look at of an object.
func (f *fake) brief(path string) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects[path] {
		var tags []string
		list, _ := o["tags"].([]any)
		for _, t := range list {
			tags = append(tags, t.(map[string]any)["slug"].(string))
		}
		status, _ := o["status"].(map[string]any)
		out = append(out, fmt.Sprint(o["address"], o["prefix"], " ", status["value"], " ", o["dns_name"], " ", o["tenant"], " ", tags))
	}
	return out
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("NetBox has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func push(t *testing.T, c *netbox.Client, a network.Assignment) {
	t.Helper()
	if err := c.Push(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

// TestPush: an address is made, told twice, released and given out again, and is one object all the time.
func TestPush(t *testing.T) {
	f, c := newFake(t, true)
	tenant := f.have("/tenancy/tenants/", map[string]any{"slug": "acme", "name": "ACME"})
	push(t, c, held("203.0.113.7/32"))
	push(t, c, held("203.0.113.7/32"))
	check(t, f.brief(addresses), fmt.Sprintf("203.0.113.7/32<nil> active gpu1.example.com %d [bareyard]", tenant))
	push(t, c, network.Assignment{Prefix: netip.MustParsePrefix("203.0.113.7/32")})
	check(t, f.brief(addresses), "203.0.113.7/32<nil> deprecated  <nil> [bareyard]")
	push(t, c, held("203.0.113.7/32"))
	check(t, f.brief(addresses), fmt.Sprintf("203.0.113.7/32<nil> active gpu1.example.com %d [bareyard]", tenant))

	push(t, c, held("2001:db8:7::/64"))
	check(t, f.brief("/ipam/prefixes/"), fmt.Sprintf("<nil>2001:db8:7::/64 active <nil> %d [bareyard]", tenant))
	told, err := c.Told(t.Context())
	if err != nil || len(told) != 2 || told[0] != netip.MustParsePrefix("203.0.113.7/32") {
		t.Errorf("told %v, %v", told, err)
	}
	push(t, c, network.Assignment{Prefix: netip.MustParsePrefix("203.0.113.99/32")}) // was never told: nothing is made for it
	if got := f.brief(addresses); len(got) != 1 {
		t.Errorf("NetBox has %q", got)
	}
}

// TestPushDuplicates: what is somebody else's is taken over with its tags; our own duplicates become one; other people's are theirs to
// sort out.
func TestPushDuplicates(t *testing.T) {
	f, c := newFake(t, false)
	f.have("/extras/tags/", map[string]any{"slug": "rack-7"})
	f.have(addresses, map[string]any{"address": "203.0.113.7/32", "tags": []any{map[string]any{"slug": "rack-7"}}})
	push(t, c, held("203.0.113.7/32"))
	check(t, f.brief(addresses), "203.0.113.7/32<nil> active gpu1.example.com <nil> [bareyard rack-7]")
	for range 2 {
		f.have(addresses, map[string]any{"address": "203.0.113.7/32", "tags": []any{map[string]any{"slug": "bareyard"}}})
	}
	push(t, c, held("203.0.113.7/32"))
	check(t, f.brief(addresses), "203.0.113.7/32<nil> active gpu1.example.com <nil> [bareyard rack-7]")
	for range 2 {
		f.have(addresses, map[string]any{"address": "203.0.113.8/32"})
	}
	if err := c.Push(t.Context(), held("203.0.113.8/32")); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("two objects of somebody else: %v", err)
	}
}

// TestPushTrouble: NetBox is busy, breaks, and does as asked without a word of it. The push comes to one object in the end.
func TestPushTrouble(t *testing.T) {
	for name, c := range map[string]struct {
		trouble []int
		fails   bool // the first push does; the outbox has a second one made
	}{
		"Busy":              {[]int{429, 503, 502}, false},
		"Busy for long":     {[]int{429, 429, 429, 429, 429}, true},
		"Answer lost":       {[]int{0, 0, 0, 0, -1}, true}, // of the request that makes the address
		"Tag's answer lost": {[]int{0, 0, -1}, false},
		"List lost":         {[]int{-1}, false},
		"List breaks off":   {[]int{-2}, false},
		"Answer breaks off": {[]int{0, 0, 0, 0, -2}, true}, // of the request that makes the address
		"Breaks on making":  {[]int{0, 0, 0, 0, 500}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, client := newFake(t, true)
			f.fail(c.trouble...)
			err := client.Push(t.Context(), held("203.0.113.7/32"))
			if (err != nil) != c.fails || err != nil && machine.CodeOf(err) != machine.Unavailable {
				t.Errorf("push: %v", err)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the token is in the error: %v", err)
			}
			f.mu.Lock()
			posts := 0
			for _, asked := range f.asked {
				if asked == "POST /api"+addresses {
					posts++
				}
			}
			f.mu.Unlock()
			if posts > 1 {
				t.Errorf("the address was asked to be made %d times", posts)
			}
			f.fail()
			push(t, client, held("203.0.113.7/32"))
			check(t, f.brief(addresses), "203.0.113.7/32<nil> active gpu1.example.com <nil> [bareyard]")
		})
	}
}

// TestRefused: a wrong token, an address that is no NetBox, one that nobody listens on. None of them is an answer, and none shows the token.
func TestRefused(t *testing.T) {
	f, c := newFake(t, true)
	wrong := *c
	wrong.Token = "wrong"
	if err := wrong.Push(t.Context(), held("203.0.113.7/32")); machine.CodeOf(err) != machine.Invalid || strings.Contains(err.Error(), "wrong") {
		t.Errorf("wrong token: %v", err)
	}
	if n := len(f.asked); n != 1 {
		t.Errorf("a wrong token was tried %d times", n)
	}
	wrong = *c
	wrong.URL = "http://127.0.0.1:1"
	if err := wrong.Push(t.Context(), held("203.0.113.7/32")); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("nobody listens: %v", err)
	}
}

// TestPushWithNetworkLength: NetBox has addresses with the length of their network as a rule. That is the same address, and it stays as
// it is written there; one in a VRF is another.
func TestPushWithNetworkLength(t *testing.T) {
	f, c := newFake(t, true)
	f.have(addresses, map[string]any{"address": "203.0.113.7/24", "status": map[string]any{"value": "reserved"}})
	f.have(addresses, map[string]any{"address": "203.0.113.8/24", "vrf": map[string]any{"id": 5}})
	f.have("/ipam/prefixes/", map[string]any{"prefix": "2001:db8:7::/64", "vrf": map[string]any{"id": 5}})
	for _, p := range []string{"203.0.113.7/32", "203.0.113.8/32", "2001:db8:7::/64"} {
		push(t, c, held(p))
	}
	check(t, f.brief(addresses), "203.0.113.7/24<nil> active gpu1.example.com <nil> [bareyard]", "203.0.113.8/24<nil> <nil> <nil> <nil> []", "203.0.113.8/32<nil> active gpu1.example.com <nil> [bareyard]")
	check(t, f.brief("/ipam/prefixes/"), "<nil>2001:db8:7::/64 <nil> <nil> <nil> []", "<nil>2001:db8:7::/64 active <nil> <nil> [bareyard]")
	told, err := c.Told(t.Context())
	if err != nil || !slices.Equal(told, []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32"), netip.MustParsePrefix("203.0.113.8/32"), netip.MustParsePrefix("2001:db8:7::/64")}) {
		t.Errorf("told %v, %v: what an order holds would be told again and again", told, err)
	}
}

// TestRedirected: nobody but the NetBox of the configuration gets the token, and nothing that is to be made becomes a question.
func TestRedirected(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("followed to %s with %q", r.URL, r.Header.Get("Authorization"))
	}))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusMovedPermanently))
	t.Cleanup(server.Close)
	for name, hc := range map[string]*http.Client{"Default": nil, "Given": {}} {
		err := (&netbox.Client{URL: server.URL, Token: token, HTTP: hc}).Push(t.Context(), held("203.0.113.7/32"))
		var e *machine.Error
		if !errors.As(err, &e) || e.Code != machine.Invalid || e.Field != "netbox.url" || e.Hint == "" || !strings.Contains(e.Message, elsewhere.URL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
