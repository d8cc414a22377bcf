package roster_test

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
	"github.com/bareyard/bareyard/provisioner/roster"
)

var update = flag.Bool("update", false, "rewrite golden files")

func machines() []machine.Machine {
	return []machine.Machine{
		{Name: "gpu-r1-u12", Site: "sha1", Rack: "r1, left", Class: "rtx5090x8", Firmware: machine.UEFI, BootAddr: netip.MustParseAddr("10.99.0.112"),
			BMC: machine.BMC{Protocol: "redfish", Address: "https://10.98.0.112", Username: "bareyard", CertPin: strings.Repeat("ab", 32), PinHow: "first-use"},
			Hardware: machine.Hardware{UUID: "4c4c4544-0038-3510-8056-c4c04f4d3533", Serial: "=HYPERLINK(\"x\")",
				NICs:  []machine.NIC{{MAC: "b8:ce:f6:00:00:03"}, {MAC: "b8:ce:f6:00:00:01", Role: machine.ProvisionNIC}, {MAC: "b8:ce:f6:00:00:02", Role: machine.PublicNIC}},
				Disks: []machine.Disk{{Serial: "S5Y1", Size: 1 << 40, Role: machine.SystemDisk}}}},
		{Name: "cpu1", Site: "sha1", Class: "cpu", Firmware: machine.BIOS, BootAddr: netip.MustParseAddr("10.99.0.113"), BMC: machine.BMC{Protocol: "ipmi", Address: "10.98.0.113:623", Username: "admin"},
			Hardware: machine.Hardware{Serial: "ABC1234", NICs: []machine.NIC{{MAC: "b8:ce:f6:00:01:01", Role: machine.ProvisionNIC}, {MAC: "b8:ce:f6:00:01:02", Role: machine.PublicNIC}},
				Disks: []machine.Disk{{Serial: "D", Size: 1 << 40, Role: machine.SystemDisk}}}},
	}
}

// TestRoundTrip: what is exported is read back as the same machines, but for the passwords of their BMCs.
func TestRoundTrip(t *testing.T) {
	for format, file := range map[roster.Format]string{roster.CSV: "machines.csv", roster.Tinkerbell: "machines.yaml"} {
		var out strings.Builder
		if err := roster.Write(&out, machines(), format); err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Errorf("%s (-golden +got):\n%s", file, diff)
		}
		back, err := roster.Read(strings.NewReader(out.String()), file, "")
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range machines() {
			x := back[i].Expected
			nic, _ := m.Hardware.NICByRole(machine.ProvisionNIC)
			public, _ := m.Hardware.NICByRole(machine.PublicNIC)
			disk, _ := m.Hardware.SystemDisk()
			m.BMC.PinHow = ""
			if diff := cmp.Diff(machine.Expected{Name: m.Name, MAC: nic.MAC, Serial: m.Hardware.Serial, Class: m.Class, Site: m.Site, Rack: m.Rack, BMC: m.BMC,
				BootAddr: m.BootAddr.String(), PublicMAC: public.MAC, SystemDisk: disk.Serial}, x); diff != "" {
				t.Errorf("%s, %s (-machine +read back):\n%s", file, m.Name, diff)
			}
			if back[i].Password != "" || back[i].Line == 0 {
				t.Errorf("%s: %+v", file, back[i])
			}
		}
	}
}

// TestReadCSV: headers in any order, comments, quotes, a byte-order mark and a spreadsheet's semicolons.
func TestReadCSV(t *testing.T) {
	want := provisioner.Expectation{Password: "p,w\"1", Expected: machine.Expected{Name: "gpu1", MAC: "b8:ce:f6:00:00:01", Class: "c", BMC: machine.BMC{Address: "10.0.0.1", Username: "admin"}, Admit: true}}
	for name, tt := range map[string]struct {
		text string
		line int
	}{
		"plain":      {"name,mac,class,bmc_address,bmc_user,bmc_password,admit\ngpu1,b8:ce:f6:00:00:01,c,10.0.0.1,admin,\"p,w\"\"1\",yes\n", 2},
		"any order":  {"admit,bmc_password,NAME, class ,bmc_user,bmc_address,mac\r\nTrue,\"p,w\"\"1\", gpu1 ,c,admin,10.0.0.1,b8:ce:f6:00:00:01\r\n", 2},
		"comments":   {"# our new rack\nname,mac,class,bmc_address,bmc_user,bmc_password,admit\n\n# the first\ngpu1,b8:ce:f6:00:00:01,c,10.0.0.1,admin,\"p,w\"\"1\",1", 5},
		"semicolons": {"\xef\xbb\xbfname;mac;class;bmc_address;bmc_user;bmc_password;admit\ngpu1;b8:ce:f6:00:00:01;c;10.0.0.1;admin;\"p,w\"\"1\";y\n", 2},
	} {
		got, err := roster.Read(strings.NewReader(tt.text), "list.csv", "")
		want.Line = tt.line
		if diff := cmp.Diff([]provisioner.Expectation{want}, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

const manifest = `# our rack
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata:
  name: gpu1
  namespace: tink-system
  labels: {bareyard/rack: r1}
spec:
  bmcRef: {apiGroup: bmc.tinkerbell.org, kind: Machine, name: bmc-gpu1}
  metadata:
    facility: {plan_slug: rtx5090x8, facility_code: sha1}
    instance: {id: "b8:ce:f6:00:00:01", hostname: gpu1}
  disks: [{device: /dev/nvme0n1}]
  interfaces:
    - dhcp: {mac: "b8:ce:f6:00:00:02"}
      netboot: {allowPXE: false}
    - dhcp:
        mac: "b8:ce:f6:00:00:01"
        arch: x86_64
        uefi: true
        lease_time: 86400
        ip: {address: 10.99.0.112, netmask: 255.255.255.0, gateway: 10.99.0.1}
      netboot: {allowPXE: true, allowWorkflow: true}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: bmc-gpu1}
spec:
  connection:
    host: 10.98.0.112
    insecureTLS: true
    authSecretRef: {name: creds, namespace: tink-system}
    providerOptions: {redfish: {port: 443}}
---
apiVersion: v1
kind: Secret
metadata: {name: creds}
type: kubernetes.io/basic-auth
data: {username: cm9vdA==, password: Y2Fsdmlu}
---
apiVersion: tinkerbell.org/v1alpha1
kind: Template
metadata: {name: ubuntu}
spec: {data: "nothing of ours"}
`

// TestReadTinkerbell: a real manifest: Hardware, its BMC's Machine and Secret, and things that are none of our business.
func TestReadTinkerbell(t *testing.T) {
	got, err := roster.Read(strings.NewReader(manifest), "rack.yaml", "")
	want := []provisioner.Expectation{{Line: 1, Password: "calvin", Expected: machine.Expected{Name: "gpu1", MAC: "b8:ce:f6:00:00:01", Class: "rtx5090x8", Site: "sha1", Rack: "r1",
		BMC: machine.BMC{Protocol: "redfish", Address: "10.98.0.112", Username: "root"}, BootAddr: "10.99.0.112", PublicMAC: "b8:ce:f6:00:00:02"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestReadErrors: line and field are named, all of them, with what to do; a password never.
func TestReadErrors(t *testing.T) {
	const head = "name,mac,class,bmc_address,bmc_user,bmc_password\n"
	for name, tt := range map[string]struct{ file, text, want string }{
		"no name for its kind":  {"list.txt", "x", "give --format csv or --format tinkerbell"},
		"empty":                 {"l.csv", "", "line 1: header|the file is empty"},
		"unknown column":        {"l.csv", "name,mac,klass\n", `line 1: klass|no column "klass"|the columns are: name, mac`},
		"column twice":          {"l.csv", "name,name\n", "line 1: name|there twice"},
		"column missing":        {"l.csv", "name,mac,class,bmc_address\n", `no column "bmc_user"`},
		"nothing that names it": {"l.csv", "name,class,bmc_address,bmc_user\n", "neither a column mac nor a column serial"},
		"too few fields":        {"l.csv", head + "gpu1,x,c\ngpu2,x,c,a,u,calvin,more\n", "line 2: row: 3 fields, the header has 6|line 3: row: 7 fields"},
		"quotes":                {"l.csv", head + "gpu1,x,c,a,u,\"cal\"vin\n", "line 2|field needs quotes"},
		"yes or no":             {"l.csv", "name,mac,class,bmc_address,bmc_user,admit\na,m,c,a,u,perhaps\nb,m,c,a,u,maybe\n", `line 2: admit: "perhaps" is neither|line 3: admit`},
		"not YAML":              {"l.yaml", "a: b\n\tc: d\n", "line 1: document"},
		"unknown kind":          {"l.yaml", "apiVersion: v1\nkind: Pod\n", `line 1: kind: "v1" "Pod" is nothing to enrol`},
		"nothing":               {"l.yaml", "# nothing\n---\n", "there is no Hardware in the file"},
		"unknown field":         {"l.yaml", "---\n" + strings.Replace(manifest, "  disks:", "  diskss:", 1), `line 14: hardware gpu1: unknown field "diskss"`},
		"key twice":             {"l.yaml", strings.Replace(manifest, "  disks:", "  disks: []\n  disks:", 1), `line 1: hardware|already set in map`},
		"wrong type":            {"l.yaml", strings.Replace(manifest, "uefi: true", "uefi: often", 1), "line 1: hardware gpu1|uefi"},
		"no such BMC":           {"l.yaml", strings.Replace(manifest, "name: bmc-gpu1}\n  metadata", "name: other}\n  metadata", 1), `line 1: spec.bmcRef: there is no BMC Machine "other"`},
		"no such secret":        {"l.yaml", strings.Replace(manifest, "{name: creds}", "{name: other}", 1), `there is no Secret "creds"`},
		"bad secret":            {"l.yaml", strings.Replace(manifest, "Y2Fsdmlu", "calvin!", 1), "secret |it cannot be read"},
	} {
		_, err := roster.Read(strings.NewReader(tt.text), tt.file, "")
		var me *machine.Error
		if !errors.As(err, &me) || me.Code != machine.Invalid || me.Hint == "" || me.Field == "" {
			t.Errorf("%s: %v (%+v)", name, err, me)
			continue
		}
		all := me.Field + " " + me.Message + " " + me.Hint
		for want := range strings.SplitSeq(tt.want, "|") {
			if !strings.Contains(all, want) {
				t.Errorf("%s: %q is not in %q", name, want, all)
			}
		}
		if strings.Contains(all, "calvin") || strings.Contains(all, "cal\"") {
			t.Errorf("%s: the password is in the error (K05): %s", name, all)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("name,mac,class,bmc_address,bmc_user\na,b,c,d,e\n", true)
	f.Add(manifest, false)
	f.Fuzz(func(t *testing.T, text string, csv bool) {
		format := roster.Tinkerbell
		if csv {
			format = roster.CSV
		}
		list, err := roster.Read(strings.NewReader(text), "x", format)
		if err != nil && len(list) > 0 {
			return // what could be read comes along; nobody takes it
		}
		for _, x := range list {
			var wrong provisioner.LineErrors
			provisioner.CheckExpected(&x, &wrong) // never panics
			if x.Line < 1 {
				t.Errorf("an entry without a line: %+v", x)
			}
		}
	})
}
