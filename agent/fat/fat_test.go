package fat_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/agent/fat"
)

// tool runs a program of Debian's dosfstools, mtools or util-linux.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: apt-get install dosfstools mtools util-linux", err)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestEncode(t *testing.T) {
	tests := map[string]map[string]string{
		"none": {},
		"seed": {"meta-data": "instance-id: m-1\n", "user-data": "#cloud-config\n", "network-config": "version: 2\n", "vendor-data": ""},
		"sizes": {"a": "x", "one-cluster": strings.Repeat("a", 2048), "one-more": strings.Repeat("b", 2049), "much": strings.Repeat("0123456789abcdef", 400_000),
			"a name of more than thirteen characters.yaml": "long", "exactly13char": "13", "twenty-six-characters-long": "26", "UPPER.TXT": "u"},
		"many": func() map[string]string {
			m := map[string]string{}
			for i := range 150 {
				m[strings.Repeat("n", 20)+string(rune('a'+i%26))+string(rune('a'+i/26))] = strings.Repeat("z", i*100)
			}
			return m
		}(),
	}
	for name, files := range tests {
		t.Run(name, func(t *testing.T) {
			img, err := fat.Encode("CIDATA", files)
			if err != nil {
				t.Fatal(err)
			}
			again, err := fat.Encode("CIDATA", maps.Clone(files))
			if err != nil || !bytes.Equal(img, again) {
				t.Error("the same files make another image")
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "fat.img")
			if err := os.WriteFile(path, img, 0o600); err != nil {
				t.Fatal(err)
			}
			if out := tool(t, "fsck.vfat", "-n", "-v", path); !strings.Contains(out, "File Allocation Table 2") && !strings.Contains(out, "FATs, 16 bit") {
				t.Errorf("not a FAT16 to fsck.vfat:\n%s", out)
			}
			if out := tool(t, "blkid", "-p", path); !strings.Contains(out, `LABEL="CIDATA"`) || !strings.Contains(out, `VERSION="FAT16"`) {
				t.Errorf("blkid: %s", out)
			}
			for name, want := range files {
				out := filepath.Join(dir, "out")
				tool(t, "mcopy", "-n", "-o", "-i", path, "::"+name, out)
				got, err := os.ReadFile(out)
				if err != nil || string(got) != want {
					t.Errorf("%s: %d bytes, want %d, %v", name, len(got), len(want), err)
				}
			}
			if out := tool(t, "mdir", "-b", "-i", path, "::"); strings.Count(out, "::/") != len(files) {
				t.Errorf("mdir lists:\n%s", out)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"path":          {"a/b": ""},
		"dots":          {"..": ""},
		"empty name":    {"": ""},
		"not ASCII":     {"ü": ""},
		"long name":     {strings.Repeat("n", 101): ""},
		"same name":     {"User-Data": "", "user-data": ""},
		"too large":     {"user-data": strings.Repeat("x", fat.Size)},
		"sum too large": {"a": strings.Repeat("x", fat.Size/2), "b": strings.Repeat("x", fat.Size/2)},
	} {
		if _, err := fat.Encode("CIDATA", files); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, label := range []string{"cidata", "TWELVE CHARS", "A/B"} {
		if _, err := fat.Encode(label, nil); err == nil {
			t.Errorf("label %q: no error", label)
		}
	}
}
