package accelerator

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Which XIDs fail a machine: every code that lists disagree on, line by line.
func TestH01XIDTable(t *testing.T) {
	const mid, asked = "NVRM: Xid (PCI:0000:ae:00): %d, pid=1234, name=python3, ", "GPU recovery action changed from 0x0 (None) to "
	cases := []struct {
		line    string
		class   Class
		outcome Outcome
	}{
		{fmt.Sprintf(mid, 13) + "Graphics SM Warp Exception on (GPC 0, TPC 1)", Ignore, Warn},
		{fmt.Sprintf(mid, 31) + "Ch 00000008, intr 10000000. MMU Fault", Ignore, Warn},
		{fmt.Sprintf(mid, 43) + "Ch 00000010", Ignore, Warn},
		{fmt.Sprintf(mid, 45) + "Ch 00000010", Ignore, Warn},
		{fmt.Sprintf(mid, 69) + "Class Error", Ignore, Warn},
		{fmt.Sprintf(mid, 48) + "An uncorrectable double bit error (DBE) has been detected", Reset, Fail},
		{fmt.Sprintf(mid, 54) + "Auxiliary power is not connected", Isolate, Fail},
		{fmt.Sprintf(mid, 62) + "2001 (00000000)", Reset, Fail},
		{fmt.Sprintf(mid, 63) + "Row Remapper: New row marked for remapping, reset gpu to activate.", Reset, Warn},
		{fmt.Sprintf(mid, 64) + "Row Remapper: Error recording row remap", Reset, Fail},
		{fmt.Sprintf(mid, 68) + "NVDEC0 Exception", Unknown, Error},
		{fmt.Sprintf(mid, 74) + "NVLink: fatal error detected on link 7", Isolate, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", Reboot, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 92, pid=1, High single-bit ECC error rate", Unknown, Warn},
		{fmt.Sprintf(mid, 94) + "Contained: CE User Channel", Reset, Fail},
		{fmt.Sprintf(mid, 95) + "Uncontained", Reset, Fail},
		{fmt.Sprintf(mid, 109) + "CTX SWITCH TIMEOUT", Reset, Fail},
		{fmt.Sprintf(mid, 110) + "SEC_FAULT", Reset, Fail},
		{fmt.Sprintf(mid, 119) + "Timeout after 6s of waiting for RPC response from GPU0 GSP!", Reset, Fail},
		{fmt.Sprintf(mid, 120) + "GSP task panic", Reset, Fail},
		{fmt.Sprintf(mid, 136) + "NVLink: Link training failed for link 3", Reset, Fail},
		{fmt.Sprintf(mid, 140) + "An unrecovered ECC error", Reset, Fail},
		{fmt.Sprintf(mid, 143) + "GPU Initialization Failure", Reset, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x00000004 0x00000000)", Isolate, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 144, SAW_MVB Non-fatal XC0 i0 Link 08", Isolate, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 154, " + asked + "0x1 (GPU Reset Required)", Reset, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 154, " + asked + "0x2 (Node Reboot Required)", Reboot, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 154, " + asked + "0x3 (Drain P2P)", Unknown, Fail},
		{"NVRM: Xid (PCI:0000:ae:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Ignore, Pass},
		{"NVRM: Xid (PCI:0000:ae:00): 154, something new", Unknown, Fail},
		{fmt.Sprintf(mid, 155) + "NVLink", Reset, Fail},
		{fmt.Sprintf(mid, 156) + "Resource retirement", Reset, Fail},
		{fmt.Sprintf(mid, 157) + "Resource retirement failure", Isolate, Fail},
		{fmt.Sprintf(mid, 158) + "GPU Fatal Timeout", Reset, Fail},
		{fmt.Sprintf(mid, 167) + "PCIE fatal timeout", Isolate, Fail},
		{fmt.Sprintf(mid, 999) + "what is this", Unknown, Error},
		{fmt.Sprintf(mid, 0) + "and this", Unknown, Error},
		{"NVRM: Xid (0000:ae:00): 48, an old driver's form", Reset, Fail},
		{"NVRM: Xid (PCI:0000:ae:00 GPU-I:01): 94, from an instance", Reset, Fail},
		{"NVRM: GPU 0000:ae:00.0: GPU has fallen off the bus.", Reboot, Fail},
		{"NVRM: The NVIDIA GPU 0000:ae:00.0 has fallen off the bus and is not responding to commands", Reboot, Fail},
		{"NVRM: GPU 0000:ae:00.0: RmInitAdapter failed! (0x26:0x56:1474)", Reset, Fail},
		{"nvidia-nvswitch0: SXid (PCI:0000:ae:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", Isolate, Fail},
		{"nvidia-nvswitch3: SXid (PCI:0000:ae:00.0): 12028, Non-fatal, Link 44 egress non-posted PRIV error", Ignore, Warn},
		{"nvidia-nvswitch3: SXid (PCI:0000:ae:00.0): 12028, Data {0x00, 0x01}", Unknown, Error},
	}
	for _, c := range cases {
		t.Run(c.line[:min(len(c.line), 48)], func(t *testing.T) {
			log, err := ParseKernelLog(strings.NewReader("4,10,1000000,-;" + c.line + "\n"))
			if err != nil || len(log.Events) != 1 {
				t.Fatalf("%d events, %v", len(log.Events), err)
			}
			if e := log.Events[0]; e.Slot != "0000:ae:00.0" {
				t.Errorf("slot %q", e.Slot)
			}
			if v := (Rules{}).Event(log.Events[0]); v.Class != c.class || v.Outcome != c.outcome {
				t.Errorf("%s is %s, %s; want %s, %s", log.Events[0].Name(), v.Class, v.Outcome, c.class, c.outcome)
			}
			f, e := goodMachine(1)
			f.Log = log
			if got := check(t, Judge(f, e, Rules{}), "log.kernel").Outcome; got != Worse(c.outcome, Warn) { // 10 records are missing before it
				t.Errorf("the report says %s, want %s", got, c.outcome)
			}
		})
	}
}

func TestH01OperatorOverride(t *testing.T) {
	rules := Rules{XIDs: map[int]Class{94: Ignore, 13: Isolate, 68: Ignore, 31: Unknown}}
	for code, want := range map[int]Verdict{94: {Class: Ignore, Outcome: Warn}, 13: {Class: Isolate, Outcome: Fail}, 68: {Class: Ignore, Outcome: Warn}, 31: {Class: Unknown, Outcome: Error}, 95: {Class: Reset, Outcome: Fail}} {
		if v := rules.Event(Event{Kind: EventXID, Code: code}); v.Class != want.Class || v.Outcome != want.Outcome {
			t.Errorf("XID %d is %s, %s; want %s, %s", code, v.Class, v.Outcome, want.Class, want.Outcome)
		}
	}
}

func TestXIDTableIsSound(t *testing.T) {
	seen := map[int]bool{}
	last := -1
	for _, x := range xids() {
		if seen[x.Code] || x.Code < last {
			t.Errorf("XID %d is double or out of order", x.Code)
		}
		seen[x.Code], last = true, x.Code
		if x.Outcome == Pass || x.Outcome == Skip {
			t.Errorf("XID %d passes", x.Code)
		}
		if x.Text == "" || x.Class == Ignore && x.Outcome != Warn {
			t.Errorf("XID %d: %+v", x.Code, x)
		}
	}
}

func TestKernelLogFloods(t *testing.T) {
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "4,%d,%d,-;NVRM: Xid (PCI:0000:05:00): 45, pid=%d, name=python3, Ch %08x\n", i, 1000000+i, i, i)
		if i%1000 == 0 {
			fmt.Fprintf(&b, "4,%d,%d,-;NVRM: Xid (PCI:0000:06:00): 92, pid=1\n", 20000+i, 1000000+i)
		}
	}
	log, err := ParseKernelLog(strings.NewReader(b.String()))
	if err != nil || len(log.Events) != 2 {
		t.Fatalf("%d events, %v", len(log.Events), err)
	}
	if e := log.Events[0]; e.Count != 20000 || e.First != 1 || e.Last != 1.019999 {
		t.Errorf("the flood became %+v", e)
	}
	// One 92 is a bad moment, many are a bad module.
	if v := (Rules{}).Event(log.Events[1]); v.Outcome != Fail || v.Class != Isolate {
		t.Errorf("%d × XID 92 is %s, %s", log.Events[1].Count, v.Class, v.Outcome)
	}

	b.Reset()
	for i := range maxEvents + 100 {
		fmt.Fprintf(&b, "4,%d,0,-;NVRM: Xid (PCI:0000:05:00): %d, x\n", i, i)
	}
	if log, _ = ParseKernelLog(strings.NewReader(b.String())); len(log.Events) != maxEvents || log.Dropped != 100 {
		t.Errorf("%d events, %d dropped", len(log.Events), log.Dropped)
	}
}

// The last word counts when a card is reset: a later "None" must not be swallowed as a repetition.
func TestRecoveryActionsAreToldApart(t *testing.T) {
	log, _ := ParseKernelLog(strings.NewReader("4,0,1,-;NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n" +
		"4,1,2,-;NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"))
	if len(log.Events) != 2 {
		t.Errorf("%d events, want 2", len(log.Events))
	}
}

func TestThisBootOnly(t *testing.T) {
	old := "4,700,9000000,-;NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n"
	boot := "5,0,0,-;Linux version 6.1.0-29-amd64 (debian-kernel@lists.debian.org)\n6,1,10,-;Command line: quiet\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"
	log, err := ParseKernelLog(strings.NewReader(old + boot))
	if err != nil || len(log.Events) != 0 || log.Records != 2 || log.Missed != 0 {
		t.Errorf("%+v, %v", log, err)
	}
	dmesg := "[  900.000001] NVRM: Xid (PCI:0000:05:00): 79, x\n[    0.000000] Linux version 6.1\n[   12.345678] NVRM: Xid (PCI:0000:06:00): 13, x\n<4>[   13.000000] NVRM: Xid (PCI:0000:06:00): 13, x\n"
	log, err = ParseKernelLog(strings.NewReader(dmesg))
	if err != nil || len(log.Events) != 1 || log.Events[0].Slot != "0000:06:00.0" || log.Events[0].First != 12.345678 || log.Events[0].Count != 2 {
		t.Errorf("%+v, %v", log, err)
	}
}

func TestOnlyTheKernelSpeaks(t *testing.T) {
	log, _ := ParseKernelLog(strings.NewReader("6,0,0,-;Linux version 6.1\n" +
		"12,1,5,-;NVRM: Xid (PCI:0000:05:00): 79, written by a program into /dev/kmsg\n" +
		"30,2,6,-;systemd[1]: NVRM: Xid (PCI:0000:05:00): 79\n" +
		"12,3,7,-;Linux version 7.0 by a program that would have the log forgotten\n" +
		"4,4,8,-;NVRM: Xid (PCI:0000:06:00): 13, x\n"))
	if len(log.Events) != 1 || log.Events[0].Code != 13 || log.Records != 5 || log.Missed != 0 {
		t.Errorf("%+v", log)
	}
}

func TestOverwrittenRecordsAreCounted(t *testing.T) {
	log, _ := ParseKernelLog(strings.NewReader("6,40,0,-;a\n6,41,0,-;b\n6,45,0,-;c\n"))
	if log.Missed != 43 || log.Records != 3 {
		t.Errorf("missed %d of %d, want 43 of 3", log.Missed, log.Records)
	}
}

func TestLongLine(t *testing.T) {
	log, err := ParseKernelLog(strings.NewReader("4,0,0,-;NVRM: Xid (PCI:0000:05:00): 79, " + strings.Repeat("x", 1<<20) + "\n4,1,0,-;NVRM: Xid (PCI:0000:06:00): 79, y"))
	if err != nil || len(log.Events) != 2 || len(log.Events[0].Text) != maxText {
		t.Errorf("%d events, %v", len(log.Events), err)
	}
}

func TestSlot(t *testing.T) {
	for in, want := range map[string]string{
		"0000:AE:00": "0000:ae:00.0", "00000000:05:00.0": "0000:05:00.0", "0000:05:00.1": "0000:05:00.1", "00010000:05:00.0": "10000:05:00.0",
		"": "", "05:00.0": "", "0000:05:00.9": "", "GPU-1": "", " 0000:05:00.0\n": "0000:05:00.0",
	} {
		if got := Slot(in); got != want {
			t.Errorf("Slot(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzParseKernelLog(f *testing.F) {
	for _, name := range []string{"kmsg.txt", "dmesg.txt"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Add("4,1,2,-;NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (\xff\n")
	f.Add("9223372036854775807,9223372036854775807,9223372036854775807,-;x")
	f.Fuzz(func(t *testing.T, in string) {
		log, err := ParseKernelLog(strings.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		if log.Records < 0 || log.Missed < 0 || len(log.Events) > maxEvents {
			t.Fatalf("%d records, %d missed, %d events", log.Records, log.Missed, len(log.Events))
		}
		for _, e := range log.Events {
			if e.Count < 1 || len(e.Text) > 3*maxText || printable(e.Text) != e.Text || e.Slot != Slot(e.Slot) {
				t.Fatalf("event %+v", e)
			}
			v := (Rules{}).Event(e)
			if v.Outcome == Pass && e.Code != 154 {
				t.Fatalf("%+v passes", e)
			}
		}
	})
}
