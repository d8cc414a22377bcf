package roster

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// columns of a CSV list, in the order in which they are written. The header names those that a file has, in any order.
var columns = []string{"name", "mac", "serial", "class", "site", "rack", "bmc_protocol", "bmc_address", "bmc_user", "bmc_password", "bmc_cert_pin",
	"boot_addr", "public_mac", "system_disk", "admit"}

// needed are the columns without which no row says enough.
var needed = []string{"name", "class", "bmc_address", "bmc_user"}

func readCSV(text []byte) ([]provisioner.Expectation, error) {
	r := csv.NewReader(bytes.NewReader(text))
	r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace = '#', -1, true
	if head, _, _ := bytes.Cut(text, []byte("\n")); bytes.Contains(head, []byte(";")) && !bytes.Contains(head, []byte(",")) {
		r.Comma = ';' // as spreadsheets write it in half of Europe
	}
	head, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, invalid("line 1: header", "the file is empty", "begin with a line of column names: "+strings.Join(columns, ","))
	}
	if err != nil {
		return nil, syntax(err)
	}
	at, err := header(head)
	if err != nil {
		return nil, err
	}
	var list []provisioner.Expectation
	var wrong provisioner.LineErrors
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return list, wrong.Err()
		}
		if err != nil {
			return nil, syntax(err)
		}
		line, _ := r.FieldPos(0)
		if len(row) == 1 && strings.TrimSpace(row[0]) == "" {
			continue
		}
		if len(row) != len(head) {
			wrong = append(wrong, provisioner.LineError{Line: line, Field: "row", Message: fmt.Sprintf("%d fields, the header has %d", len(row), len(head)), Hint: "a comma in a field needs quotes around the field"})
			continue
		}
		x := fromRow(func(column string) string {
			i, ok := at[column]
			if !ok {
				return ""
			}
			return unguard(strings.TrimSpace(row[i]))
		}, line, &wrong)
		list = append(list, x)
	}
}

// header says where each column is.
func header(head []string) (map[string]int, error) {
	at := map[string]int{}
	for i, name := range head {
		name = strings.ToLower(strings.TrimSpace(name))
		if !slices.Contains(columns, name) {
			return nil, invalid("line 1: "+name, fmt.Sprintf("line 1: there is no column %q", name), "the columns are: "+strings.Join(columns, ", "))
		}
		if _, twice := at[name]; twice {
			return nil, invalid("line 1: "+name, fmt.Sprintf("line 1: the column %q is there twice", name), "keep one of them")
		}
		at[name] = i
	}
	for _, name := range needed {
		if _, ok := at[name]; !ok {
			return nil, invalid("line 1: "+name, fmt.Sprintf("line 1: there is no column %q", name), "the columns are: "+strings.Join(columns, ", "))
		}
	}
	if _, ok := at["mac"]; !ok {
		if _, ok := at["serial"]; !ok {
			return nil, invalid("line 1: mac", "line 1: there is neither a column mac nor a column serial", "one of them says which machine a row is")
		}
	}
	return at, nil
}

func fromRow(get func(string) string, line int, wrong *provisioner.LineErrors) provisioner.Expectation {
	x := provisioner.Expectation{Line: line, Password: get("bmc_password"), Expected: machine.Expected{
		Name: get("name"), MAC: get("mac"), Serial: get("serial"), Class: get("class"), Site: get("site"), Rack: get("rack"),
		BMC:      machine.BMC{Protocol: strings.ToLower(get("bmc_protocol")), Address: get("bmc_address"), Username: get("bmc_user"), CertPin: get("bmc_cert_pin")},
		BootAddr: get("boot_addr"), PublicMAC: get("public_mac"), SystemDisk: get("system_disk"),
	}}
	answers := map[string]bool{"": false, "no": false, "false": false, "0": false, "n": false, "yes": true, "true": true, "1": true, "y": true}
	admit, ok := answers[strings.ToLower(get("admit"))]
	if !ok {
		*wrong = append(*wrong, provisioner.LineError{Line: line, Field: "admit", Message: fmt.Sprintf("%q is neither yes nor no", get("admit")), Hint: "say yes to vouch for the machine"})
	}
	x.Admit = admit
	return x
}

// syntax is the error of a file that is not CSV. It does not repeat the line, which may hold a password.
func syntax(err error) error {
	var p *csv.ParseError
	if !errors.As(err, &p) {
		return fmt.Errorf("read CSV: %w", err)
	}
	return invalid(fmt.Sprintf("line %d", p.Line), fmt.Sprintf("nothing was enrolled: line %d, column %d: %v", p.Line, p.Column, p.Err), "a quote within a field is written twice, and the field needs quotes around it")
}

func invalid(field, message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: field, Message: message, Hint: hint}
}

func writeCSV(w io.Writer, machines []machine.Machine) error {
	out := csv.NewWriter(w)
	if err := out.Write(columns); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	for _, m := range machines {
		x := entry(m)
		value := map[string]string{"name": x.Name, "mac": x.MAC, "serial": x.Serial, "class": x.Class, "site": x.Site, "rack": x.Rack, "bmc_protocol": x.BMC.Protocol,
			"bmc_address": x.BMC.Address, "bmc_user": x.BMC.Username, "bmc_password": "", "bmc_cert_pin": x.BMC.CertPin, "boot_addr": x.BootAddr,
			"public_mac": x.PublicMAC, "system_disk": x.SystemDisk, "admit": ""}
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = guard(value[c])
		}
		if len(value) != len(columns) {
			return fmt.Errorf("write CSV: columns %v", slices.Sorted(maps.Keys(value)))
		}
		if err := out.Write(row); err != nil {
			return fmt.Errorf("write CSV: %w", err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// guard keeps a spreadsheet from taking a value for a formula: serial numbers come from machines.
func guard(s string) string {
	if s != "" && strings.ContainsAny(s[:1], "=+-@\t\r") {
		return "'" + s
	}
	return s
}

func unguard(s string) string {
	if len(s) > 1 && s[0] == '\'' && strings.ContainsAny(s[1:2], "=+-@\t\r") {
		return s[1:]
	}
	return s
}
