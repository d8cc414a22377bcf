package netboot

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

const (
	debianShim = "/usr/lib/shim/shimx64.efi.signed"
	debianGRUB = "/usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"
)

// TestQEMUSecureBoot: firmware with Secure Boot on and Microsoft's keys boots Debian's shim, its signed GRUB, its signed
// kernel and our RAM disk, which finds the per-boot archive and a kernel that is locked down, as it is only under Secure Boot.
func TestQEMUSecureBoot(t *testing.T) {
	b := newQEMU(t)
	var seen exchanges
	ns := tapNetwork(t, "tap0")
	start(t, ns, &Server{
		Booter:    b.booter("10.99.0.64/24", true),
		Interface: "tap0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
		KernelPath: b.kernel, RAMDiskPath: b.initrd, ShimPath: debianShim, GRUBPath: debianGRUB, Trace: seen.add,
	})
	began := time.Now()
	line := boot(t, ns, regexp.MustCompile(`TEST-INIT nonce=one-time err=<nil> lockdown=integrity`), append(append(nic(",romfile="), secureOVMF(t, t.TempDir())...), noIPv6...))
	t.Logf("after %.1f s: %s", time.Since(began).Seconds(), line)
	seen.expect(t, "REQUEST pxe arch 7", "tftp shimx64.efi sent", "tftp grubx64.efi sent", "grub/grub.cfg sent", "grub.cfg-01-52:54:00:99:00:00 sent",
		"boot/vmlinuz sent", "boot/archive/52:54:00:99:00:00 failed", "boot/archive/52:54:00:99:00:00 sent", "boot/ramdisk sent")
}

// TestQEMUSecureBootDisk: a machine that has no job goes by the same chain to the system on its disk.
func TestQEMUSecureBootDisk(t *testing.T) {
	b := newQEMU(t)
	var seen exchanges
	ns := tapNetwork(t, "tap0")
	booter := b.booter("10.99.0.64/24", true)
	booter.boot = Boot{Kind: BootDisk}
	start(t, ns, &Server{
		Booter: booter, Interface: "tap0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
		KernelPath: b.kernel, RAMDiskPath: b.initrd, ShimPath: debianShim, GRUBPath: debianGRUB, Trace: seen.add,
	})
	began := time.Now()
	dir := t.TempDir()
	boot(t, ns, regexp.MustCompile(`DISK BOOTED`), append(append(append(nic(",romfile="), secureOVMF(t, dir)...), efiDisk(t, dir)...), noIPv6...))
	t.Logf("after %.1f s", time.Since(began).Seconds())
	seen.expect(t, "tftp shimx64.efi sent", "grub.cfg-01-52:54:00:99:00:00 sent")
}

// secureOVMF is firmware with Secure Boot on and Microsoft's keys in it.
func secureOVMF(t *testing.T, dir string) []string {
	t.Helper()
	vars := filepath.Join(dir, "vars.fd")
	v, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS_4M.ms.fd")
	if err != nil {
		t.Fatalf("%v: install ovmf", err)
	}
	if err := os.WriteFile(vars, v, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{
		"-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on",
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.ms.fd",
		"-drive", "if=pflash,format=raw,unit=1,file=" + vars,
	}
}
