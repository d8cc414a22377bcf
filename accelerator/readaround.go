package accelerator

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// line reads a file of one line.
func line(s string) (string, error) { return printable(s), nil }

// cpuThrottles reads how often a processor package throttled itself since boot. Every processor of a package tells the same number.
func cpuThrottles(dir string) Value[int64] {
	files, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*/thermal_throttle/package_throttle_count")) // the pattern is sound
	most := Unsupported[int64]("sysfs")
	for _, f := range files {
		if v := readValue(f, "", "sysfs", integer); v.Known() && (!most.Known() || v.Value > most.Value) {
			most = v
		}
	}
	return most
}

// readClock asks the kernel whether a time service keeps the clock, which needs no program of any service.
func readClock() Clock {
	k := Clock{Now: time.Now().UTC()}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		k.Synced, k.Error = Unreadable[bool]("kernel", err.Error()), Unreadable[float64]("kernel", err.Error())
		return k
	}
	k.Synced = Measured(state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, "", "kernel")
	k.Error = Measured(float64(t.Esterror)/1e6, "s", "kernel")
	return k
}

// fabricComm is the name of the fabric manager's process, cut off as the kernel does at 15 bytes.
const fabricComm = "nv-fabricmanage"

// fabricManager looks for the process. It means something only where there are NVSwitches.
func fabricManager(r Roots) Value[string] {
	entries, err := os.ReadDir(r.proc())
	if err != nil {
		return Unreadable[string]("proc", reason(err))
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if name, err := text(filepath.Join(r.proc(), e.Name(), "comm")); err == nil && name == fabricComm {
			return Measured("running", "", "proc")
		}
	}
	return Measured("not running", "", "proc")
}

const (
	fabricTail = 64 << 10 // bytes of the end of its log that are looked at
	fabricKept = 5        // lines
)

// fabricLog returns the last lines of the fabric manager's log that name a fault.
func fabricLog(r Roots) []string {
	dir := r.Log
	if dir == "" {
		dir = "/var/log"
	}
	f, err := os.Open(filepath.Join(dir, "fabricmanager.log"))
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > fabricTail {
		if _, err := f.Seek(-fabricTail, io.SeekEnd); err != nil {
			return nil
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, fabricTail))
	if err != nil {
		return nil
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, "don't match") || strings.Contains(l, "[ERROR]") {
			l = strings.TrimSpace(l)
			out = append(out, printable(l[:min(len(l), maxText)]))
		}
	}
	return out[max(0, len(out)-fabricKept):]
}

// readFabric reads the ports of InfiniBand and RoCE adapters.
func readFabric(dir string) ([]FabricPort, error) {
	adapters, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read InfiniBand ports: %w", err)
	}
	var out []FabricPort
	for _, a := range adapters {
		ports, err := os.ReadDir(filepath.Join(dir, a.Name(), "ports"))
		if err != nil {
			continue // an adapter that is just going
		}
		for _, p := range ports {
			path := filepath.Join(dir, a.Name(), "ports", p.Name())
			out = append(out, FabricPort{
				Name:     a.Name() + "/" + p.Name(),
				Layer:    readValue(filepath.Join(path, "link_layer"), "", "sysfs", line),
				State:    readValue(filepath.Join(path, "state"), "", "sysfs", afterColon),
				Physical: readValue(filepath.Join(path, "phys_state"), "", "sysfs", afterColon),
				Rate:     readValue(filepath.Join(path, "rate"), "Gbit/s", "sysfs", gigabits),
				Model:    readValue(filepath.Join(dir, a.Name(), "board_id"), "", "sysfs", line),
				Symbol:   readValue(filepath.Join(path, "counters/symbol_error"), "", "sysfs", integer),
				Downed:   readValue(filepath.Join(path, "counters/link_downed"), "", "sysfs", integer),
			})
		}
	}
	slices.SortFunc(out, func(a, b FabricPort) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// afterColon reads "4: ACTIVE".
func afterColon(s string) (string, error) {
	_, word, ok := strings.Cut(s, ": ")
	if !ok {
		return "", fmt.Errorf("state %q", printable(s))
	}
	return strings.ToLower(printable(word)), nil
}

// gigabits reads "400 Gb/sec (4X NDR)".
func gigabits(s string) (int64, error) {
	number, _, _ := strings.Cut(s, " ")
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f < 0 || f > 1e5 {
		return 0, fmt.Errorf("rate %q", printable(s))
	}
	return int64(f), nil
}
