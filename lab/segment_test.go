package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/lab/load"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// Addresses of a segment. Machine number n has segmentFirst + n.
var (
	segmentNet   = netip.MustParsePrefix("10.77.0.0/20")
	segmentUser  = netip.MustParseAddr("10.77.0.2") // of load that is no machine's
	segmentFirst = netip.MustParseAddr("10.77.1.0")
)

const segmentHTTP = 80

// segment is one cable with a boot server at one end and any number of machines at the other.
type segment struct {
	net     Network
	dir     string
	starter *starter
	server  *process
}

// newSegment lays the cable. At the machines' end the kernel knows the first machines addresses.
func newSegment(t *testing.T, suffix string, machines int) *segment {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run the tests of lab as root")
	}
	dir, err := os.MkdirTemp("", "by-segment-") // servers that drop their rights must get through, which t.TempDir forbids
	if err != nil {
		t.Fatal(err)
	}
	s := &segment{net: Network(fmt.Sprintf("t%d%s", os.Getpid(), suffix)), dir: dir, starter: newStarter()}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("last words of the server at %s:\n%s", s.net, tail(s.log(), 4000))
		}
		s.starter.close()
		for _, ns := range []string{Mgmt, Racks} {
			if err := removeNamespace(s.net.path(ns)); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(dir)
	})
	w := &wirer{at: map[string]*site{}}
	for _, ns := range []string{Mgmt, Racks} {
		w.do(ns, func() error {
			if err := createNamespace(s.net.path(ns), sysctls(ns)); err != nil {
				return err
			}
			site, err := openSite(s.net.path(ns))
			if err != nil {
				return err
			}
			t.Cleanup(site.close)
			w.at[ns] = site
			return site.up("lo")
		})
	}
	w.cable(Mgmt, "prov0", Racks, "rack0")
	w.address(Mgmt, "prov0", netip.PrefixFrom(Controller, segmentNet.Bits()))
	w.address(Racks, "rack0", netip.PrefixFrom(segmentUser, segmentNet.Bits()))
	of := load.Spec{First: segmentFirst}
	for n := range machines {
		w.address(Racks, "rack0", netip.PrefixFrom(of.Addr(n), segmentNet.Bits()))
	}
	if err := os.Chmod(dir, 0o755); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return s
}

func (s *segment) log() string { return filepath.Join(s.dir, "server.log") }

// write puts a file into the segment's folder and returns its path.
func (s *segment) write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts the server of the segment.
func (s *segment) serve(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := s.net.Command(context.Background(), Mgmt, program, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), env...)
	var err error
	if s.server, err = s.starter.start(cmd, s.log()); err != nil {
		t.Fatal(err)
	}
}

// stop ends the server, if there is one.
func (s *segment) stop() {
	if s.server != nil {
		s.server.terminate(stopGrace)
	}
}

// loadEnv makes the test program carry out a load.Spec, in the namespace where it was started.
const loadEnv = "BAREYARD_TEST_LOAD"

// load carries out a load at the machines' end, in a process of its own.
func (s *segment) load(t *testing.T, spec load.Spec) load.Result {
	t.Helper()
	r, err := s.tryLoad(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *segment) tryLoad(ctx context.Context, spec load.Spec) (r load.Result, err error) {
	spec.Interface, spec.Server, spec.First = "rack0", Controller, segmentFirst
	b, err := json.Marshal(spec)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, spec.For+time.Minute)
	defer cancel()
	cmd := s.net.Command(ctx, Racks, os.Args[0])
	cmd.Env = append(os.Environ(), loadEnv+"="+string(b))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("load of %s: %w\n%s", spec.Kind, err, said.String())
	}
	return r, json.Unmarshal(out, &r)
}

// runLoad is the test program as load started it.
func runLoad(ctx context.Context, text string) error {
	var spec load.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	r, err := load.Run(ctx, spec)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// provision starts the real server with so many machines in its database. booting says that each of them is waited for: its job is
// at the step hello.
func (s *segment) provision(t *testing.T, machines int, booting bool, boot map[string]any) {
	t.Helper()
	binary := realServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*yardPatience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cluster, err := postgres.StartCluster(ctx, filepath.Join(s.dir, "postgres"), nil)
	must(err)
	t.Cleanup(func() {
		s.stop()
		if err := cluster.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	data := filepath.Join(s.dir, "server")
	must(os.Mkdir(data, 0o755))
	seal, err := postgres.LoadSeal(filepath.Join(data, "secret.key"))
	must(err)
	db, err := postgres.Open(ctx, cluster.URL(), seal, nil, postgres.Tuning{})
	must(err)
	defer db.Close()
	must(fill(ctx, db, machines))
	if booting {
		must(powerOn(ctx, db, cluster.URL(), machines))
	}
	settings := map[string]any{"data_dir": data, "database_url": cluster.URL(), "api_listen": Controller.String() + ":" + apiPort,
		"validator": os.Args[0], "log_level": "warn", "boot": boot}
	boot["interface"], boot["address"], boot["prefix"], boot["http_port"] = "prov0", Controller.String(), segmentNet.String(), segmentHTTP
	config, err := yaml.Marshal(settings)
	must(err)
	s.serve(t, nil, binary, "serve", "--config", s.write(t, "serve.yaml", config))
	must(s.net.WaitServer(ctx))
}

// fill enrols machines whose provisioning ports are those of the load.
func fill(ctx context.Context, db *postgres.DB, machines int) error {
	if err := db.PutClass(ctx, machine.Class{Name: "lab", MonthlyPrice: 1, Currency: "CNY"}); err != nil {
		return err
	}
	if err := db.PutImage(ctx, machine.Image{Name: "tiny", Digest: strings.Repeat("ab", 32), Size: 1 << 20, DefaultUser: "debian", BIOS: true, UEFI: true}); err != nil {
		return err
	}
	if err := db.PutLine(ctx, network.Line{Name: "bgp", Site: "lab", MinBandwidth: 1, MaxBandwidth: 1000}, time.Hour); err != nil {
		return err
	}
	if _, err := db.AddAddresses(ctx, "bgp", netip.MustParsePrefix("198.18.0.0/22")); err != nil {
		return err
	}
	of := load.Spec{First: segmentFirst}
	for n := range machines {
		mac := load.MAC(n)
		_, err := db.Enroll(ctx, machine.Machine{
			Name: fmt.Sprintf("n%d", n), Site: "lab", Class: "lab", Firmware: machine.UEFI, BootAddr: of.Addr(n),
			BMC: machine.BMC{Protocol: "ipmi", Address: fmt.Sprintf("192.0.2.1:%d", 1000+n), Username: "admin"},
			Hardware: machine.Hardware{
				UUID: fmt.Sprintf("00112233-4455-6677-8899-0000%08x", n), Serial: fmt.Sprintf("SN%d", n),
				NICs: []machine.NIC{{MAC: net.HardwareAddr(mac[:]).String(), Role: machine.ProvisionNIC},
					{MAC: fmt.Sprintf("02:00:5f:%02x:%02x:%02x", mac[3], mac[4], mac[5]), Role: machine.PublicNIC}},
				Disks: []machine.Disk{{Serial: fmt.Sprintf("SYS%d", n), Size: 4 << 30, Role: machine.SystemDisk}},
			},
		}, "secret", true)
		if err != nil {
			return err
		}
	}
	return nil
}

// powerOn orders every machine and has each wait for the agent's hello. The way there is put aside: it is BMCs' work.
func powerOn(ctx context.Context, db *postgres.DB, url string, machines int) error {
	engine := &provisioner.Engine{Store: db, Shelf: db}
	for n := range machines {
		_, err := engine.Place(ctx, provisioner.Request{Project: "p", Class: "lab", Image: "tiny", Line: "bgp", Bandwidth: 100,
			SSHKeys: []string{yardKey}, Hostname: "host", Months: 1}, fmt.Sprintf("order-%d", n))
		if err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `DELETE FROM river_job`); err != nil {
		return err
	}
	tag, err := conn.Exec(ctx, `UPDATE job SET step = $1, step_at = now(), seen_at = now(), due = now() + interval '15 minutes'`, machine.StepHello)
	if err == nil && tag.RowsAffected() != int64(machines) {
		err = fmt.Errorf("%d jobs for %d machines", tag.RowsAffected(), machines)
	}
	return err
}
