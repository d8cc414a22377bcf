package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/bareyard/bareyard/images/ramdisk"
	"github.com/bareyard/bareyard/machine"
	"github.com/u-root/u-root/pkg/kmodule"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain is also /init of the machine that TestQEMURealDisks boots.
func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		if err := guest(); err != nil {
			fmt.Println("GUEST FAILED:", err)
		} else {
			fmt.Println("GUEST OK")
		}
		unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		select {}
	}
	goleak.VerifyTestMain(m)
}

// TestQEMURealDisks has an NVMe drive format itself, asks an ATA disk what it can, and takes down md and device-mapper. The kernel of the test host
// need not have these; Debian's has, so the test binary runs on it as /init.
func TestQEMURealDisks(t *testing.T) {
	if os.Getenv("BAREYARD_QEMU") != "1" {
		t.Skip("boots an emulated machine for a minute: set BAREYARD_QEMU=1")
	}
	const kernel = "../../build/kernel"
	if _, err := os.Stat(filepath.Join(kernel, "vmlinuz")); err != nil {
		t.Fatalf("%v: make kernel", err)
	}
	dir := t.TempDir()
	init := filepath.Join(dir, "init")
	build := exec.Command("go", "test", "-c", "-o", init, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	initrd := filepath.Join(dir, "initrd")
	err := ramdisk.Build(t.Context(), ramdisk.Options{KernelDir: kernel, AgentBinary: init, Out: initrd,
		Modules: []string{"virtio_pci", "virtio_blk", "md_mod", "raid1", "dm_mod", "nvme", "ahci", "sd_mod"}})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-machine", "q35,graphics=off", "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max", "-m", "384", "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(kernel, "vmlinuz"), "-initrd", initrd, "-append", "console=ttyS0 quiet mitigations=off panic=1", "-serial", "stdio"}
	for _, d := range [][2]string{{"A", "virtio-blk-pci"}, {"B", "virtio-blk-pci"}, {"NVME", "nvme"}, {"SATA", "ide-hd,bus=ide.0"}} {
		serial := d[0]
		file := filepath.Join(dir, serial)
		if err := os.WriteFile(file, bytes.Repeat([]byte("old data"), 32*mib/8), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-drive", "if=none,format=raw,id="+serial+",file="+file, "-device", d[1]+",drive="+serial+",serial="+serial)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", args...).CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "GUEST OK") {
		t.Errorf("guest: %v", err)
	}
}

// guest builds md on both disks and device-mapper on that, and wipes the disks.
func guest() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	for _, module := range []string{"virtio_pci", "virtio_blk", "raid1", "dm_mod", "nvme", "ahci", "sd_mod"} {
		if err := kmodule.Probe(module, ""); err != nil {
			return fmt.Errorf("load %s: %w", module, err)
		}
	}
	set := Set{Sys: "/sys", Dev: "/dev", Log: slog.New(slog.NewTextHandler(os.Stdout, nil))}
	disks, err := set.List()
	for wait := 0; err == nil && len(disks) < 4 && wait < 300; wait++ { // their drivers probe beside us
		<-time.After(100 * time.Millisecond)
		disks, err = set.List()
	}
	if err != nil || len(disks) != 4 {
		return fmt.Errorf("disks %v, %w", disks, err)
	}
	if err := eraseThemselves(set, disks); err != nil {
		return err
	}
	disks = slices.DeleteFunc(disks, func(d Disk) bool { return len(d.Serial) > 1 })
	if err := assemble(disks); err != nil {
		return err
	}
	if err := mapOnto("/sys/block/md9", "upper"); err != nil {
		return err
	}
	for _, d := range disks {
		if !exists("/sys/block/"+d.Name+"/holders", "md9") {
			return fmt.Errorf("the input is wrong: md9 does not hold %s", d.Name)
		}
	}
	if !exists("/sys/block/md9/holders", "dm-0") {
		return errors.New("the input is wrong: nothing holds md9")
	}
	var all []machine.Disk
	for _, d := range disks {
		all = append(all, machine.Disk{Serial: d.Serial, Size: d.Size})
	}
	if d, err := set.open(all[0], true); err == nil {
		d.Close()
		return errors.New("a disk that md holds can be opened exclusively")
	}
	if err := set.Wipe(context.Background(), all); err != nil {
		return err
	}
	if exists("/sys/block", "dm-0") {
		return errors.New("dm-0 is left")
	}
	for _, d := range disks {
		if exists("/sys/block/"+d.Name+"/holders", "md9") {
			return fmt.Errorf("%s is still held", d.Name)
		}
	}
	return nil
}

// eraseThemselves erases a drive that formats itself, and a disk that knows no way to.
func eraseThemselves(set Set, disks []Disk) error {
	for serial, want := range map[string]struct {
		level        machine.ErasureLevel
		method, lack string
	}{
		"NVME": {machine.Purge, "nvme-format-erase+", "NVMe sanitize: the drive does not know it"},
		"SATA": {machine.Clear, "", "ATA sanitize: the disk does not know it; ATA secure erase: the disk does not know it"},
	} {
		i := slices.IndexFunc(disks, func(d Disk) bool { return d.Serial == serial })
		if i < 0 {
			return fmt.Errorf("no disk %s", serial)
		}
		all := []machine.Disk{{Serial: serial, Size: disks[i].Size}}
		e, err := set.Erase(context.Background(), all, func(int64, int64) {})
		if err != nil {
			return err
		}
		fmt.Printf("erased: %+v\n", e)
		if e[0].Level != want.level || !strings.HasPrefix(e[0].Method, want.method) || strings.Join(e[0].Lacks, "; ") != want.lack || e[0].Model == "" {
			return fmt.Errorf("%s: %+v", serial, e)
		}
		if proof, err := set.Prove(context.Background(), all, func(int64, int64) {}); err != nil || !proof[0].Clean {
			return fmt.Errorf("%s: %+v, %w", serial, proof, err)
		}
	}
	return nil
}

// assemble makes md9 a mirror of both disks, by sysfs and without a superblock.
func assemble(disks []Disk) error {
	if err := os.WriteFile("/sys/module/md_mod/parameters/new_array", []byte("md9"), 0); err != nil {
		return fmt.Errorf("make md9: %w", err)
	}
	put := func(file, value string) error {
		if err := os.WriteFile("/sys/block/md9/md/"+file, []byte(value), 0); err != nil {
			return fmt.Errorf("md9: %w", err)
		}
		return nil
	}
	err := errors.Join(put("metadata_version", "none"), put("level", "raid1"), put("raid_disks", "2"), put("component_size", "16384"))
	for i, d := range disks {
		err = errors.Join(err, put("new_dev", fmt.Sprintf("%d:%d", unix.Major(d.Dev), unix.Minor(d.Dev))), put("dev-"+d.Name+"/slot", fmt.Sprint(i)))
	}
	return errors.Join(err, put("array_state", "active"))
}

// mapOnto makes a linear device-mapper device on the block device of a folder of sysfs: DM_DEV_CREATE, DM_TABLE_LOAD, and DM_DEV_SUSPEND to resume.
func mapOnto(below, name string) error {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	number, err := os.ReadFile(below + "/dev")
	if err != nil {
		return err
	}
	const targetSpec = 40 // struct dm_target_spec
	for _, command := range []uintptr{3, 9, 6} {
		buf := make([]byte, 1024)
		req := (*dmIoctl)(unsafe.Pointer(unsafe.SliceData(buf)))
		*req = dmIoctl{version: [3]uint32{4}, dataSize: uint32(len(buf)), dataStart: uint32(unsafe.Sizeof(dmIoctl{}))}
		copy(req.name[:], name)
		if command == 9 {
			req.targetCount = 1
			spec := buf[req.dataStart:]
			*(*uint64)(unsafe.Pointer(&spec[8])) = 8192 // sectors
			copy(spec[24:], "linear")
			copy(spec[targetSpec:], strings.TrimSpace(string(number))+" 0\x00")
		}
		request := 3<<30 | unsafe.Sizeof(dmIoctl{})<<16 | 0xfd<<8 | command
		if err := ioctl(control, request, unsafe.Pointer(req)); err != nil {
			return fmt.Errorf("device-mapper command %d: %w", command, err)
		}
	}
	return nil
}
