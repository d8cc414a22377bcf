// Package fakecard gives QEMU machines PCI devices that look like accelerators to a guest.
//
// No QEMU device takes another PCI id. A patched copy of the emulator turns its "edu" device into an RTX 5090: vendor 10de, device 2b85, class
// 0302. It shows in the guest's sysfs and nothing more: no driver would take it, lab/mocknvml stands in for the driver's library.
package fakecard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// What a card is.
const (
	Vendor = "10de"
	Device = "2b85"
	Class  = "030200"
)

// ErrUnknown says that this build of QEMU makes its edu device in a way that Patch does not know.
var ErrUnknown = errors.New("the edu device of this qemu is not made as known")

// Patch writes a copy of the emulator at qemuPath to outPath in which edu is a card. A copy that is there already and was made from the same
// emulator by the same patch is kept. The error wraps ErrUnknown when the place to patch is not found exactly once, and then nothing is written.
func Patch(ctx context.Context, qemuPath, outPath string) error {
	program, err := os.ReadFile(qemuPath)
	if err != nil {
		return fmt.Errorf("patch qemu: %w", err)
	}
	sum := sha256.Sum256(append([]byte(patchVersion), program...))
	stamp, want := outPath+".from", hex.EncodeToString(sum[:])
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		if info, err := os.Stat(outPath); err == nil && info.Size() == int64(len(program)) {
			return nil
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := patch(program); err != nil {
		return fmt.Errorf("patch %s: %w", qemuPath, err)
	}
	if err := os.MkdirAll(filepath.Dir(outPath), 0o755); err != nil {
		return fmt.Errorf("patch qemu: %w", err)
	}
	// By rename: another lab may be running the copy that is there.
	if err := renameio.WriteFile(outPath, program, 0o755); err != nil {
		return fmt.Errorf("patch qemu: %w", err)
	}
	if err := works(ctx, qemuPath, outPath); err != nil {
		os.Remove(outPath)
		return fmt.Errorf("patch qemu: %w", err)
	}
	if err := renameio.WriteFile(stamp, []byte(want), 0o644); err != nil {
		return fmt.Errorf("patch qemu: %w", err)
	}
	return nil
}

// patchVersion changes when the patch does, so that older copies are made anew.
const patchVersion = "1"

// Where gcc has edu's class initialiser set the identity (hw/misc/edu.c, struct PCIDeviceClass): vendor 1234 and device 11e8 as one word, which
// it loads from the read-only data, revision 10 and class 00ff. The displacements are the struct's and differ between versions.
//
//	8b 15 REL32              mov  REL32(%rip),%edx     1234:11e8
//	c6 80 D+4 10             movb $0x10,D+4(%rax)      revision
//	89 90 D                  mov  %edx,D(%rax)
//	ba ff 00 00 00           mov  $0xff,%edx
//	66 89 90 D+6             mov  %dx,D+6(%rax)        class
//
// Other instructions stand in between, so each is looked for near the fourth.
const near = 48

// patch turns edu into a card, in place.
func patch(program []byte) error {
	const edu, card = 0x11e8<<16 | 0x1234, 0x2b85<<16 | 0x10de
	setClass := []byte{0xba, 0xff, 0x00, 0x00, 0x00}
	var loads, classes []int
	for at := 0; ; at++ {
		i := bytes.Index(program[at:], setClass)
		if i < 0 {
			break
		}
		at += i
		before, after := program[max(0, at-near):at], program[at:min(len(program), at+near)]
		class, _, ok1 := instruction(after, []byte{0x66, 0x89, 0x90}, nil)
		id, _, ok2 := instruction(before, []byte{0x89, 0x90}, nil)
		revision, _, ok3 := instruction(before, []byte{0xc6, 0x80}, []byte{0x10})
		rel, load, ok4 := instruction(before, []byte{0x8b, 0x15}, nil)
		if !ok1 || !ok2 || !ok3 || !ok4 || revision != id+4 || class != id+6 {
			continue
		}
		// In a Debian build code and read-only data lie in the file at the addresses that they are loaded to, so REL32 counts in the file too.
		load += at - len(before)
		target := load + 6 + rel
		if target < 0 || target+4 > len(program) || binary.LittleEndian.Uint32(program[target:]) != edu {
			continue
		}
		loads, classes = append(loads, load), append(classes, at)
	}
	if len(loads) != 1 {
		return fmt.Errorf("%w: %d places fit", ErrUnknown, len(loads))
	}
	// The load of six bytes becomes mov $card,%edx and a nop; the constant in the data is left to whoever else may use it.
	copy(program[loads[0]:], append(binary.LittleEndian.AppendUint32([]byte{0xba}, card), 0x90))
	copy(program[classes[0]:], []byte{0xba, 0x02, 0x03, 0x00, 0x00})
	return nil
}

// instruction finds the last instruction in code that begins with opcode, has a 32-bit displacement and ends with immediate.
func instruction(code, opcode, immediate []byte) (displacement, at int, ok bool) {
	for at = len(code) - len(opcode) - 4 - len(immediate); at >= 0; at-- {
		rest := code[at:]
		if bytes.HasPrefix(rest, opcode) && bytes.HasPrefix(rest[len(opcode)+4:], immediate) {
			return int(int32(binary.LittleEndian.Uint32(rest[len(opcode):]))), at, true
		}
	}
	return 0, 0, false
}

// works makes sure that the copy starts and says the same of itself as the original.
func works(ctx context.Context, qemuPath, outPath string) error {
	a, err := exec.CommandContext(ctx, qemuPath, "--version").Output()
	if err != nil {
		return fmt.Errorf("start %s: %w", qemuPath, err)
	}
	b, err := exec.CommandContext(ctx, outPath, "--version").Output()
	if err != nil {
		return fmt.Errorf("start the copy: %w", err)
	}
	if !bytes.Equal(a, b) {
		return fmt.Errorf("the copy calls itself %q", b)
	}
	return nil
}

// Args returns the QEMU arguments for n cards, each behind a root port of its own, and for the folder where the emulator finds its firmware, which
// it looks for beside itself otherwise. The machine must be a q35.
func Args(n int) []string {
	args := []string{"-L", "/usr/share/qemu", "-L", "/usr/share/seabios", "-L", "/usr/lib/ipxe/qemu"}
	for i := range n {
		args = append(args,
			"-device", fmt.Sprintf("pcie-root-port,id=card%d,chassis=%d,slot=%d", i, firstChassis+i, firstChassis+i),
			"-device", fmt.Sprintf("edu,bus=card%d", i))
	}
	return args
}

// firstChassis keeps clear of root ports that a machine has for other things.
const firstChassis = 32

// Env returns what must be in the environment of the copy: it looks for its modules, the accelerators among them, beside itself otherwise.
func Env() []string {
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib/aarch64-linux-gnu/qemu", "/usr/lib64/qemu-kvm"} {
		if _, err := os.Stat(dir); err == nil {
			return []string{"QEMU_MODULE_DIR=" + dir}
		}
	}
	return nil
}
