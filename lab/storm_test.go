package lab

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/bareyard/bareyard/lab/load"
)

const (
	stormMachines = 60
	floodRate     = 20_000 // DISCOVERs a second
)

// storming starts the real server with so many machines that it waits for, and small files for them to load.
func storming(t *testing.T, suffix string, machines int) *segment {
	t.Helper()
	s := newSegment(t, suffix, machines)
	s.write(t, "loaders/undionly.kpxe", bytes.Repeat([]byte("u"), 74<<10))
	s.write(t, "loaders/snponly.efi", bytes.Repeat([]byte("s"), 174<<10)) // as long as Debian's
	s.provision(t, machines, true, map[string]any{"loader_dir": s.dir + "/loaders",
		"kernel":  s.write(t, "vmlinuz", bytes.Repeat([]byte("kernel"), 40<<10)),
		"ramdisk": s.write(t, "ramdisk", bytes.Repeat([]byte("ramdisk"), 80<<10))})
	return s
}

// storm boots all machines at once, as after a power cut.
func (s *segment) storm(t *testing.T, machines int) load.Result {
	t.Helper()
	r := s.load(t, load.Spec{Kind: load.Storm, Count: machines, For: 3 * time.Minute})
	for _, f := range r.Failures {
		t.Error(f)
	}
	if r.Done != machines {
		t.Errorf("%d of %d machines booted", r.Done, machines)
	}
	return r
}

// flood returns how machines are answered, four at a time, without and with unknown machines that ask at floodRate.
func (s *segment) flood(t *testing.T, machines int) (calm, flooded load.Result) {
	t.Helper()
	spec := load.Spec{Kind: load.DHCP, Parallel: 4, Count: machines, For: time.Second}
	calm = s.load(t, spec)
	spec.Flood = floodRate
	return calm, s.load(t, spec)
}

// TestStorm: machines that all boot at once all boot, through DHCP, TFTP, iPXE's DHCP, HTTP and the agent's hello, from the real server
// and its database; and a flood of unknown machines does not keep a known one waiting.
func TestStorm(t *testing.T) {
	s := storming(t, "s", stormMachines)
	r := s.storm(t, stormMachines)
	t.Logf("%s", stormLine(r, stormMachines))
	if r.DHCPTail > 3*time.Second {
		t.Errorf("the 99th percentile of DHCP answers is %v", r.DHCPTail)
	}
	calm, flooded := s.flood(t, stormMachines)
	t.Logf("%s", floodLine(calm, flooded))
	if flooded.Flooded < floodRate/10 {
		t.Errorf("the flood was a trickle: %d in %s", flooded.Flooded, flooded.Took)
	}
	// Without lanes and limits the answer waits behind thousands of others, or is lost and asked for again after a second.
	if flooded.DHCPTail > calm.DHCPTail+250*time.Millisecond {
		t.Errorf("known machines wait for unknown ones: %v, without them %v", flooded.DHCPTail, calm.DHCPTail)
	}
	if flooded.Done == 0 || flooded.Repeats > flooded.Done/100 {
		t.Errorf("%d questions had to be asked again in %d exchanges", flooded.Repeats, flooded.Done)
	}
}

func stormLine(r load.Result, machines int) string {
	return fmt.Sprintf("storm %d of %d machines booted in %.1f s, median boot %.1f s, last %.1f s, asked again: %d DHCP, %d TFTP\n"+
		"storm median dhcp %.1f ms\nstorm p99 dhcp %.1f ms", r.Done, machines, r.Took.Seconds(), r.BootMedian.Seconds(), r.BootWorst.Seconds(), r.Repeats, r.Again,
		ms(r.DHCPMedian), ms(r.DHCPTail))
}

func floodLine(calm, flooded load.Result) string {
	return fmt.Sprintf("flood p99 dhcp %.1f ms with %.0f unknown machines a second, %.1f ms without; median %.1f and %.1f ms",
		ms(flooded.DHCPTail), float64(flooded.Flooded)/flooded.Took.Seconds(), ms(calm.DHCPTail), ms(flooded.DHCPMedian), ms(calm.DHCPMedian))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
