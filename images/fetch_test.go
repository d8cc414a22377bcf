package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// publisher serves a file with ranges and breaks off as told.
type publisher struct {
	mu       sync.Mutex
	file     []byte
	tag      string
	breakAt  int64 // bytes of the body after which the connection is cut; 0 for never
	requests []string
}

func (p *publisher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r.Header.Get("Range"))
	if p.tag != "" {
		w.Header().Set("ETag", p.tag)
	}
	if p.breakAt > 0 {
		w = &breaking{w, &p.breakAt}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.file))
}

type breaking struct {
	http.ResponseWriter
	left *int64
}

func (b *breaking) Write(p []byte) (int, error) {
	if int64(len(p)) >= *b.left {
		b.ResponseWriter.Write(p[:*b.left])
		b.ResponseWriter.(http.Flusher).Flush()
		*b.left = 0
		panic(http.ErrAbortHandler)
	}
	*b.left -= int64(len(p))
	return b.ResponseWriter.Write(p)
}

func (p *publisher) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

func incomplete(t *testing.T, s *Store) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.Dir, "incoming", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestF13InterruptedDownload(t *testing.T) {
	disk := testDisk(t, 6<<20)

	t.Run("resumed within one import", func(t *testing.T) {
		p := &publisher{file: disk, tag: `"v1"`, breakAt: 2 << 20}
		server := httptest.NewServer(p)
		defer server.Close()
		s := &Store{Dir: t.TempDir()}
		out, err := s.Import(context.Background(), Import{URL: server.URL + "/debian.raw", SHA256: digestOf(disk)})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(exported(t, s, out.Image.Digest), disk) {
			t.Error("the disk differs")
		}
		if got := p.seen(); len(got) != 2 || !strings.HasPrefix(got[1], "bytes=") || got[1] == "bytes=0-" {
			t.Errorf("requests for %q", got)
		}
		if left := incomplete(t, s); len(left) != 0 {
			t.Errorf("%v is left", left)
		}
	})

	// The process dies at 30 % and another imports the same address.
	interrupted := func(t *testing.T, tag string) (*Store, *publisher, *httptest.Server) {
		p := &publisher{file: disk, tag: tag, breakAt: 2 << 20}
		server := httptest.NewServer(p)
		t.Cleanup(server.Close)
		s := &Store{Dir: t.TempDir()}
		ctx, cancel := context.WithCancel(context.Background())
		_, err := s.Import(ctx, Import{URL: server.URL, Progress: func(_ Stage, done, _ int64) {
			if done >= 2<<20 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted import: %v", err)
		}
		for _, name := range incomplete(t, s) {
			if !strings.HasSuffix(name, ".part") && !strings.HasSuffix(name, ".json") {
				t.Errorf("a part is called %s", name)
			}
		}
		if digests, _ := s.Digests(); len(digests) != 0 {
			t.Error("half an image exists")
		}
		p.mu.Lock()
		p.breakAt, p.requests = 0, nil
		p.mu.Unlock()
		return s, p, server
	}

	t.Run("resumed by the next import", func(t *testing.T) {
		s, p, server := interrupted(t, `"v1"`)
		out, err := s.Import(context.Background(), Import{URL: server.URL, SHA256: digestOf(disk)})
		if err != nil || out.Downloaded != digestOf(disk) {
			t.Fatalf("second import: %v", err)
		}
		if got := p.seen(); len(got) != 1 || got[0] != "bytes=2097152-" {
			t.Errorf("requests for %q", got)
		}
	})

	other := bytes.Clone(disk)
	other[1<<20] ^= 1 // in what the interrupted download has
	other[5<<20] ^= 1
	t.Run("the file changed meanwhile", func(t *testing.T) {
		s, p, server := interrupted(t, `"v1"`)
		p.file, p.tag = other, `"v2"`
		out, err := s.Import(context.Background(), Import{URL: server.URL})
		if err != nil || out.Written != digestOf(other) {
			t.Errorf("second import: %s, %v; want only bytes of the new file, %s", out.Written, err, digestOf(other))
		}
	})
	t.Run("the file changed and a cache drops If-Range", func(t *testing.T) {
		s, p, _ := interrupted(t, `"v1"`)
		p.file, p.tag = other, `"v2"`
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Range")
			p.ServeHTTP(w, r)
		}))
		defer server.Close()
		moveParts(t, s, server.URL)
		out, err := s.Import(context.Background(), Import{URL: server.URL})
		if err != nil || out.Written != digestOf(other) {
			t.Errorf("second import: %s, %v; want only bytes of the new file, %s", out.Written, err, digestOf(other))
		}
	})
	t.Run("the server answers another range", func(t *testing.T) {
		s, p, _ := interrupted(t, `"v1"`)
		var odd int
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				odd++
				r.Header.Set("Range", "bytes=1048576-")
			}
			p.ServeHTTP(w, r)
		}))
		defer server.Close()
		moveParts(t, s, server.URL)
		out, err := s.Import(context.Background(), Import{URL: server.URL, SHA256: digestOf(disk)})
		if err != nil || out.Written != digestOf(disk) || odd != 1 {
			t.Errorf("second import: %s, %v, %d odd ranges", out.Written, err, odd)
		}
	})
	for _, tag := range []string{"", `W/"v1"`} {
		t.Run("no strong validator "+tag, func(t *testing.T) {
			s, p, server := interrupted(t, tag)
			p.file = other
			out, err := s.Import(context.Background(), Import{URL: server.URL})
			if err != nil || out.Written != digestOf(other) {
				t.Errorf("second import: %s, %v", out.Written, err)
			}
			if got := p.seen(); len(got) != 1 || got[0] != "" {
				t.Errorf("requests for %q", got)
			}
		})
	}
	t.Run("a wrong digest is not kept", func(t *testing.T) {
		p := &publisher{file: other, tag: `"v1"`}
		server := httptest.NewServer(p)
		defer server.Close()
		s := &Store{Dir: t.TempDir()}
		if _, err := s.Import(context.Background(), Import{URL: server.URL, SHA256: digestOf(disk)}); machine.CodeOf(err) != machine.Invalid {
			t.Errorf("wrong digest: %v", err)
		}
		if left := incomplete(t, s); len(left) != 0 {
			t.Errorf("%v is left", left)
		}
		p.file, p.tag = disk, `"v2"`
		if _, err := s.Import(context.Background(), Import{URL: server.URL, SHA256: digestOf(disk)}); err != nil {
			t.Errorf("after the publisher mended it: %v", err)
		}
	})
}

// moveParts makes the one part in the store that of another address.
func moveParts(t *testing.T, s *Store, url string) {
	t.Helper()
	probe := &Store{Dir: t.TempDir()}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	probe.Import(ctx, Import{URL: url})
	for _, to := range incomplete(t, probe) {
		for _, from := range incomplete(t, s) {
			base := strings.TrimSuffix(filepath.Base(to), ".part")
			if err := os.Rename(from, filepath.Join(s.Dir, "incoming", base+filepath.Ext(from))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestFetchRefusals(t *testing.T) {
	for _, url := range []string{"file:///etc/shadow", "ftp://example.org/x", "/etc/shadow", "http://", "json:{}", "::"} {
		mustRefuse(t, Import{URL: url}, "url", "http")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/huge":
			w.Header().Set("Content-Length", "999999999999999")
		case "/page":
			fmt.Fprint(w, "<!DOCTYPE html><title>Sign in</title>")
		case "/endless":
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	mustRefuse(t, Import{URL: server.URL + "/absent?signature=secret"}, "url", "404")
	mustRefuse(t, Import{URL: server.URL + "/huge"}, "file", "999999999999999")
	mustRefuse(t, Import{URL: server.URL + "/endless", MaxSize: 1 << 20}, "file", "limit")
	mustRefuse(t, Import{URL: server.URL + "/page"}, "file", "page")
}

// silent is a transport whose servers do what the test says, without sockets, for synctest.
type silent func(*http.Request) (*http.Response, error)

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

func TestFetchGivesUp(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		for name, client := range map[string]silent{
			"down": func(*http.Request) (*http.Response, error) { tries++; return nil, errors.New("connection refused") },
			"ill": func(*http.Request) (*http.Response, error) {
				tries++
				return &http.Response{StatusCode: 503, Status: "503 Service Unavailable", Body: http.NoBody}, nil
			},
			"stalled": func(r *http.Request) (*http.Response, error) {
				tries++
				body, w := io.Pipe()
				context.AfterFunc(r.Context(), func() { w.CloseWithError(r.Context().Err()) })
				return &http.Response{StatusCode: 200, ContentLength: 100, Body: body, Header: http.Header{}}, nil
			},
		} {
			tries = 0
			start := time.Now()
			s := &Store{Dir: filepath.Join(dir, name)}
			_, err := s.Import(context.Background(), Import{URL: "http://user:hunter2@images.test/x?sig=hunter2", Client: &http.Client{Transport: client}})
			if machine.CodeOf(err) != machine.Unavailable || tries != fetchAttempts {
				t.Errorf("%s: %v after %d tries", name, err, tries)
			}
			if strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Errorf("%s: the error tells a secret: %v", name, err)
			}
			if took := time.Since(start); took > 10*time.Minute {
				t.Errorf("%s: gave up after %v", name, took)
			}
		}
	})
}
