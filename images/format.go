package images

import (
	"bytes"
	"fmt"

	"github.com/bareyard/bareyard/machine"
)

// Format is the form in which a disk comes.
type Format string

// Formats that Import takes. Raw is what remains: it has no magic of its own.
const (
	Raw   Format = "raw"
	Qcow2 Format = "qcow2"
	VMDK  Format = "vmdk" // streamOptimized or monolithicSparse, in one file
	VHD   Format = "vhd"  // fixed
)

const formatHint = "raw, qcow2, vmdk or vhd"

// known reports whether Import takes a format, or looks for itself.
func (f Format) known() bool {
	switch f {
	case "", Raw, Qcow2, VMDK, VHD:
		return true
	}
	return false
}

// headSize is how many bytes of a file formatOf and the boot check look at.
const headSize = 1 << 20

// foreign lists what is met instead of a disk image, at which offset it shows, and what to do.
var foreign = []struct {
	name   string
	offset int
	magic  string
	hint   string
}{
	{"a VMDK image of ESX's old kind", 0, "COWD", convertHint},
	{"a VMDK descriptor, which names other files", 0, "# Disk DescriptorFile", convertHint},
	{"a VHDX image", 0, "vhdxfile", convertHint},
	{"a VDI image", 0x40, "\x7f\x10\xda\xbe", convertHint},
	{"a QED image", 0, "QED\x00", convertHint},
	{"a Parallels image", 0, "WithoutFreeSpace", convertHint},
	{"a Parallels image", 0, "WithouFreSpacExt", convertHint},
	{"a LUKS container", 0, "LUKS\xba\xbe", "an encrypted disk cannot be checked: give the disk itself"},
	{"an installation CD", 0x8001, "CD001", "give an image of an installed disk, such as the publisher's cloud image"},
	{"a tar archive", 257, "ustar", "unpack it and give the disk image in it"},
	{"a zip archive", 0, "PK\x03\x04", "unpack it and give the disk image in it"},
	{"a 7z archive", 0, "7z\xbc\xaf\x27\x1c", "unpack it and give the disk image in it"},
	{"a squashfs file system", 0, "hsqs", "give an image of a whole disk"},
	{"a program", 0, "\x7fELF", "give a disk image"},
	{"a web page", 0, "<!DOCTYPE", "the address leads to a page, not to the file"},
	{"a web page", 0, "<!doctype", "the address leads to a page, not to the file"},
	{"a web page", 0, "<html", "the address leads to a page, not to the file"},
}

const convertHint = "convert it: qemu-img convert -O qcow2 IN OUT"

// formatOf decides by magic bytes what begins with head. What is raw so far may still prove to be a fixed VHD, at its end.
func formatOf(head []byte, declared Format) (Format, error) {
	found := Raw
	switch kind := compressionOf(head); {
	case bytes.HasPrefix(head, []byte(qcow2Magic)):
		found = Qcow2
	case bytes.HasPrefix(head, []byte(vmdkMagic)):
		found = VMDK
	case bytes.HasPrefix(head, []byte(vhdMagic)):
		return "", headVHD(head)
	case kind != uncompressed:
		return "", fileError(fmt.Sprintf("the file is compressed twice: inside is %s again", kind), "unpack it once")
	}
	for _, f := range foreign {
		if len(head) >= f.offset+len(f.magic) && string(head[f.offset:f.offset+len(f.magic)]) == f.magic {
			return "", fileError("the file is "+f.name+", not a disk in a format that is read here: "+formatHint, f.hint)
		}
	}
	if found == Raw && declared == VHD {
		return Raw, nil
	}
	return found, found.declaredAs(declared)
}

// declaredAs refuses a declared format that is not the one found, because the one who declared it means another file than the one that
// came (field case F07).
func (f Format) declaredAs(declared Format) error {
	switch {
	case !declared.known():
		return unknownFormat(declared)
	case declared == "" || declared == f:
		return nil
	}
	return &machine.Error{
		Code:    machine.Invalid,
		Field:   "format",
		Message: fmt.Sprintf("the image is declared %s and is %s", declared, f),
		Hint:    "make sure that it is the file you mean, then declare what it is",
	}
}

func unknownFormat(f Format) error {
	return &machine.Error{Code: machine.Invalid, Field: "format", Message: fmt.Sprintf("unknown image format %q", f), Hint: formatHint}
}

func fileError(message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: "file", Message: message, Hint: hint}
}
