// Package grub writes what a signed GRUB reads that was loaded from the network.
package grub

import (
	"fmt"
	"strings"
)

// Redirect is the first configuration that GRUB reads, the same for every machine: on to the machine's own. Debian's
// signed GRUB asks for grub/grub.cfg only, and knows its MAC address by this variable.
func Redirect() []byte {
	return []byte(`# Bareyard: what this machine boots is in a file of its own
configfile /grub/grub.cfg-01-${net_default_mac}
echo "Bareyard: this machine has nothing to boot from the network"
sleep 3
exit
`)
}

// Agent is what a configuration that boots the agent names: paths on the TFTP server. It carries no secret: any
// neighbour can read a configuration.
type Agent struct {
	Kernel  string
	RAMDisk string
	Archive string
	Cmdline string // kernel parameters
}

// Config returns the configuration that boots the agent, or an error when a part would not reach the kernel as it is.
//
// GRUB opens all initrds before it reads the first, and puts them one after the other. The small archive comes first:
// the transfer of one that waits while a large one is read would be given up. Only the initrds are tried again, since
// signed GRUB 2.06 crashes when it loads a second kernel; after that the machine starts over.
func (a Agent) Config() ([]byte, error) {
	for _, p := range []string{a.Kernel, a.RAMDisk, a.Archive} {
		if !strings.HasPrefix(p, "/") || strings.Contains(p, " ") || !plain(p) {
			return nil, fmt.Errorf("%q is not a path that GRUB can fetch", p)
		}
	}
	if !plain(a.Cmdline) {
		return nil, fmt.Errorf("kernel parameters would not survive GRUB: %q", a.Cmdline)
	}
	return fmt.Appendf(nil, `# Bareyard: booting the agent
echo "Bareyard: booting the agent"
if linux %s %s; then
  for try in 1 2 3 4 5; do
    if initrd %s %s; then
      boot
    fi
    echo "Bareyard: trying again"
    sleep 3
  done
fi
echo "Bareyard: giving up, starting over"
sleep 10
reboot
`, a.Kernel, quote(a.Cmdline), a.Archive, a.RAMDisk), nil
}

// quote protects what GRUB's shell takes for itself: it would end the command at a semicolon.
func quote(cmdline string) string {
	words := strings.Fields(cmdline)
	for i, w := range words {
		if strings.ContainsAny(w, ";&|<>{}()[]#*?~") {
			words[i] = `"` + w + `"`
		}
	}
	return strings.Join(words, " ")
}

// plain reports whether GRUB takes s as it stands once it is quoted.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return !strings.ContainsAny(s, "$\"'\\`")
}

// loaders are where installed systems keep theirs on the EFI system partition, the installer's own fallback last.
var loaders = []string{
	"EFI/debian/shimx64.efi", "EFI/ubuntu/shimx64.efi", "EFI/rocky/shimx64.efi", "EFI/almalinux/shimx64.efi", "EFI/centos/shimx64.efi",
	"EFI/redhat/shimx64.efi", "EFI/fedora/shimx64.efi", "EFI/opensuse/shim.efi", "EFI/sles/shim.efi", "EFI/Microsoft/Boot/bootmgfw.efi",
	"EFI/BOOT/BOOTX64.EFI",
}

// Disk returns the configuration that boots the local disk: the loader of an installed system if GRUB finds one, else
// the firmware goes on.
func Disk() []byte {
	var b strings.Builder
	b.WriteString("# Bareyard: nothing to do, booting from disk\necho \"Bareyard: nothing to do, booting from disk\"\n")
	fmt.Fprintf(&b, "for loader in %s; do\n", strings.Join(loaders, " "))
	b.WriteString(`  if search --no-floppy --file --set=root /$loader; then
    chainloader /$loader
    boot
  fi
done
exit
`)
	return []byte(b.String())
}
