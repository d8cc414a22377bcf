package ascend

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProbeArg {
		os.Exit(Probe(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func capture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tools makes a folder of pretended tools, each a shell script.
func tools(t *testing.T, scripts map[string]string) Reader {
	t.Helper()
	dir := t.TempDir()
	for name, body := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Reader{Tools: dir, Deadline: 20 * time.Second, Library: filepath.Join(dir, "libdcmi.so")}
}

func npuSMI(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return `case "$*" in
info) cat ` + dir + `/info.txt;;
*"-t board"*) cat ` + dir + `/board.txt;;
*"-t ecc-enable"*) echo "HBM ECC-Enable Status : True";;
*"-t ecc"*) cat ` + dir + `/ecc.txt;;
*) echo unknown >&2; exit 1;;
esac`
}

func TestParseInfo(t *testing.T) {
	o, err := parseInfo(capture(t, "info.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := []chip{
		{npu: "0", name: "910B2", health: "OK", power: "91.1", temperature: "49", chip: "0", bus: "0000:C1:00.0", memory: "65536"},
		{npu: "1", name: "910B2", health: "Warning", power: "96.6", temperature: "48", chip: "0", bus: "0000:01:00.0", memory: "65536", processes: 2},
		{npu: "2", name: "910B2", health: "ERR!", power: "ERR!", temperature: "ERR!", chip: "0", bus: "0000:C2:00.0", memory: "ERR!"},
	}
	if d := cmp.Diff(want, o.chips, cmp.AllowUnexported(chip{})); d != "" || o.version != "24.1.rc3" {
		t.Error(o.version, d)
	}
	for _, bad := range []string{"", "ERR!", "dcmi model initialized failed, because the device is used. ret is -8020", "| 0 | 0000:C1:00.0 | 0 |", strings.Repeat("| 0 x | OK | 1 2 |\n| 0 | 0000:C1:00.0 | 1 / 2 |\n", maxChips+1)} {
		if _, err := parseInfo(bad); err == nil {
			t.Errorf("%.40q was taken for a table", bad)
		}
	}
}

func TestRead(t *testing.T) {
	r := tools(t, map[string]string{"npu-smi": npuSMI(t), "hccn_tool": `case "$*" in *-link*) echo "link status: UP";; *) echo "net health status: Receive timeout";; esac`})
	d := r.Read(t.Context(), accelerator.Bus{})
	if d.Fault != nil || d.Count.Value != 3 || d.Version.Value != "24.1.rc3" {
		t.Fatalf("%+v", d)
	}
	k := d.Cards[0]
	if k.Fault != nil || k.Slot != "0000:c1:00.0" || k.Name.Value != "910B2" || k.Serial.Value != "1025A6785593" || k.ID.Value != "19e5:d802" || k.Memory.Value != 65536<<20 ||
		k.Uncorrected.Value != 0 || k.UncorrectedEver.Value != 2 || k.RemappedRows.Value != 1 || !k.ECC.Value || k.Health.Value != "OK" || k.NetLink.Value != "UP" || k.NetHealth.Value != "fault" {
		t.Errorf("%+v", k)
	}
	if d.Cards[1].Processes.Value != 2 {
		t.Errorf("%+v", d.Cards[1].Processes)
	}
	// ERR! is neither a number nor a health.
	if e := d.Cards[2]; e.Health.Known() || !e.Health.Supported || e.Memory.Known() || e.Temperature.Known() {
		t.Errorf("%+v", e)
	}
	bus := accelerator.Bus{}
	for _, k := range d.Cards {
		bus.Cards = append(bus.Cards, accelerator.PCICard{Slot: k.Slot, Vendor: Vendor, Device: "d802", Answers: accelerator.Measured(true, "", "sysfs")})
	}
	rep := accelerator.Judge(accelerator.Facts{PCI: bus, Driver: []accelerator.Driver{d}, Log: accelerator.KernelLog{Records: 1}, Host: accelerator.Host{Memory: accelerator.Measured(int64(1), "bytes", "proc"), Nouveau: accelerator.Measured(false, "", "x")}},
		machine.Expect{CardID: "19e5:d802", Count: 3}, accelerator.Rules{})
	for id, want := range map[string]accelerator.Outcome{"card.health": accelerator.Error, "card.memory": accelerator.Error, "card.ecc": accelerator.Warn, "card.mode": accelerator.Fail, "card.answers": accelerator.Pass} {
		i := slices.IndexFunc(rep.Checks, func(c accelerator.Check) bool { return c.ID == id })
		if rep.Checks[i].Outcome != want {
			t.Errorf("%s is %s: %s %v", id, rep.Checks[i].Outcome, rep.Checks[i].Summary, rep.Checks[i].Evidence)
		}
	}
}

// The vendor's tool hangs, is deaf to SIGTERM, prints a gigabyte, exits 0 with nothing.
func TestH11VendorTool(t *testing.T) {
	for _, c := range []struct {
		name, script string
		kind         accelerator.FaultKind
		detail       string
	}{
		{"sleeps", "sleep 600", accelerator.FaultHang, "no answer in 1s"},
		{"deaf to SIGTERM, with a child", "trap '' TERM; (trap '' TERM; sleep 600) & sleep 600", accelerator.FaultHang, "no answer in 1s"},
		{"a gigabyte", "yes 'ERR! ERR! ERR! ERR!' | head -c 1073741824", accelerator.FaultProbe, "says more than it should"},
		{"exits 0 with ERR!", "echo 'ERR!'", accelerator.FaultProbe, "the table has no chip"},
		{"exits 0 with nothing", "true", accelerator.FaultProbe, "the table has no chip"},
		{"fails", "echo 'dcmi module initialize failed. ret is -8005' >&2; exit 1", accelerator.FaultRefused, "ret is -8005"},
		{"crashes", "kill -SEGV $$", accelerator.FaultCrash, "segmentation fault"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := tools(t, map[string]string{"npu-smi": c.script})
			if c.kind == accelerator.FaultHang {
				r.Deadline = time.Second
			}
			began := time.Now()
			d := r.Read(t.Context(), accelerator.Bus{})
			if d.Fault == nil || d.Fault.Kind != c.kind || !strings.Contains(d.Fault.Detail, c.detail) {
				t.Errorf("%v", d.Fault)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	if d := (Reader{Tools: t.TempDir()}).Read(t.Context(), accelerator.Bus{}); d.Fault == nil || d.Fault.Kind != accelerator.FaultAbsent {
		t.Errorf("without tools: %v", d.Fault)
	}
	// One card's question hangs: the others are whole.
	r := tools(t, map[string]string{"npu-smi": `case "$*" in *"-t ecc -i 1"*) sleep 600;; esac` + "\n" + npuSMI(t)})
	r.Deadline = 2 * time.Second
	d := r.Read(t.Context(), accelerator.Bus{})
	if d.Fault != nil || d.Cards[0].Fault != nil || d.Cards[1].Fault == nil || d.Cards[1].Fault.Kind != accelerator.FaultHang || d.Cards[1].Fault.During != "npu-smi info -t ecc" {
		t.Errorf("%v, %+v", d.Fault, d.Cards[1].Fault)
	}
}

func TestDiagnose(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []accelerator.ToolTest
	}{
		{"list", `echo '{"Diagnosis":[{"item":"aicore","result":"PASS"},{"item":"hbm","device":4,"result":"FAIL","detail":"a timeout error occurred"},{"item":"nic","result":"SKIP"}]}'; exit 1`, []accelerator.ToolTest{
			{Name: "Diagnosis aicore", Outcome: accelerator.Pass}, {Name: "Diagnosis hbm", Card: "4", Outcome: accelerator.Fail, Detail: "a timeout error occurred"}, {Name: "Diagnosis nic", Outcome: accelerator.Skip}}},
		{"nested", `echo '{"Hardware":{"aicore":{"status":"EMERGENCY_WARN"},"hbm":"PASS"}}'`, []accelerator.ToolTest{{Name: "Hardware hbm", Outcome: accelerator.Pass}, {Name: "Hardware aicore", Outcome: accelerator.Fail}}},
		{"text", `printf 'Hardware:\n    aicore:\n        FAIL\n        *** Some processes are seizing the NPU.\n        *** Device 4: a timeout error occurred.\n    hbm:\n        PASS\n'`, []accelerator.ToolTest{
			{Name: "aicore", Outcome: accelerator.Fail, Detail: "Some processes are seizing the NPU. Device 4: a timeout error occurred."}, {Name: "hbm", Outcome: accelerator.Pass}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := tools(t, map[string]string{"ascend-dmi": c.script}).Diagnose(t.Context(), "healthCheck", time.Minute)
			if diff := cmp.Diff(c.want, d.Tests); diff != "" || d.Fault != nil {
				t.Error(d.Fault, diff)
			}
		})
	}
	for name, script := range map[string]string{"nothing": "true", "nonsense": "echo ok", "hang": "sleep 600"} {
		d := tools(t, map[string]string{"ascend-dmi": script}).Diagnose(t.Context(), "healthCheck", time.Second)
		if d.Fault == nil || len(d.Tests) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := (Reader{Tools: t.TempDir()}).Diagnose(t.Context(), "x", time.Second); d.Fault == nil || d.Fault.Kind != accelerator.FaultAbsent {
		t.Errorf("%+v", d)
	}
}

// DCMI beside the tool, against a stand-in of the library.
func TestDCMI(t *testing.T) {
	for _, c := range []struct {
		name, fault string
		cflags      []string
		card        int
		health      string
		unreadable  string
	}{
		{"healthy", "", nil, 0, "OK", ""},
		{"critical although the tool says otherwise", "critical", nil, 1, "critical (0x80c98001)", ""},
		{"hangs", "hang", nil, 0, "", "hang in dcmi_init"},
		{"crashes", "crash", nil, 0, "", "crash in dcmi_init"},
		{"refuses", "refuse", nil, 0, "", "DCMI error -8005"},
		{"lacks a function", "", []string{"-DNO_HEALTH"}, 0, "", "has no dcmi_get_device_health"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := tools(t, map[string]string{"npu-smi": npuSMI(t)})
			args := append([]string{"-shared", "-fPIC", "-O1", "-o", r.Library, "testdata/dcmi.c"}, c.cflags...)
			if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
				t.Fatalf("build the stand-in (needs gcc): %v\n%s", err, out)
			}
			t.Setenv("DCMI_FAULT", c.fault)
			if c.fault == "hang" {
				r.Deadline = 2 * time.Second
			}
			k := r.Read(t.Context(), accelerator.Bus{}).Cards[c.card]
			if k.Health.Value != c.health || !strings.Contains(k.Health.Error, c.unreadable) || (c.unreadable != "") != (k.Health.Error != "") {
				t.Errorf("%+v", k.Health)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"info.txt", "ecc.txt", "board.txt"} {
		f.Add(capture(f, name))
	}
	f.Add(`{"a":[{"result":"PASS"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if o, err := parseInfo(text); err == nil {
			for _, c := range o.chips {
				v := mebibytes(c.memory)
				if v.Known() && v.Value < 0 || c.processes < 0 {
					t.Fatalf("%+v", c)
				}
			}
		}
		if len(parseFields(text)) > 256 || len(parseDiagnosis(text)) > maxTests {
			t.Fatal("without bounds")
		}
	})
}
