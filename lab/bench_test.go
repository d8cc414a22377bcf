package lab_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/lab"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestBenchInstall measures an install, from power-on to the first SSH login, beside the floor in the same run: the same machine
// booting the same image from its disk for the first time, plus dd of the image onto that disk. It judges nothing: times on a
// shared machine mean little, their ratio means something.
func TestBenchInstall(t *testing.T) {
	if os.Getenv("BAREYARD_BENCH") == "" {
		t.Skip("measures an install: run make bench-install")
	}
	s := newSite(t, "bench", lab.MachineConfig{Name: "n1", Class: "bios"})
	ctx := t.Context()
	placed := s.order(ctx, "bios")
	login := make(chan time.Time, 1)
	watch, stop := context.WithCancel(ctx)
	defer stop()
	go func() { login <- firstLogin(watch, s, placed.Address) }() // ends with watch
	o := s.active(ctx, placed.ID, nil)
	at := <-login
	events, err := s.client.Events(ctx, o.ID, "")
	s.must(err)
	ends := map[machine.StepName]time.Time{}
	for _, ev := range events {
		if ev.Kind == "job.advance" || ev.Kind == "job.succeed" {
			ends[ev.Step] = ev.At
		}
	}
	on := ends[machine.StepNextBoot] // power-on begins
	total := at.Sub(on)
	dd, boot := s.floor(ctx, o)
	floor := dd + boot
	part := func(from, to machine.StepName) time.Duration { return ends[to].Sub(ends[from]) }
	fmt.Printf("\ninstall, BIOS, power-on to SSH  %6.1f s\n", total.Seconds())
	script := s.scriptAsked()
	fmt.Printf("  firmware to iPXE's script     %6.1f s\n", script.Sub(on).Seconds())
	fmt.Printf("  kernel, RAM disk, hello       %6.1f s\n", ends[machine.StepHello].Sub(script).Seconds())
	fmt.Printf("  inventory and wipe            %6.1f s\n", part(machine.StepHello, machine.StepWipe).Seconds())
	fmt.Printf("  write                         %6.1f s\n", part(machine.StepWipe, machine.StepWrite).Seconds())
	fmt.Printf("  read back                     %6.1f s\n", part(machine.StepWrite, machine.StepVerify).Seconds())
	fmt.Printf("  configure                     %6.1f s\n", part(machine.StepVerify, machine.StepConfigure).Seconds())
	fmt.Printf("  power cycle to disk           %6.1f s\n", part(machine.StepConfigure, machine.StepBootDisk).Seconds())
	fmt.Printf("  first boot                    %6.1f s\n", part(machine.StepBootDisk, machine.StepFirstBoot).Seconds())
	fmt.Printf("floor                           %6.1f s\n", floor.Seconds())
	fmt.Printf("  dd of the image to the disk   %6.1f s\n", dd.Seconds())
	fmt.Printf("  first boot from it to SSH     %6.1f s\n", boot.Seconds())
	fmt.Printf("install takes %.2f times the floor\n", total.Seconds()/floor.Seconds())
	fmt.Printf("ratio install-bios floor %.2f\n", floor.Seconds()/total.Seconds())
}

// scriptAsked returns when the machine's loader first asked the server what to boot, by the server's log.
func (s *site) scriptAsked() time.Time {
	s.t.Helper()
	log, err := os.ReadFile(filepath.Join(s.lab.Status().Dir, "serve.log"))
	s.must(err)
	for line := range strings.Lines(string(log)) {
		if stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "time="), " "); ok && strings.Contains(rest, "boots=agent") {
			at, err := time.Parse(time.RFC3339, stamp)
			s.must(err)
			return at
		}
	}
	s.t.Fatal("the server's log does not say when the machine asked what to boot")
	return time.Time{}
}

// firstLogin returns when a customer could first log in.
func firstLogin(ctx context.Context, s *site, addr netip.Addr) time.Time {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := s.lab.SSH(try, lab.Internet, addr, "root", s.key, "true")
		cancel()
		if err == nil {
			break
		}
		wait := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	}
	return time.Now()
}

// floor installs the machine of an order without Bareyard: dd on the host, and a seed on its other disk.
func (s *site) floor(ctx context.Context, o machine.Order) (dd, boot time.Duration) {
	s.t.Helper()
	vm := s.lab.Machine("n1")
	s.must(vm.SetPower(ctx, ipmi.OpOff))
	raw := filepath.Join(filepath.Dir(vm.SystemDisk()), "image.raw")
	s.must(unpackImage("../build/lab-image/debian-12.raw.zst", raw))
	s.must(os.Truncate(vm.SystemDisk(), 0))
	s.must(os.Truncate(vm.SystemDisk(), 4<<30))
	began := time.Now()
	s.run(ctx, "dd", "if="+raw, "of="+vm.SystemDisk(), "bs=4M", "conv=notrunc,fsync", "status=none")
	dd = time.Since(began)

	m := s.machineOf(ctx, "n1")
	seed, err := provisioner.Seed(m, machine.Job{ID: "floor", Attempt: 1}, o, provisioner.SeedOptions{Agents: "https://10.77.0.1:8443", Token: "none", Net: provisioner.BootNet{Prefix: netip.MustParsePrefix("10.77.0.0/24")}})
	s.must(err)
	s.run(ctx, "mkfs.vfat", "-n", "CIDATA", vm.DataDisk())
	for name, text := range seed {
		file := filepath.Join(s.t.TempDir(), name)
		s.must(os.WriteFile(file, []byte(text), 0o600))
		s.run(ctx, "mcopy", "-i", vm.DataDisk(), file, "::"+name)
	}
	s.must(vm.SetNextBoot(ctx, bmctest.Boot{Device: ipmi.DeviceDisk, Once: true}))
	began = time.Now()
	s.must(vm.SetPower(ctx, ipmi.OpOn))
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	boot = firstLogin(limit, s, o.Address).Sub(began)
	if limit.Err() != nil {
		s.t.Fatal("the floor's machine does not let its customer in")
	}
	return dd, boot
}

func (s *site) run(ctx context.Context, name string, args ...string) {
	s.t.Helper()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func unpackImage(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	dec, err := zstd.NewReader(in)
	if err != nil {
		return err
	}
	defer dec.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, dec); err != nil {
		return err
	}
	return out.Sync()
}
