package images

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

func stored(t *testing.T, s *Store, disk []byte) Imported {
	t.Helper()
	out, err := s.Import(context.Background(), Import{Reader: bytes.NewReader(disk)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func dataChunks(m Manifest) (data []Chunk) {
	for _, c := range m.Chunks {
		if !c.Zero {
			data = append(data, c)
		}
	}
	return data
}

func TestHandlerServesAnImage(t *testing.T) {
	disk := testDisk(t, diskSize)
	s := &Store{Dir: t.TempDir()}
	image := stored(t, s, disk)
	server := httptest.NewServer(http.StripPrefix("/images", s.Handler()))
	defer server.Close()
	get := func(path string, header ...string) (*http.Response, []byte) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, server.URL+"/images"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(header) == 2 {
			req.Header.Set(header[0], header[1])
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, body
	}

	// As an agent does it.
	resp, body := get("/manifest/" + image.Image.Digest)
	m, err := ParseManifest(body, image.Image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if resp.ContentLength != int64(len(body)) || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
		t.Errorf("manifest headers: length %d, %v", resp.ContentLength, resp.Header)
	}
	dec, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	got := make([]byte, m.Size)
	for _, c := range dataChunks(m) {
		resp, body := get("/chunk/" + c.Digest)
		if resp.StatusCode != 200 || resp.ContentLength != c.Stored || int64(len(body)) != c.Stored {
			t.Errorf("chunk: %s, length %d of %d", resp.Status, resp.ContentLength, c.Stored)
		}
		data, err := dec.Decode(nil, body, c)
		if err != nil {
			t.Fatal(err)
		}
		copy(got[c.Offset:], data)
	}
	if !bytes.Equal(got, disk) {
		t.Error("the disk differs")
	}

	chunk := dataChunks(m)[0]
	_, whole := get("/chunk/" + chunk.Digest)
	resp, part := get("/chunk/"+chunk.Digest, "Range", "bytes=100-")
	if resp.StatusCode != 206 || !bytes.Equal(part, whole[100:]) {
		t.Errorf("a range: %s, %d bytes", resp.Status, len(part))
	}
	if resp, _ := get("/chunk/"+chunk.Digest, "If-None-Match", `"`+chunk.Digest+`"`); resp.StatusCode != 304 {
		t.Errorf("a cached chunk: %s", resp.Status)
	}
	for _, path := range []string{
		"/", "/manifest/", "/chunk/", "/lock", "/manifest/" + digestOf(nil), "/chunk/" + digestOf(nil), "/chunk/x", "/chunk/ab",
		"/manifest/" + strings.ToUpper(image.Image.Digest), "/chunk/..%2f..%2f..%2fetc%2fpasswd", "/chunk/%2e%2e",
		"/chunk/" + strings.Repeat("a", 5000),
	} {
		if resp, body := get(path); resp.StatusCode != 404 || len(body) > 200 {
			t.Errorf("%.40s: %s, %.80q", path, resp.Status, body)
		}
	}
	resp, err = server.Client().Post(server.URL+"/images/chunk/"+chunk.Digest, "", nil)
	if err != nil || resp.StatusCode != 405 {
		t.Errorf("POST: %v, %v", resp.Status, err)
	}
	resp.Body.Close()
}

func TestDecodeRefusesBadChunks(t *testing.T) {
	data := bytes.Repeat([]byte("bareyard"), 1024)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	good := enc.EncodeAll(data, nil)
	c := Chunk{Length: int64(len(data)), Digest: digestOf(data)}
	dec, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	if out, err := dec.Decode(nil, good, c); err != nil || !bytes.Equal(out, data) {
		t.Fatalf("the good chunk: %v", err)
	}
	flipped := bytes.Clone(data)
	flipped[7]++
	for name, bad := range map[string][]byte{
		"nothing":             nil,
		"not zstd":            data,
		"cut short":           good[:len(good)-2],
		"other bytes":         enc.EncodeAll(flipped, nil),
		"longer":              enc.EncodeAll(append(bytes.Clone(data), 0), nil),
		"a bomb":              enc.EncodeAll(make([]byte, 128<<20), nil),
		"a bomb behind":       append(bytes.Clone(good), enc.EncodeAll(make([]byte, 128<<20), nil)...),
		"a second good frame": append(bytes.Clone(good), good...),
	} {
		if out, err := dec.Decode(nil, bad, c); err == nil {
			t.Errorf("%s: %d bytes accepted", name, len(out))
		}
	}
	if _, err := dec.Decode(nil, good, Chunk{Length: c.Length, Zero: true}); err == nil {
		t.Error("a zero chunk was decoded")
	}
	if _, err := ReadStored(bytes.NewReader(make([]byte, 1<<20)), nil, c); err == nil {
		t.Error("an endless chunk was read")
	}
}

func TestVerifyAndRepair(t *testing.T) {
	disk := testDisk(t, diskSize)
	s := &Store{Dir: t.TempDir()}
	image := stored(t, s, disk)
	ctx := context.Background()
	var last int64
	if bad, err := s.Verify(ctx, image.Image.Digest, func(n int64) { last = n }); err != nil || len(bad) != 0 || last != diskSize {
		t.Fatalf("a fresh image: %v, %v, %d bytes", bad, err, last)
	}
	chunks := dataChunks(image.Manifest)
	path := s.chunkPath(chunks[0].Digest)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 4
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.chunkPath(chunks[1].Digest)); err != nil {
		t.Fatal(err)
	}
	if bad, err := s.Verify(ctx, image.Image.Digest, nil); err != nil || len(bad) != 2 {
		t.Errorf("a spoilt and a missing chunk: %v, %v", bad, err)
	}
	if again := stored(t, s, disk); again.Image.Digest != image.Image.Digest {
		t.Errorf("the same disk is image %s, then %s", image.Image.Digest, again.Image.Digest)
	}
	if bad, err := s.Verify(ctx, image.Image.Digest, nil); err != nil || len(bad) != 0 {
		t.Errorf("after another import: %v, %v", bad, err)
	}
	if err := os.WriteFile(s.manifestPath(image.Image.Digest), []byte(`{"version":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(ctx, image.Image.Digest, nil); err == nil {
		t.Error("a spoilt manifest passes")
	}
}

func TestGC(t *testing.T) {
	ctx := context.Background()
	s := &Store{Dir: t.TempDir()}
	kept := stored(t, s, testDisk(t, diskSize))
	changed := testDisk(t, diskSize)
	changed[diskSize-1] = 1
	dropped := stored(t, s, changed)
	fresh := testDisk(t, diskSize)
	fresh[diskSize-2] = 2
	justImported := stored(t, s, fresh)
	shared := dataChunks(kept.Manifest)[0].Digest

	old := time.Now().Add(-48 * time.Hour)
	leftovers := []string{"incoming/abc.part", "manifests/.tmp123", "chunks/ab/." + digestOf(nil) + "1"}
	for _, name := range leftovers {
		path := filepath.Join(s.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	young := filepath.Join(s.Dir, "incoming", "young.part")
	if err := os.WriteFile(young, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, i := range []Imported{kept, dropped} {
		if err := os.Chtimes(s.manifestPath(i.Image.Digest), old, old); err != nil {
			t.Fatal(err)
		}
	}

	freed, err := s.GC(ctx, []string{kept.Image.Digest})
	if err != nil {
		t.Fatal(err)
	}
	if freed.Images != 1 || freed.Chunks != 1 || freed.Files != len(leftovers) || freed.Bytes == 0 {
		t.Errorf("freed %+v", freed)
	}
	for _, i := range []Imported{kept, justImported} {
		if bad, err := s.Verify(ctx, i.Image.Digest, nil); err != nil || len(bad) != 0 {
			t.Errorf("image %s suffered: %v, %v", i.Image.Digest, bad, err)
		}
	}
	if _, err := s.Manifest(dropped.Image.Digest); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("the dropped image: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a download that may be resumed: %v", err)
	}

	if err := s.Remove(kept.Image.Digest); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(kept.Image.Digest); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("removed twice: %v", err)
	}
	if err := s.Remove("../../etc/passwd"); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("a path: %v", err)
	}
	if _, err := s.GC(ctx, []string{justImported.Image.Digest}); err != nil {
		t.Fatal(err)
	}
	if f, _, err := s.Chunk(shared); err != nil {
		t.Errorf("a chunk that another image has: %v", err)
	} else {
		f.Close()
	}

	// A manifest that cannot be read must not cost its chunks.
	if err := os.WriteFile(s.manifestPath(justImported.Image.Digest), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.GC(ctx, []string{justImported.Image.Digest}); err == nil || freed.Chunks != 0 {
		t.Errorf("beside a spoilt manifest: %+v, %v", freed, err)
	}
}

func TestGCWaitsForImports(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	unlock, err := s.lock(unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(context.Background(), nil); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("GC beside an import: %v", err)
	}
	unlock()
	if _, err := s.GC(context.Background(), nil); err != nil {
		t.Errorf("GC after it: %v", err)
	}
	unlock, err = s.lock(unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	_, err = s.Import(context.Background(), Import{Reader: bytes.NewReader(testDisk(t, 1<<20))})
	if machine.CodeOf(err) != machine.Conflict {
		t.Errorf("an import beside GC: %v", err)
	}
}

func TestImportsOfTheSameImageAtOnce(t *testing.T) {
	disk := testDisk(t, diskSize)
	s := &Store{Dir: t.TempDir()}
	digests := make(chan string, 4)
	for range cap(digests) {
		go func() {
			out, err := s.Import(context.Background(), Import{Reader: bytes.NewReader(disk)})
			if err != nil {
				out.Image.Digest = err.Error()
			}
			digests <- out.Image.Digest
		}()
	}
	first := <-digests
	for range cap(digests) - 1 {
		if d := <-digests; d != first {
			t.Errorf("digest %s, then %s", first, d)
		}
	}
	if !bytes.Equal(exported(t, s, first), disk) {
		t.Error("the disk differs")
	}
}

func ExampleStore_Import() {
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	s := &Store{Dir: dir}
	_, err = s.Import(context.Background(), Import{Name: "debian-12", Reader: strings.NewReader("<!DOCTYPE html>")})
	fmt.Println(err)
	// Output: the file is a web page, not a disk in a format that is read here: raw, qcow2, vmdk or vhd
}
