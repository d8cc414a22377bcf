package lab

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bareyard/bareyard/lab/fakecard"
	"github.com/bareyard/bareyard/machine"
)

// Where Debian keeps UEFI firmware: package ovmf.
const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// qmpFD is the descriptor on which QEMU finds its end of the control connection. A socket that is handed down has no path,
// so that none is left behind, and no stranger can connect.
const qmpFD = 3

// serialFD is the descriptor on which it finds its end of the serial port.
const serialFD = 4

// acceleration returns QEMU's options for the processor: KVM where a machine's firmware runs with it. Without KVM one virtual processor is
// as fast as two, and the translator's cache, which counts as memory of the machine, is kept small. BAREYARD_ACCEL=tcg leaves a
// KVM alone.
func acceleration(ctx context.Context, qemu string, log *slog.Logger) []string {
	if os.Getenv("BAREYARD_ACCEL") == "tcg" {
		return tcg()
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return tcg()
	}
	kvm := []string{"-accel", "kvm", "-cpu", "host"}
	said := tryFirmware(ctx, qemu, kvm)
	if said == "" {
		return kvm
	}
	log.Warn("KVM is there and does not run a machine's firmware: machines are emulated, some ten times slower", "qemu", said)
	return tcg()
}

// watchFirmware is how long a machine's firmware is watched. What KVM cannot run of it, it meets in the first milliseconds.
const watchFirmware = 3 * time.Second

// tryFirmware starts UEFI firmware for a moment and returns why that failed. Hosts that are guests themselves have a /dev/kvm that does not
// do all that it says: QEMU aborts at a register that cannot be set (MSR 10Ah), or KVM stops at an instruction in the firmware's flash.
func tryFirmware(ctx context.Context, qemu string, accel []string) string {
	ctx, cancel := context.WithTimeout(ctx, watchFirmware)
	defer cancel()
	args := append(slices.Clone(accel), "-machine", "q35", "-m", "256", "-nodefaults", "-no-user-config", "-display", "none", "-net", "none")
	if _, err := os.Stat(ovmfCode); err == nil {
		args = append(args, "-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+ovmfCode)
	}
	out, err := exec.CommandContext(ctx, qemu, args...).CombinedOutput()
	said := strings.TrimSpace(string(out[:min(len(out), 300)]))
	switch {
	case ctx.Err() == nil:
		return fmt.Sprintf("%v: %s", err, said)
	case strings.Contains(said, "KVM internal error"):
		return said
	}
	return "" // it ran until we ended it
}

func tcg() []string { return []string{"-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max"} }

// arguments builds QEMU's command line for a machine that boots in the given order. Slots on the PCI bus are fixed, so that
// an installed system finds its ports under the same names whatever else is plugged in.
func (p plan) arguments(accel []string, order []Device) []string {
	args := []string{
		"-name", p.serial,
		"-machine", "q35,graphics=off", // SeaBIOS writes to the serial port only without graphics
	}
	args = append(args, accel...)
	args = append(args, "-smp", "1", "-m", strconv.Itoa(p.Memory), "-nodefaults", "-no-user-config", "-display", "none",
		"-uuid", p.uuid,
		"-smbios", "type=1,manufacturer=Bareyard,product=Lab,serial="+p.serial,
		"-smbios", "type=3,asset="+p.Name,
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", qmpFD), "-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d,logappend=on,logfile=%s", serialFD, option(p.serialLog())), "-serial", "chardev:console",
		"-device", "virtio-rng-pci,id=rng0,addr=0x6",
	)
	rom := ""
	if p.Firmware == machine.UEFI {
		rom = ",romfile=" // OVMF's own PXE; SeaBIOS has none and needs the card's, which is iPXE
		args = append(args,
			"-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+ovmfCode,
			"-drive", "if=pflash,unit=1,format=raw,file="+option(p.vars()))
	}
	index := bootIndexes(order)
	args = append(args,
		"-netdev", "tap,id=net0,script=no,downscript=no,ifname="+p.provTap,
		"-device", "virtio-net-pci,id=nic0,netdev=net0,addr=0x2,mac="+p.provMAC+rom+bootOption(index[FromNetwork]),
		"-netdev", "tap,id=net1,script=no,downscript=no,ifname="+p.pubTap,
		"-device", "virtio-net-pci,id=nic1,netdev=net1,addr=0x3,romfile=,mac="+p.pubMAC)
	for i, d := range []struct{ file, serial string }{{p.systemDisk(), p.systemSerial()}, {p.dataDisk(), p.dataSerial()}} {
		driver := "virtio-blk-pci"
		if p.Bus == NVMe {
			driver = "nvme"
		}
		boot := ""
		if i == 0 {
			boot = bootOption(index[FromDisk])
		}
		args = append(args,
			// Zeroes punch holes, so that erasing a disk costs no more than what is on it.
			"-drive", fmt.Sprintf("if=none,id=drive%d,format=raw,discard=unmap,detect-zeroes=unmap,cache=writeback,file=%s", i, option(d.file)),
			"-device", fmt.Sprintf("%s,id=disk%d,drive=drive%d,addr=%#x,serial=%s%s", driver, i, i, 4+i, d.serial, boot))
	}
	if p.InBand {
		args = append(args, "-chardev", "socket,id=ipmi0,reconnect=1,path="+option(p.hostSocket()), "-device", "ipmi-bmc-extern,id=bmc0,chardev=ipmi0", "-device", "isa-ipmi-kcs,bmc=bmc0")
	}
	if p.Cards > 0 {
		// Cards come last on the bus, so that the absent ones are the last of the record.
		args = append(args, fakecard.Args(p.Cards-p.Absent)...)
	}
	return args
}

// option quotes a value in QEMU's comma-separated options.
func option(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func bootOption(index int) string {
	if index < 0 {
		return ""
	}
	return fmt.Sprintf(",bootindex=%d", index)
}

// bootIndexes numbers the devices from 1 in the order in which they boot; −1 does not boot.
func bootIndexes(order []Device) map[Device]int {
	index := map[Device]int{FromNetwork: -1, FromDisk: -1}
	for i, d := range order {
		index[d] = i + 1
	}
	return index
}

// first moves a device to the front of an order.
func first(d Device, order []Device) []Device {
	rest := slices.DeleteFunc(slices.Clone(order), func(o Device) bool { return o == d })
	return append([]Device{d}, rest...)
}

// qemuDevice is the id under which a boot device is plugged in.
func qemuDevice(d Device) string {
	if d == FromNetwork {
		return "nic0"
	}
	return "disk0"
}

type qomSet struct {
	Path     string `json:"path"`
	Property string `json:"property"`
	Value    int    `json:"value"`
}

func bootIndex(device string, index int) qomSet {
	return qomSet{Path: "/machine/peripheral/" + device, Property: "bootindex", Value: index}
}

// reorder is the sequence of property changes that brings a running machine to a boot order. QEMU refuses an index that
// another device has, so all are taken away first; it publishes the new order to the firmware at the next reset.
func reorder(order []Device) []qomSet {
	index := bootIndexes(order)
	var sets []qomSet
	for _, d := range []Device{FromNetwork, FromDisk} {
		sets = append(sets, bootIndex(qemuDevice(d), -1))
	}
	for _, d := range []Device{FromNetwork, FromDisk} {
		if index[d] >= 0 {
			sets = append(sets, bootIndex(qemuDevice(d), index[d]))
		}
	}
	return sets
}
