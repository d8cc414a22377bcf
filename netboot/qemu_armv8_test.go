package netboot

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// TestQEMUARM64: UEFI firmware for arm64 asks for its loader and takes all of it. There is no loader for arm64 in Debian
// and no RAM disk of ours, so this is as far as it goes.
func TestQEMUARM64(t *testing.T) {
	if os.Getenv("BAREYARD_QEMU") != "1" {
		t.Skip("boots emulated machines for minutes: set BAREYARD_QEMU=1")
	}
	const firmware = "/usr/share/AAVMF/AAVMF_CODE.fd"
	for _, path := range []string{firmware, "/usr/bin/qemu-system-aarch64"} {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: install qemu-system-arm and qemu-efi-aarch64", err)
		}
	}
	ns := tapNetwork(t, "tap0")
	fetched := make(chan Exchange, 1)
	var seen exchanges
	s := &Server{
		Booter:    &fakeBooter{leases: map[string]Lease{qemuMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24")}}, boot: Boot{Kind: BootAgent}},
		Interface: "tap0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
		Trace: func(x Exchange) {
			seen.add(x)
			if x.Proto == "tftp" && x.Outcome == Answered {
				select {
				case fetched <- x:
				default:
				}
			}
		},
	}
	files(t, s)
	loader := bytes.Repeat([]byte("arm"), 70_001)
	own := filepath.Join(t.TempDir(), "loader-arm64.efi")
	if err := os.WriteFile(own, loader, 0o644); err != nil {
		t.Fatal(err)
	}
	s.Loaders = map[dhcp.Platform]string{dhcp.PlatformARM64: own}
	start(t, ns, s)
	cmd := exec.Command("ip", append(strings.Fields("netns exec "+ns+" qemu-system-aarch64 -machine virt -accel tcg,thread=multi,tb-size=128 -cpu cortex-a57 -smp 1 -m 512 "+
		"-nodefaults -display none -no-reboot -serial null -bios "+firmware), nic(",romfile=")...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	select {
	case x := <-fetched:
		if x.MAC != qemuMAC || x.File != "loader-arm64.efi" || x.Bytes != int64(len(loader)) {
			t.Errorf("fetched %+v", x)
		}
	case <-time.After(patience):
		t.Fatalf("the loader was not fetched:\n%s", strings.Join(seen.lines(), "\n"))
	}
	t.Logf("after %.1f s", time.Since(began).Seconds())
	seen.expect(t, "DISCOVER pxe arch 11", "REQUEST pxe arch 11", "tftp loader-arm64.efi sent")
}
