// Package ipxe writes the scripts that iPXE runs.
package ipxe

import (
	"fmt"
	"net/url"
	"strings"
)

// Agent is what a script that boots the agent names. It carries no secret: any neighbour can read a script.
type Agent struct {
	Kernel  string // URL
	RAMDisk string // URL
	Archive string // URL of the per-boot archive
	Cmdline string // kernel parameters beside initrd=
}

// Script returns the script that boots the agent, or an error when a part would not reach the kernel as it is.
//
// The RAM disk and the archive are two initrds: BIOS iPXE puts them one after the other; under EFI the kernel itself
// asks for each initrd= by name. A fetch that fails is tried again: switch ports that have just come up lose packets.
func (a Agent) Script() ([]byte, error) {
	for _, u := range []string{a.Kernel, a.RAMDisk, a.Archive} {
		if p, err := url.Parse(u); err != nil || p.Scheme != "http" || p.Host == "" || !plain(u) || strings.Contains(u, " ") {
			return nil, fmt.Errorf("%q is not a URL that iPXE can fetch", u)
		}
	}
	if !plain(a.Cmdline) {
		return nil, fmt.Errorf("kernel parameters would not survive an iPXE script: %q", a.Cmdline)
	}
	cmdline := strings.TrimSpace("initrd=ramdisk initrd=archive " + strings.TrimSpace(a.Cmdline))
	return fmt.Appendf(nil, `#!ipxe
echo Bareyard: booting the agent
set tries:int32 0
:fetch
kernel %s %s || goto again
initrd --name ramdisk %s || goto again
initrd --name archive %s || goto again
boot || goto again
:again
imgfree
inc tries
iseq ${tries} 5 && goto failed ||
echo Bareyard: trying again
sleep 3
goto fetch
:failed
echo Bareyard: giving up, the firmware goes on with its next boot device
exit 1
`, a.Kernel, cmdline, a.RAMDisk, a.Archive), nil
}

// plain reports whether iPXE takes s as it stands: it expands ${…}, and splits at ||, && and line ends.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	for _, bad := range []string{"${", "||", "&&", `"`, `'`, `\`} {
		if strings.Contains(s, bad) {
			return false
		}
	}
	return true
}

// DiskScript returns the script that boots the local disk.
//
// Under EFI the loader must end with an error: EDK2 takes success for a boot that came back by itself, and stops at
// its menu instead of going on to the next entry. (Debian's iPXE cannot boot a local disk under EFI. EDK2 tries every
// way of its network card before the disk: where PXE over IPv6 is on, that alone takes 108 s in OVMF.) A BIOS may try the network again when the loader ends, so the first
// disk is booted from here, with the drive number that a boot sector expects; only if that fails the BIOS goes on.
func DiskScript() []byte {
	return []byte(`#!ipxe
echo Bareyard: nothing to do, booting from disk
iseq ${platform} efi && exit 1 ||
sanboot --no-describe --drive 0x80 || exit 1
`)
}
