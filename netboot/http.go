package netboot

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/bareyard/bareyard/netboot/httpboot"
	"github.com/bareyard/bareyard/netboot/ipxe"
	"github.com/bareyard/bareyard/netboot/tftp"
)

// ServeHTTP is the HTTP side: scripts, kernel, RAM disk, archive, loaders, and the Handlers beside them.
func (c *conversation) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	from := remote(r)
	began := time.Now()
	w := httpboot.NewSteady(rw)
	mac, err := c.route(w, r, from)
	if mac == "" {
		mac = c.macOf(from)
	}
	if err == nil {
		err = w.Err()
	}
	if err != nil && w.Status < 200 {
		c.fail(w, r, err)
	}
	ex := Exchange{At: began, Took: time.Since(began), MAC: mac, From: from, Proto: "http", Asked: r.URL.Path, File: r.URL.Path, Bytes: w.Bytes, Status: w.Status,
		Size: w.Length(), Boots: w.Note}
	got := fmt.Sprint(w.Status)
	if err == nil {
		c.log.Debug("boot request", "mac", mac, "from", from, "path", r.URL.Path, "status", w.Status, "bytes", w.Bytes)
		outcome := outcomeOf(w.Status, false)
		if outcome == Answered && r.Method == http.MethodHead {
			outcome = Probed
		}
		c.trace(ex, outcome, got, "")
		return
	}
	c.log.Warn("boot request", "mac", mac, "from", from, "path", r.URL.Path, "status", w.Status, "err", err)
	c.trace(ex, outcomeOf(w.Status, true), got+" "+err.Error(), err.Error())
}

// outcomeOf an HTTP answer. An error after a good status broke it off.
func outcomeOf(status int, err bool) Outcome {
	switch {
	case status >= 500:
		return Failed
	case status >= 400:
		return Refused
	case err:
		return Broken
	}
	return Answered
}

// Refusals of our own, by status in fail.
var (
	errNoPath = fmt.Errorf("no such path: %w", fs.ErrNotExist)
	errMethod = errors.New("method not allowed")
)

// route answers one request, or returns why it did not. mac is the machine that the path names, if it names one.
func (c *conversation) route(w *httpboot.Steady, r *http.Request, from netip.Addr) (mac string, err error) {
	p, ok := httpboot.Path(r)
	if !ok {
		return "", errNoPath
	}
	name, boot := strings.CutPrefix(p, bootPrefix)
	if !boot {
		return "", c.beside(w, r, p)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return "", errMethod
	}
	dir, base, nested := strings.Cut(name, "/")
	switch {
	case !nested && name == "vmlinuz":
		return "", file(w, r)(os.Open(c.KernelPath))
	case !nested && name == "ramdisk":
		return "", file(w, r)(os.Open(c.RAMDiskPath))
	case !nested:
		if name, err = tftp.Clean(name); err != nil {
			return "", errNoPath
		}
		if path, ok := c.files[name]; ok {
			return "", file(w, r)(os.Open(path))
		}
		return "", file(w, r)(os.OpenInRoot(c.LoaderDir, name))
	case dir == "ipxe":
		base, ok = strings.CutSuffix(base, ".ipxe")
		if mac, known := parseMAC(base); ok && known {
			return mac, c.script(w, r, mac, from)
		}
	case dir == "archive":
		if mac, known := parseMAC(base); known {
			return mac, c.archive(w, r, mac, from)
		}
	}
	return "", errNoPath
}

// script answers what the machine boots now. A script holds no secret, but it is nobody else's business either.
func (c *conversation) script(w *httpboot.Steady, r *http.Request, mac string, from netip.Addr) error {
	boot, err := c.boot(r.Context(), mac, from)
	if err != nil {
		return err
	}
	text := ipxe.DiskScript()
	if boot.Kind == BootAgent {
		base := c.base(c.local(r)) + bootPrefix
		text, err = ipxe.Agent{Kernel: base + "vmlinuz", RAMDisk: base + "ramdisk", Archive: base + "archive/" + mac, Cmdline: boot.Cmdline}.Script()
		if err != nil {
			return fmt.Errorf("write script: %w", err)
		}
	}
	c.loops.clear(mac)
	c.log.Info("machine asks what to boot", "mac", mac, "boots", boot.Kind.String())
	w.Note = boot.Kind.String()
	httpboot.Bytes(w, r, "text/plain", text)
	return nil
}

// archive answers the archive of this boot. Only GET: each one mints a nonce.
func (c *conversation) archive(w http.ResponseWriter, r *http.Request, mac string, from netip.Addr) error {
	if r.Method != http.MethodGet {
		return errMethod
	}
	b, err := c.mint(r.Context(), mac, from)
	if err != nil {
		return err
	}
	httpboot.Bytes(w, r, "application/octet-stream", b)
	return nil
}

// local returns the address of ours that a request came to.
func (c *conversation) local(r *http.Request) netip.Addr {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return c.links[0].addr
}

// beside passes a request to the handler with the longest prefix.
func (c *conversation) beside(w http.ResponseWriter, r *http.Request, p string) error {
	var best string
	for prefix := range c.Handlers {
		if strings.HasPrefix(p, prefix) && len(prefix) > len(best) {
			best = prefix
		}
	}
	if best == "" {
		return errNoPath
	}
	clean, u := *r, *r.URL
	u.Path, u.RawPath = p, ""
	clean.URL = &u
	c.Handlers[best].ServeHTTP(w, &clean)
	return nil
}

// file serves what an open returned.
func file(w http.ResponseWriter, r *http.Request) func(*os.File, error) error {
	return func(f *os.File, err error) error {
		if err != nil {
			return fmt.Errorf("open boot file: %w", err)
		}
		defer f.Close()
		return httpboot.File(w, r, f)
	}
}

// fail answers for err. The words are for the console of the machine; what happened is in our log.
func (c *conversation) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, text := http.StatusInternalServerError, "internal error, see the log of the server"
	switch {
	case errors.Is(err, ErrRefused):
		status, text = http.StatusForbidden, "refused"
	case errors.Is(err, ErrUnknown), errors.Is(err, fs.ErrNotExist):
		status, text = http.StatusNotFound, "not found"
	case errors.Is(err, errMethod):
		status, text = http.StatusMethodNotAllowed, "method not allowed"
		w.Header().Set("Allow", "GET, HEAD")
	}
	httpboot.Fail(w, r, status, text)
}

// remote returns the address of the client.
func remote(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}
