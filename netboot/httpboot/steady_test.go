package httpboot

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestC09Stalled: a client that stops reading is cut off, and we know how far it came; one that is only slow is not.
func TestC09Stalled(t *testing.T) {
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "ramdisk")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o644); err != nil {
		t.Fatal(err)
	}
	type end struct {
		bytes int64
		err   error
	}
	ended := make(chan end, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := NewSteady(rw)
		w.Patience = 200 * time.Millisecond
		f, err := os.Open(path)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		if err := File(w, r, f); err != nil {
			panic(err)
		}
		ended <- end{w.Bytes, w.Err()}
	}))
	defer srv.Close()
	get := func() net.Conn {
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	stuck := get()
	defer stuck.Close()
	select {
	case e := <-ended:
		if e.err == nil || !strings.Contains(e.err.Error(), "stalled at") || e.bytes >= size {
			t.Errorf("stalled client: %d bytes, %v", e.bytes, e.err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a client that does not read holds the download for ever")
	}

	// In all it takes longer than Patience, in no piece does it.
	slow := get()
	defer slow.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began, got := time.Now(), int64(0)
	for {
		n, err := io.CopyN(io.Discard, slow, 1<<20)
		got += n
		if err != nil {
			break
		}
		<-tick.C
	}
	if e := <-ended; e.err != nil || e.bytes != size || got < size {
		t.Errorf("slow client: sent %d, got %d, %v", e.bytes, got, e.err)
	}
	if d := time.Since(began); d < 2*200*time.Millisecond {
		t.Errorf("the slow client took only %v: the test shows nothing", d)
	}
}

// TestSteadyCounts: the three ways to write give the same bytes, status and count.
func TestSteadyCounts(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), piece/4)
	for name, write := range map[string]func(w *Steady) error{
		"write":  func(w *Steady) error { _, err := w.Write(data); return err },
		"reader": func(w *Steady) error { _, err := io.Copy(w, io.MultiReader(bytes.NewReader(data))); return err },
		"limited": func(w *Steady) error {
			src := &io.LimitedReader{R: io.MultiReader(bytes.NewReader(data), strings.NewReader("more")), N: int64(len(data))}
			n, err := w.ReadFrom(src)
			if n != int64(len(data)) || src.N != 0 {
				t.Errorf("limited: %d read, %d left", n, src.N)
			}
			return err
		},
		"nothing": func(w *Steady) error { w.WriteHeader(204); return nil },
	} {
		done := make(chan *Steady, 1)
		srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w := NewSteady(rw)
			if err := write(w); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			done <- w
		}))
		res, err := http.Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		srv.Close()
		w := <-done
		want := data
		if name == "nothing" {
			want = nil
		}
		if err != nil || !bytes.Equal(body, want) || w.Bytes != int64(len(want)) || w.Status != res.StatusCode {
			t.Errorf("%s: %d bytes, counted %d, status %d, %v", name, len(body), w.Bytes, w.Status, err)
		}
	}
}
