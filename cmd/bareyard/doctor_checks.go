package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/postgres"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// serverChecks is what bareyard serve needs under cfg.
func serverChecks(cfg config) []check {
	checks := []check{
		{name: "data_dir", look: func() (string, error) { return writable(cfg.DataDir, 5<<30) }},
		{name: "image_dir", look: func() (string, error) { return writable(cfg.ImageDir, 5<<30) }},
		{name: "validator", optional: "machines are handed over without their cards being judged", look: file(cfg.Validator, "build it with make build, and copy it there")},
		{name: "port " + cfg.APIListen, look: func() (string, error) { return freeTCP(cfg.APIListen) }},
	}
	if cfg.DatabaseURL == "" {
		checks = append(checks, check{name: "postgresql", packages: "postgresql", look: embedded})
	}
	if cfg.Boot.Interface != "" {
		checks = append(checks, bootChecks(cfg.Boot)...)
	}
	if cfg.Edge.Uplink != "" {
		checks = append(checks, edgeChecks(cfg.Edge)...)
	}
	if cfg.Ports.Netns != "" {
		checks = append(checks, check{name: "ports.netns", look: func() (string, error) { return namespace(cfg.Ports.Netns) }})
	}
	return checks
}

// bootChecks is what network boot needs.
func bootChecks(b bootConfig) []check {
	checks := []check{
		{name: "right to boot", look: capable("answer DHCP", unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE)},
		{name: "kernel", look: file(b.Kernel, "make ramdisk, and copy it there")},
		{name: "RAM disk", look: file(b.RAMDisk, "make ramdisk, and copy it there")},
	}
	for _, loader := range []string{b.Loaders.BIOS, b.Loaders.X64} {
		checks = append(checks, check{name: filepath.Base(loader), packages: "ipxe", look: file(absolute(b.LoaderDir, loader), "")})
	}
	if b.SecureBoot == secureShim {
		checks = append(checks, check{name: "shim", packages: "shim-signed", look: file(b.Shim, "")},
			check{name: "signed GRUB", packages: "grub-efi-amd64-signed", look: file(b.GRUB, "")})
	}
	for i, n := range b.networks() {
		if n.Interface == "" {
			continue
		}
		name := "boot.interface"
		if i > 0 {
			name = fmt.Sprintf("boot.subnets[%d]", i-1)
		}
		checks = append(checks, check{name: name, look: func() (string, error) { return interfaceHas(n.Interface, n.Addr) }})
		if i > 0 {
			at := netip.AddrPortFrom(n.Addr, b.HTTPPort).String()
			checks = append(checks, check{name: "port " + at, look: func() (string, error) { return freeTCP(at) }})
		}
	}
	for _, port := range []uint16{67, 69, 4011} {
		checks = append(checks, check{name: fmt.Sprintf("port %d/udp", port), look: func() (string, error) { return freeUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), port)) }})
	}
	at := netip.AddrPortFrom(b.Address, b.HTTPPort).String()
	return append(checks, check{name: "port " + at, look: func() (string, error) { return freeTCP(at) }})
}

// edgeChecks is what a Linux edge needs.
func edgeChecks(e edgeConfig) []check {
	return []check{
		{name: "right to route", look: capable("drive the edge", unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN)},
		{name: "edge.netns", look: func() (string, error) { return namespace(e.Netns) }},
		{name: "edge.uplink", look: func() (string, error) { return deviceIn(e.Netns, e.Uplink) }},
		{name: "edge.downlink", look: func() (string, error) { return deviceIn(e.Netns, e.Downlink) }},
		{name: "nf_tables", look: packetFilter},
		{name: "HTB", look: shaping},
	}
}

// labChecks is what bareyard lab needs.
func labChecks() []check {
	return []check{
		{name: "root", look: func() (string, error) {
			if os.Geteuid() != 0 {
				return "", errors.New("the lab makes network namespaces: run it as root")
			}
			return "", nil
		}},
		{name: "qemu", packages: "qemu-system-x86", look: program("qemu-system-x86_64")},
		{name: "qemu-img", packages: "qemu-utils", look: program("qemu-img")},
		{name: "UEFI firmware", packages: "ovmf", look: file("/usr/share/OVMF/OVMF_CODE_4M.fd", "")},
		{name: "BIOS", packages: "seabios", look: file("/usr/share/seabios/bios-256k.bin", "")},
		{name: "boot ROMs", packages: "ipxe-qemu", look: file("/usr/lib/ipxe/qemu/pxe-virtio.rom", "")},
		{name: "loaders", packages: "ipxe", look: file("/usr/lib/ipxe/undionly.kpxe", "")},
		{name: "nsenter", packages: "util-linux", look: program("nsenter")},
		{name: "ipmi_sim", packages: "openipmi", look: program("ipmi_sim")},
		{name: "image tools", packages: imagePackages, look: imageTools},
		{name: "/dev/net/tun", look: file("/dev/net/tun", "modprobe tun")},
		{name: "/dev/kvm", optional: "machines are emulated, some ten times slower", look: file("/dev/kvm", "modprobe kvm_intel or kvm_amd")},
		{name: "8 GiB memory", optional: "start fewer machines at once", look: func() (string, error) { return memory(8 << 30) }},
	}
}

// imagePackages bring what lab/image/build.sh makes the lab's image with.
const imagePackages = "mmdebstrap debian-archive-keyring e2fsprogs mtools gdisk zstd cpio kmod grub-common grub-pc-bin grub-efi-amd64-signed shim-signed"

// imageTools looks for what lab/image/build.sh makes the lab's image with.
func imageTools() (string, error) {
	var lacking []string
	for _, name := range []string{"mmdebstrap", "mke2fs", "mformat", "sgdisk", "zstd", "cpio", "depmod", "grub-mkimage"} {
		if _, err := exec.LookPath(name); err != nil {
			lacking = append(lacking, name)
		}
	}
	for _, path := range []string{"/usr/lib/grub/i386-pc/boot.img", "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", "/usr/lib/shim/shimx64.efi.signed"} {
		if _, err := os.Stat(path); err != nil {
			lacking = append(lacking, path)
		}
	}
	if len(lacking) > 0 {
		return "", fmt.Errorf("no %s", strings.Join(lacking, ", "))
	}
	return "all there", nil
}

// embedded looks for what the private PostgreSQL needs.
func embedded() (string, error) {
	found, err := postgres.FindBinaries()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d in %s", found.Major, found.Folder), nil
}

// file is a check that path is there and not empty; hint says how to get it where no package brings it.
func file(path, hint string) func() (string, error) {
	return func() (string, error) {
		info, err := os.Stat(path)
		switch {
		case err == nil && (info.Size() > 0 || !info.Mode().IsRegular()):
			return path, nil
		case err == nil:
			err = fmt.Errorf("%s is empty", path)
		case errors.Is(err, os.ErrNotExist):
			err = fmt.Errorf("no %s", path)
		}
		if hint != "" {
			err = fmt.Errorf("%w (%s)", err, hint)
		}
		return "", err
	}
}

// program is a check that a program is in the path.
func program(name string) func() (string, error) {
	return func() (string, error) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("no %s in the path", name)
		}
		return path, nil
	}
}

// writable checks that a folder, or the nearest one above it that exists, can be written to and has room.
func writable(folder string, room uint64) (string, error) {
	at := folder
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return "", fmt.Errorf("%s is not a folder", at)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return "", err
		}
		at = filepath.Dir(at)
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < room {
		return "", fmt.Errorf("%s has %d MiB left, less than %d", at, free>>20, room>>20)
	}
	return fmt.Sprintf("%s, %d GiB free", folder, free>>30), nil
}

// capable is a check that this process has the capabilities that what takes.
func capable(what string, want ...int) func() (string, error) {
	return func() (string, error) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return "", err
		}
		_, rest, _ := strings.Cut(string(status), "CapEff:")
		line, _, _ := strings.Cut(rest, "\n")
		have, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
		if err != nil {
			return "", fmt.Errorf("read capabilities: %w", err)
		}
		for _, c := range want {
			if have&(1<<c) == 0 {
				return "", fmt.Errorf("this user may not %s: run as root, or give the service its capabilities", what)
			}
		}
		return "", nil
	}
}

// interfaceHas checks that an interface is there, up, and has our address.
func interfaceHas(name string, want netip.Addr) (string, error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("no interface %s", name)
	}
	if dev.Flags&net.FlagUp == 0 {
		return "", fmt.Errorf("%s is down (ip link set %s up)", name, name)
	}
	addrs, err := dev.Addrs()
	if err != nil {
		return "", fmt.Errorf("read addresses of %s: %w", name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == want {
			return fmt.Sprintf("%s has %s", name, p), nil
		}
	}
	return "", fmt.Errorf("%s does not have %s (ip address add)", name, want)
}

// namespace checks that a network namespace is there; "" is our own.
func namespace(name string) (string, error) {
	if name == "" {
		return "our own", nil
	}
	h, err := netns.GetFromName(name)
	if err != nil {
		return "", fmt.Errorf("no network namespace %s (ip netns add %s)", name, name)
	}
	return name, h.Close()
}

// deviceIn checks that a network device is in a namespace.
func deviceIn(space, device string) (string, error) {
	at := netns.None()
	if space != "" {
		var err error
		if at, err = netns.GetFromName(space); err != nil {
			return "", fmt.Errorf("no network namespace %s", space)
		}
		defer at.Close()
	}
	h, err := netlink.NewHandleAt(at)
	if err != nil {
		return "", fmt.Errorf("ask for devices: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(device)
	if err != nil {
		return "", fmt.Errorf("no device %s", device)
	}
	return fmt.Sprintf("%s, %s", device, link.Type()), nil
}

// packetFilter checks that the kernel has nf_tables and lets us see it.
func packetFilter() (string, error) {
	conn, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("open nf_tables: %w", err)
	}
	if _, err := conn.ListTables(); err != nil {
		return "", fmt.Errorf("ask nf_tables: %w (modprobe nf_tables)", err)
	}
	return "answers", nil
}

// shaping checks that the kernel shapes bandwidth as the edge does, with HTB, tried in a namespace that is gone afterwards.
func shaping() (string, error) {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with the goroutine
		result <- tryHTB()
	}()
	if err := <-result; err != nil {
		return "", err
	}
	return "shapes", nil
}

func tryHTB() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
	if err := netlink.QdiscAdd(htb); err != nil {
		return fmt.Errorf("add HTB: %w (modprobe sch_htb)", err)
	}
	return nil
}

// memory checks how much memory the machine has.
func memory(want uint64) (string, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "", fmt.Errorf("read memory: %w", err)
	}
	total := uint64(info.Totalram) * uint64(info.Unit)
	if total < want-want/16 { // firmware keeps a little
		return "", fmt.Errorf("%d GiB", total>>30)
	}
	return fmt.Sprintf("%d GiB", total>>30), nil
}
