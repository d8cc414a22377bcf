package netboot

import (
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/netboot/tftp"
)

func read(t testing.TB, f tftp.File) string {
	t.Helper()
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestK01TFTP: nothing but the loaders and what the signed chain needs, by any spelling of a name.
func TestK01TFTP(t *testing.T) {
	w := serveHTTP(t, func(s *Server) { signed(t, s) })
	if err := errors.Join(os.Symlink("/", w.LoaderDir+"/l"), os.Mkdir(w.LoaderDir+"-private", 0o755), os.WriteFile(w.LoaderDir+"-private/f", []byte("OUTSIDE"), 0o644)); err != nil {
		t.Fatal(err)
	}
	peer := netip.MustParseAddrPort("127.0.0.1:9")
	for _, name := range []string{
		"../../etc/passwd", `..\..\etc\passwd`, "/etc/passwd", "x/../../y", "../loaders-private/f", "l/etc/passwd", "....//", "",
		"grub/../../etc/passwd", "/grub/../vmlinuz", "grub//grub.cfg", `grub/..\..\x`, "boot/../vmlinuz", "boot//vmlinuz", "/boot/", "boot/archive/../vmlinuz", "//boot/vmlinuz", "l",
	} {
		if _, err := w.open(t.Context(), name, peer); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"missing.efi", "grub/x86_64-efi/fs.lst", "boot/other", "boot/archive/x", "grub/grub.cfg-01-x", "revocations_sku.efi"} {
		if _, err := w.open(t.Context(), name, peer); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestK03K09GRUB: GRUB's configuration, kernel, RAM disk and archive are for the machine that boots the agent now and for
// nobody else; there is no secret but in the archive; a machine without a job is sent to its disk.
func TestK03K09GRUB(t *testing.T) {
	w := serveHTTP(t, func(s *Server) { signed(t, s) })
	w.booter.archive = []byte("Zq9canary")
	mine, theirs := netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("127.0.0.2:9")
	text := func(name string, peer netip.AddrPort) string {
		t.Helper()
		f, err := w.open(t.Context(), name, peer)
		if err != nil {
			t.Fatalf("%s for %s: %v", name, peer, err)
		}
		return read(t, f)
	}
	refused := func(name string, peer netip.AddrPort) {
		t.Helper()
		if f, err := w.open(t.Context(), name, peer); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s for %s: %v, %v", name, peer, f, err)
		}
	}
	config := "/grub/grub.cfg-01-" + testMAC
	refused("/boot/vmlinuz", theirs) // it has not asked for its configuration
	for _, s := range []string{text("/grub/grub.cfg", mine), text(config, mine)} {
		if strings.Contains(s, "canary") {
			t.Errorf("a secret in\n%s", s)
		}
	}
	if s := text(config, mine); !strings.Contains(s, "linux /boot/vmlinuz console=ttyS0") || !strings.Contains(s, "/boot/archive/"+testMAC) {
		t.Errorf("configuration\n%s", s)
	}
	if s := text("/boot/vmlinuz", mine); !strings.HasPrefix(s, "kernel") {
		t.Errorf("kernel %.10q", s)
	}
	if s := text("boot/ramdisk", mine); !strings.HasPrefix(s, "ramdisk") {
		t.Errorf("RAM disk %.10q", s)
	}
	if s := text("/boot/archive/"+testMAC, mine); s != "Zq9canary" {
		t.Errorf("archive %q", s)
	}
	refused(config, theirs)
	refused("/boot/archive/"+testMAC, theirs)
	refused("/grub/grub.cfg-01-02:00:5e:ff:ff:ff", mine)

	w.booter.boot = Boot{Kind: BootDisk}
	if s := text(config, mine); !strings.Contains(s, "chainloader") || strings.Contains(s, "linux ") {
		t.Errorf("machine without a job:\n%s", s)
	}
	refused("/boot/vmlinuz", mine)
	refused("/boot/archive/"+testMAC, mine)

	plain := serveHTTP(t, nil) // without the signed chain TFTP has the loaders only
	for _, name := range []string{"/boot/vmlinuz", "/boot/archive/" + testMAC, "/grub/grub.cfg", config, "shimx64.efi"} {
		if f, err := plain.open(t.Context(), name, mine); err == nil {
			t.Errorf("%s without the signed chain: %v", name, f)
		}
	}
}

// FuzzTFTPName: whatever name is asked for, what is served is one of the files that should be.
func FuzzTFTPName(f *testing.F) {
	for _, s := range []string{"snponly.efi", "/grub/grub.cfg", "grub/grub.cfg-01-" + testMAC, "boot/archive/" + testMAC, "boot/vmlinuz", "shimx64.efi", "../x", `boot\..`, "x\xff"} {
		f.Add(s)
	}
	w := serveHTTP(f, func(s *Server) { signed(f, s) })
	if err := os.WriteFile(w.LoaderDir+"/../outside", []byte("OUTSIDE"), 0o644); err != nil {
		f.Fatal(err)
	}
	peer := netip.MustParseAddrPort("127.0.0.1:9")
	f.Fuzz(func(t *testing.T, name string) {
		file, err := w.open(t.Context(), name, peer)
		if err == nil && strings.Contains(read(t, file), "OUTSIDE") {
			t.Fatalf("%q is outside", name)
		}
	})
}
