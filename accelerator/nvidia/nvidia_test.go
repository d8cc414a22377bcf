package nvidia

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// The test binary is its own probe, as bareyard-validate is. Some arguments make it a probe that misbehaves.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProbeArg {
		switch os.Getenv("TEST_PROBE") {
		case "sleep": // with a child of its own that holds every descriptor, both deaf to SIGTERM
			exec.Command("sh", "-c", "trap '' TERM; sleep 600 & echo $! >$TEST_PID; sleep 600").Run()
		case "chatter":
			line := strings.Repeat("!", 1023) + "\n"
			for range 1 << 20 {
				os.Stdout.WriteString(line)
			}
		case "answers":
			f := os.NewFile(3, "")
			for range 1 << 20 {
				f.WriteString(`{"during":"x"}` + "\n")
			}
		case "garbage":
			os.NewFile(3, "").WriteString("\x00ERR!")
		case "silence":
		default:
			os.Exit(Probe(os.Args[2:]))
		}
		os.Exit(0)
	}
	code := m.Run()
	for _, dir := range built {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

var built = map[string]string{} // folders of stand-in libraries by compiler flags; tests here do not run in parallel

// build returns a folder with the stand-in library.
func build(t *testing.T, cflags ...string) string {
	t.Helper()
	key := strings.Join(cflags, " ")
	if built[key] == "" {
		dir, err := os.MkdirTemp("", "mocknvml-")
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("sh", append([]string{"../../lab/mocknvml/build.sh", dir}, cflags...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("build the stand-in library (needs gcc and perl): %v\n%s", err, out)
		}
		built[key] = dir
	}
	return built[key]
}

// mock builds the stand-in library and shows it n cards of a kind on a fake bus; faults are in the words of mocknvml.c.
func mock(t *testing.T, n int, device, faults string, cflags ...string) (Reader, accelerator.Bus) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", build(t, cflags...))
	t.Setenv("MOCK_NVML_SYSFS", filepath.Join(dir, "sys"))
	t.Setenv("MOCK_NVML_FAULTS", filepath.Join(dir, "faults"))
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("faults", faults)
	write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n")
	for i := range n {
		d := fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/", 0xa+i)
		write(d+"vendor", "0x10de\n")
		write(d+"device", "0x"+device+"\n")
		write(d+"class", "0x030200\n")
		write(d+"config", "\xde\x10\x00\x00")
	}
	return Reader{Deadline: 20 * time.Second, Parallel: 2}, accelerator.ReadPCI(accelerator.Roots{Sys: filepath.Join(dir, "sys")})
}

func TestRead(t *testing.T) {
	r, bus := mock(t, 8, "2329", "")
	d := r.Read(t.Context(), bus)
	if d.Fault != nil || d.Version.Value != "570.86.15" || d.Count.Value != 8 || len(d.Cards) != 8 {
		t.Fatalf("%+v", d)
	}
	for i, c := range d.Cards {
		if c.Fault != nil {
			t.Fatalf("card %d: %v", i, c.Fault)
		}
		want := accelerator.Card{
			Index: i, Slot: fmt.Sprintf("0000:%02x:00.0", 0xa+i), Name: str("NVIDIA H20"), Serial: str(fmt.Sprintf("165012400%04d", i)),
			UUID: str(fmt.Sprintf("GPU-00000000-0000-4000-8000-00002329%04x", i)), VBIOS: str("98.02.2e.00.01"), ID: str("10de:2329"),
			Memory: num(97871<<20, "bytes"), ECC: yes(true), ECCPending: yes(true), Uncorrected: num(0, ""), UncorrectedEver: num(0, ""),
			RemapPending: yes(false), RemapFailed: yes(false), RemappedRows: num(0, ""), Recovery: str("none"), MIG: yes(false),
			ComputeMode: str("default"), LinkGen: num(1, ""), LinkWidth: num(16, ""), MaxGen: num(5, ""), MaxWidth: num(16, ""),
			Temperature: num(int64(31+i%4), "°C"), Power: num(21, "W"), PowerLimit: num(500, "W"), PowerDefault: num(500, "W"),
			Board: str("900-MOCK-0000-000"), Firmware: str("570.86.15"), InfoROM: yes(true), Corrected: num(0, ""), Banks: num(0, ""),
			Persistence: yes(true), Processes: num(0, ""), Replays: num(0, ""), Slowdown: num(90, "°C"), Fabric: accelerator.Unsupported[string]("nvml"),
		}
		if d := cmp.Diff(want, c); d != "" {
			t.Errorf("card %d: %s", i, d)
		}
	}
}

func str(s string) accelerator.Value[string] { return accelerator.Measured(s, "", "nvml") }
func yes(b bool) accelerator.Value[bool]     { return accelerator.Measured(b, "", "nvml") }
func num(n int64, unit string) accelerator.Value[int64] {
	return accelerator.Measured(n, unit, "nvml")
}

func TestReadWhatACardHasNot(t *testing.T) {
	r, bus := mock(t, 1, "2b85", "* link15")
	c := r.Read(t.Context(), bus).Cards[0]
	if c.Fault != nil || c.ECC.Supported || c.Serial.Supported || c.RemapFailed.Supported || c.MIG.Supported || c.Uncorrected.Supported {
		t.Errorf("%+v", c)
	}
	// H03: registers that read all ones are no link of generation 15.
	if c.LinkGen.Known() || c.LinkWidth.Known() || !c.MaxGen.Known() {
		t.Errorf("link: %+v %+v", c.LinkGen, c.LinkWidth)
	}
}

// One card in trouble, the others complete, whatever the trouble is.
func TestH03OneCardInTrouble(t *testing.T) {
	cases := []struct {
		faults string
		kind   accelerator.FaultKind
		during string
	}{
		{"0000:0d:00.0 lost", accelerator.FaultLost, "nvmlDeviceGetHandleByIndex_v2"},
		{"0000:0d:00.0 handle 15", accelerator.FaultLost, "nvmlDeviceGetHandleByIndex_v2"},
		{"0000:0d:00.0 handle 999", accelerator.FaultRefused, "nvmlDeviceGetHandleByIndex_v2"},
		{"0000:0d:00.0 crash nvmlDeviceGetMemoryInfo", accelerator.FaultCrash, "nvmlDeviceGetMemoryInfo"},
		{"0000:0d:00.0 hang nvmlDeviceGetRemappedRows", accelerator.FaultHang, "nvmlDeviceGetRemappedRows"},
	}
	for _, c := range cases {
		t.Run(c.faults, func(t *testing.T) {
			r, bus := mock(t, 5, "2329", c.faults)
			r.Deadline, r.Parallel = 12*time.Second, 5 // only the hang takes it; the others need time on a busy machine
			d := r.Read(t.Context(), bus)
			if d.Fault != nil || len(d.Cards) != 5 {
				t.Fatalf("%+v", d)
			}
			for i, k := range d.Cards {
				if i != 3 && (k.Fault != nil || !k.Memory.Known()) {
					t.Errorf("card %d is drawn in: %v", i, k.Fault)
				}
			}
			bad := d.Cards[3]
			if bad.Fault == nil || bad.Fault.Kind != c.kind || bad.Fault.During != c.during || bad.Slot != "0000:0d:00.0" {
				t.Fatalf("card 3 in %q: %v", bad.Slot, bad.Fault)
			}
			if c.kind == accelerator.FaultCrash && (bad.Name.Value != "NVIDIA H20" || !strings.Contains(bad.Fault.Detail, "SIGSEGV")) {
				t.Errorf("what was read before the crash: %+v, %s", bad.Name, bad.Fault.Detail)
			}
			rep := accelerator.Judge(accelerator.Facts{PCI: bus, Driver: []accelerator.Driver{d}, Log: accelerator.KernelLog{Records: 1}}, machine.Expect{CardID: "10de:2329", Count: 5}, accelerator.Rules{})
			if !rep.Blocks() || rep.Cards[3].Outcome != accelerator.Fail || rep.Cards[2].Outcome != accelerator.Pass {
				t.Errorf("report: %s; card 2 %s, card 3 %s", rep.Reason(), rep.Cards[2].Outcome, rep.Cards[3].Outcome)
			}
		})
	}

	t.Run("the driver counts one less", func(t *testing.T) {
		r, bus := mock(t, 5, "2329", "0000:0d:00.0 vanish")
		if d := r.Read(t.Context(), bus); d.Count.Value != 4 || len(d.Cards) != 4 || d.Cards[3].Slot != "0000:0e:00.0" {
			t.Errorf("%+v", d)
		}
	})
}

func TestDriverInTrouble(t *testing.T) {
	cases := []struct {
		name, faults string
		cflags       []string
		kind         accelerator.FaultKind
		detail       string
	}{
		{"refuses", "* init 9", nil, accelerator.FaultRefused, "the kernel driver is not loaded"},
		{"versions", "* init 18", nil, accelerator.FaultRefused, "different versions"},
		{"crashes", "* crash nvmlInit_v2", nil, accelerator.FaultCrash, "SIGSEGV"},
		{"hangs", "* hang nvmlSystemGetDriverVersion", nil, accelerator.FaultHang, "no answer in 2s"},
		{"talks without end", "* chatter", nil, accelerator.FaultProbe, "says more than it should"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, bus := mock(t, 2, "2329", c.faults, c.cflags...)
			if c.name == "hangs" {
				r.Deadline = 2 * time.Second
			}
			d := r.Read(t.Context(), bus)
			if d.Fault == nil || d.Fault.Kind != c.kind || !strings.Contains(d.Fault.Detail, c.detail) {
				t.Errorf("%v, want %s: %s", d.Fault, c.kind, c.detail)
			}
		})
	}
}

func TestLibraries(t *testing.T) {
	t.Run("absent", func(t *testing.T) {
		d := Reader{Library: filepath.Join(t.TempDir(), "libnvidia-ml.so.1")}.Read(t.Context(), accelerator.Bus{})
		if d.Fault == nil || d.Fault.Kind != accelerator.FaultAbsent {
			t.Errorf("%v", d.Fault)
		}
	})
	t.Run("not a library", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
		if err := os.WriteFile(path, []byte("ERR!"), 0o644); err != nil {
			t.Fatal(err)
		}
		d := Reader{Library: path}.Read(t.Context(), accelerator.Bus{})
		if d.Fault == nil || d.Fault.Kind != accelerator.FaultRefused {
			t.Errorf("%v", d.Fault)
		}
	})
	t.Run("another library", func(t *testing.T) { // one that NVML's functions are missing from, all of them
		d := Reader{Library: "libm.so.6"}.Read(t.Context(), accelerator.Bus{})
		if d.Fault == nil || d.Fault.Kind != accelerator.FaultSymbol {
			t.Errorf("%v", d.Fault)
		}
	})
	t.Run("an old one", func(t *testing.T) { // without a function that came later
		r, bus := mock(t, 1, "2329", "", "-DNO_REMAPPED_ROWS")
		c := r.Read(t.Context(), bus).Cards[0]
		if c.Fault != nil || c.RemapFailed.Supported || !c.MaxWidth.Known() {
			t.Errorf("%+v", c)
		}
	})
	t.Run("without a function that is needed", func(t *testing.T) {
		r, bus := mock(t, 1, "2329", "", "-DNO_HANDLE")
		c := r.Read(t.Context(), bus).Cards[0]
		if c.Fault == nil || c.Fault.Kind != accelerator.FaultSymbol || c.Slot != "0000:0a:00.0" {
			t.Errorf("%s: %v", c.Slot, c.Fault)
		}
	})
	t.Run("half of one", func(t *testing.T) { // calls what is nowhere: the loader ends the process with status 127
		r, bus := mock(t, 1, "2329", "", "-DUNDEFINED")
		c := r.Read(t.Context(), bus).Cards[0]
		if c.Fault == nil || c.Fault.Kind != accelerator.FaultSymbol || c.Fault.During != "nvmlDeviceGetMaxPcieLinkWidth" || !strings.Contains(c.Fault.Detail, "mocknvml_missing_half") {
			t.Errorf("%v", c.Fault)
		}
		if c.Name.Value != "NVIDIA H20" {
			t.Errorf("what was read before is lost: %+v", c)
		}
	})
}

// A probe that sleeps for ever and ignores SIGTERM goes, and what it started goes with it; one that prints a gigabyte is stopped.
func TestH11ProbesThatMisbehave(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	t.Setenv("TEST_PID", pidFile)
	cases := []struct {
		does   string
		kind   accelerator.FaultKind
		detail string
	}{
		{"sleep", accelerator.FaultHang, "no answer in 2s"},
		{"chatter", accelerator.FaultProbe, "says more than it should"},
		{"answers", accelerator.FaultProbe, "says more than it should"},
		{"garbage", accelerator.FaultProbe, "without an answer"},
		{"silence", accelerator.FaultProbe, "without an answer"},
	}
	for _, c := range cases {
		t.Run(c.does, func(t *testing.T) {
			t.Setenv("TEST_PROBE", c.does)
			start := time.Now()
			r := Reader{Deadline: 20 * time.Second}
			if c.does == "sleep" {
				r.Deadline = 2 * time.Second
			}
			d := r.Read(t.Context(), accelerator.Bus{})
			if d.Fault == nil || d.Fault.Kind != c.kind || !strings.Contains(d.Fault.Detail, c.detail) {
				t.Errorf("%v, want %s: %s", d.Fault, c.kind, c.detail)
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(data), &pid)
	for deadline := time.Now().Add(5 * time.Second); ; {
		if state := processState(pid); syscall.Kill(pid, 0) != nil || state == "Z" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the probe's own child %d is still there", pid)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestCancel(t *testing.T) {
	t.Setenv("TEST_PROBE", "sleep")
	t.Setenv("TEST_PID", filepath.Join(t.TempDir(), "pid"))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	d := Reader{}.Read(ctx, accelerator.Bus{})
	if d.Fault == nil || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %v", d.Fault, time.Since(start))
	}
}

func TestPlaceGuessesNothing(t *testing.T) {
	bus := accelerator.Bus{Cards: []accelerator.PCICard{{Slot: "a", Vendor: Vendor}, {Slot: "b", Vendor: Vendor}, {Slot: "c", Vendor: "1002"}, {Slot: "d", Vendor: Vendor}}}
	cards := []accelerator.Card{{Slot: "a"}, {}, {}}
	if place(cards, bus); cards[1].Slot != "b" || cards[2].Slot != "d" {
		t.Errorf("%v", cards)
	}
	cards = []accelerator.Card{{Slot: "a"}, {}}
	if place(cards, bus); cards[1].Slot != "" {
		t.Errorf("guessed %q", cards[1].Slot)
	}
}

// processState returns the state letter of a process.
func processState(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return after[:min(1, len(after))]
}

// What the driver says of a card in trouble comes through, each in its place.
func TestReadTrouble(t *testing.T) {
	r, bus := mock(t, 2, "2330", "0000:0b:00.0 inforom;0000:0b:00.0 banks 2;0000:0b:00.0 process 3;0000:0b:00.0 persistence-off;0000:0b:00.0 cap 350;"+
		"0000:0b:00.0 replay 99;* nvlinks 18;0000:0b:00.0 nvlink-down 7;0000:0b:00.0 nvlink-errors 4;0000:0b:00.0 fabric 2")
	d := r.Read(t.Context(), bus)
	good, bad := d.Cards[0], d.Cards[1]
	if good.Fault != nil || len(good.Links) != 18 || !good.Links[7].Active.Value || good.Fabric.Value != "completed" || !good.InfoROM.Value {
		t.Errorf("%+v", good)
	}
	if bad.InfoROM.Value || bad.Banks.Value != 2 || bad.Processes.Value != 3 || bad.Persistence.Value || bad.PowerLimit.Value != 350 || bad.Replays.Value != 99 ||
		bad.Links[7].Active.Value || bad.Links[0].Errors.Value != 4 || bad.Fabric.Value != "in progress" {
		t.Errorf("%+v", bad)
	}
}

// A card is watched while it works, and the watch ends when it should.
func TestWatch(t *testing.T) {
	r, _ := mock(t, 2, "2330", "* busy;0000:0b:00.0 reasons 0x48;0000:0b:00.0 load-gen 2;0000:0b:00.0 temp 91")
	ctx, cancel := context.WithCancel(t.Context())
	w, n := accelerator.NewWatcher("0000:0b:00.0"), 0
	fault := r.Watch(ctx, "0000:0b:00.0", 5*time.Millisecond, func(s accelerator.Sample) {
		w.Add(s)
		if n++; n == 10 {
			cancel()
		}
	})
	s := w.Series()
	if fault != nil || s.Samples < 10 || s.Hottest != 91 || s.Gen.Median != 2 || s.Width.Median != 16 || s.Throttled[accelerator.ThrottleHeat] <= 0 || s.Throttled[accelerator.ThrottleHardware] > 0 {
		t.Errorf("%v %+v", fault, s)
	}
	r.Deadline = 500 * time.Millisecond
	if fault := r.Watch(t.Context(), "0000:ff:00.0", time.Second, func(accelerator.Sample) {}); fault == nil || fault.Kind != accelerator.FaultRefused {
		t.Errorf("a card that is not there: %v", fault)
	}
	r, _ = mock(t, 1, "2330", "* hang nvmlDeviceGetPowerUsage")
	r.Deadline = 500 * time.Millisecond
	if fault := r.Watch(t.Context(), "0000:0a:00.0", time.Millisecond, func(accelerator.Sample) {}); fault == nil || fault.Kind != accelerator.FaultHang {
		t.Errorf("a card that hangs: %v", fault)
	}
}

func TestReasons(t *testing.T) {
	for bits, want := range map[uint64][]accelerator.Throttle{
		0: nil, 1: nil, 2: nil, 4: {accelerator.ThrottlePower}, 8: {accelerator.ThrottleHardware}, 0x48: {accelerator.ThrottleHeat}, 0x88: {accelerator.ThrottleBrake}, 0x20: {accelerator.ThrottleSoftHeat},
	} {
		if d := cmp.Diff(want, reasons(bits)); d != "" {
			t.Errorf("%#x: %s", bits, d)
		}
	}
}
