package ipxe

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func agent() Agent {
	return Agent{
		Kernel:  "http://10.99.0.1:8080/boot/vmlinuz",
		RAMDisk: "http://10.99.0.1:8080/boot/ramdisk",
		Archive: "http://10.99.0.1:8080/boot/archive/52:54:00:99:00:00",
		Cmdline: "console=ttyS0,115200n8 bareyard.server=https://10.99.0.1:8443",
	}
}

func TestGolden(t *testing.T) {
	text, err := agent().Script()
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"agent": text, "disk": DiskScript()} {
		golden := "testdata/" + name + ".ipxe"
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatalf("%v (run with -update)", err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs:\n%s", golden, got)
		}
	}
}

// TestScriptRefuses: what iPXE would read as its own language never gets into a script.
func TestScriptRefuses(t *testing.T) {
	for _, cmdline := range []string{"a\nshell", "a || shell", "a && shell", "x=${netX/mac}", "a\x00b", `x="a b"`, "x='a'", `a\`, "é"} {
		a := agent()
		a.Cmdline = cmdline
		if text, err := a.Script(); err == nil {
			t.Errorf("%q accepted:\n%s", cmdline, text)
		}
	}
	for _, u := range []string{"", "/boot/vmlinuz", "https://10.99.0.1/x", "tftp://10.99.0.1/x", "http://10.99.0.1/a b", "http://10.99.0.1/${x}", "http:///x"} {
		a := agent()
		a.Archive = u
		if text, err := a.Script(); err == nil {
			t.Errorf("URL %q accepted:\n%s", u, text)
		}
	}
}

// TestInitrdNames: under EFI the kernel fetches each initrd= by the name that the script gives it.
func TestInitrdNames(t *testing.T) {
	text, err := agent().Script()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ramdisk", "archive"} {
		if !strings.Contains(string(text), " initrd="+name+" ") || !strings.Contains(string(text), "initrd --name "+name+" ") {
			t.Errorf("initrd %s is not both named and asked for", name)
		}
	}
	if strings.Index(string(text), "--name ramdisk") > strings.Index(string(text), "--name archive") {
		t.Error("the archive must come after the RAM disk, whose files it may replace")
	}
}
