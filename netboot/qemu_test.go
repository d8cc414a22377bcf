package netboot

import (
	"bufio"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long one emulated machine may take. Quiet, on one core of a small machine: 15 to 40 seconds.
const patience = 6 * time.Minute

// TestQEMU boots real firmware through a real Server: into the agent's kernel with both initrds, and from disk.
// It takes minutes, so it runs only when BAREYARD_QEMU=1 says so, as in the end-to-end step of CI.
func TestQEMU(t *testing.T) {
	b := newQEMU(t)
	agent := Boot{Kind: BootAgent, Cmdline: consoleArgs}
	disk := regexp.MustCompile(`DISK BOOTED`)

	for _, test := range []struct {
		name string
		boot Boot
		want *regexp.Regexp
		args func(t *testing.T, dir string) []string
		seen []string // parts of exchanges, in order
	}{
		{"bios-agent", agent, up, func(*testing.T, string) []string { return nic("") },
			[]string{"DISCOVER ipxe arch 0", "REQUEST ipxe arch 0", ".ipxe", "vmlinuz", "ramdisk", "archive/52:54:00:99:00:00 500", "vmlinuz", "ramdisk", "archive/52:54:00:99:00:00 200"}},
		// QEMU's own BIOS ROM is always iPXE. Another one, started by hand, stands in for the PXE of a card.
		{"bios-undionly-agent", agent, up, func(*testing.T, string) []string {
			return append(nic(""), "-kernel", "/usr/lib/ipxe/ipxe.lkrn", "-append", "dhcp && chain tftp://10.99.0.1/undionly.kpxe")
		}, []string{"REQUEST ipxe arch 0", "tftp undionly.kpxe sent", "REQUEST ipxe arch 0", ".ipxe", "vmlinuz", "ramdisk", "archive"}},
		{"bios-disk", Boot{}, disk, func(t *testing.T, dir string) []string { return append(nic(""), biosDisk(t, dir)...) },
			[]string{"REQUEST ipxe arch 0", ".ipxe"}},
		{"uefi-pxe-agent", agent, up, func(t *testing.T, dir string) []string { return append(nic(",romfile="), ovmf(t, dir)...) },
			[]string{"REQUEST pxe arch 7", "snponly.efi size", "snponly.efi sent", "REQUEST ipxe arch 7", ".ipxe", "vmlinuz", "archive"}},
		{"uefi-pxe-disk", Boot{}, disk, func(t *testing.T, dir string) []string {
			return append(append(append(nic(",romfile="), ovmf(t, dir)...), efiDisk(t, dir)...), noIPv6...)
		}, []string{"REQUEST pxe arch 7", "snponly.efi sent", "REQUEST ipxe arch 7", ".ipxe"}},
		{"uefi-http-agent", agent, up, func(t *testing.T, dir string) []string {
			return append(append(append(nic(",romfile="), ovmf(t, dir)...), noIPv6...),
				"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n")
		}, []string{"REQUEST http-boot arch 16", "/boot/snponly.efi", "REQUEST ipxe arch 7", ".ipxe", "vmlinuz", "archive"}},
		{"uefi-rom-disk", Boot{}, disk, func(t *testing.T, dir string) []string {
			return append(append(append(nic(""), ovmf(t, dir)...), efiDisk(t, dir)...), noIPv6...)
		}, []string{"REQUEST ipxe arch 7", ".ipxe"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ns := tapNetwork(t, "tap0")
			booter := b.booter("10.99.0.64/24", false)
			booter.boot = test.boot
			var seen exchanges
			start(t, ns, &Server{
				Booter:    booter,
				Interface: "tap0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
				KernelPath: b.kernel, RAMDiskPath: b.initrd, Trace: seen.add,
			})
			began := time.Now()
			line := boot(t, ns, test.want, test.args(t, t.TempDir()))
			t.Logf("after %.1f s: %s", time.Since(began).Seconds(), line)
			seen.expect(t, test.seen...)
		})
	}
}

const (
	consoleArgs = "console=ttyS0 mitigations=off no_timer_check panic=1"
	qemuMAC     = "52:54:00:99:00:00"
)

// up is what the RAM disk of the tests says.
var up = regexp.MustCompile(`TEST-INIT nonce=one-time err=<nil> .*console=ttyS0`)

// qemu is what the machines boot.
type qemu struct{ kernel, initrd string }

func newQEMU(t *testing.T) qemu {
	t.Helper()
	if os.Getenv("BAREYARD_QEMU") != "1" {
		t.Skip("boots emulated machines for minutes: set BAREYARD_QEMU=1")
	}
	for name, hint := range map[string]string{
		"qemu-system-x86_64": "qemu-system-x86", "mformat": "mtools", "sgdisk": "gdisk", "ip": "iproute2",
	} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: install %s", err, hint)
		}
	}
	b := qemu{kernelPath(t), filepath.Join(t.TempDir(), "ramdisk")}
	if err := os.WriteFile(b.initrd, cpioFile(map[string][]byte{"init": buildInit(t)}), 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

// booter boots the agent on the machine. Its archive fails once: loaders try again.
func (b qemu) booter(addr string, secure bool) *fakeBooter {
	return &fakeBooter{
		leases:   map[string]Lease{qemuMAC: {Addr: netip.MustParsePrefix(addr), Hostname: "r1-n7", SecureBoot: secure}},
		boot:     Boot{Kind: BootAgent, Cmdline: consoleArgs},
		failures: 1,
		archive:  cpioFile(map[string][]byte{"bareyard/nonce": []byte("one-time")}),
	}
}

// tapNetwork makes a namespace with a tap device for one machine, which has the server's address.
func tapNetwork(t *testing.T, tap string) string {
	t.Helper()
	ns := newNamespace(t)
	ip(t, "-n", ns, "tuntap", "add", tap, "mode", "tap")
	ip(t, "-n", ns, "addr", "add", "10.99.0.1/24", "dev", tap)
	ip(t, "-n", ns, "link", "set", tap, "up")
	return ns
}

// noIPv6 saves the 108 s that EDK2 spends on PXE over IPv6 before it goes on to the disk.
var noIPv6 = []string{"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"}

// boot runs one machine until its console shows want, and returns that line.
func boot(t *testing.T, ns string, want *regexp.Regexp, args []string) string {
	t.Helper()
	cmd := exec.Command("ip", append(strings.Fields("netns exec "+ns+" qemu-system-x86_64 -machine q35,graphics=off "+
		"-accel tcg,thread=multi,tb-size=128 -cpu max -smp 1 -m 1024 -nodefaults -display none -no-reboot -serial stdio"), args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that times out leaves no machine behind
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer limit.Stop()
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var console strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		console.WriteString(lines.Text() + "\n")
		if want.MatchString(lines.Text()) {
			return lines.Text()
		}
	}
	t.Fatalf("console never showed %v:\n%s", want, console.String())
	return ""
}

func nic(more string) []string {
	return []string{"-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=n0,mac=" + qemuMAC + ",bootindex=1" + more}
}

func ovmf(t *testing.T, dir string) []string {
	t.Helper()
	vars := filepath.Join(dir, "vars.fd")
	b, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS_4M.fd")
	if err != nil {
		t.Fatalf("%v: install ovmf", err)
	}
	if err := os.WriteFile(vars, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd",
		"-drive", "if=pflash,format=raw,unit=1,file=" + vars,
	}
}

func diskArgs(path string) []string {
	return []string{"-drive", "if=none,id=d0,format=raw,file=" + path, "-device", "virtio-blk-pci,drive=d0,bootindex=2"}
}

// biosDisk returns a disk whose boot sector writes to the first serial port when it was entered with drive 0x80.
func biosDisk(t *testing.T, dir string) []string {
	t.Helper()
	code := []byte{
		0x80, 0xfa, 0x80, // cmp dl, 0x80
		0x75, 0x13, // jne halt
		0xbe, 0x1e, 0x7c, // mov si, text
		0xfc,                   // cld
		0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
		0xac,       // next: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x06, // jz halt
		0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xee,       // out dx, al
		0xeb, 0xf5, // jmp next
		0xf4, 0xeb, 0xfd, // halt: hlt; jmp halt
		0, 0,
	}
	sector := make([]byte, 1<<20)
	copy(sector, code)
	copy(sector[0x1e:], "\r\nDISK BOOTED\r\n\x00")
	sector[510], sector[511] = 0x55, 0xaa
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, sector, 0o644); err != nil {
		t.Fatal(err)
	}
	return diskArgs(path)
}

// efiDisk returns a disk whose EFI system partition holds Debian's GRUB, which says that it runs.
func efiDisk(t *testing.T, dir string) []string {
	t.Helper()
	const grub = "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
	if _, err := os.Stat(grub); err != nil {
		t.Fatalf("%v: install grub-efi-amd64-signed", err)
	}
	config := filepath.Join(dir, "grub.cfg")
	if err := os.WriteFile(config, []byte("serial --unit=0\nterminal_output serial\necho DISK BOOTED\nsleep 60\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"sgdisk -n 1:2048:+60M -t 1:ef00 " + path,
		"mformat -i " + path + "@@1M -T 122880 -F ::",
		"mmd -i " + path + "@@1M ::/EFI ::/EFI/BOOT ::/EFI/debian",
		"mcopy -i " + path + "@@1M " + grub + " ::/EFI/BOOT/BOOTX64.EFI",
		"mcopy -i " + path + "@@1M " + config + " ::/EFI/debian/grub.cfg",
	} {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	return diskArgs(path)
}

// kernelPath returns Debian's kernel for the RAM disk. The build puts it into build/kernel.
func kernelPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../build/kernel/vmlinuz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	t.Log("no build/kernel/vmlinuz yet: fetching Debian's cloud kernel")
	dir := t.TempDir()
	script := `set -e
name=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -1)
apt-get -q download "$name"
dpkg -x linux-image-*.deb x
cp x/boot/vmlinuz-* vmlinuz`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("fetch kernel: %v: %s", err, out)
	}
	return filepath.Join(dir, "vmlinuz")
}

// buildInit builds the program that the RAM disk runs.
func buildInit(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "init")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./testdata/init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build init: %v: %s", err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
