package bmctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/ipmi"
)

// OpenIPMI is a BMC played by OpenIPMI's ipmi_sim: the independent second opinion on IPMI. Set the fields before the
// first method call.
//
// What it cannot show: it knows cipher suite 3 only, and it keeps no more of the boot flags than the device.
type OpenIPMI struct {
	Addr     string // host:port of an IPv4 address; port 0 takes a free one
	User     string
	Password string
	Chassis  Chassis
	Board    *Board // as it is when Run begins, without firmware, BIOS settings and network; nil is a new one
	Faults   *Faults
	Log      *slog.Logger
	Dir      string                                                // where the configuration and the state live; "" is a temporary directory that Run removes
	Console  func(ctx context.Context) (io.ReadWriteCloser, error) // opens the host's serial port; nil is a BMC without console
	Helper   string                                                // a program that is run as HELPER SOCKET WORD… and posts the words to http://bmc/ on the unix socket; "" is curl

	// Start starts ipmi_sim, for example in another network namespace; nil is the command's own Start.
	Start func(*exec.Cmd) error

	once  sync.Once
	err   error
	addr  *net.UDPAddr
	front *front

	mu   sync.Mutex
	boot string // as ipmi_sim names it
}

// Names of boot devices in ipmi_sim; default is the default hard disk.
var simDevices = map[string]ipmi.Device{"none": ipmi.DeviceNone, "pxe": ipmi.DevicePXE, "default": ipmi.DeviceDisk, "cdrom": ipmi.DeviceMedia}

// Listen chooses the address and returns it. It is bound when Run starts the simulator.
func (o *OpenIPMI) Listen() (string, error) {
	o.once.Do(func() {
		o.boot = "none"
		o.front = newFront(o.Chassis, o.Faults, o.Log)
		o.front.done = o.booted
		addr, err := net.ResolveUDPAddr("udp4", o.Addr)
		if err != nil {
			o.err = fmt.Errorf("resolve %s: %w", o.Addr, err)
			return
		}
		free := addr.Port == 0
		for try := 0; ; try++ {
			if free { // below the ports that clients get, or one of them has it by the time that ipmi_sim runs
				addr.Port = 10000 + rand.IntN(20000)
			}
			l, err := net.ListenUDP("udp4", addr)
			if err == nil {
				o.addr, o.err = addr, l.Close()
				return
			}
			if !free || try > 50 {
				o.err = fmt.Errorf("listen: %w", err)
				return
			}
		}
	})
	if o.err != nil {
		return "", o.err
	}
	return o.addr.String(), nil
}

// Target says how to reach this BMC. Call it after Listen.
func (o *OpenIPMI) Target() ipmi.Target {
	addr, _ := o.Listen()
	return ipmi.Target{Protocol: ipmi.IPMI, Address: addr, Username: o.User, Password: o.Password}
}

// Run runs ipmi_sim until ctx ends, and then returns nil.
func (o *OpenIPMI) Run(ctx context.Context) error {
	if _, err := o.Listen(); err != nil {
		return err
	}
	sim, err := exec.LookPath("ipmi_sim")
	if err != nil {
		return errors.New("run ipmi_sim: not found: install the package openipmi")
	}
	if o.Helper == "" {
		if _, err := exec.LookPath("curl"); err != nil {
			return errors.New("run ipmi_sim: its script needs curl: install the package curl or set Helper")
		}
	}
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ipmi_sim"); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	var serial net.Listener
	if o.Console != nil {
		if serial, err = net.Listen("tcp", net.JoinHostPort(o.addr.IP.String(), "0")); err != nil {
			return fmt.Errorf("listen for the console: %w", err)
		}
	}
	if err := o.write(dir, serial); err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "chassis.sock"))
	if err != nil {
		return fmt.Errorf("listen for the chassis script: %w", err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(o.script), ReadHeaderTimeout: 5 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return o.front.run(ctx) })
	if serial != nil {
		g.Go(func() error { return o.serveConsole(ctx, serial) })
	}
	g.Go(func() error {
		<-ctx.Done()
		return srv.Close()
	})
	g.Go(func() error {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the chassis script: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, sim, "-c", filepath.Join(dir, "lan.conf"), "-f", filepath.Join(dir, "bmc.emu"), "-s", filepath.Join(dir, "state"), "-n")
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 2 * time.Second
		start := cmd.Start
		if o.Start != nil {
			start = func() error { return o.Start(cmd) }
		} else {
			// It dies with us, however we end. The kernel means the thread that started it, so that thread must stay.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		}
		err := start()
		if err == nil {
			err = cmd.Wait()
		}
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("ipmi_sim ended: %v: %s", err, strings.TrimSpace(out.String()))
	})
	return g.Wait()
}

// write makes the files that ipmi_sim reads.
func (o *OpenIPMI) write(dir string, serial net.Listener) error {
	if strings.ContainsAny(dir, " '") {
		return errors.New("write lan.conf: the state directory's path cannot hold spaces or quotes")
	}
	for _, s := range []string{o.User, o.Password, dir} {
		if strings.ContainsAny(s, "\"\\\n\r") {
			return errors.New("write lan.conf: it cannot hold quotes, backslashes or line ends")
		}
	}
	caller := fmt.Sprintf("exec curl -sf --max-time 3 --unix-socket '%s' -d \"$*\" http://bmc/\n", filepath.Join(dir, "chassis.sock"))
	if o.Helper != "" {
		caller = fmt.Sprintf("exec '%s' '%s' \"$@\"\n", o.Helper, filepath.Join(dir, "chassis.sock"))
	}
	guid := strings.ReplaceAll(o.Chassis.Identity().UUID, "-", "")
	if len(guid) != 32 { // without one ipmi_sim crashes on the first login
		guid = strings.Repeat("0", 32)
	}
	emulation, err := o.emulation()
	if err != nil {
		return err
	}
	sol := ""
	if serial != nil {
		at := serial.Addr().(*net.TCPAddr)
		sol = fmt.Sprintf("  sol \"tcp:%s:%d\" 115200\n", at.IP, at.Port)
	}
	files := []struct {
		name, text string
		mode       os.FileMode
	}{
		{"chassis.sh", "#!/bin/sh\n# Called by ipmi_sim; must return at once, or the client retransmits and the command runs twice.\n" + caller, 0o700},
		{"bmc.emu", emulation, 0o600},
		{"lan.conf", fmt.Sprintf(`name "bmc"
set_working_mc 0x20
  startlan 1
    addr %s %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid %s
  endlan
  chassis_control "%s"
%s  user 2 true "%s" "%s" admin 10 none md2 md5 straight
`, o.addr.IP, o.addr.Port, guid, filepath.Join(dir, "chassis.sh"), sol, o.User, o.Password), 0o600},
	}
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), f.mode); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return nil
}

// booted plays the firmware, which uses an override up.
func (o *OpenIPMI) booted(op ipmi.Op, wasOn bool) {
	if boots(op, wasOn) {
		o.mu.Lock()
		o.boot = "none"
		o.mu.Unlock()
	}
}
