package images

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

const diskSize = 13<<20 + 512 // the last chunk is short

func TestImportRoundTrip(t *testing.T) {
	disk := testDisk(t, diskSize)
	qcow := func(args ...string) []byte { return qemuConvert(t, disk, "qcow2", args...) }
	plainQcow, fixed, stream := qcow(), qemuConvert(t, disk, "vpc", fixedVHD...), qemuConvert(t, disk, "vmdk", streamVMDK...)
	for name, file := range map[string][]byte{
		"raw":                disk,
		"gzip":               tool(t, disk, "gzip", "-c"),
		"xz":                 tool(t, disk, "xz", "-0c"),
		"zstd":               tool(t, disk, "zstd", "-qc"),
		"bzip2":              tool(t, disk, "bzip2", "-1c"),
		"lz4":                tool(t, disk, "lz4", "-qc"),
		"two gzip members":   append(tool(t, disk[:1<<20], "gzip", "-c"), tool(t, disk[1<<20:], "gzip", "-c")...),
		"two xz streams":     append(tool(t, disk[:1<<20], "xz", "-0c"), tool(t, disk[1<<20:], "xz", "-0c")...),
		"two zstd frames":    append(tool(t, disk[:1<<20], "zstd", "-qc"), tool(t, disk[1<<20:], "zstd", "-qc")...),
		"two lz4 frames":     append(tool(t, disk[:1<<20], "lz4", "-qc"), tool(t, disk[1<<20:], "lz4", "-qc")...),
		"two bzip2 streams":  append(tool(t, disk[:1<<20], "bzip2", "-c"), tool(t, disk[1<<20:], "bzip2", "-c")...),
		"qcow2":              plainQcow,
		"qcow2 v2":           qcow("-o", "compat=0.10"),
		"qcow2 small":        qcow("-o", "cluster_size=512"),
		"qcow2 large":        qcow("-o", "cluster_size=2M"),
		"qcow2 zlib":         qcow("-c"),
		"qcow2 zstd":         qcow("-c", "-o", "compression_type=zstd"),
		"qcow2 zlib small":   qcow("-c", "-o", "cluster_size=4k"),
		"qcow2 preallocated": qcow("-o", "preallocation=metadata"),
		"qcow2.xz":           tool(t, plainQcow, "xz", "-0c"),
		"vhd":                fixed,
		"vhd.gz":             tool(t, fixed, "gzip", "-c"),
		"vhd.xz":             tool(t, fixed, "xz", "-0c"),
		"vmdk":               stream,
		"vmdk.gz":            tool(t, stream, "gzip", "-c"),
		"vmdk.xz":            tool(t, stream, "xz", "-0c"),
		"vmdk sparse":        qemuConvert(t, disk, "vmdk", "-o", "subformat=monolithicSparse"),
		"vmdk zeroed":        qemuConvert(t, disk, "vmdk", "-o", "subformat=monolithicSparse,zeroed_grain=on"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &Store{Dir: t.TempDir()}
			var last int64
			out, err := s.Import(context.Background(), Import{
				Name: "debian-12", DefaultUser: "debian", Path: tempFile(t, file), SHA256: digestOf(file),
				Progress: func(_ Stage, done, total int64) { last = done },
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := exported(t, s, out.Image.Digest); !bytes.Equal(got, disk) {
				t.Errorf("the disk differs: %d bytes of %d", len(got), len(disk))
			}
			if i := out.Image; i.Name != "debian-12" || i.DefaultUser != "debian" || i.Size != diskSize || !i.BIOS || !i.UEFI || i.Created.IsZero() {
				t.Errorf("image %+v", i)
			}
			if want, _, _ := strings.Cut(strings.Fields(name)[0], "."); (want == "qcow2" || want == "vhd" || want == "vmdk") != (out.Format != Raw) || out.Format != Raw && string(out.Format) != want {
				t.Errorf("format %s", out.Format)
			}
			if out.Written != digestOf(disk) || out.Downloaded != digestOf(file) || out.Manifest.Digest() != out.Image.Digest {
				t.Errorf("digests: %s written, %s downloaded", out.Written, out.Downloaded)
			}
			if last == 0 {
				t.Error("no progress was told")
			}
			zero := 0
			for _, c := range out.Manifest.Chunks {
				if c.Zero {
					zero++
				}
			}
			if len(out.Manifest.Chunks) != 4 || zero != 2 {
				t.Errorf("%d chunks, %d of them zero", len(out.Manifest.Chunks), zero)
			}
		})
	}
}

func TestImportFromReader(t *testing.T) {
	disk := testDisk(t, 1<<20)
	s := &Store{Dir: t.TempDir()}
	out, err := s.Import(context.Background(), Import{Reader: bytes.NewReader(disk)})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(exported(t, s, out.Image.Digest), disk) {
		t.Error("the disk differs")
	}
	if left, _ := os.ReadDir(filepath.Join(s.Dir, "incoming")); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

type brokenDisk struct{ r io.Reader }

var errBroken = errors.New("input/output error")

func (b brokenDisk) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = errBroken
	}
	return n, err
}

func TestImportRefusesDamage(t *testing.T) {
	disk := testDisk(t, 2<<20)
	for _, c := range []string{"gzip", "xz", "zstd", "bzip2", "lz4"} {
		packed := tool(t, disk, c, "-c")
		t.Run(c, func(t *testing.T) {
			mustRefuse(t, Import{Path: tempFile(t, packed[:len(packed)/2])}, "file", "damaged or cut short")
			mustRefuse(t, Import{Path: tempFile(t, packed[:len(packed)-3])}, "file", "damaged or cut short")
			spoilt := bytes.Clone(packed)
			spoilt[len(spoilt)/2] ^= 0x10
			mustRefuse(t, Import{Path: tempFile(t, spoilt)}, "file", "damaged or cut short")
		})
	}
	mustRefuse(t, Import{Path: tempFile(t, tool(t, tool(t, disk, "gzip", "-c"), "xz", "-c"))}, "file", "compressed twice")
	mustRefuse(t, Import{Path: tempFile(t, nil)}, "file", "empty")
	mustRefuse(t, Import{Path: tempFile(t, disk[:1<<20+100])}, "file", "cut short")
	mustRefuse(t, Import{Path: tempFile(t, disk[:1<<20])}, "file", "cut short")
	mustRefuse(t, Import{Path: "/dev/zero"}, "file", "no regular file")
	mustRefuse(t, Import{Path: "/no/such/file"}, "file", "no file")
	mustRefuse(t, Import{}, "file", "exactly one")
	mustRefuse(t, Import{Path: "/dev/null", URL: "http://example.org/"}, "file", "exactly one")
	mustRefuse(t, Import{Path: tempFile(t, disk), MaxSize: 1 << 20}, "file", "limit")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, make([]byte, 64<<20), "zstd", "-c")), MaxSize: 32 << 20}, "file", "limit")

	s := &Store{Dir: t.TempDir()}
	_, err := s.Import(context.Background(), Import{Reader: brokenDisk{bytes.NewReader(disk)}})
	if !errors.Is(err, errBroken) || machine.CodeOf(err) != "" {
		t.Errorf("a source that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Import(ctx, Import{Path: tempFile(t, disk)}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled import: %v", err)
	}
}

func TestImportRefusesWhatCannotBoot(t *testing.T) {
	disk := testDisk(t, 2<<20)
	spoil := func(f func([]byte)) Import {
		d := bytes.Clone(disk)
		f(d)
		return Import{Path: tempFile(t, d)}
	}
	mustRefuse(t, spoil(func(d []byte) { clear(d) }), "file", "no partition table")
	mustRefuse(t, spoil(func(d []byte) { copy(d, bytes.Repeat([]byte("noise"), 400_000)) }), "file", "no partition table")
	mustRefuse(t, spoil(func(d []byte) { d[446] = 'x' }), "file", "no valid partition table")
	mustRefuse(t, spoil(func(d []byte) { clear(d[446:510]) }), "file", "empty")
	mustRefuse(t, spoil(func(d []byte) { clear(d[512:1024]) }), "file", "announces a GPT")
	mustRefuse(t, spoil(func(d []byte) { d[512+40]++ }), "file", "header of the GPT is damaged")
	mustRefuse(t, spoil(func(d []byte) { d[1024+200]++ }), "file", "entries of the GPT are damaged")
	mustRefuse(t, spoil(func(d []byte) { copy(d[4096:], "EFI PART"); clear(d[512:1024]) }), "file", "4096 bytes")
	mustRefuse(t, Import{Path: tempFile(t, disk[:len(disk)-64*512])}, "file", "cut short")

	// An MBR disk without boot code, then with.
	mbr := make([]byte, 2<<20)
	mbr[510], mbr[511] = 0x55, 0xaa
	mbr[446+4], mbr[446+8], mbr[446+13] = 0x83, 8, 1
	mustRefuse(t, Import{Path: tempFile(t, mbr)}, "file", "neither BIOS nor UEFI")
	mbr[0] = 0xeb
	s := &Store{Dir: t.TempDir()}
	out, err := s.Import(context.Background(), Import{Path: tempFile(t, mbr)})
	if err != nil || !out.Image.BIOS || out.Image.UEFI {
		t.Errorf("a plain MBR disk: %+v, %v", out.Image, err)
	}
	clear(disk[:440])
	out, err = s.Import(context.Background(), Import{Path: tempFile(t, disk)})
	if err != nil || out.Image.BIOS || !out.Image.UEFI {
		t.Errorf("a GPT disk without boot code: %+v, %v", out.Image, err)
	}
	out, err = s.Import(context.Background(), Import{Path: tempFile(t, make([]byte, 1<<20)), Unbootable: true})
	if err != nil || out.Image.BIOS || out.Image.UEFI {
		t.Errorf("an empty disk that is asked for: %+v, %v", out.Image, err)
	}
}

func TestImportRefusesOtherFiles(t *testing.T) {
	for _, f := range foreign {
		file := make([]byte, 1<<20)
		copy(file[f.offset:], f.magic)
		mustRefuse(t, Import{Path: tempFile(t, file)}, "file", strings.Fields(f.name)[1])
	}
	disk := testDisk(t, 2<<20)
	for _, format := range []string{"vpc", "vdi", "vhdx", "qed", "parallels"} {
		out := filepath.Join(t.TempDir(), format)
		tool(t, nil, "qemu-img", "convert", "-f", "raw", "-O", format, tempFile(t, disk), out)
		mustRefuse(t, Import{Path: out}, "file", "convert it")
	}
}

func TestF09DigestOfWhichBytes(t *testing.T) {
	disk := testDisk(t, 1<<20)
	packed := tool(t, disk, "xz", "-c")
	file := tempFile(t, packed)
	s := &Store{Dir: t.TempDir()}
	for _, good := range []Import{
		{Path: file, SHA256: digestOf(packed)},
		{Path: file, SHA256: strings.ToUpper(digestOf(packed)) + "\n", DigestOf: AsDownloaded},
		{Path: file, SHA256: digestOf(disk), DigestOf: AsWritten},
	} {
		if _, err := s.Import(context.Background(), good); err != nil {
			t.Errorf("%s: %v", good.DigestOf, err)
		}
	}
	mustRefuse(t, Import{Path: file, SHA256: digestOf(disk)}, "sha256", "that of the image as written: declare it so")
	mustRefuse(t, Import{Path: file, SHA256: digestOf(packed), DigestOf: AsWritten}, "sha256", "that of the image as downloaded: declare it so")
	mustRefuse(t, Import{Path: file, SHA256: digestOf([]byte("other"))}, "sha256", "publisher")
	mustRefuse(t, Import{Path: file, SHA256: "d41d8cd98f00b204e9800998ecf8427e"}, "sha256", "64 hex digits")
	mustRefuse(t, Import{Path: file, SHA256: digestOf(disk), DigestOf: "raw"}, "digest_of", "downloaded or written")

	sha512Of := func(b []byte) string { return fmt.Sprintf("%x", sha512.Sum512(b)) }
	for _, good := range []Import{
		{Path: file, SHA512: sha512Of(packed), SHA256: digestOf(packed)},
		{Path: file, SHA512: strings.ToUpper(sha512Of(disk)), DigestOf: AsWritten},
	} {
		if _, err := s.Import(context.Background(), good); err != nil {
			t.Errorf("sha512: %v", err)
		}
	}
	mustRefuse(t, Import{Path: file, SHA512: sha512Of(disk)}, "sha512", "that of the image as written: declare it so")
	mustRefuse(t, Import{Path: file, SHA512: sha512Of(packed), SHA256: digestOf(disk)}, "sha256", "that of the image as written")
	mustRefuse(t, Import{Path: file, SHA512: sha512Of(disk), SHA256: digestOf(packed)}, "sha512", "that of the image as written")
	mustRefuse(t, Import{Path: file, SHA512: digestOf(packed)}, "sha512", "128 hex digits")

	qcow := qemuConvert(t, disk, "qcow2")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, qcow, "gzip", "-c")), SHA512: sha512Of(qcow)}, "sha512", "unpacked file")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, qcow, "gzip", "-c")), SHA256: digestOf(qcow)}, "sha256", "unpacked file")

	// Bytes behind the end of the compressed data are part of what was downloaded.
	longer := append(bytes.Clone(packed), 0, 0, 0, 0)
	if _, err := s.Import(context.Background(), Import{Path: tempFile(t, longer), SHA256: digestOf(longer)}); err != nil {
		t.Errorf("padding: %v", err)
	}
}

func (in Import) window(mib uint64) Import {
	in.MaxWindow = mib << 20
	return in
}

func TestF11LongWindow(t *testing.T) {
	disk := testDisk(t, 24<<20)
	mustRefuse(t, Import{Path: tempFile(t, tool(t, disk[:1<<20], "zstd", "-q", "-1", "--long=31", "-c"))}.window(128), "file", "window of 2048 MiB, more than the 128 MiB")
	packed := tool(t, disk, "zstd", "-q", "-1", "--long=27", "-c")
	mustRefuse(t, Import{Path: tempFile(t, packed)}.window(16), "file", "window of 128 MiB, more than the 16 MiB")
	s := &Store{Dir: t.TempDir()}
	if _, err := s.Import(context.Background(), Import{Path: tempFile(t, packed)}.window(128)); err != nil {
		t.Errorf("with enough memory: %v", err)
	}
	// A harmless first frame does not open the door for the second.
	head := tool(t, disk[:1<<20], "zstd", "-qc")
	rest := tool(t, disk[1<<20:], "zstd", "-q", "-1", "--long=27", "-c")
	mustRefuse(t, Import{Path: tempFile(t, append(head, rest...))}.window(16), "file", "window")

	xz := tool(t, disk[:1<<20], "xz", "--lzma2=preset=0,dict=512MiB", "-c")
	mustRefuse(t, Import{Path: tempFile(t, xz)}.window(128), "file", "xz window of 512 MiB")
}
