package lab

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/lab/load"
)

// Other people's boot servers, from Debian, each configured to do for the machines of a segment what bareyard serve does for them.
// Where an option makes a peer quicker and costs it nothing here, it is set: nobody pings an address before it is offered, and no lease
// is written down, since every address is reserved.

const leaseSeconds = 3600

func dnsmasq(t *testing.T, s *segment, machines int, files string) {
	var hosts strings.Builder
	of := load.Spec{First: segmentFirst}
	for n := range machines {
		fmt.Fprintf(&hosts, "%s,%s,n%d\n", hardware(n), of.Addr(n), n)
	}
	s.serve(t, nil, "/usr/sbin/dnsmasq", "--keep-in-foreground", "--conf-file="+s.write(t, "dnsmasq.conf", fmt.Appendf(nil, `port=0
interface=prov0
bind-interfaces
user=root
pid-file=
log-facility=/dev/null
quiet-dhcp
no-ping
leasefile-ro
dhcp-lease-max=10000
dhcp-authoritative
dhcp-range=%s,static,255.255.240.0,%d
dhcp-hostsfile=%s
dhcp-userclass=set:ipxe,iPXE
dhcp-match=set:efi,option:client-arch,7
dhcp-boot=tag:ipxe,http://%s/boot/ipxe/script.ipxe
dhcp-boot=tag:!ipxe,tag:efi,snponly.efi
enable-tftp
tftp-max=1000
tftp-root=%s
`, segmentNet.Addr(), leaseSeconds, s.write(t, "hosts", []byte(hosts.String())), Controller, files)))
}

func kea(t *testing.T, s *segment, machines int, _ string) {
	type object map[string]any
	var reservations []object
	of := load.Spec{First: segmentFirst}
	for n := range machines {
		reservations = append(reservations, object{"hw-address": hardware(n), "ip-address": of.Addr(n).String(), "hostname": fmt.Sprintf("n%d", n)})
	}
	config, err := json.Marshal(object{"Dhcp4": object{
		"interfaces-config":            object{"interfaces": []string{"prov0"}, "dhcp-socket-type": "raw"},
		"lease-database":               object{"type": "memfile", "persist": false},
		"multi-threading":              object{"enable-multi-threading": true},
		"host-reservation-identifiers": []string{"hw-address"},
		"reservations-in-subnet":       true,
		"reservations-out-of-pool":     true,
		"authoritative":                true,
		"valid-lifetime":               leaseSeconds,
		"client-classes": []object{
			{"name": "ipxe", "test": "option[77].text == 'iPXE'", "boot-file-name": "http://" + Controller.String() + "/boot/ipxe/script.ipxe"},
			{"name": "efi", "test": "not member('ipxe') and option[93].hex == 0x0007", "boot-file-name": "snponly.efi"},
		},
		"subnet4": []object{{"subnet": segmentNet.String(), "next-server": Controller.String(), "reservations": reservations}},
		"loggers": []object{{"name": "kea-dhcp4", "severity": "ERROR", "output_options": []object{{"output": "stderr"}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"KEA_PIDFILE_DIR=" + s.dir, "KEA_LOCKFILE_DIR=" + s.dir, "KEA_LOGGER_DESTINATION=stderr"}
	s.serve(t, env, "/usr/sbin/kea-dhcp4", "-c", s.write(t, "kea.json", config))
}

func tftpdHPA(t *testing.T, s *segment, _ int, files string) {
	s.serve(t, nil, "/usr/sbin/in.tftpd", "--foreground", "--address", Controller.String()+":69", "--user", "root", "--secure", files)
}

func nginx(t *testing.T, s *segment, _ int, files string) {
	for _, dir := range []string{"body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		if err := os.Mkdir(filepath.Join(s.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.serve(t, nil, "/usr/sbin/nginx", "-e", s.log(), "-c", s.write(t, "nginx.conf", fmt.Appendf(nil, `daemon off;
user root;
worker_processes auto;
pid %[1]s/nginx.pid;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	sendfile on;
	tcp_nopush on;
	keepalive_requests 1000000;
	server {
		listen %[2]s:%[3]d;
		root %[4]s;
	}
}
`, s.dir, Controller, segmentHTTP, files)))
}

func hardware(n int) string {
	mac := load.MAC(n)
	return net.HardwareAddr(mac[:]).String()
}
