// Package ramdisk builds what a machine network-boots: the RAM disk with the agent as /init, and the small archive of one boot.
package ramdisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"

	"github.com/bareyard/bareyard/machine"
)

// Options says what a RAM disk is made of.
type Options struct {
	KernelDir   string   // holds version and modules/VERSION/, as lab/image/kernel.sh leaves them
	AgentBinary string   // static: there is no C library in the RAM disk
	Out         string   // file to write
	Modules     []string // names of kernel modules; nil means Modules()
}

// Modules are the kernel modules that the agent needs to reach its server and its disks. Debian's generic kernel has few
// drivers built in. What a listed module depends on comes along; one that the kernel has built in, or lacks, is passed over.
// RAID, device-mapper and file systems are left out on purpose: what the RAM disk cannot assemble, it need not take down.
func Modules() []string {
	return []string{
		// ports
		"virtio_net", "e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice", "tg3", "bnxt_en", "mlx5_core", "r8169", "atlantic",
		// disks and what they hang on
		"virtio_pci", "virtio_blk", "virtio_scsi", "nvme", "ahci", "ata_piix", "sd_mod", "megaraid_sas", "mpt3sas", "aacraid", "smartpqi",
		// firmware variables
		"efivarfs",
		// the BMC, for discovery
		"ipmi_si", "ipmi_ssif", "ipmi_devintf",
	}
}

// Build writes the RAM disk as a zstd-compressed newc cpio archive, with zeros behind it up to a multiple of four bytes,
// which the kernel skips. The same input makes the same bytes. The file appears
// under its name when it is complete.
func Build(ctx context.Context, o Options) error {
	version, err := os.ReadFile(filepath.Join(o.KernelDir, "version"))
	if err != nil {
		return &machine.Error{Code: machine.NotFound, Field: "kernel", Message: fmt.Sprintf("no kernel in %s", o.KernelDir), Hint: "fetch it with: make kernel"}
	}
	init, err := os.ReadFile(o.AgentBinary)
	if err != nil {
		return fmt.Errorf("read agent: %w", err)
	}
	release := strings.TrimSpace(string(version))
	names := o.Modules
	if names == nil {
		names = Modules()
	}
	files := map[string][]byte{}
	if err := addModules(ctx, files, filepath.Join(o.KernelDir, "modules", release), path.Join("lib/modules", release), names); err != nil {
		return err
	}
	records := []cpio.Record{
		cpio.CharDev("dev/console", 0o600, 5, 1), // the kernel opens it for /init before anything is mounted
		cpio.CharDev("dev/null", 0o666, 1, 3),
		cpio.StaticFile("init", string(init), 0o755),
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "etc", "etc/bareyard", "lib", "lib/modules", "mnt"} {
		records = append(records, cpio.Directory(dir, 0o755))
	}
	for name, content := range files {
		records = append(records, cpio.StaticFile(name, string(content), 0o644))
	}
	raw, err := pack(records)
	if err != nil {
		return fmt.Errorf("pack RAM disk: %w", err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return fmt.Errorf("make compressor: %w", err)
	}
	packed := enc.EncodeAll(raw, nil)
	packed = append(packed, make([]byte, -len(packed)&3)...) // so that a boot archive may follow it as it is
	if err := renameio.WriteFile(o.Out, packed, 0o644); err != nil {
		return fmt.Errorf("write RAM disk: %w", err)
	}
	return nil
}

// Archive packs the files of one boot. The kernel unpacks it after the RAM disk that it follows: each archive begins at a
// multiple of four bytes (Documentation/driver-api/early-userspace/buffer-format), so this one ends at one, too.
func Archive(files map[string][]byte) ([]byte, error) {
	var records []cpio.Record
	for name, content := range files {
		if name == "" || path.Clean(name) != name || strings.HasPrefix(name, "/") || strings.HasPrefix(name, "..") {
			return nil, fmt.Errorf("pack boot archive: %q is not a relative path", name)
		}
		records = append(records, cpio.StaticFile(name, string(content), 0o600))
	}
	raw, err := pack(records)
	if err != nil {
		return nil, fmt.Errorf("pack boot archive: %w", err)
	}
	return raw, nil
}

// pack sorts records, adds the folders that are missing, and writes them without times and inode numbers of this host.
func pack(records []cpio.Record) ([]byte, error) {
	have := map[string]bool{}
	for _, r := range records {
		have[r.Name] = true
	}
	for _, r := range slices.Clone(records) {
		for dir := path.Dir(r.Name); dir != "." && !have[dir]; dir = path.Dir(dir) {
			have[dir] = true
			records = append(records, cpio.Directory(dir, 0o755))
		}
	}
	slices.SortFunc(records, func(a, b cpio.Record) int { return strings.Compare(a.Name, b.Name) })
	cpio.MakeAllReproducible(records)
	var b bytes.Buffer
	w := cpio.Newc.Writer(&b)
	if err := cpio.WriteRecords(w, records); err != nil {
		return nil, err
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, err
	}
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
	return b.Bytes(), nil
}

var errNoModules = errors.New("none of the modules is there")
