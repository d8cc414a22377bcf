package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
)

// Images lists the catalogue.
func (c *Client) Images(ctx context.Context) (out []machine.Image, err error) {
	return out, c.get(ctx, "/v1/images", &out)
}

// Image returns one image.
func (c *Client) Image(ctx context.Context, name string) (out machine.Image, err error) {
	return out, c.get(ctx, "/v1/images/"+url.PathEscape(name), &out)
}

// Upload says what an image is.
type Upload struct {
	Name        string // in the catalogue
	URL         string // from where the server fetches it; empty for one that is sent
	SHA256      string // hex, or empty
	SHA512      string // hex, or empty
	DigestOf    string // "downloaded" or "written"
	Format      string // "raw", "qcow2", "vmdk", "vhd", or empty
	DefaultUser string
	Driver      bool // it brings the accelerators' driver

	machine.ImageFacts
}

func (u Upload) query() url.Values {
	return url.Values{
		"sha256": {u.SHA256}, "sha512": {u.SHA512}, "digest_of": {u.DigestOf}, "format": {u.Format}, "default_user": {u.DefaultUser}, "driver": {fmt.Sprint(u.Driver)},
		"family": {u.Family}, "version": {u.Version}, "architecture": {string(u.Architecture)}, "min_disk": {strconv.FormatInt(u.MinDisk, 10)},
		"drivers": u.Drivers, "visibility": {string(u.Visibility)}, "projects": u.Projects,
	}
}

// ImportImage sends an image file, or has the server fetch it from u.URL.
func (c *Client) ImportImage(ctx context.Context, u Upload, file io.Reader) (out machine.Image, err error) {
	kind := "application/octet-stream"
	if u.URL != "" {
		source, err := json.Marshal(api.ImageSource{URL: u.URL})
		if err != nil {
			return out, fmt.Errorf("encode request: %w", err)
		}
		kind, file = "application/json", bytes.NewReader(source)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+"/v1/images/"+url.PathEscape(u.Name)+"?"+u.query().Encode(), file)
	if err != nil {
		return out, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", kind)
	return out, c.send(req, &out)
}
