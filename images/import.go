package images

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// DigestOf says of which bytes a digest is. Publishers give the one of the file that they offer, people often the one of the disk.
type DigestOf string

// What a digest can be of.
const (
	AsDownloaded DigestOf = "downloaded" // the file as it was given, compressed if it is
	AsWritten    DigestOf = "written"    // the disk as it is written to a machine
)

// Default bounds of an import.
const (
	DefaultMaxSize   = 256 << 30 // bytes of the disk
	DefaultMaxWindow = 2 << 30   // bytes of a compressor's window: zstd --long=31
)

// Stage says what an import is at.
type Stage string

// Stages of an import.
const (
	Fetching Stage = "fetch" // bytes of the file as it is given
	Storing  Stage = "store" // bytes of the file, or of the disk when the file is qcow2 or VMDK
)

// Import says what to import and what it must be. Exactly one of Path, URL and Reader is set.
type Import struct {
	Name        string // of the image in the catalogue
	DefaultUser string // the account that gets the customer's SSH key

	Path   string    // a regular file on this host
	URL    string    // http or https
	Reader io.Reader // e.g. an upload

	SHA256   string   // hex; empty when the publisher gives none
	SHA512   string   // hex; like SHA256, and both must fit if both are given
	DigestOf DigestOf // empty means AsDownloaded
	Format   Format   // empty means by magic bytes; otherwise it must be what is found

	Unbootable bool   // take a disk that neither BIOS nor UEFI would boot, or that has no partition table
	MaxSize    int64  // bytes of the disk; 0 means DefaultMaxSize
	MaxWindow  uint64 // bytes; 0 means DefaultMaxWindow, and never more than half of the free memory

	Client   *http.Client                         // nil means one that gives up on a server that does not answer
	Progress func(stage Stage, done, total int64) // in bytes, total 0 when unknown; called from several goroutines, one at a time
}

// Imported is what an import made.
type Imported struct {
	Image    machine.Image // as it goes into the catalogue
	Manifest Manifest
	Format   Format

	Downloaded string // sha256 of the file as it was given, hex
	Written    string // sha256 of the disk, hex
}

// Import checks an image and stores it. It exists in the store when Import returns without error, and not before: a digest that
// differs, a file cut short, a table of partitions that cannot boot leave at most chunks, which GC removes. What the user can
// mend is a machine.Error with Field and Hint. It reads no file of this host but Path.
func (s *Store) Import(ctx context.Context, in Import) (Imported, error) {
	if err := in.check(); err != nil {
		return Imported{}, err
	}
	unlock, err := s.lock(unix.LOCK_SH)
	if err != nil {
		return Imported{}, err
	}
	defer unlock()

	f, err := s.open(ctx, in)
	if err != nil {
		return Imported{}, err
	}
	defer f.Close()
	if in.URL != "" {
		// Good or bad, it is never used a second time.
		defer os.Remove(f.Name())
	}
	return s.importFile(ctx, f, in)
}

func (in *Import) check() error {
	sources := 0
	for _, given := range []bool{in.Path != "", in.URL != "", in.Reader != nil} {
		if given {
			sources++
		}
	}
	in.SHA256, in.SHA512 = strings.ToLower(strings.TrimSpace(in.SHA256)), strings.ToLower(strings.TrimSpace(in.SHA512))
	if in.DigestOf == "" {
		in.DigestOf = AsDownloaded
	}
	if in.MaxSize == 0 {
		in.MaxSize = DefaultMaxSize
	}
	if in.MaxWindow == 0 {
		in.MaxWindow = min(DefaultMaxWindow, freeMemory()/2)
	}
	if in.Progress == nil {
		in.Progress = func(Stage, int64, int64) {}
	}
	switch {
	case sources != 1:
		return &machine.Error{Code: machine.Invalid, Field: "file", Message: "exactly one file or address is imported at a time"}
	case in.SHA256 != "" && !ValidDigest(in.SHA256):
		return &machine.Error{Code: machine.Invalid, Field: "sha256", Message: "the digest is no sha256: 64 hex digits", Hint: "give a sha512 as such; md5 and sha1 prove nothing"}
	case in.SHA512 != "" && !isHex(in.SHA512, sha512.Size):
		return &machine.Error{Code: machine.Invalid, Field: "sha512", Message: "the digest is no sha512: 128 hex digits", Hint: "give a sha256 as such; md5 and sha1 prove nothing"}
	case in.DigestOf != AsDownloaded && in.DigestOf != AsWritten:
		return &machine.Error{Code: machine.Invalid, Field: "digest_of", Message: fmt.Sprintf("unknown kind of digest %q", in.DigestOf), Hint: "downloaded or written"}
	case !in.Format.known():
		return unknownFormat(in.Format)
	case in.MaxSize < sectorSize || in.MaxSize > MaxImageSize:
		return &machine.Error{Code: machine.Invalid, Field: "max_size", Message: fmt.Sprintf("the limit of %d bytes is not between 512 and %d", in.MaxSize, int64(MaxImageSize))}
	}
	return nil
}

// freeMemory returns how many bytes of memory nobody uses; a guess of 1 GiB when the kernel does not say.
func freeMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 1 << 30
	}
	return (info.Freeram + info.Bufferram) * uint64(info.Unit)
}

// sums are the digests that one pass over a file yields.
type sums struct {
	downloaded, unpacked, written *digest
}

// digest is the sha256 of some bytes, and their sha512 where that is asked for.
type digest struct {
	sha256, sha512 hash.Hash
	io.Writer
}

func newDigest(withSHA512 bool) *digest {
	d := &digest{sha256: sha256.New()}
	d.Writer = d.sha256
	if withSHA512 {
		d.sha512 = sha512.New()
		d.Writer = io.MultiWriter(d.sha256, d.sha512)
	}
	return d
}

// sum returns what has been digested so far: sha256 and, where it is asked for, sha512, in hex.
func (d *digest) sum() [2]string {
	out := [2]string{hex.EncodeToString(d.sha256.Sum(nil))}
	if d.sha512 != nil {
		out[1] = hex.EncodeToString(d.sha512.Sum(nil))
	}
	return out
}

func (s *Store) importFile(ctx context.Context, f *os.File, in Import) (Imported, error) {
	before, err := f.Stat()
	if err != nil {
		return Imported{}, fmt.Errorf("import image: %w", err)
	}
	withSHA512 := in.SHA512 != ""
	sums := sums{newDigest(withSHA512), newDigest(withSHA512), newDigest(withSHA512)}
	given := &meter{ctx: ctx, r: f, count: func(n int64) { in.Progress(Storing, n, before.Size()) }}
	source := io.TeeReader(given, sums.downloaded)

	packed := bufio.NewReaderSize(source, 64<<10)
	start, err := packed.Peek(64)
	if err != nil && !errors.Is(err, io.EOF) {
		return Imported{}, fmt.Errorf("import image: %w", err)
	}
	if len(start) == 0 {
		return Imported{}, fileError("the file is empty", "fetch it again")
	}
	plain, err := unpack(packed, compressionOf(start), in.MaxWindow)
	if err != nil {
		return Imported{}, err
	}
	defer plain.close()
	unpacked := bufio.NewReaderSize(plain, headSize)
	head, err := unpacked.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return Imported{}, err
	}
	format, err := formatOf(head, in.Format)
	if err != nil {
		return Imported{}, err
	}

	var m Manifest
	flat := disk{r: unpacked}
	if format == Raw {
		m, err = s.cut(ctx, &flat, 0, in, sums)
	} else {
		m, err = s.cutTables(ctx, f, unpacked, plain.kind, format, in, sums)
	}
	if err != nil {
		return Imported{}, err
	}
	if flat.footer != nil {
		format = VHD
	}
	if err := format.declaredAs(in.Format); err != nil {
		return Imported{}, err
	}
	// What follows the end of a compressed stream counts for the digest all the same.
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return Imported{}, fmt.Errorf("import image: %w", err)
	}
	after, err := f.Stat()
	if err != nil {
		return Imported{}, fmt.Errorf("import image: %w", err)
	}
	if !after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size() {
		return Imported{}, &machine.Error{Code: machine.Conflict, Field: "file", Message: "the file was changed while it was read", Hint: "import it when it is complete"}
	}
	return s.finish(m, format, flat.footer, in, sums)
}

// cut stores the disk that r gives. total is its size in bytes, 0 when unknown.
func (s *Store) cut(ctx context.Context, r io.Reader, total int64, in Import, sums sums) (Manifest, error) {
	c := chunker{store: s, maxSize: in.MaxSize, written: sums.written, count: func(int64) {}, first: func([]byte) error { return nil }}
	if total > 0 {
		c.count = func(n int64) { in.Progress(Storing, n, total) }
	}
	m, err := c.run(ctx, r)
	if err != nil {
		return Manifest{}, err
	}
	if m.Size%sectorSize != 0 {
		return Manifest{}, fileError(fmt.Sprintf("the disk has %d bytes, no multiple of 512: it is cut short", m.Size), "fetch the file again and compare its digest with the publisher's")
	}
	return m, nil
}

// cutTables reads a file in which tables say where the disk's parts are, which needs access out of order: the given file itself, or an
// unpacked copy of it.
func (s *Store) cutTables(ctx context.Context, f *os.File, plain io.Reader, kind compression, format Format, in Import, sums sums) (Manifest, error) {
	var dst io.Writer = sums.unpacked
	if kind != uncompressed {
		copied, err := s.temporary()
		if err != nil {
			return Manifest{}, err
		}
		defer copied.Close()
		f, dst = copied, io.MultiWriter(copied, sums.unpacked)
	}
	limit := maxFile(in.MaxSize)
	n, err := io.Copy(dst, io.LimitReader(plain, limit+1))
	if err != nil {
		return Manifest{}, err
	}
	if n > limit {
		return Manifest{}, sizeError(uint64(n), in.MaxSize)
	}
	var guest interface {
		io.Reader
		length() int64 // bytes of the guest's disk
		close()
	}
	if format == VMDK {
		guest, err = openVMDK(f, n, in.MaxSize)
	} else {
		guest, err = openQcow2(f, n, in.MaxSize)
	}
	if err != nil {
		return Manifest{}, err
	}
	defer guest.close()
	return s.cut(ctx, guest, guest.length(), in, sums)
}

// finish compares the digests, looks whether the disk can boot, and makes the image exist. The footer is what followed the disk in the file.
func (s *Store) finish(m Manifest, format Format, footer []byte, in Import, sums sums) (Imported, error) {
	downloaded, written := sums.downloaded.sum(), sums.written.sum()
	out := Imported{Manifest: m, Format: format, Downloaded: downloaded[0], Written: written[0]}
	unpacked := written
	switch format {
	case Qcow2, VMDK:
		unpacked = sums.unpacked.sum()
	case VHD:
		sums.written.Write(footer)
		unpacked = sums.written.sum()
	}
	for i, field := range []string{"sha256", "sha512"} {
		if err := in.compare(field, [...]string{in.SHA256, in.SHA512}[i], downloaded[i], written[i], unpacked[i]); err != nil {
			return Imported{}, err
		}
	}
	b, err := s.inspect(m)
	if err == nil && !b.BIOS && !b.UEFI {
		err = fileError("neither BIOS nor UEFI can boot the image: its boot sector has no code and it has no EFI system partition", "give an image with a boot loader")
	}
	if err != nil && !in.Unbootable {
		return Imported{}, err
	}
	digest, err := s.putManifest(m)
	if err != nil {
		return Imported{}, err
	}
	out.Image = machine.Image{
		Name: in.Name, Digest: digest, Size: m.Size, DefaultUser: in.DefaultUser,
		BIOS: b.BIOS, UEFI: b.UEFI, Created: time.Now().UTC().Truncate(time.Second),
	}
	return out, nil
}

// inspect looks at the start of a stored disk.
func (s *Store) inspect(m Manifest) (boots, error) {
	var head []byte
	if len(m.Chunks) > 0 && !m.Chunks[0].Zero {
		stored, err := s.readChunk(nil, m.Chunks[0])
		if err != nil {
			return boots{}, err
		}
		dec, err := NewDecoder()
		if err != nil {
			return boots{}, err
		}
		defer dec.Close()
		if head, err = dec.Decode(nil, stored, m.Chunks[0]); err != nil {
			return boots{}, err
		}
	}
	return inspect(head[:min(len(head), headSize)], m.Size)
}

// compare holds what came against the digest that was promised; on a mismatch it says which other digest fits, and still fails.
func (in Import) compare(field, want, downloaded, written, unpacked string) error {
	got, other, otherName := downloaded, written, AsWritten
	if in.DigestOf == AsWritten {
		got, other, otherName = written, downloaded, AsDownloaded
	}
	if want == "" || got == want {
		return nil
	}
	e := &machine.Error{
		Code:    machine.Invalid,
		Field:   field,
		Message: fmt.Sprintf("%s of the image as %s is %s, not %s", field, in.DigestOf, got, want),
		Hint:    "fetch the file again and compare its digest with the publisher's",
	}
	switch want {
	case other:
		e.Hint = fmt.Sprintf("the digest given is that of the image as %s: declare it so", otherName)
	case unpacked:
		e.Hint = "the digest given is that of the unpacked file, which is neither what was downloaded nor what is written: give one of those"
	}
	return e
}

// meter counts what it reads and ends with its context.
type meter struct {
	ctx   context.Context
	r     io.Reader
	n     int64
	count func(int64)
}

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.n += int64(n)
	m.count(m.n)
	return n, err
}
