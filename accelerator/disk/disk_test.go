package disk

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/bareyard/bareyard/accelerator"
)

func TestHealthLog(t *testing.T) {
	if n := unsafe.Sizeof(adminCommand{}); n != 0x48 { // as the ioctl's number says
		t.Errorf("the command has %d bytes", n)
	}
	var b [logSize]byte
	b[0], b[3], b[4], b[5] = 4, 90, 10, 3
	binary.LittleEndian.PutUint16(b[1:], 273+41)
	binary.LittleEndian.PutUint64(b[48:], 1000)
	binary.LittleEndian.PutUint64(b[128:], 8760)
	binary.LittleEndian.PutUint64(b[160:], 2)
	s := parseHealthLog(b[:])
	if s.Warning.Value != 4 || s.Spare.Value != 90 || s.SpareLeast.Value != 10 || s.Used.Value != 3 || s.Temperature.Value != 41 || s.Hours.Value != 8760 || s.MediaErrors.Value != 2 || s.Written.Value != 512000000 {
		t.Errorf("%+v", s)
	}
	for i := range b {
		b[i] = 0xff
	}
	if s := parseHealthLog(b[:]); s.Written.Value < 0 || s.MediaErrors.Value < 0 || s.Hours.Value < 0 {
		t.Errorf("%+v", s)
	}
	// What is no NVMe disk is not asked further, and no fault.
	node := filepath.Join(t.TempDir(), "nvme0n1")
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := Reader{Dev: filepath.Dir(node)}
	disks := []accelerator.HostDisk{{Name: "nvme0n1"}, {Name: "vda"}, {Name: "nvme9n1"}}
	r.Read(t.Context(), disks)
	if disks[0].SMART != nil || disks[1].SMART != nil || disks[2].SMART == nil || !strings.Contains(disks[2].SMART.Error, "no such file") {
		t.Errorf("%+v %+v %+v", disks[0].SMART, disks[1].SMART, disks[2].SMART)
	}
}

func TestSmartctl(t *testing.T) {
	const ata = `{"smartctl":{"exit_status":0},"smart_status":{"passed":true},"ata_smart_attributes":{"table":[{"id":5,"name":"Reallocated_Sector_Ct","raw":{"value":0}},{"id":197,"name":"Current_Pending_Sector","raw":{"value":8}},{"id":198,"raw":{"value":2}}]},"power_on_time":{"hours":12},"temperature":{"current":30}}`
	for _, c := range []struct {
		name, script string
		check        func(*accelerator.SMART) bool
	}{
		{"sectors pending", "echo '" + ata + "'", func(s *accelerator.SMART) bool {
			return s.Error == "" && s.Passed.Value && s.Pending.Value == 8 && s.Hours.Value == 12 && s.Temperature.Value == 30
		}},
		{"failing, with a status of bits", `echo '{"smart_status":{"passed":false}}'; exit 8`, func(s *accelerator.SMART) bool { return s.Error == "" && s.Passed.Known() && !s.Passed.Value }},
		{"NVMe", `echo '{"smart_status":{"passed":true},"nvme_smart_health_information_log":{"critical_warning":0,"available_spare":100,"available_spare_threshold":10,"percentage_used":1,"media_errors":0}}'`, func(s *accelerator.SMART) bool { return s.Spare.Value == 100 && s.Used.Value == 1 }},
		{"says why not", `echo '{"smartctl":{"messages":[{"string":"Smartctl open device: /dev/sda failed: Permission denied","severity":"error"}]}}'; exit 2`, func(s *accelerator.SMART) bool { return strings.Contains(s.Error, "Permission denied") }},
		{"tells nothing", `echo '{}'`, func(s *accelerator.SMART) bool { return s == nil }},
		{"ERR!", `echo 'ERR!'`, func(s *accelerator.SMART) bool { return strings.Contains(s.Error, "read smartctl's answer") }},
		{"hangs", `sleep 600`, func(s *accelerator.SMART) bool { return strings.Contains(s.Error, "no answer in") }},
		{"a gigabyte", `yes | head -c 1073741824`, func(s *accelerator.SMART) bool { return s.Error != "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool := filepath.Join(t.TempDir(), "smartctl")
			if err := os.WriteFile(tool, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			r := Reader{Smartctl: tool}
			if c.name == "hangs" {
				r.Deadline = time.Second
			}
			disks := []accelerator.HostDisk{{Name: "sda"}}
			r.Read(t.Context(), disks)
			if s := disks[0].SMART; s == nil && c.name != "tells nothing" || !c.check(s) {
				t.Errorf("%+v", s)
			}
		})
	}
	disks := []accelerator.HostDisk{{Name: "sda"}}
	Reader{Smartctl: filepath.Join(t.TempDir(), "smartctl")}.Read(t.Context(), disks)
	if disks[0].SMART != nil {
		t.Errorf("without the tool: %+v", disks[0].SMART)
	}
}

func FuzzSmartctl(f *testing.F) {
	f.Add(`{"smart_status":{"passed":true}}`)
	f.Add(`{"ata_smart_attributes":{"table":[{"id":197,"raw":{"value":-1}}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSmartctl(text)
		if (s == nil) == (err == nil) {
			t.Fatal("neither an answer nor an error")
		}
		if s != nil && (s.Pending.Value < 0 || s.MediaErrors.Value < 0) {
			t.Fatalf("%+v", s)
		}
	})
}
