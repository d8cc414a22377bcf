package ramdisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// A disc for virtual media is the same for every machine but for the archive of one boot, for which it has room. Whoever serves it puts
// the archive there on the way out.

// roomMark begins the room, so that it is found in the finished disc; roomSize is its size.
const (
	roomMark = "BAREYARD-ROOM-FOR-THE-ARCHIVE-OF-ONE-BOOT\n"
	roomSize = 64 << 10
)

// ISOOptions says what a disc is made of.
type ISOOptions struct {
	Kernel  string
	RAMDisk string
	Cmdline string // for the kernel
	Out     string // file to write
}

// BuildISO writes a disc that boots the RAM disk by BIOS and by UEFI, without Secure Boot: GRUB loads the kernel and both archives from the
// disc, and asks nobody for anything.
func BuildISO(ctx context.Context, o ISOOptions) error {
	for _, tool := range []struct{ name, deb string }{{"grub-mkrescue", "grub-common grub-pc-bin grub-efi-amd64-bin"}, {"xorriso", "xorriso"}, {"mformat", "mtools"}} {
		if _, err := exec.LookPath(tool.name); err != nil {
			return &machine.Error{Code: machine.Unavailable, Message: tool.name + " is not there", Hint: "apt-get install " + tool.deb}
		}
	}
	if strings.ContainsAny(o.Cmdline, "\n\"'\\$;{}") {
		return &machine.Error{Code: machine.Invalid, Field: "kernel_args", Message: "kernel parameters would not survive a GRUB menu", Hint: "leave out quotes, $, ; and braces"}
	}
	dir, err := os.MkdirTemp(filepath.Dir(o.Out), ".iso-")
	if err != nil {
		return fmt.Errorf("make disc: %w", err)
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "boot", "grub"), 0o755); err != nil {
		return fmt.Errorf("make disc: %w", err)
	}
	room := append([]byte(roomMark), make([]byte, roomSize-len(roomMark))...)
	for name, content := range map[string][]byte{"grub/grub.cfg": grubMenu(o.Cmdline), "archive": room} {
		if err := os.WriteFile(filepath.Join(tree, "boot", name), content, 0o644); err != nil {
			return fmt.Errorf("make disc: %w", err)
		}
	}
	for name, from := range map[string]string{"vmlinuz": o.Kernel, "ramdisk": o.RAMDisk} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(tree, "boot", name), content, 0o644)
		}
		if err != nil {
			return fmt.Errorf("put %s on disc: %w", name, err)
		}
	}
	made := filepath.Join(dir, "disc.iso")
	cmd := exec.CommandContext(ctx, "grub-mkrescue", "-o", made, tree, "--", "-volid", "BAREYARD")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make disc: %w: %s", err, bytes.TrimSpace(out[max(0, len(out)-500):]))
	}
	checked, err := OpenISO(made)
	if err != nil {
		return err
	}
	checked.Close()
	if err := os.Rename(made, o.Out); err != nil {
		return fmt.Errorf("make disc: %w", err)
	}
	return nil
}

// grubMenu boots the RAM disk without asking. A machine without a serial port goes on without it.
func grubMenu(cmdline string) []byte {
	return fmt.Appendf(nil, `set timeout=0
set timeout_style=hidden
if serial --unit=0 --speed=115200; then terminal_output console serial; fi
menuentry Bareyard {
	echo "Bareyard: booting the agent from virtual media"
	linux /boot/vmlinuz %s
	initrd /boot/ramdisk /boot/archive
}
`, cmdline)
}

// ISO is a disc that has room for an archive. It is held open: a file that takes its place meanwhile has its room elsewhere.
type ISO struct {
	f    *os.File
	size int64
	room int64 // offset
	made time.Time
}

// OpenISO finds the room in a disc.
func OpenISO(path string) (_ *ISO, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open disc: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open disc: %w", err)
	}
	const sector = 2048 // files begin at sectors
	i := &ISO{f: f, size: info.Size(), room: -1, made: info.ModTime()}
	buf := make([]byte, 1<<20)
	for at := int64(0); at < i.size; at += int64(len(buf)) {
		n, err := f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read disc: %w", err)
		}
		for s := 0; s+len(roomMark) <= n; s += sector {
			if string(buf[s:s+len(roomMark)]) == roomMark {
				i.room = at + int64(s)
			}
		}
	}
	if i.room < 0 || i.room+roomSize > i.size {
		return nil, &machine.Error{Code: machine.Invalid, Message: path + " is not a disc for virtual media: it has no room for the archive of a boot", Hint: "make it with: bareyard ramdisk --iso"}
	}
	return i, nil
}

// Made is when the disc was made.
func (i *ISO) Made() time.Time { return i.made }

// Close implements io.Closer.
func (i *ISO) Close() error { return i.f.Close() }

// With is the disc with an archive in its room, for as long as the disc is open.
func (i *ISO) With(archive []byte) (io.ReadSeeker, error) {
	if len(archive) > roomSize {
		return nil, fmt.Errorf("put archive on disc: %d bytes, and there is room for %d", len(archive), roomSize)
	}
	room := make([]byte, roomSize)
	copy(room, archive)
	return io.NewSectionReader(readerAt(func(p []byte, at int64) (int, error) {
		n, err := i.f.ReadAt(p, at)
		from, to := max(at, i.room), min(at+int64(n), i.room+int64(len(room)))
		if from < to {
			copy(p[from-at:to-at], room[from-i.room:to-i.room])
		}
		return n, err
	}), 0, i.size), nil
}

// readerAt reads the file, and what is in the room instead of what the file has there.
type readerAt func([]byte, int64) (int, error)

func (r readerAt) ReadAt(p []byte, at int64) (int, error) { return r(p, at) }
