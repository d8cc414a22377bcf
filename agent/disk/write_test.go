package disk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/machine"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// depot serves one image, with whatever goes wrong on the way.
type depot struct {
	*httptest.Server
	raw      []byte
	manifest images.Manifest
	chunks   map[string][]byte // stored form by digest

	mu     sync.Mutex // guards all below
	gets   map[string]int
	answer func(w http.ResponseWriter, path string, n int, body []byte) bool // n-th request of this path; true: answered
}

const chunkSize = 64 << 10

func newDepot(t *testing.T, raw []byte) *depot {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	d := &depot{raw: raw, chunks: map[string][]byte{}, gets: map[string]int{},
		manifest: images.Manifest{Version: images.ManifestVersion, Size: int64(len(raw)), ChunkSize: chunkSize}}
	for off := 0; off < len(raw); off += chunkSize {
		data := raw[off:min(off+chunkSize, len(raw))]
		c := images.Chunk{Offset: int64(off), Length: int64(len(data))}
		if bytes.Count(data, []byte{0}) == len(data) {
			c.Zero = true
		} else {
			sum := sha256.Sum256(data)
			c.Digest = hex.EncodeToString(sum[:])
			d.chunks[c.Digest] = enc.EncodeAll(data, nil)
		}
		d.manifest.Chunks = append(d.manifest.Chunks, c)
	}
	manifest, err := json.Marshal(d.manifest)
	if err != nil {
		t.Fatal(err)
	}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, digest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/base/"), "/")
		body, ok := d.chunks[digest]
		if kind == "manifest" {
			body, ok = manifest, digest == d.manifest.Digest()
		}
		d.mu.Lock()
		d.gets[r.URL.Path]++
		n, answer := d.gets[r.URL.Path], d.answer
		d.mu.Unlock()
		switch {
		case answer != nil && answer(w, r.URL.Path, n, body):
		case !ok:
			http.NotFound(w, r)
		default:
			w.Write(body)
		}
	}))
	t.Cleanup(d.Close)
	return d
}

func (d *depot) ref() machine.ImageRef {
	return machine.ImageRef{URL: d.URL + "/base/", Digest: d.manifest.Digest(), Size: d.manifest.Size}
}

// chunkPath returns the path of a chunk that is not zero.
func (d *depot) chunkPath(i int) string { return "/base/chunk/" + d.manifest.Chunks[i].Digest }

// source returns one that loses patience in time for a test.
func (d *depot) source() *source {
	s := newSource(d.ref(), 4)
	s.stall, s.patience = 300*time.Millisecond, 20*time.Second
	return s
}

// picture returns an image of n chunks, each of other bytes; every fifth is zero, and two in a row at the end of each ten.
func picture(n int, tail int64) []byte {
	raw := make([]byte, int64(n)*chunkSize+tail)
	for i := range raw {
		if c := i / chunkSize; c%5 != 3 && c%10 != 9 {
			raw[i] = byte(i*7 + i>>8 + c*31 + 1)
		}
	}
	return raw
}

func (d *depot) write(ctx context.Context, r *rack, l *loop) error {
	s := d.source()
	defer s.close()
	return r.set.write(ctx, s, l.Disk, d.ref(), quiet)
}

func wantImage(t *testing.T, r *rack, l *loop, d *depot) {
	t.Helper()
	if got := l.read(t, 0, (int64(len(d.raw))+4095)/4096*4096)[:len(d.raw)]; !bytes.Equal(got, d.raw) {
		t.Error("the disk does not hold the image")
	}
	if err := r.set.Verify(t.Context(), l.Disk, d.ref(), quiet); err != nil {
		t.Errorf("verify: %v", err)
	}
}

// wantUnbootable checks that a failed write left nothing that firmware would boot.
func wantUnbootable(t *testing.T, l *loop) {
	t.Helper()
	if !allZero(l.read(t, 0, chunkSize)) {
		t.Error("the start of the disk is not zero after a failed write")
	}
}

func TestWriteAndVerify(t *testing.T) {
	for name, raw := range map[string][]byte{
		"many chunks":     picture(101, 0),
		"odd end":         picture(7, 512*3),
		"one chunk":       picture(1, 0),
		"less than one":   picture(0, 4096*3),
		"zero at the end": picture(10, 0),
		"all zero":        make([]byte, 5*chunkSize),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			l := r.add("vda", "A", 8*mib)
			rest := l.read(t, 7*mib, mib)
			d := newDepot(t, raw)
			var last, total int64
			err := r.set.Write(t.Context(), l.Disk, d.ref(), func(done, n int64) {
				if done < last {
					t.Errorf("progress goes back from %d to %d", last, done)
				}
				last, total = done, n
			})
			if err != nil {
				t.Fatal(err)
			}
			if last != total || total != int64(len(raw)) {
				t.Errorf("progress ends at %d of %d", last, total)
			}
			wantImage(t, r, l, d)
			if !bytes.Equal(l.read(t, 7*mib, mib), rest) {
				t.Error("the write went beyond the image")
			}
			if err := r.set.Write(t.Context(), l.Disk, d.ref(), quiet); err != nil { // again, over itself
				t.Fatal(err)
			}
			wantImage(t, r, l, d)
		})
	}
}

// TestVerifyNoticesOneByte, by what the process that wrote remembers, and by the image's digests alone.
func TestVerifyNoticesOneByte(t *testing.T) {
	for name, remembered := range map[string]*sums{"remembered": newSums(), "digests": nil} {
		t.Run(name, func(t *testing.T) { verifyNoticesOneByte(t, remembered) })
	}
}

func verifyNoticesOneByte(t *testing.T, remembered *sums) {
	r := newRack(t)
	r.set.sums = remembered
	l := r.add("vda", "A", 8*mib)
	d := newDepot(t, picture(20, 1024))
	if err := d.write(t.Context(), r, l); err != nil {
		t.Fatal(err)
	}
	for name, off := range map[string]int64{"first": 0, "middle": 7*chunkSize + 5, "zero range": 3*chunkSize + 999, "last": int64(len(d.raw)) - 1} {
		old := l.read(t, off/4096*4096, 4096)[off%4096]
		l.write(t, []byte{old ^ 0x10}, off)
		if err := r.set.Verify(t.Context(), l.Disk, d.ref(), quiet); !errors.Is(err, errDiffers) || agent.IsFatal(err) {
			t.Errorf("%s: %v", name, err)
		}
		l.write(t, []byte{old}, off)
	}
	if err := r.set.Verify(t.Context(), l.Disk, d.ref(), quiet); err != nil {
		t.Errorf("verify of what was put right: %v", err)
	}
}

func TestWriteRefusesBeforeTheFirstWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(l *loop, d *depot, ref *machine.ImageRef)
		fatal  bool
	}{
		"image larger than the disk": {func(l *loop, d *depot, ref *machine.ImageRef) {}, true},
		"another disk":               {func(l *loop, d *depot, ref *machine.ImageRef) { l.Serial = "B" }, true},
		"no such image":              {func(l *loop, d *depot, ref *machine.ImageRef) { ref.Digest = strings.Repeat("0", 64) }, false},
		"a path as digest":           {func(l *loop, d *depot, ref *machine.ImageRef) { ref.Digest = "../../etc/passwd" }, true},
		"another size announced":     {func(l *loop, d *depot, ref *machine.ImageRef) { ref.Size++ }, true},
		"manifest of another image": {func(l *loop, d *depot, ref *machine.ImageRef) {
			d.answer = func(w http.ResponseWriter, path string, _ int, _ []byte) bool {
				m := d.manifest
				m.Size, m.Chunks = m.Size-chunkSize, m.Chunks[:len(m.Chunks)-1]
				json.NewEncoder(w).Encode(m)
				return true
			}
		}, false},
		"first chunk missing": {func(l *loop, d *depot, ref *machine.ImageRef) {
			d.answer = func(w http.ResponseWriter, path string, _ int, _ []byte) bool {
				if path != d.chunkPath(0) {
					return false
				}
				http.NotFound(w, nil)
				return true
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			size := int64(8 * mib)
			if strings.HasPrefix(name, "image larger") {
				size = mib
			}
			l := r.add("vda", "A", size)
			before := l.read(t, 0, size)
			d := newDepot(t, picture(20, 0))
			ref := d.ref()
			tt.change(l, d, &ref)
			s := d.source()
			defer s.close()
			err := r.set.write(t.Context(), s, l.Disk, ref, quiet)
			if err == nil || agent.IsFatal(err) != tt.fatal {
				t.Errorf("%v, want fatal %v", err, tt.fatal)
			}
			if !bytes.Equal(l.read(t, 0, size), before) {
				t.Error("the disk was written to")
			}
		})
	}
}

// What comes over the wire may break off, stall or be wrong; the image on the disk is right or there is none.
func TestWriteOverABadNetwork(t *testing.T) {
	half := func(w http.ResponseWriter, body []byte) {
		w.Header().Set("Content-Length", "100000")
		w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	for name, answer := range map[string]func(w http.ResponseWriter, path string, n int, body []byte) bool{
		"connections break in mid-chunk": func(w http.ResponseWriter, path string, n int, body []byte) bool {
			if n <= 2 {
				half(w, body)
			}
			return false
		},
		"the server is down for a while": func(w http.ResponseWriter, path string, n int, body []byte) bool {
			if n <= 3 {
				panic(http.ErrAbortHandler)
			}
			return false
		},
		"the server is busy": func(w http.ResponseWriter, path string, n int, body []byte) bool {
			if n <= 3 {
				http.Error(w, "busy", http.StatusServiceUnavailable)
			}
			return n <= 3
		},
		"bytes are wrong once": func(w http.ResponseWriter, path string, n int, body []byte) bool {
			if n == 1 && len(body) > 30 {
				bad := bytes.Clone(body)
				bad[len(bad)-9] ^= 1
				w.Write(bad)
				return true
			}
			return false
		},
		"chunks are cut short once": func(w http.ResponseWriter, path string, n int, body []byte) bool {
			if n == 1 {
				w.Write(body[:len(body)-3])
			}
			return n == 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			l := r.add("vda", "A", 4*mib)
			d := newDepot(t, picture(8, 512))
			d.Config.ErrorLog = nil
			d.answer = answer
			if err := d.write(t.Context(), r, l); err != nil {
				t.Fatal(err)
			}
			d.mu.Lock()
			d.answer = nil
			d.mu.Unlock()
			wantImage(t, r, l, d)
		})
	}
}

func TestWriteOverAStallingNetwork(t *testing.T) {
	r := newRack(t)
	l := r.add("vda", "A", 4*mib)
	d := newDepot(t, picture(8, 0))
	release := make(chan struct{})
	d.answer = func(w http.ResponseWriter, path string, n int, body []byte) bool {
		if n == 1 && path == d.chunkPath(5) {
			w.Write(body[:100])
			w.(http.Flusher).Flush()
			<-release
		}
		return false
	}
	began := time.Now()
	if err := d.write(t.Context(), r, l); err != nil {
		t.Error(err)
	}
	if time.Since(began) < 300*time.Millisecond {
		t.Error("the server did not stall")
	}
	close(release)
	wantImage(t, r, l, d)
}

func TestWriteGivesUpOnABadImage(t *testing.T) {
	r := newRack(t)
	l := r.add("vda", "A", 8*mib)
	d := newDepot(t, picture(30, 0))
	d.answer = func(w http.ResponseWriter, path string, n int, body []byte) bool {
		if path != d.chunkPath(22) {
			return false
		}
		other := d.chunks[d.manifest.Chunks[21].Digest] // whole, of the right length, and wrong
		w.Write(other)
		return true
	}
	before := l.read(t, 22*chunkSize, chunkSize)
	err := d.write(t.Context(), r, l)
	wantError(t, err, "digest")
	if agent.IsFatal(err) || d.gets[d.chunkPath(22)] != badTries {
		t.Errorf("%v after %d tries", err, d.gets[d.chunkPath(22)])
	}
	wantUnbootable(t, l)
	if !bytes.Equal(l.read(t, 22*chunkSize, chunkSize), before) {
		t.Error("a bad chunk reached the disk")
	}
}

func TestWriteStopsWhenToldTo(t *testing.T) {
	r := newRack(t)
	l := r.add("vda", "A", 16*mib)
	d := newDepot(t, picture(200, 0))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := d.source()
	defer s.close()
	err := r.set.write(ctx, s, l.Disk, d.ref(), stopAfter(cancel, 20*chunkSize))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("write: %v", err)
	}
	wantUnbootable(t, l)
	after := l.read(t, 0, 16*mib)
	if bytes.Equal(after[150*chunkSize:160*chunkSize], d.raw[150*chunkSize:160*chunkSize]) {
		t.Error("it went on writing")
	}
	if err := d.write(t.Context(), r, l); err != nil { // the next attempt is not hindered
		t.Fatal(err)
	}
	wantImage(t, r, l, d)
}

// A disk of 4096-byte sectors takes a plain image, also one that ends within a sector, but none whose GPT is for 512.
func TestWriteOn4KSectors(t *testing.T) {
	const loopSetBlockSize = 0x4c09
	r := newRack(t)
	l := r.add("vda", "A", 8*mib)
	d, err := r.set.open(l.Disk, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(d.f.Fd()), loopSetBlockSize, 4096); err != nil {
		t.Fatal(err)
	}
	d.Close()
	for _, raw := range [][]byte{picture(5, 512), picture(9, 512*7), picture(0, 4096+512)} {
		plain := newDepot(t, raw)
		if err := plain.write(t.Context(), r, l); err != nil {
			t.Fatal(err)
		}
		wantImage(t, r, l, plain)
	}
	raw := picture(5, 0)
	copy(raw[512:], "EFI PART")
	before := l.read(t, 0, mib)
	err = newDepot(t, raw).write(t.Context(), r, l)
	wantError(t, err, "512 bytes")
	if !agent.IsFatal(err) || !bytes.Equal(l.read(t, 0, mib), before) {
		t.Error("the disk was written to, or another attempt is made")
	}
}

func TestWorkersStayWithinMemory(t *testing.T) {
	for _, size := range []int64{4096, images.DefaultChunkSize, images.MaxChunkSize} {
		n := workers(images.Manifest{ChunkSize: size})
		if n < 1 || n > maxWorker || n > 1 && int64(n)*size*5/2 > memory {
			t.Errorf("chunks of %d: %d at once", size, n)
		}
	}
}
