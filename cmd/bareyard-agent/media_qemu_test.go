package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/images/ramdisk"
	"github.com/bareyard/bareyard/machine"
)

// TestQEMUMedia boots the RAM disk from the disc that BMCs insert, by BIOS and by UEFI, with no boot from the network: the agent finds the
// archive of its boot on the disc and says hello with the nonce in it.
func TestQEMUMedia(t *testing.T) {
	if os.Getenv("BAREYARD_QEMU") != "1" {
		t.Skip("boots emulated machines for a minute: set BAREYARD_QEMU=1")
	}
	kernel, initrd := buildRAMDisk(t)
	out := filepath.Join(t.TempDir(), "disc.iso")
	if err := ramdisk.BuildISO(t.Context(), ramdisk.ISOOptions{Kernel: kernel, RAMDisk: initrd, Cmdline: "console=ttyS0 quiet mitigations=off panic=1", Out: out}); err != nil {
		t.Fatal(err)
	}
	disc, err := ramdisk.OpenISO(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disc.Close() })
	for _, firmware := range []machine.Firmware{machine.BIOS, machine.UEFI} {
		t.Run(string(firmware), func(t *testing.T) {
			t.Parallel() // each waits for its firmware for a while
			dir := t.TempDir()
			c := &controller{final: map[machine.StepName]machine.Report{}, plan: []machine.Instruction{{Do: machine.DoPowerOff}}}
			url, ca := serveTLS(t, c)
			boot, err := json.Marshal(agent.Boot{Server: url, CA: ca, Nonce: nonce, MAC: mac})
			if err != nil {
				t.Fatal(err)
			}
			archive, err := ramdisk.Archive(map[string][]byte{strings.TrimPrefix(agent.BootPath, "/"): boot})
			if err != nil {
				t.Fatal(err)
			}
			served, err := disc.With(archive)
			if err != nil {
				t.Fatal(err)
			}
			inserted := filepath.Join(dir, "inserted.iso")
			if err := copyTo(inserted, served); err != nil {
				t.Fatal(err)
			}
			console := bootDisc(t, dir, inserted, firmware)
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.helloAt.IsZero() || c.hello.UUID != uuid || c.hello.Serial != "SN-1" {
				t.Errorf("hello %+v; console:\n%s", c.hello, console)
			}
			t.Logf("hello %s after the kernel started", helloUp(console))
			if strings.Contains(console, nonce) {
				t.Error("the nonce is on the console")
			}
		})
	}
}

// bootDisc boots a machine from a CD and nothing else, until it powers itself off.
func bootDisc(t *testing.T, dir, disc string, firmware machine.Firmware) string {
	t.Helper()
	console := filepath.Join(dir, "console")
	args := []string{"-machine", "q35,graphics=off", "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max", "-smp", "1", "-m", "768", "-nodefaults", "-display", "none", "-no-reboot",
		"-serial", "file:" + console, "-uuid", uuid, "-smbios", "type=1,serial=SN-1,uuid=" + uuid,
		"-drive", "if=none,id=cd,media=cdrom,readonly=on,file=" + disc, "-device", "ide-cd,drive=cd,bootindex=1",
		"-netdev", "user,id=n0,net=10.0.2.0/24", "-device", "virtio-net-pci,netdev=n0,mac=" + mac + ",romfile="}
	if firmware == machine.UEFI {
		vars := filepath.Join(dir, "vars")
		from, err := os.Open("/usr/share/OVMF/OVMF_VARS_4M.fd")
		if err != nil {
			t.Fatalf("%v: apt-get install ovmf", err)
		}
		defer from.Close()
		if err := copyTo(vars, from); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-drive", "if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd", "-drive", "if=pflash,format=raw,unit=1,file="+vars)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", args...).CombinedOutput()
	text, readErr := os.ReadFile(console)
	if err != nil || readErr != nil {
		t.Fatalf("the machine did not power itself off: %v, %v\n%s\n%s", err, readErr, out, text)
	}
	return string(text)
}

func copyTo(path string, from io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
