package images

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

const vmdkMaxDescriptor = 64 << 10 // bytes; known writers reserve 10 KiB

// vmdkExtent is a line such as: RW 4192256 SPARSE "disk.vmdk"
var vmdkExtent = regexp.MustCompile(`^(RW|RDONLY|NOACCESS)\s+([0-9]+)\s+([A-Z]+)(?:\s+"([^"]*)"(?:\s+[0-9]+)?)?$`)

// descriptor reads the text inside the file and refuses an image that is not whole in this very file.
func (v *vmdk) descriptor(h vmdkHeader) error {
	if h.descriptorAt == 0 || h.described == 0 {
		return vmdkParts("it has no descriptor")
	}
	if h.described > vmdkMaxDescriptor/sectorSize {
		return vmdkError(fmt.Sprintf("has a descriptor of %d sectors", h.described))
	}
	text := make([]byte, h.described*sectorSize)
	if err := v.readSector(text, h.descriptorAt, "descriptor"); err != nil {
		return err
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	kind, extents := "", 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := vmdkExtent.FindStringSubmatch(line); m != nil {
			if extents++; extents > 1 {
				return vmdkParts("it names several extents")
			}
			if err := h.extent(m[1], m[2], m[3], m[4]); err != nil {
				return err
			}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		switch key = strings.ToLower(strings.TrimSpace(key)); {
		case line == "" || strings.HasPrefix(line, "#"):
		case !ok:
			return vmdkError(fmt.Sprintf("has a descriptor with the line %.60q", line))
		case key == "createtype":
			kind = strings.ToLower(value)
		case key == "parentcid" && strings.ToLower(value) != "ffffffff", key == "parentfilenamehint":
			return &machine.Error{
				Code: machine.Invalid, Field: "file",
				Message: "the VMDK image has a parent: it is only the difference to another file on its author's host",
				Hint:    "make it whole there: qemu-img convert -O qcow2 IN OUT",
			}
		}
	}
	packed := h.flags&vmdkCompressed != 0
	switch {
	case extents == 0:
		return vmdkParts("its descriptor names no extent")
	case kind != "streamoptimized" && kind != "monolithicsparse":
		return vmdkParts(fmt.Sprintf("it is of type %.40q", kind))
	case packed != (kind == "streamoptimized"):
		return vmdkError("is not of the type that its descriptor says")
	}
	return nil
}

// extent checks the one extent that a descriptor may name: this file. Its name is that which the file had where it was made.
func (h vmdkHeader) extent(access, sectors, kind, name string) error {
	switch n, err := strconv.ParseUint(sectors, 10, 64); {
	case kind != "SPARSE":
		return vmdkParts(fmt.Sprintf("its data is in an extent of type %.20s", kind))
	case strings.ContainsAny(name, `/\:`) || name == "" || name == "." || name == "..":
		return vmdkParts("its descriptor names a file elsewhere")
	case access != "RW" && access != "RDONLY":
		return vmdkError("forbids access to its data")
	case err != nil || n != h.capacity:
		return vmdkError(fmt.Sprintf("has a descriptor for %.20s sectors and a header for %d", sectors, h.capacity))
	}
	return nil
}

func vmdkParts(why string) error {
	return &machine.Error{
		Code: machine.Invalid, Field: "file",
		Message: "the VMDK image is not whole in this file: " + why,
		Hint:    "make it whole where it was made: qemu-img convert -O vmdk -o subformat=streamOptimized IN OUT",
	}
}
