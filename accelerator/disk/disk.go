// Package disk asks disks for their own health: NVMe through the kernel, others through smartctl where it is installed.
package disk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// Reader asks disks.
type Reader struct {
	Dev      string        // "/dev" when empty
	Smartctl string        // path; found by PATH when empty
	Deadline time.Duration // for one disk; 10 seconds when zero
}

// Read fills in the health of each disk that can be asked. Virtual disks cannot, and that is no fault of theirs.
func (r Reader) Read(ctx context.Context, disks []accelerator.HostDisk) {
	for i := range disks {
		d := &disks[i]
		if ctx.Err() != nil || strings.HasPrefix(d.Name, "vd") || strings.HasPrefix(d.Name, "xvd") {
			continue
		}
		node := filepath.Join(cmp.Or(r.Dev, "/dev"), d.Name)
		if strings.HasPrefix(d.Name, "nvme") {
			d.SMART = r.nvme(ctx, node)
			continue
		}
		d.SMART = r.smartctl(ctx, node)
	}
}

// nvme asks a disk that may be dying. A call that does not come back leaves its goroutine behind until the kernel gives it up.
func (r Reader) nvme(ctx context.Context, node string) *accelerator.SMART {
	deadline := cmp.Or(r.Deadline, 10*time.Second)
	type answer struct {
		log [logSize]byte
		err error
	}
	answers := make(chan answer, 1)
	go func() { // ends when the kernel answers
		var a answer
		a.err = healthLog(node, &a.log)
		answers <- a
	}()
	t := time.NewTimer(deadline)
	defer t.Stop()
	select {
	case a := <-answers:
		if a.err != nil {
			if errors.Is(a.err, errNotNVMe) {
				return nil
			}
			return &accelerator.SMART{Source: "nvme", Error: a.err.Error()}
		}
		return parseHealthLog(a.log[:])
	case <-t.C:
		return &accelerator.SMART{Source: "nvme", Error: fmt.Sprintf("no answer in %v", deadline)}
	case <-ctx.Done():
		return nil
	}
}

// smartctl asks through smartmontools. Its exit status is a set of bits about the disk, so that its answer counts and not the status.
func (r Reader) smartctl(ctx context.Context, node string) *accelerator.SMART {
	text, fault := child.Run(ctx, child.Command{Path: cmp.Or(r.Smartctl, child.Find("smartctl", "", "/usr/sbin", "/sbin")), Args: []string{"--json", "-H", "-A", node}, Deadline: cmp.Or(r.Deadline, 10*time.Second)})
	if fault != nil && fault.Kind == accelerator.FaultAbsent {
		return nil
	}
	s, err := parseSmartctl(text)
	switch {
	case err == nil:
		return s
	case errors.Is(err, errSilent):
		return nil
	case fault != nil && fault.Kind != accelerator.FaultRefused:
		return &accelerator.SMART{Source: "smartctl", Error: fault.String()}
	}
	return &accelerator.SMART{Source: "smartctl", Error: err.Error()}
}

// report is what smartctl --json says, as far as it is judged.
type report struct {
	Smartctl struct {
		Messages []struct {
			Text     string `json:"string"`
			Severity string `json:"severity"`
		} `json:"messages"`
	} `json:"smartctl"`
	Status *struct {
		Passed bool `json:"passed"`
	} `json:"smart_status"`
	Temperature *struct {
		Current int64 `json:"current"`
	} `json:"temperature"`
	Hours *struct {
		Hours int64 `json:"hours"`
	} `json:"power_on_time"`
	ATA *struct {
		Table []struct {
			ID    int    `json:"id"`
			Name  string `json:"name"`
			Value int64  `json:"value"`
			Raw   struct {
				Value int64 `json:"value"`
			} `json:"raw"`
		} `json:"table"`
	} `json:"ata_smart_attributes"`
	NVMe *struct {
		Warning int64 `json:"critical_warning"`
		Spare   int64 `json:"available_spare"`
		Least   int64 `json:"available_spare_threshold"`
		Used    int64 `json:"percentage_used"`
		Media   int64 `json:"media_errors"`
	} `json:"nvme_smart_health_information_log"`
	Defects *int64 `json:"scsi_grown_defect_list"`
}

// errSilent says that a disk has no health to tell, as those behind RAID controllers and in virtual machines.
var errSilent = errors.New("the disk tells nothing of its health")

func parseSmartctl(text string) (*accelerator.SMART, error) {
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("read smartctl's answer: %w", err)
	}
	const source = "smartctl"
	count := func(n int64, unit string) accelerator.Value[int64] {
		if n < 0 {
			return accelerator.Unreadable[int64](source, "a negative count")
		}
		return accelerator.Measured(n, unit, source)
	}
	s := &accelerator.SMART{Source: source}
	if r.Status != nil {
		s.Passed = accelerator.Measured(r.Status.Passed, "", source)
	}
	if r.Temperature != nil {
		s.Temperature = accelerator.Measured(r.Temperature.Current, "°C", source)
	}
	if r.Hours != nil {
		s.Hours = count(r.Hours.Hours, "h")
	}
	if r.NVMe != nil {
		s.Warning, s.Spare, s.SpareLeast, s.Used, s.MediaErrors = count(r.NVMe.Warning, ""), count(r.NVMe.Spare, "%"), count(r.NVMe.Least, "%"), count(r.NVMe.Used, "%"), count(r.NVMe.Media, "")
	}
	if r.Defects != nil {
		s.MediaErrors = count(*r.Defects, "")
	}
	if r.ATA != nil {
		pending := int64(0)
		for _, a := range r.ATA.Table {
			switch a.ID {
			case 197, 198: // Current_Pending_Sector, Offline_Uncorrectable
				pending = max(pending, a.Raw.Value)
			case 5: // Reallocated_Sector_Ct
				s.MediaErrors = count(a.Raw.Value, "")
			}
		}
		s.Pending = count(pending, "")
	}
	if r.Status == nil && r.NVMe == nil && r.ATA == nil {
		for _, m := range r.Smartctl.Messages {
			if m.Severity == "error" && m.Text != "" {
				return nil, errors.New(m.Text)
			}
		}
		return nil, errSilent
	}
	return s, nil
}
