// Package roster reads and writes lists of machines: CSV, and Tinkerbell's Hardware.
package roster

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Format names a form of list.
type Format string

// Formats.
const (
	CSV        Format = "csv"
	Tinkerbell Format = "tinkerbell" // Hardware of tinkerbell.org/v1alpha1 in YAML, with its BMC's Machine and Secret
)

// maxFile bounds a list, bytes.
const maxFile = 32 << 20

// Read reads an enrolment list. file is its name, for the format when none is given. Either all of it can be read, or the
// error names each line and field that cannot.
func Read(r io.Reader, file string, f Format) ([]provisioner.Expectation, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(text) > maxFile {
		return nil, &machine.Error{Code: machine.Invalid, Field: "file", Message: fmt.Sprintf("%s is larger than %d MiB", file, maxFile>>20), Hint: "split the list"}
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if f == "" {
		f = formatOf(file)
	}
	switch f {
	case CSV:
		return readCSV(text)
	case Tinkerbell:
		return readTinkerbell(text)
	}
	return nil, &machine.Error{Code: machine.Invalid, Field: "format", Message: fmt.Sprintf("what %s is cannot be told from its name", file), Hint: "give --format csv or --format tinkerbell"}
}

func formatOf(file string) Format {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".csv":
		return CSV
	case ".yaml", ".yml", ".json":
		return Tinkerbell
	}
	return ""
}

// Write writes machines as a list that Read reads. The passwords of their BMCs are not in it.
func Write(w io.Writer, machines []machine.Machine, f Format) error {
	switch f {
	case CSV:
		return writeCSV(w, machines)
	case Tinkerbell:
		return writeTinkerbell(w, machines)
	}
	return &machine.Error{Code: machine.Invalid, Field: "format", Message: fmt.Sprintf("format %q is not known", f), Hint: "say csv or tinkerbell"}
}

// entry is the entry of the enrolment list for a machine that is there.
func entry(m machine.Machine) machine.Expected {
	x := machine.Expected{Name: m.Name, Serial: m.Hardware.Serial, Class: m.Class, Site: m.Site, Rack: m.Rack,
		BMC: machine.BMC{Protocol: m.BMC.Protocol, Address: m.BMC.Address, Username: m.BMC.Username, CertPin: m.BMC.CertPin}}
	if nic, ok := m.Hardware.NICByRole(machine.ProvisionNIC); ok {
		x.MAC = nic.MAC
	}
	if nic, ok := m.Hardware.NICByRole(machine.PublicNIC); ok {
		x.PublicMAC = nic.MAC
	}
	if d, ok := m.Hardware.SystemDisk(); ok {
		x.SystemDisk = d.Serial
	}
	if m.BootAddr.IsValid() {
		x.BootAddr = m.BootAddr.String()
	}
	return x
}
