package ramdisk_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"github.com/bareyard/bareyard/images/ramdisk"
)

// kernelDir makes a folder as kernel.sh leaves it, with three modules.
func kernelDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"version":                                     "6.1.0-test\n",
		"modules/6.1.0-test/modules.dep":              "kernel/net/virtio-net.ko: kernel/net/failover.ko\nkernel/net/failover.ko:\nkernel/sound/loud.ko:\n",
		"modules/6.1.0-test/modules.alias":            "# comment\nalias virtio:d00000001v* virtio_net\nalias pci:v00001234d* loud\n",
		"modules/6.1.0-test/modules.builtin":          "kernel/fs/ext4.ko\n",
		"modules/6.1.0-test/modules.order":            "kernel/net/virtio-net.ko\n",
		"modules/6.1.0-test/kernel/net/virtio-net.ko": "NET",
		"modules/6.1.0-test/kernel/net/failover.ko":   "FAILOVER",
		"modules/6.1.0-test/kernel/sound/loud.ko":     "LOUD",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func contents(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, r := range records {
		b, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
		if err != nil {
			t.Fatal(err)
		}
		files[r.Name] = string(b)
	}
	return files
}

func TestBuild(t *testing.T) {
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, []byte("AGENT"), 0o755); err != nil {
		t.Fatal(err)
	}
	var built [2][]byte
	for i := range built {
		out := filepath.Join(t.TempDir(), "ramdisk")
		if err := ramdisk.Build(t.Context(), ramdisk.Options{KernelDir: kernelDir(t), AgentBinary: agent, Out: out}); err != nil {
			t.Fatal(err)
		}
		var err error
		if built[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(built[0], built[1]) {
		t.Error("the same input made different bytes")
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(built[0])%4 != 0 {
		t.Errorf("%d bytes: an archive that follows would not be found", len(built[0]))
	}
	var raw []byte
	for packed := built[0]; ; packed = packed[:len(packed)-1] { // up to three zeros of padding, which no zstd tool takes
		if raw, err = dec.DecodeAll(packed, nil); err == nil {
			break
		}
		if len(built[0])-len(packed) == 3 || packed[len(packed)-1] != 0 {
			t.Fatal(err)
		}
	}
	files := contents(t, raw)
	for name, want := range map[string]string{
		"init": "AGENT", "lib/modules/6.1.0-test/kernel/net/virtio-net.ko": "NET", "lib/modules/6.1.0-test/kernel/net/failover.ko": "FAILOVER",
		"lib/modules/6.1.0-test/modules.alias": "alias virtio:d00000001v* virtio_net\n",
		"lib/modules/6.1.0-test/modules.dep":   "kernel/net/virtio-net.ko: kernel/net/failover.ko\nkernel/net/failover.ko:\n",
	} {
		if files[name] != want {
			t.Errorf("%s holds %q, want %q", name, files[name], want)
		}
	}
	if _, there := files["dev/console"]; !there {
		t.Error("no dev/console: the kernel gives /init no standard output")
	}
	for name := range files {
		if strings.Contains(name, "sound") {
			t.Errorf("%s is there, nobody asked for it", name)
		}
	}
}

func TestBuildWithoutKernel(t *testing.T) {
	err := ramdisk.Build(t.Context(), ramdisk.Options{KernelDir: t.TempDir(), AgentBinary: "/dev/null", Out: filepath.Join(t.TempDir(), "x")})
	if err == nil || !strings.Contains(err.Error(), "no kernel") {
		t.Errorf("got %v", err)
	}
}

func TestArchive(t *testing.T) {
	raw, err := ramdisk.Archive(map[string][]byte{"etc/bareyard/boot.json": []byte(`{"nonce":"x"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if len(raw)%4 != 0 {
		t.Errorf("%d bytes: what follows would not be found", len(raw))
	}
	files := contents(t, raw)
	if files["etc/bareyard/boot.json"] != `{"nonce":"x"}` {
		t.Errorf("archive holds %v", files)
	}
	for _, dir := range []string{"etc", "etc/bareyard"} {
		if _, there := files[dir]; !there {
			t.Errorf("folder %s is missing: the kernel does not make it", dir)
		}
	}
	for _, bad := range []string{"", "/etc/x", "../x", "a//b", "a/../../b"} {
		if _, err := ramdisk.Archive(map[string][]byte{bad: nil}); err == nil {
			t.Errorf("path %q is accepted", bad)
		}
	}
}
