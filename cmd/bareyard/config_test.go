package main

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const reference = "../../docs/bareyard.yaml"

// keys lists the dotted names of all keys of a configuration struct.
func keys(t reflect.Type, prefix string) []string {
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := prefix + f.Tag.Get("yaml")
		if strings.HasPrefix(f.Type.Name(), "edge") || strings.HasSuffix(f.Type.Name(), "Config") {
			all = append(all, keys(f.Type, name+".")...)
			continue
		}
		all = append(all, name)
	}
	return all
}

// TestReference: the reference file shows every key, and exactly the defaults.
func TestReference(t *testing.T) {
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := decodeStrict(reference, text, &config{})
	if err != nil {
		t.Fatal(err)
	}
	all := keys(reflect.TypeFor[config](), "")
	if len(all) < 20 {
		t.Fatalf("only %d keys found: %v", len(all), all)
	}
	for _, key := range all {
		if lines[key] == 0 {
			t.Errorf("%s does not show %s", reference, key)
		}
	}
	shown, err := parseConfig("/etc/bareyard/bareyard.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	standard, err := parseConfig("/etc/bareyard/bareyard.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	opts := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty()}
	if diff := cmp.Diff(standard, shown, opts); diff != "" {
		t.Errorf("the reference differs from the defaults (-default +shown):\n%s", diff)
	}
}

func TestConfig(t *testing.T) {
	c, err := parseConfig("/srv/yard/bareyard.yaml", []byte(`
data_dir: data
api_listen: 127.0.0.1:9443
boot:
  interface: prov0
  address: 10.77.0.1
  prefix: 10.77.0.0/24
  kernel: /boot/vmlinuz
  kernel_args: console=ttyS0,115200 mitigations=off
edge: {netns: edge, uplink: up0, downlink: down0, deny: [10.77.0.0/24, 10.78.0.0/24]}
log_level: # not given: the default
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ what, got, want string }{
		{"data_dir", c.DataDir, "/srv/yard/data"},
		{"socket", c.Socket, "/srv/yard/data/bareyard.sock"},
		{"image_dir", c.ImageDir, "/srv/yard/data/images"},
		{"kernel", c.Boot.Kernel, "/boot/vmlinuz"},
		{"ramdisk", c.Boot.RAMDisk, "/srv/yard/data/boot/ramdisk.cpio.zst"},
		{"kernel_args", c.Boot.KernelArgs, "console=ttyS0,115200 mitigations=off"},
		{"address", c.Boot.Address.String(), "10.77.0.1"},
		{"log_level", c.LogLevel, "info"},
	} {
		if x.got != x.want {
			t.Errorf("%s is %q, want %q", x.what, x.got, x.want)
		}
	}
	if len(c.Edge.Deny) != 2 || c.Edge.Deny[1] != netip.MustParsePrefix("10.78.0.0/24") {
		t.Errorf("deny is %v", c.Edge.Deny)
	}
}

func TestConfigRefusals(t *testing.T) {
	boot := "boot:\n  interface: eth1\n  prefix: 10.99.0.0/24\n  address: 10.99.0.1\n"
	for _, c := range []struct{ name, text, message, hint string }{
		{"unknown key", "data_dir: /x\nlog_lvl: debug\n", "f.yaml:2: unknown key log_lvl", "did you mean log_level?"},
		{"unknown nested key", "boot:\n  interfce: eth1\n", "f.yaml:2: unknown key boot.interfce", "did you mean boot.interface?"},
		{"nothing alike", "ports:\n  xxxxxxxxx: 1\n", "f.yaml:2: unknown key ports.xxxxxxxxx", "the keys here are: netns"},
		{"merge key", "<<: {data_dir: /x}\n", "f.yaml:1: unknown key <<", "the keys here are"},
		{"twice", "data_dir: /x\ndata_dir: /y\n", "f.yaml:2: data_dir is already set in line 1", "keep one"},
		{"tab", "boot:\n\tinterface: x\n", "f.yaml: line 2", "tabs"},
		{"not a mapping", "just words\n", "f.yaml:1: the file wants keys and values", "key: value"},
		{"scalar for struct", "boot: eth1\n", "f.yaml:1: boot wants keys and values", "key: value"},
		{"list for string", "data_dir: [a]\n", "f.yaml:1: data_dir wants one value", ""},
		{"string for list", "edge:\n  deny: 10.0.0.0/8\n", "f.yaml:2: edge.deny wants a list", "deny: [a, b]"},
		{"two documents", "data_dir: /x\n---\ndata_dir: /y\n", "f.yaml:2: a second document", "one document"},
		{"port too large", "boot:\n  http_port: 65536\n", `f.yaml:2: boot.http_port wants a number from 1 to 65535, not "65536"`, ""},
		{"port zero", "boot:\n  http_port: 0\n", "boot.http_port wants a number", ""},
		{"address", "boot:\n  address: 10.99.0\n", "f.yaml:2: boot.address:", ""},
		{"deny", "edge:\n  deny:\n  - 10.0.0.0/8\n  - 10.1.2.3/16\n", "f.yaml:4: edge.deny[1] 10.1.2.3/16 has host bits", "did you mean 10.1.0.0/16?"},
		{"prefix", boot + "edge: {}\n" + "log_format: xml\n", `f.yaml:6: log_format "xml" is no format`, "text or json"},
		{"address elsewhere", strings.Replace(boot, "10.99.0.1", "10.98.0.1", 1), "f.yaml:4: boot.address must be", "ip addr"},
		{"prefix with host bits", strings.Replace(boot, "10.99.0.0/24", "10.99.0.7/24", 1), "f.yaml:3: boot.prefix must be", "10.99.0.0/24"},
		{"no interface", "boot:\n  address: 10.99.0.1\n", "f.yaml: boot.interface is missing", "ip link"},
		{"mode", boot + "  mode: both\n", `f.yaml:5: boot.mode "both" is no mode`, "authoritative"},
		{"discovery without addresses", boot + "  discovery: true\n", "f.yaml:5: boot.discovery is on, and no network has addresses", "boot.range"},
		{"discovery that is no answer", boot + "  discovery: often\n", `f.yaml:5: boot.discovery wants true or false, not "often"`, ""},
		{"range that is none", boot + "  range: 10.99.0.9\n", `f.yaml:5: boot.range: "10.99.0.9" is not a range`, ""},
		{"range upside down", boot + "  range: 10.99.0.9-10.99.0.8\n", "f.yaml:5: boot.range:", ""},
		{"range elsewhere", boot + "  range: 10.98.0.9-10.98.0.20\n", "f.yaml:5: boot.range 10.98.0.9-10.98.0.20 does not lie within 10.99.0.0/24", "10.98.0.200"},
		{"range with broadcast", boot + "  range: 10.99.0.200-10.99.0.255\n", "f.yaml:5: boot.range", ""},
		{"range over the server", boot + "  range: 10.99.0.1-10.99.0.20\n", "f.yaml:5: boot.range 10.99.0.1-10.99.0.20 holds our own address", ""},
		{"range of a proxy", boot + "  mode: proxy\n  range: 10.99.0.9-10.99.0.20\n", "f.yaml:6: boot.range gives addresses, and boot.mode is proxy", "the other DHCP server"},
		{"IPv6 of a proxy", boot + "  mode: proxy\n  address6: fd00::1/64\n", "f.yaml:6: boot.address6 gives addresses", ""},
		{"router elsewhere", boot + "  router: 10.98.0.1\n", "f.yaml:5: boot.router 10.98.0.1 is not", "gateway"},
		{"IPv6 network of an interface", boot + "  subnets: [{prefix: 10.98.0.0/24, interface: eth2, address: 10.98.0.1, prefix6: 'fd00::/64'}]\n", "f.yaml:5: boot.subnets[0].prefix6 is for networks", "address6"},
		{"IPv6 network with host bits", boot + "  subnets: [{prefix: 10.98.0.0/24, router: 10.98.0.1, prefix6: 'fd00::1/64'}]\n", "f.yaml:5: boot.subnets[0].prefix6 fd00::1/64 is not", ""},
		{"no host's IPv6 address", boot + "  address6: fd00::/64\n", "f.yaml:5: boot.address6 fd00::/64 is the address of the network", ""},
		{"IPv4 as IPv6", boot + "  address6: 10.99.0.1/24\n", "f.yaml:5: boot.address6 10.99.0.1/24 is not", "fd00:98::1/64"},
		{"link-local", boot + "  address6: fe80::1/64\n", "f.yaml:5: boot.address6 fe80::1/64 is link-local", ""},
		{"small IPv6 network", boot + "  address6: fd00::1/112\n", "f.yaml:5: boot.address6", ""},
		{"subnets of nothing", "boot:\n  subnets: [{prefix: 10.98.0.0/24}]\n", "f.yaml: boot.interface is missing", ""},
		{"subnet without prefix", boot + "  subnets:\n  - router: 10.98.0.1\n", "f.yaml: boot.subnets[0].prefix is missing", "10.98.0.0/24"},
		{"subnet without router", boot + "  subnets:\n  - prefix: 10.98.0.0/24\n", "boot.subnets[0].router is missing", "relay"},
		{"subnet with host bits", boot + "  subnets: [{prefix: 10.98.0.1/24, router: 10.98.0.1}]\n", "f.yaml:5: boot.subnets[0].prefix 10.98.0.1/24 is not", ""},
		{"subnets overlap", boot + "  subnets:\n  - {prefix: 10.98.0.0/24, router: 10.98.0.1}\n  - {prefix: 10.99.0.128/25, router: 10.99.0.129}\n", "f.yaml:7: boot.subnets[1].prefix 10.99.0.128/25 overlaps 10.99.0.0/24", "overlap"},
		{"subnet's address without interface", boot + "  subnets: [{prefix: 10.98.0.0/24, address: 10.98.0.2}]\n", "f.yaml:5: boot.subnets[0].address", "without an interface"},
		{"subnet's interface without address", boot + "  subnets: [{prefix: 10.98.0.0/24, interface: eth2}]\n", "boot.subnets[0].address", ""},
		{"subnet's bad interface", boot + "  subnets: [{prefix: 10.98.0.0/24, interface: 'a b', address: 10.98.0.2}]\n", `f.yaml:5: boot.subnets[0].interface "a b"`, "ip link"},
		{"unknown key of a subnet", boot + "  subnets: [{prefx: 10.98.0.0/24}]\n", "f.yaml:5: unknown key boot.subnets[0].prefx", "did you mean boot.subnets[0].prefix?"},
		{"secure boot", boot + "  secure_boot: on\n", `f.yaml:5: boot.secure_boot "on" is no way`, "shim"},
		{"classes of nothing", boot + "  secure_boot_classes: [h100]\n", "f.yaml:5: boot.secure_boot_classes names classes", "shim"},
		{"loader", boot + "  loaders: {x64: '..'}\n", `f.yaml:5: boot.loaders.x64 ".." is not`, "loader_dir"},
		{"loader of what", boot + "  loaders: {x86: a}\n", "f.yaml:5: unknown key boot.loaders.x86", ""},
		{"other servers", boot + "  other_dhcp_servers: ['fd00::1']\n", "f.yaml:5: boot.other_dhcp_servers[0] fd00::1 is not", "option 54"},
		{"half an edge", "edge:\n  uplink: eth0\n", `f.yaml: edge.downlink "" is not`, "both"},
		{"edge of one device", "edge: {uplink: eth0, downlink: eth0}\n", "f.yaml:1: edge.downlink is the same device", ""},
		{"edge of two boxes", "edge: {name: e1, address: \"10.0.0.1:8444\", uplink: eth0}\n", "f.yaml:1: edge.address is of another box", "docs/edge.yaml"},
		{"edge without name", "edge: {address: \"10.0.0.1:8444\"}\n", `edge.name "" is not the name of an edge`, "bareyard edge issue"},
		{"edge without port", "edge: {name: e1, address: 10.0.0.1}\n", `f.yaml:1: edge.address "10.0.0.1" is not host:port`, "8444"},
		{"edge's capacity", "edge: {capacity: 10G}\n", `f.yaml:1: edge.capacity: "10G" is no bandwidth`, ""},
		{"BGP without AS", "edge:\n  uplink: a\n  downlink: b\n  bgp: {ranges: [203.0.113.0/24]}\n", "edge.bgp.asn is missing", ""},
		{"BGP's AS", "edge: {bgp: {asn: AS65001}}\n", `f.yaml:1: edge.bgp.asn: "AS65001" is no AS number`, ""},
		{"BGP to nobody", "edge:\n  uplink: a\n  downlink: b\n  bgp:\n    asn: 65001\n    router_id: 192.0.2.1\n    ranges: [203.0.113.0/24]\n    neighbors: []\n", "f.yaml:8: edge.bgp.neighbors is not right: there is nobody", "at least one"},
		{"BGP announces", "edge:\n  uplink: a\n  downlink: b\n  bgp:\n    asn: 65001\n    neighbors: [{address: 192.0.2.1, asn: 1, announce: all}]\n", `edge.bgp.neighbors[0].announce "all" is nothing`, "hosts"},
		{"no-export", "edge:\n  uplink: a\n  downlink: b\n  bgp: {asn: 65001, router_id: 192.0.2.1, ranges: [203.0.113.0/24], blackhole_communities: [\"65535:65281\"], neighbors: [{address: 192.0.2.1, asn: 1}]}\n", "f.yaml:4: edge.bgp.blackhole_communities is not right: 65535:65281 is reserved", "leave them out"},
		{"driver", "edge: {driver: cisco}\n", `f.yaml:1: edge.driver "cisco" is no driver`, "manual"},
		{"manual and more", "edge: {driver: manual, uplink: a, downlink: b}\n", "f.yaml:1: edge.driver is manual, beside", "one or the other"},
		{"switch without name", "switches:\n- {dialect: manual}\n", `switches[0].name "" is not the name of a switch`, "NAME:PORT"},
		{"switch twice", "switches:\n- {name: a, dialect: manual}\n- {name: a, dialect: manual}\n", `f.yaml:3: switches[1].name "a" is there twice`, "keep one"},
		{"switch of no use", "switches:\n- {name: a, address: 10.0.0.1}\n", "switches[0].dialect is missing", "manual"},
		{"dialect", "switches:\n- {name: a, address: 10.0.0.1, dialect: junos, user: u, password_file: f, known_hosts: k}\n", `f.yaml:2: switches[0].dialect is not right: "junos"`, "huawei"},
		{"no host key", "switches:\n- {name: a, address: 10.0.0.1, dialect: h3c, user: u, password_file: f}\n", "switches[0].known_hosts is not right", "ssh-keyscan"},
		{"no SNMP password", "switches:\n- {name: a, address: 10.0.0.1, snmp: {user: u}}\n", "switches[0].snmp.auth_file is missing", ""},
		{"algorithms", "switches:\n- {name: a, address: 10.0.0.1, dialect: manual, algorithms: weak}\n", `f.yaml:2: switches[0].algorithms "weak"`, "legacy"},
		{"site without edge", "edges:\n- site: a\n", "edges[0].edge is missing", "uplink"},
		{"edge without site", "edges:\n- edge: {uplink: a, downlink: b}\n", "edges[0].site is missing", "name the site"},
		{"site twice", "edges:\n- {site: a, edge: {uplink: a, downlink: b}}\n- {site: a, edge: {uplink: a, downlink: b}}\n", `f.yaml:3: edges[1].site "a" has an edge already`, "keep one"},
		{"site's edge", "edges:\n- {site: a, edge: {uplink: a, downlink: a}}\n", "f.yaml:2: edges[0].edge.downlink is the same device", ""},
		{"level", "log_level: loud\n", `f.yaml:1: log_level "loud"`, "debug, info"},
		{"listen", "api_listen: 8443\n", `f.yaml:1: api_listen "8443" is not host:port`, ":8443"},
		{"socket", "socket: /" + strings.Repeat("x", 107) + "\n", "f.yaml:1: socket is 108 bytes long", "shorter"},
		{"database", "database_url: mysql://u:secret@h/db\n", "f.yaml:1: database_url is not a PostgreSQL URL", "postgres://"},
		{"database broken", "database_url: \"postgres://u:secret@h:port/db\"\n", "f.yaml:1: database_url is not a PostgreSQL URL", "postgres://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseConfig("f.yaml", []byte(c.text))
			var e *machine.Error
			if !errors.As(err, &e) || e.Code != machine.Invalid {
				t.Fatalf("got %v, want an Invalid error", err)
			}
			if !strings.Contains(e.Message, c.message) || !strings.Contains(e.Hint, c.hint) {
				t.Errorf("got %q, hint %q\nwant %q, hint %q", e.Message, e.Hint, c.message, c.hint)
			}
			if strings.Contains(e.Message+e.Hint, "secret") {
				t.Errorf("the error shows the password: %s %s", e.Message, e.Hint)
			}
		})
	}
}

func FuzzConfig(f *testing.F) {
	text, err := os.ReadFile(reference)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("a: &a {b: *a}\n"))
	f.Add([]byte("boot: &b {interface: x}\nedge: *b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig("f.yaml", text)
		if err != nil {
			return
		}
		if _, problem, _ := c.problem(); problem != "" {
			t.Errorf("accepted, but: %s", problem)
		}
	})
}
