package netboot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/httpboot"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testMAC = "02:00:5e:10:20:30"

// web is the HTTP side of a Server on loopback; the machine with testMAC has the address of this host.
type web struct {
	*conversation
	booter *fakeBooter
	addr   string
	seen   exchanges
}

func serveHTTP(t testing.TB, change func(*Server)) *web {
	t.Helper()
	w := &web{booter: &fakeBooter{
		leases: map[string]Lease{
			testMAC:             {Addr: netip.MustParsePrefix("127.0.0.1/8")},
			"02:00:5e:10:20:31": {Addr: netip.MustParsePrefix("127.0.0.2/8")},
		},
		boot: Boot{Kind: BootAgent, Cmdline: "console=ttyS0"}, archive: []byte("cpio"),
	}}
	s := &Server{Booter: w.booter, Interface: "lo", Addr: netip.MustParseAddr("127.0.0.1"), HTTPPort: 8080, Trace: w.seen.add}
	files(t, s)
	if change != nil {
		change(s)
	}
	c, err := newConversation(s)
	if err != nil {
		t.Fatal(err)
	}
	w.conversation = c
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = httpboot.NewServer(c)
	srv.Start()
	t.Cleanup(srv.Close)
	w.addr = srv.Listener.Addr().String()
	return w
}

// raw sends one request as it stands and returns the answer, read to the end of the connection.
func (w *web) raw(t testing.TB, method, path string, headers ...string) (*http.Response, []byte) {
	t.Helper()
	c, err := net.Dial("tcp4", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", method, path, strings.Join(append(headers, ""), "\r\n"))
	all, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	checkHeaders(t, path, all)
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(all)), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s %s: %v in %q", method, path, err, all)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

// checkHeaders is C03 for every answer of every test: few, short headers, none empty, and an exact length.
func checkHeaders(t testing.TB, path string, all []byte) {
	t.Helper()
	head, _, _ := bytes.Cut(all, []byte("\r\n\r\n"))
	lines := strings.Split(string(head), "\r\n")[1:]
	if len(lines) > 12 {
		t.Errorf("%s: %d headers", path, len(lines))
	}
	length := false
	for _, l := range lines {
		k, v, _ := strings.Cut(l, ":")
		if strings.TrimSpace(v) == "" || len(l) > 256 {
			t.Errorf("%s: header %q", path, l)
		}
		length = length || strings.EqualFold(k, "Content-Length")
		if strings.EqualFold(k, "Location") || strings.EqualFold(k, "Transfer-Encoding") {
			t.Errorf("%s: header %q", path, l)
		}
	}
	if !length {
		t.Errorf("%s: no Content-Length: %q", path, lines)
	}
}

// TestC01NoRedirects: paths that firmware joins badly are served as they were meant.
func TestC01NoRedirects(t *testing.T) {
	w := serveHTTP(t, func(s *Server) {
		s.Handlers = map[string]http.Handler{"/images/": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			httpboot.Bytes(w, r, "text/plain", []byte(r.URL.Path))
		})}
	})
	for _, path := range []string{
		"/boot/snponly.efi", "/boot//snponly.efi", "//boot/snponly.efi", "/boot/./snponly.efi", "///boot///snponly.efi",
		"/boot/vmlinuz", "//boot//vmlinuz", "/boot//ipxe//" + testMAC + ".ipxe", "/boot/ipxe/02-00-5E-10-20-30.ipxe",
		"/boot/ipxe/02%3A00%3a5e:10:20:30.ipxe", "/boot/archive//" + testMAC, "/images/chunk/x",
	} {
		if res, body := w.raw(t, "GET", path); res.StatusCode != 200 || len(body) == 0 {
			t.Errorf("GET %s: %s, %d bytes", path, res.Status, len(body))
		}
	}
	if _, body := w.raw(t, "GET", "//images//chunk/./x"); string(body) != "/images/chunk/x" {
		t.Errorf("handler sees %q", body)
	}
	for _, path := range []string{"/", "/boot", "/boot/", "/image", "/boot/missing", "/boot/ipxe/", "/boot/ipxe/x.ipxe", "/boot/ipxe/" + testMAC, "/boot/archive/x", "/boot/a/b"} {
		if res, _ := w.raw(t, "GET", path); res.StatusCode != 404 {
			t.Errorf("GET %s: %s", path, res.Status)
		}
	}
	if res, _ := w.raw(t, "POST", "/boot/vmlinuz"); res.StatusCode != 405 {
		t.Errorf("POST: %s", res.Status)
	}
}

// TestC03Headers: checkHeaders over each kind of answer, HEAD too.
func TestC03Headers(t *testing.T) {
	w := serveHTTP(t, nil)
	for _, path := range []string{"/boot/vmlinuz", "/boot/ramdisk", "/boot/snponly.efi", "/boot/ipxe/" + testMAC + ".ipxe", "/boot/missing"} {
		get, body := w.raw(t, "GET", path)
		head, none := w.raw(t, "HEAD", path)
		if len(none) != 0 || head.ContentLength != int64(len(body)) || head.StatusCode != get.StatusCode {
			t.Errorf("HEAD %s: %s, length %d; GET sends %d", path, head.Status, head.ContentLength, len(body))
		}
	}
}

// TestC05Ranges: part of a file, the end of it, beyond it; and a file that changed in between.
func TestC05Ranges(t *testing.T) {
	w := serveHTTP(t, nil)
	whole, err := os.ReadFile(w.KernelPath)
	if err != nil {
		t.Fatal(err)
	}
	size := len(whole)
	for _, test := range []struct {
		ask        string
		status     int
		from, to   int
		contentRng string
	}{
		{"bytes=0-0", 206, 0, 1, fmt.Sprintf("bytes 0-0/%d", size)},
		{"bytes=2048-4095", 206, 2048, 4096, fmt.Sprintf("bytes 2048-4095/%d", size)},
		{"bytes=-512", 206, size - 512, size, fmt.Sprintf("bytes %d-%d/%d", size-512, size-1, size)},
		{"bytes=5-", 206, 5, size, fmt.Sprintf("bytes 5-%d/%d", size-1, size)},
		{fmt.Sprintf("bytes=0-%d", size+100), 206, 0, size, fmt.Sprintf("bytes 0-%d/%d", size-1, size)},
		{fmt.Sprintf("bytes=%d-", size), 416, 0, 0, fmt.Sprintf("bytes */%d", size)},
	} {
		res, body := w.raw(t, "GET", "/boot/vmlinuz", "Range: "+test.ask)
		if res.StatusCode != test.status || res.Header.Get("Content-Range") != test.contentRng {
			t.Errorf("%s: %s, Content-Range %q", test.ask, res.Status, res.Header.Get("Content-Range"))
		}
		if test.status == 206 && !bytes.Equal(body, whole[test.from:test.to]) {
			t.Errorf("%s: %d bytes, wrong", test.ask, len(body))
		}
	}
	res, body := w.raw(t, "HEAD", "/boot/vmlinuz", "Range: bytes=0-1000")
	if res.StatusCode != 206 || res.ContentLength != 1001 || len(body) != 0 {
		t.Errorf("HEAD with a range: %s, length %d", res.Status, res.ContentLength)
	}
	if res, body := w.raw(t, "GET", "/boot/vmlinuz", "Range: bytes=0-1,5-6"); res.StatusCode != 206 || !bytes.Contains(body, whole[5:7]) {
		t.Errorf("two ranges: %s", res.Status)
	}
	res, _ = w.raw(t, "GET", "/boot/vmlinuz")
	if res.Header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("Accept-Ranges %q", res.Header.Get("Accept-Ranges"))
	}
	tag := res.Header.Get("ETag")
	if res, _ := w.raw(t, "GET", "/boot/vmlinuz", "Range: bytes=9-", "If-Range: "+tag); res.StatusCode != 206 {
		t.Errorf("same file, If-Range: %s", res.Status)
	}
	changed := bytes.ToUpper(whole)
	if err := errors.Join(os.WriteFile(w.KernelPath, changed, 0o644),
		os.Chtimes(w.KernelPath, time.Time{}, time.Now().Add(time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	res, body = w.raw(t, "GET", "/boot/vmlinuz", "Range: bytes=9-", "If-Range: "+tag)
	if res.StatusCode != 200 || !bytes.Equal(body, changed) || res.Header.Get("ETag") == tag {
		t.Errorf("changed file, If-Range: %s, ETag %s", res.Status, res.Header.Get("ETag"))
	}
}

// TestK01Paths: nothing outside the loader folder, by any spelling.
func TestK01Paths(t *testing.T) {
	w := serveHTTP(t, nil)
	if err := os.Symlink("/etc/passwd", w.LoaderDir+"/link.efi"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/boot/%2e%2e/etc/passwd", "/boot/..%2f..%2fetc/passwd", "/boot/..%5c..%5cx", "/boot/../vmlinuz", "/boot/ipxe/../vmlinuz",
		"/../../etc/passwd", "/boot/....//vmlinuz", "/boot/link.efi", "/boot/snponly.efi%00", "/boot/snponly.efi/", "/boot/vmlinuz%0a",
		"/boot/ipxe/..%2f" + testMAC + ".ipxe",
	} {
		if res, body := w.raw(t, "GET", path); res.StatusCode < 400 {
			t.Errorf("GET %s: %s %q", path, res.Status, body[:min(40, len(body))])
		}
	}
}

// TestK03Neighbour: a script goes only to the address that the machine has; so does the archive, by the Booter.
func TestK03Neighbour(t *testing.T) {
	w := serveHTTP(t, nil)
	const other = "02:00:5e:10:20:31" // has another address than this host
	for _, path := range []string{"/boot/ipxe/" + other + ".ipxe", "/boot/archive/" + other} {
		if res, body := w.raw(t, "GET", path); res.StatusCode != 403 || strings.Contains(string(body), "console") {
			t.Errorf("GET %s: %s %q", path, res.Status, body)
		}
	}
	if res, _ := w.raw(t, "GET", "/boot/ipxe/02:00:5e:ff:ff:ff.ipxe"); res.StatusCode != 404 {
		t.Errorf("unknown machine: %s", res.Status)
	}
	if res, body := w.raw(t, "GET", "/boot/archive/"+testMAC); res.StatusCode != 200 || string(body) != "cpio" || res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("own archive: %s %q", res.Status, body)
	}
	if res, _ := w.raw(t, "HEAD", "/boot/archive/"+testMAC); res.StatusCode != 405 || w.booter.archives != 1 {
		t.Errorf("HEAD of an archive: %s, %d minted", res.Status, w.booter.archives)
	}
	w.seen.expect(t, "http /boot/ipxe/"+other+".ipxe 403", "http /boot/archive/"+testMAC+" 200")
}

// TestScripts: what a machine boots follows its job, and a failing Booter is an error, never "boot from disk".
func TestScripts(t *testing.T) {
	w := serveHTTP(t, nil)
	path := "/boot/ipxe/" + testMAC + ".ipxe"
	_, body := w.raw(t, "GET", path)
	for _, part := range []string{"#!ipxe\n", "http://127.0.0.1:8080/boot/vmlinuz", "http://127.0.0.1:8080/boot/archive/" + testMAC, "console=ttyS0"} {
		if !bytes.Contains(body, []byte(part)) {
			t.Errorf("no %q in\n%s", part, body)
		}
	}
	w.booter.boot = Boot{}
	if _, body := w.raw(t, "GET", path); !bytes.Contains(body, []byte("sanboot")) || bytes.Contains(body, []byte("vmlinuz")) {
		t.Errorf("machine without a job gets\n%s", body)
	}
	w.booter.boot = Boot{Kind: BootAgent, Cmdline: "a || shell"}
	if res, body := w.raw(t, "GET", path); res.StatusCode != 500 || bytes.Contains(body, []byte("shell")) {
		t.Errorf("cmdline that is no cmdline: %s %q", res.Status, body)
	}
	w.booter.err = errors.New("no database: password=Zq9canary")
	for _, path := range []string{path, "/boot/archive/" + testMAC} {
		if res, body := w.raw(t, "GET", path); res.StatusCode != 500 || bytes.Contains(body, []byte("canary")) {
			t.Errorf("%s with a failing Booter: %s %q", path, res.Status, body)
		}
	}
}

func TestConfiguration(t *testing.T) {
	for name, change := range map[string]func(*Server){
		"no booter":    func(s *Server) { s.Booter = nil },
		"no interface": func(s *Server) { s.Interface = "" },
		"no such mode": func(s *Server) { s.Mode = "both" },
		"IPv6":         func(s *Server) { s.Addr = netip.MustParseAddr("::1") },
		"no address":   func(s *Server) { s.Addr = netip.Addr{} },
		"no loaders":   func(s *Server) { s.LoaderDir = t.TempDir() },
		"no kernel":    func(s *Server) { s.KernelPath = "" },
		"RAM disk":     func(s *Server) { s.RAMDiskPath += "x" },
		"boot taken":   func(s *Server) { s.Handlers = map[string]http.Handler{"/boot/": http.NotFoundHandler()} },
		"not a prefix": func(s *Server) { s.Handlers = map[string]http.Handler{"/images": http.NotFoundHandler()} },
		"no loader":    func(s *Server) { s.Loaders = map[dhcp.Platform]string{dhcp.PlatformARM64: "/nowhere/x.efi"} },
		"long loader":  func(s *Server) { s.Loaders = map[dhcp.Platform]string{dhcp.PlatformX64: longFile(t)} },
		"no shim":      func(s *Server) { signed(t, s); s.ShimPath += "x" },
		"overlap": func(s *Server) {
			s.Subnets = []Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("10.1.0.0/16")}}
		},
		"proxy's range": func(s *Server) {
			s.Mode, s.Subnets = Proxy, []Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Range: Range{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}}}
		},
		"folder kernel": func(s *Server) { s.KernelPath = t.TempDir() },
	} {
		s := &Server{Booter: &fakeBooter{}, Interface: "lo", Addr: netip.MustParseAddr("127.0.0.1")}
		files(t, s)
		if _, err := newConversation(s); err != nil {
			t.Fatalf("good configuration refused: %v", err)
		}
		change(s)
		if _, err := newConversation(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// longFile is a loader whose name no firmware can hold.
func longFile(t *testing.T) string {
	path := t.TempDir() + "/" + strings.Repeat("x", 120) + ".efi"
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLoaders: each kind of firmware gets the file that the configuration names, by TFTP and by HTTP, and the signed
// chain where it is wanted; HTTP firmware that must have the signed chain gets nothing, as GRUB could not go on.
func TestLoaders(t *testing.T) {
	own := t.TempDir() + "/my-arm.efi"
	if err := os.WriteFile(own, []byte("arm"), 0o644); err != nil {
		t.Fatal(err)
	}
	w := serveHTTP(t, func(s *Server) { signed(t, s); s.Loaders = map[dhcp.Platform]string{dhcp.PlatformARM64: own} })
	for _, test := range []struct {
		arch   string
		class  string
		secure bool
		want   string
	}{
		{"00 00", pxeClass, false, "undionly.kpxe"}, {"00 00", pxeClass, true, "undionly.kpxe"},
		{"00 06", pxeClass, false, "snponly-ia32.efi"},
		{"00 07", pxeClass, false, "snponly.efi"}, {"00 09", pxeClass, false, "snponly.efi"},
		{"00 07", pxeClass, true, "shimx64.efi"}, {"00 09", pxeClass, true, "shimx64.efi"},
		{"00 0B", pxeClass, false, "my-arm.efi"}, {"00 0B", pxeClass, true, "my-arm.efi"},
		{"00 0F", httpClass, false, "http://127.0.0.1:8080/boot/snponly-ia32.efi"},
		{"00 10", httpClass, false, "http://127.0.0.1:8080/boot/snponly.efi"},
		{"00 10", httpClass, true, ""},
		{"00 13", httpClass, false, "http://127.0.0.1:8080/boot/my-arm.efi"},
		{"00 1B", pxeClass, false, ""}, // RISC-V: no loader
	} {
		w.booter.leases[testMAC] = Lease{Addr: netip.MustParsePrefix("127.0.0.1/8"), SecureBoot: test.secure}
		rep := w.links[0].Answer(t.Context(), request(t, testMAC, discover, test.class, "5D 02 "+test.arch))
		if rep == nil || rep.Boot != test.want {
			t.Errorf("arch %s, signed %v: %v, want %q", test.arch, test.secure, rep, test.want)
		}
	}
	if _, body := w.raw(t, "GET", "/boot/my-arm.efi"); string(body) != "arm" {
		t.Errorf("own loader by HTTP: %q", body)
	}
	if f, err := w.open(t.Context(), "my-arm.efi", netip.MustParseAddrPort("127.0.0.1:9")); err != nil || f.Size() != 3 {
		t.Errorf("own loader by TFTP: %v", err)
	}
}

const (
	pxeClass  = "3C 09 505845436C69656E74"
	httpClass = "3C 0A 48545450436C69656E74"
)

// TestK03Nosy: who asks again and again for what others boot is refused without a look-up, and there is one alarm.
func TestK03Nosy(t *testing.T) {
	var log bytes.Buffer
	w := serveHTTP(t, func(s *Server) { s.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for i := range nosyTimes {
		if res, _ := w.raw(t, "GET", fmt.Sprintf("/boot/ipxe/02:00:5e:00:00:%02x.ipxe", i)); res.StatusCode != 404 {
			t.Fatalf("guess %d: %s", i, res.Status)
		}
	}
	own := "/boot/ipxe/" + testMAC + ".ipxe"
	if res, _ := w.raw(t, "GET", own); res.StatusCode != 403 {
		t.Errorf("after %d guesses: %s", nosyTimes, res.Status)
	}
	if n := strings.Count(log.String(), "again and again"); n != 1 {
		t.Errorf("%d alarms", n)
	}
}

// FuzzPath: whatever is asked, the answer is no redirect, and what is served lies where it should.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/boot/vmlinuz", "//boot/../x", "/boot/..%2f..%2fetc/passwd", "/boot/ipxe/" + testMAC + ".ipxe", "/boot/%00", `/boot/..\x`, "/images/x"} {
		f.Add(s)
	}
	w := serveHTTP(f, nil)
	if err := os.WriteFile(w.LoaderDir+"/../outside", []byte("OUTSIDE"), 0o644); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")))
		if err != nil {
			return
		}
		r.RemoteAddr = "127.0.0.1:1"
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		if rec.Code >= 300 && rec.Code < 400 && rec.Code != 304 || strings.Contains(rec.Body.String(), "OUTSIDE") {
			t.Fatalf("GET %q: %d %s", path, rec.Code, rec.Body)
		}
	})
}
