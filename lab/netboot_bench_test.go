package lab

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/lab/load"
)

// bareyard starts the real server on the files of a bench.
func bareyard(t *testing.T, s *segment, machines int, files string) {
	s.provision(t, machines, false, map[string]any{"loader_dir": files,
		"kernel": filepath.Join(files, "vmlinuz"), "ramdisk": filepath.Join(files, "boot", "ramdisk")})
}

const (
	benchRounds   = 5
	benchMachines = 1000
	benchLoaders  = 16        // machines that get a file by TFTP at the same time
	benchStorm    = 500       // machines
	benchLoader   = 8 << 20   // bytes: what comes by TFTP
	benchRAMDisk  = 256 << 20 // bytes: what comes by HTTP
)

// contest is one figure that several servers are compared by.
type contest struct {
	name  string
	unit  string
	spec  load.Spec
	value func(load.Result) float64
	peers []string
}

// TestBenchNetboot compares bareyard serve with other boot servers, each at the other end of a cable of its own, all asked by the
// same program. They take turns, so that whatever else the box does falls on all of them, and the median of the turns counts. It judges
// nothing: a figure on a shared machine means little, a ratio from one run means something.
func TestBenchNetboot(t *testing.T) {
	if os.Getenv("BAREYARD_BENCH") == "" {
		t.Skip("measures boot servers: run make bench-netboot")
	}
	files := benchFiles(t)
	servers := map[string]*segment{}
	for name, start := range map[string]func(*testing.T, *segment, int, string){
		"ours": bareyard, "dnsmasq": dnsmasq, "kea": kea, "tftpd-hpa": tftpdHPA, "nginx": nginx,
	} {
		s := newSegment(t, "b"+name[:1], benchLoaders)
		start(t, s, benchMachines, files)
		servers[name] = s
	}
	perSecond := func(r load.Result) float64 { return r.Rate() }
	megabytes := func(r load.Result) float64 { return r.Throughput() / 1e6 }
	gigabytes := func(r load.Result) float64 { return r.Throughput() / 1e9 }
	tftp := load.Spec{Kind: load.TFTP, File: "large.efi", Parallel: benchLoaders, For: 2 * time.Second}
	t512, t1468 := tftp, tftp
	t1468.Block = 1468
	for _, c := range []contest{
		{"dhcp", "exchanges/s", load.Spec{Kind: load.DHCP, Parallel: 64, Count: benchMachines, For: 2 * time.Second}, perSecond, []string{"dnsmasq", "kea"}},
		{"tftp-512", "MB/s", t512, megabytes, []string{"tftpd-hpa", "dnsmasq"}},
		{"tftp-1468", "MB/s", t1468, megabytes, []string{"tftpd-hpa", "dnsmasq"}},
		{"http", "GB/s", load.Spec{Kind: load.HTTP, File: "/boot/ramdisk", Port: segmentHTTP, Parallel: 8, For: 3 * time.Second}, gigabytes, []string{"nginx"}},
	} {
		if only := os.Getenv("BAREYARD_BENCH_ONLY"); only == "" || strings.HasPrefix(c.name, only) {
			c.run(t, servers)
		}
	}
	if only := os.Getenv("BAREYARD_BENCH_ONLY"); only == "" || only == "storm" {
		s := storming(t, "x", benchStorm)
		before := s.memory(t)
		fmt.Println(stormLine(s.storm(t, benchStorm), benchStorm))
		fmt.Println(floodLine(s.flood(t, benchStorm)))
		fmt.Printf("  %-10s memory of ours %d MB before, %d MB after\n", "storm", before>>20, s.memory(t)>>20)
	}
}

// run has the servers take turns and prints what came of it.
func (c contest) run(t *testing.T, servers map[string]*segment) {
	names := append([]string{"ours"}, c.peers...)
	values := map[string][]float64{}
	costs := map[string][]float64{}
	for _, name := range names { // everybody is warm, and up
		awaitLoad(t, servers[name], c.spec)
	}
	before := servers["ours"].memory(t)
	for range benchRounds {
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			s := servers[name]
			cpu := s.cpu(t)
			r := s.load(t, c.spec)
			values[name] = append(values[name], c.value(r))
			costs[name] = append(costs[name], (s.cpu(t)-cpu).Seconds()/r.Took.Seconds())
			if testing.Verbose() {
				fmt.Printf("    %s %s: %.4g %s, %d repeats, answers %v/%v/%v\n", c.name, name, c.value(r), c.unit, r.Repeats, r.DHCPMedian, r.DHCPTail, r.DHCPWorst)
			}
		}
	}
	for _, name := range append([]string{"ours"}, c.peers...) {
		value, cores := median(values[name]), median(costs[name])
		cost := fmt.Sprintf("%.2f cores, %.4g %s of one", cores, value/cores, c.unit)
		if name == "tftpd-hpa" {
			cost = "in processes that are gone when it is counted"
		}
		fmt.Printf("  %-10s %-10s %10.4g %s (%.4g to %.4g), %s\n", c.name, name, value, c.unit, slices.Min(values[name]), slices.Max(values[name]), cost)
	}
	fmt.Printf("  %-10s memory of ours %d MB before, %d MB after\n", c.name, before>>20, servers["ours"].memory(t)>>20)
	for _, name := range c.peers {
		fmt.Printf("ratio %s %s %.2f\n", c.name, name, median(values["ours"])/median(values[name]))
	}
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// awaitLoad carries out a short load until it succeeds: servers tell nobody when they are up.
func awaitLoad(t *testing.T, s *segment, spec load.Spec) {
	t.Helper()
	spec.For = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), yardPatience)
	defer cancel()
	for {
		r, err := s.tryLoad(ctx, spec)
		if err == nil && cmp.Or(int64(r.Done), r.Bytes) > 0 {
			return
		}
		if !s.server.running() {
			t.Fatalf("the server has ended: %v\n%s", s.server.err, tail(s.log(), 2000))
		}
		if !pause(ctx, 200*time.Millisecond) {
			t.Fatalf("the server does not serve %s: %v", spec.Kind, err)
		}
	}
}

// memory is the resident memory of the server, bytes.
func (s *segment) memory(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.server.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// cpu is the time that the server and its children have used.
func (s *segment) cpu(t *testing.T) (total time.Duration) {
	t.Helper()
	pids, err := inside(s.net.path(Mgmt))
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // gone
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		for _, f := range fields[11:15] {
			ticks, _ := strconv.Atoi(f)
			total += time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go knows
		}
	}
	return total
}

// benchFiles are what the servers of a bench serve.
func benchFiles(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "by-files-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o755))
	must(os.Mkdir(filepath.Join(dir, "boot"), 0o755))
	noise := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	for name, size := range map[string]int{"undionly.kpxe": 74 << 10, "snponly.efi": 174 << 10, "vmlinuz": 1 << 20, "large.efi": benchLoader, "boot/ramdisk": benchRAMDisk} {
		f, err := os.Create(filepath.Join(dir, name))
		must(err)
		for size > 0 {
			n, err := f.Write(noise[:min(size, len(noise))])
			must(err)
			size -= n
		}
		must(f.Close())
	}
	return dir
}
