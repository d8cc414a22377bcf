package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

// TestWhoSeesImages: a project's image does not exist for others, by any road; a community image is for who knows its name.
func TestWhoSeesImages(t *testing.T) {
	o := newOffice(t)
	for name, f := range map[string]machine.ImageFacts{
		"theirs": {Visibility: machine.ForProjects, Projects: []string{"acme", "third"}},
		"hinted": {Visibility: machine.Community},
	} {
		o.must(o.db.PutImage(t.Context(), machine.Image{Name: name, Digest: strings.Repeat("cd", 32), Size: 1 << 20, BIOS: true, ImageFacts: f}))
	}
	for who, want := range map[string]struct {
		token, shown, hidden string
	}{"operator": {o.boss, "i theirs hinted third", ""}, "acme": {o.acme, "i theirs", "hinted third"}, "other": {o.other, "i", "theirs hinted third"}} {
		_, list := o.call("GET", "/v1/images", want.token, "")
		for _, name := range strings.Fields(want.shown) {
			if !strings.Contains(list, `"`+name+`"`) {
				t.Errorf("%s does not see %s: %s", who, name, list)
			}
		}
		for _, name := range strings.Fields(want.hidden) {
			if strings.Contains(list, `"`+name+`"`) {
				t.Errorf("%s sees %s: %s", who, name, list)
			}
		}
	}
	_, absent := o.call("GET", "/v1/images/never", o.other, "")
	if status, text := o.call("GET", "/v1/images/theirs", o.other, ""); status != http.StatusNotFound || text != strings.ReplaceAll(absent, "never", "theirs") {
		t.Errorf("another project's image: %d %s", status, text)
	}
	if status, text := o.call("GET", "/v1/images/theirs", o.acme, ""); status != http.StatusOK || strings.Contains(text, "third") {
		t.Errorf("the project's own image: %d %s", status, text)
	}
	if status, _ := o.call("GET", "/v1/images/hinted", o.other, ""); status != http.StatusOK {
		t.Errorf("a community image, by its name: %d", status)
	}
	order := `{"class":"c","image":"IMAGE","line":"l","bandwidth":10,"ssh_keys":["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl t"]}`
	_, absent = o.call("POST", "/v1/orders", o.other, strings.ReplaceAll(order, "IMAGE", "never"))
	if status, text := o.call("POST", "/v1/orders", o.other, strings.ReplaceAll(order, "IMAGE", "theirs")); status != http.StatusNotFound || text != strings.ReplaceAll(absent, "never", "theirs") {
		t.Errorf("an order with another project's image: %d %s", status, text)
	}
	o.must(o.db.PutImage(t.Context(), machine.Image{Name: "theirs", Digest: strings.Repeat("cd", 32), Size: 1 << 20, BIOS: true, ImageFacts: machine.ImageFacts{Visibility: machine.ForProjects, Projects: []string{"third"}}}))
	if status, text := o.call("POST", "/v1/orders/"+o.order.ID+"/reinstall", o.acme, `{"image":"theirs","consent":"web"}`); status != http.StatusNotFound || !strings.Contains(text, `no image`) {
		t.Errorf("a reinstallation with another project's image: %d %s", status, text)
	}
}

// TestImportFactsAreChecked: what is wrong with an import is said before the server fetches anything.
func TestImportFactsAreChecked(t *testing.T) {
	o := newOffice(t)
	for query, word := range map[string]string{
		"architecture=riscv64": "unknown architecture", "visibility=project": "names none", "min_disk=ten": "no number of bytes", "sha512=abc": "no sha512", "": "no http or https URL",
	} {
		if status, text := o.call("PUT", "/v1/images/x?"+query, o.boss, `{"url":"ftp://example.org/x"}`); status != http.StatusUnprocessableEntity || !strings.Contains(text, word) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	if status, text := o.call("PUT", "/v1/images/Debian%2012", o.boss, `{"url":"https://example.org/x"}`); status != http.StatusUnprocessableEntity || !strings.Contains(text, "image name") {
		t.Errorf("an odd name: %d %s", status, text)
	}
	if status, text := o.call("PUT", "/v1/images/x", o.boss, `{}`); status != http.StatusUnprocessableEntity || !strings.Contains(text, "names no address") {
		t.Errorf("no address: %d %s", status, text)
	}
}
