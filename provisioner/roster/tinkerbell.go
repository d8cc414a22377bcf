package roster

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/tinkerbell/tink/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// What Tinkerbell's Hardware has no field for is in annotations.
const (
	noteClass      = "bareyard/class"
	noteSite       = "bareyard/site"
	noteRack       = "bareyard/rack"
	noteSerial     = "bareyard/serial"
	notePublic     = "bareyard/public-mac"
	noteSystemDisk = "bareyard/system-disk"
	noteAdmit      = "bareyard/admit"
	noteBMC        = "bareyard/bmc-address"
	noteBMCUser    = "bareyard/bmc-user"
	noteBMCProto   = "bareyard/bmc-protocol"
	noteBMCPin     = "bareyard/bmc-cert-pin"
)

const hardwareAPI = "tinkerbell.org/v1alpha1"

// bmcMachine is Tinkerbell's BMC: Machine of bmc.tinkerbell.org/v1alpha1, as far as it says how to reach one.
type bmcMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Connection struct {
			Host          string                 `json:"host"`
			Port          int                    `json:"port"`
			AuthSecretRef corev1.SecretReference `json:"authSecretRef"`
			InsecureTLS   bool                   `json:"insecureTLS"`
			Options       *struct {
				Redfish *struct {
					Port int `json:"port"`
				} `json:"redfish"`
			} `json:"providerOptions"`
		} `json:"connection"`
	} `json:"spec"`
}

// document is one of the documents of a YAML file.
type document struct {
	line int // where it begins
	text []byte
}

// manifest is a file's documents by kind.
type manifest struct {
	hardware []lined[v1alpha1.Hardware]
	bmcs     map[string]bmcMachine
	secrets  map[string]corev1.Secret
}

type lined[T any] struct {
	line  int
	value T
}

func readTinkerbell(text []byte) ([]provisioner.Expectation, error) {
	var wrong provisioner.LineErrors
	m := manifest{bmcs: map[string]bmcMachine{}, secrets: map[string]corev1.Secret{}}
	for _, d := range documents(text) {
		if err := m.add(d); err != nil {
			wrong = append(wrong, *err)
		}
	}
	var list []provisioner.Expectation
	for _, h := range m.hardware {
		x, err := m.entry(h.line, h.value)
		if err != nil {
			wrong = append(wrong, *err)
			continue
		}
		list = append(list, x)
	}
	if len(list) == 0 && len(wrong) == 0 {
		return nil, invalid("kind", "there is no Hardware in the file", "it wants documents with apiVersion: "+hardwareAPI+" and kind: Hardware")
	}
	return list, wrong.Err()
}

// documents splits a YAML stream at its separators.
func documents(text []byte) []document {
	var all []document
	now := document{line: 1}
	end := func(next int) {
		if len(bytes.TrimSpace(now.text)) > 0 {
			all = append(all, now)
		}
		now = document{line: next}
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile+1)
	for n := 1; lines.Scan(); n++ {
		if l := lines.Bytes(); string(bytes.TrimRight(l, " \t\r")) == "---" || bytes.HasPrefix(l, []byte("--- ")) {
			end(n + 1)
			continue
		}
		now.text = append(append(now.text, lines.Bytes()...), '\n')
	}
	end(0)
	return all
}

// add sorts a document in. Kinds that have nothing to do with enrolment are passed over, unknown ones are not.
func (m *manifest) add(d document) *provisioner.LineError {
	fail := func(field string, err error, hint string) *provisioner.LineError {
		return &provisioner.LineError{Line: d.lineOf(err), Field: field, Message: plain(err), Hint: hint}
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(d.text, &kind); err != nil {
		return fail("document", err, "YAML wants spaces, not tabs")
	}
	if kind == (metav1.TypeMeta{}) && len(bytes.TrimSpace(uncommented(d.text))) == 0 {
		return nil
	}
	switch kind.APIVersion + " " + kind.Kind {
	case hardwareAPI + " Hardware":
		var h v1alpha1.Hardware
		if err := yaml.UnmarshalStrict(d.text, &h); err != nil {
			return fail("hardware "+h.Name, err, "compare it with Tinkerbell's Hardware, v1alpha1")
		}
		m.hardware = append(m.hardware, lined[v1alpha1.Hardware]{d.line, h})
	case hardwareAPI + " HardwareList":
		var l v1alpha1.HardwareList
		if err := yaml.UnmarshalStrict(d.text, &l); err != nil {
			return fail("hardware list", err, "compare it with Tinkerbell's Hardware, v1alpha1")
		}
		for _, h := range l.Items {
			m.hardware = append(m.hardware, lined[v1alpha1.Hardware]{d.line, h})
		}
	case "bmc.tinkerbell.org/v1alpha1 Machine":
		var b bmcMachine
		if err := yaml.Unmarshal(d.text, &b); err != nil {
			return fail("machine "+b.Name, err, "compare it with Tinkerbell's BMC Machine")
		}
		m.bmcs[b.Name] = b
	case "v1 Secret":
		var s corev1.Secret
		if yaml.UnmarshalStrict(d.text, &s) != nil { // the error could quote the secret
			return fail("secret "+s.Name, fmt.Errorf("it cannot be read"), "data is base64, stringData is not")
		}
		m.secrets[s.Name] = s
	case hardwareAPI + " Template", hardwareAPI + " Workflow", "bmc.tinkerbell.org/v1alpha1 Job", "bmc.tinkerbell.org/v1alpha1 Task", "v1 Namespace":
	default:
		return fail("kind", fmt.Errorf("%q %q is nothing to enrol", kind.APIVersion, kind.Kind), "it wants "+hardwareAPI+" Hardware")
	}
	return nil
}

// lineOf returns the line of the field that an error complains of, or where the document begins: the decoder works on JSON,
// which has no lines any more.
func (d document) lineOf(err error) int {
	_, rest, ok := strings.Cut(err.Error(), `unknown field "`)
	if !ok {
		return d.line
	}
	name, _, _ := strings.Cut(rest, `"`)
	n := 0
	for line := range bytes.Lines(d.text) {
		if bytes.HasPrefix(bytes.TrimLeft(line, " -"), []byte(name[strings.LastIndex(name, ".")+1:]+":")) {
			return d.line + n
		}
		n++
	}
	return d.line
}

func uncommented(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			out = append(out, line...)
		}
	}
	return out
}

// plain takes the libraries' own words off the front of an error.
func plain(err error) string {
	s := err.Error()
	for _, prefix := range []string{"error unmarshaling JSON: ", "error converting YAML to JSON: ", "while decoding JSON: ", "yaml: ", "json: "} {
		s = strings.TrimPrefix(s, prefix)
	}
	return s
}

// entry makes an entry of the enrolment list out of a Hardware.
func (m *manifest) entry(line int, h v1alpha1.Hardware) (provisioner.Expectation, *provisioner.LineError) {
	note := func(key string) string { return cmp.Or(h.Annotations[key], h.Labels[key]) }
	x := provisioner.Expectation{Line: line, Expected: machine.Expected{Name: h.Name, Serial: note(noteSerial), Class: note(noteClass), Site: note(noteSite), Rack: note(noteRack),
		PublicMAC: note(notePublic), SystemDisk: note(noteSystemDisk)}}
	if f := facility(h); f != nil {
		x.Class, x.Site = cmp.Or(x.Class, f.PlanSlug), cmp.Or(x.Site, f.FacilityCode)
	}
	if v := note(noteAdmit); v != "" {
		admit, err := strconv.ParseBool(v)
		if err != nil {
			return x, &provisioner.LineError{Line: line, Field: noteAdmit, Message: fmt.Sprintf("%q is neither true nor false", v), Hint: "say true to vouch for the machine"}
		}
		x.Admit = admit
	}
	boots, others := ports(h)
	if boots != nil {
		x.MAC = boots.MAC
		if boots.IP != nil {
			x.BootAddr = boots.IP.Address
		}
	}
	if x.PublicMAC == "" && len(others) == 1 {
		x.PublicMAC = others[0].MAC
	}
	return x, m.bmc(&x, h, note)
}

func facility(h v1alpha1.Hardware) *v1alpha1.MetadataFacility {
	if h.Spec.Metadata == nil {
		return nil
	}
	return h.Spec.Metadata.Facility
}

// ports returns the DHCP settings of the port that boots, the first that may, and those of the others.
func ports(h v1alpha1.Hardware) (boots *v1alpha1.DHCP, others []*v1alpha1.DHCP) {
	var all []v1alpha1.Interface
	for _, i := range h.Spec.Interfaces {
		if i.DHCP != nil && i.DHCP.MAC != "" {
			all = append(all, i)
		}
	}
	at := slices.IndexFunc(all, func(i v1alpha1.Interface) bool {
		return i.Netboot != nil && i.Netboot.AllowPXE != nil && *i.Netboot.AllowPXE
	})
	for n, i := range all {
		if n == max(at, 0) {
			boots = i.DHCP
			continue
		}
		others = append(others, i.DHCP)
	}
	return boots, others
}

// bmc says how to reach the BMC: by the Machine that the Hardware refers to, or by annotations.
func (m *manifest) bmc(x *provisioner.Expectation, h v1alpha1.Hardware, note func(string) string) *provisioner.LineError {
	x.BMC = machine.BMC{Protocol: note(noteBMCProto), Address: note(noteBMC), Username: note(noteBMCUser), CertPin: note(noteBMCPin)}
	ref := h.Spec.BMCRef
	if ref == nil {
		return nil
	}
	wrong := func(format string, a ...any) *provisioner.LineError {
		return &provisioner.LineError{Line: x.Line, Field: "spec.bmcRef", Message: fmt.Sprintf(format, a...), Hint: "put the BMC's Machine and its Secret into the same file, or use the annotations " + noteBMC + " and " + noteBMCUser}
	}
	b, ok := m.bmcs[ref.Name]
	if !ok {
		if x.BMC.Address != "" {
			return nil
		}
		return wrong("there is no BMC Machine %q in the file", ref.Name)
	}
	c := b.Spec.Connection
	if c.Options != nil && c.Options.Redfish != nil {
		x.BMC.Protocol, x.BMC.Address = "redfish", c.Host
		if p := c.Options.Redfish.Port; p != 0 && p != 443 {
			x.BMC.Address = net.JoinHostPort(c.Host, strconv.Itoa(p))
		}
	} else {
		x.BMC.Protocol, x.BMC.Address = "ipmi", net.JoinHostPort(c.Host, strconv.Itoa(cmp.Or(c.Port, 623)))
	}
	s, ok := m.secrets[c.AuthSecretRef.Name]
	if !ok {
		return wrong("there is no Secret %q in the file", c.AuthSecretRef.Name)
	}
	value := func(key string) string { return cmp.Or(s.StringData[key], string(s.Data[key])) }
	x.BMC.Username, x.Password = value("username"), value("password")
	return nil
}

func writeTinkerbell(w io.Writer, machines []machine.Machine) error {
	for i, m := range machines {
		text, err := yaml.Marshal(hardware(m))
		if err != nil {
			return fmt.Errorf("write Hardware %s: %w", m.Name, err)
		}
		// What Kubernetes fills in is nothing to write down.
		text = bytes.ReplaceAll(text, []byte("  creationTimestamp: null\n"), nil)
		text = bytes.ReplaceAll(text, []byte("status: {}\n"), nil)
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := w.Write(text); err != nil {
			return fmt.Errorf("write Hardware: %w", err)
		}
	}
	return nil
}

// hardware is a machine as Tinkerbell has it.
func hardware(m machine.Machine) v1alpha1.Hardware {
	x, yes, no := entry(m), true, false
	h := v1alpha1.Hardware{TypeMeta: metav1.TypeMeta{APIVersion: hardwareAPI, Kind: "Hardware"}, ObjectMeta: metav1.ObjectMeta{Name: m.Name, Annotations: map[string]string{}}}
	for key, value := range map[string]string{noteClass: x.Class, noteSite: x.Site, noteRack: x.Rack, noteSerial: x.Serial, notePublic: x.PublicMAC, noteSystemDisk: x.SystemDisk,
		noteBMC: x.BMC.Address, noteBMCUser: x.BMC.Username, noteBMCProto: x.BMC.Protocol, noteBMCPin: x.BMC.CertPin} {
		if value != "" {
			h.Annotations[key] = value
		}
	}
	h.Spec.Metadata = &v1alpha1.HardwareMetadata{Facility: &v1alpha1.MetadataFacility{PlanSlug: x.Class, FacilityCode: x.Site}}
	nics := slices.Clone(m.Hardware.NICs)
	slices.SortStableFunc(nics, func(a, b machine.NIC) int { // the one that boots first
		return cmp.Compare(b2i(b.Role == machine.ProvisionNIC), b2i(a.Role == machine.ProvisionNIC))
	})
	for _, n := range nics {
		i := v1alpha1.Interface{DHCP: &v1alpha1.DHCP{MAC: n.MAC, UEFI: m.Firmware == machine.UEFI, Arch: "x86_64"}, Netboot: &v1alpha1.Netboot{AllowPXE: &no, AllowWorkflow: &no}}
		if n.Role == machine.ProvisionNIC {
			i.Netboot = &v1alpha1.Netboot{AllowPXE: &yes, AllowWorkflow: &yes}
			i.DHCP.Hostname = m.Name
			if x.BootAddr != "" {
				i.DHCP.IP = &v1alpha1.IP{Address: x.BootAddr, Family: 4}
			}
		}
		h.Spec.Interfaces = append(h.Spec.Interfaces, i)
	}
	return h
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
