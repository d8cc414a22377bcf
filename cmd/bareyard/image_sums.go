package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/images/checksums"
	"github.com/bareyard/bareyard/machine"
)

// sumsFlags say where a publisher's checksums are, and who must have signed them.
type sumsFlags struct {
	Sums          string `placeholder:"FILE|URL" help:"The publisher's file of checksums; it is asked for the image by the name of its file."`
	SumsKey       string `placeholder:"KEYRING" help:"The checksums must be signed by a key in this file."`
	SumsSignature string `placeholder:"FILE|URL" help:"Detached signature (default: in the checksums, or beside them as .sig, .gpg, .asc or .sign)."`
}

// promised asks the checksums for the digest of source, and says who signed them.
func (f *sumsFlags) promised(ctx context.Context, source string, u *client.Upload) (signer string, err error) {
	refuse := func(field, message, hint string) error {
		return &machine.Error{Code: machine.Invalid, Field: field, Message: message, Hint: hint}
	}
	switch {
	case f.Sums == "" && (f.SumsKey != "" || f.SumsSignature != ""):
		return "", refuse("sums", "there is a key or a signature, and no checksums", "give them by --sums")
	case f.SumsKey == "" && f.SumsSignature != "":
		return "", refuse("sums_key", "there is a signature, and no key to verify it with", "give the publisher's keyring by --sums-key")
	case f.Sums == "":
		return "", nil
	case u.SHA256 != "" || u.SHA512 != "":
		return "", refuse("sums", "a digest is given beside the checksums", "give one of them")
	case u.DigestOf == "written":
		return "", refuse("sums", "checksums are of files as they are downloaded", "leave out --of written")
	}
	text, err := readSource(ctx, f.Sums)
	if err != nil {
		return "", err
	}
	if f.SumsKey != "" {
		keyring, err := os.ReadFile(f.SumsKey)
		if err != nil {
			return "", refuse("sums_key", fmt.Sprintf("read keyring: %v", err), "export the publisher's key: gpg --export --armor KEY >publisher.asc")
		}
		signature, err := f.signature(ctx, text)
		if err != nil {
			return "", err
		}
		if text, signer, err = checksums.Verify(text, signature, keyring, time.Now()); err != nil {
			return "", err
		}
	}
	name := filepath.Base(source)
	if isURL(source) {
		at, err := url.Parse(source)
		if err != nil {
			return "", refuse("file", "the address of the image is no http or https URL", "")
		}
		name = path.Base(at.Path)
	}
	sum, err := checksums.Find(text, name)
	u.SHA256, u.SHA512 = sum.SHA256, sum.SHA512
	return signer, err
}

// signature returns the detached signature of the checksums, nil when they carry their own.
func (f *sumsFlags) signature(ctx context.Context, text []byte) ([]byte, error) {
	if f.SumsSignature != "" {
		return readSource(ctx, f.SumsSignature)
	}
	if checksums.ClearSigned(text) {
		return nil, nil
	}
	for _, suffix := range []string{".sig", ".gpg", ".asc", ".sign"} {
		b, err := readSource(ctx, beside(f.Sums, suffix))
		if machine.CodeOf(err) != machine.NotFound {
			return b, err
		}
	}
	return nil, nil // Verify says that there is none
}

// beside adds a suffix to the path of a file or URL.
func beside(source, suffix string) string {
	if u, err := url.Parse(source); err == nil && isURL(source) {
		u.Path, u.RawPath = u.Path+suffix, ""
		return u.String()
	}
	return source + suffix
}

// readSource reads a small file from this machine or from the web.
func readSource(ctx context.Context, source string) ([]byte, error) {
	if !isURL(source) {
		b, err := os.ReadFile(source)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &machine.Error{Code: machine.NotFound, Field: "sums", Message: fmt.Sprintf("no file %q", source), Hint: "give a file of this machine, or an address that begins with https://"}
		}
		if err != nil {
			return nil, fmt.Errorf("read checksums: %w", err)
		}
		return b, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	unavailable := func(err error) error {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // without the address, which may hold a password
		}
		return &machine.Error{Code: machine.Unavailable, Field: "sums", Message: fmt.Sprintf("the checksums cannot be fetched: %v", err), Hint: "fetch them another way, and give the file"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		return nil, unavailable(err)
	}
	client := http.Client{CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if len(via) >= 10 || via[0].URL.Scheme == "https" && to.URL.Scheme != "https" { // whoever sits there could give others
			return fmt.Errorf("it leads on to %s://%s", to.URL.Scheme, to.URL.Host)
		}
		return nil
	}}
	res, err := client.Do(req)
	if err != nil {
		return nil, unavailable(err)
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone, http.StatusForbidden: // S3 says so of what is not there
		return nil, &machine.Error{Code: machine.NotFound, Field: "sums", Message: fmt.Sprintf("the server answers %s for the checksums or their signature", res.Status), Hint: "open the address in a browser to see what is there"}
	default:
		return nil, unavailable(fmt.Errorf("the server answers %s", cmp.Or(res.Status, "nothing")))
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, checksums.MaxSize+1))
	if err != nil {
		return nil, unavailable(err)
	}
	return b, nil
}
