package lab

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/machine"
)

const (
	apiPort       = "8443"
	discPort      = 8081
	serverSocket  = "serve.sock"
	stopGrace     = 30 * time.Second // for the controller to end its work and its database
	restartDelay  = time.Second      // after the controller died
	restartSlower = 5 * time.Second  // after it died within restartSlower of its start
)

var errNotRunning = &machine.Error{Code: machine.Conflict, Message: "the controller is not running"}

func (s ServerConfig) withDefaults() (ServerConfig, error) {
	if s.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return s, fmt.Errorf("find own program: %w", err)
		}
		s.Binary = self
	}
	s.Kernel = cmp.Or(s.Kernel, "build/kernel/vmlinuz")
	s.RAMDisk = cmp.Or(s.RAMDisk, "build/ramdisk/ramdisk.cpio.zst")
	s.Validator = cmp.Or(s.Validator, "bin/bareyard-validate")
	s.KernelArgs = cmp.Or(s.KernelArgs, "console=ttyS0,115200 mitigations=off quiet")
	for _, p := range []*string{&s.Binary, &s.Kernel, &s.RAMDisk, &s.Validator} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return s, fmt.Errorf("find %s: %w", *p, err)
		}
		*p = abs
	}
	return s, nil
}

// missing returns an error that names the first of the controller's files that is not there, and what makes it.
func (s ServerConfig) missing() error {
	for _, f := range []struct{ path, target string }{
		{s.Binary, "build"}, {s.Validator, "build"}, {s.Kernel, "kernel"}, {s.RAMDisk, "ramdisk"},
	} {
		if _, err := os.Stat(f.path); err != nil {
			return &machine.Error{Code: machine.Unavailable, Message: f.path + " is not there", Hint: "make " + f.target}
		}
	}
	return nil
}

// strangerRange is for machines that nobody has enrolled: those of the lab end before it (maxMachines).
const strangerRange = "10.77.0.220-10.77.0.250"

// serverConfig writes the configuration of the lab's controller.
func serverConfig(c Config) ([]byte, error) {
	n := Network(c.Name)
	settings := map[string]any{
		"data_dir":   filepath.Join(c.Dir, "server"),
		"api_listen": Controller.String() + ":" + apiPort,
		"socket":     filepath.Join(c.Dir, serverSocket),
		"validator":  c.Server.Validator,
		"boot": map[string]any{
			"interface":   "prov0",
			"address":     Controller.String(),
			"prefix":      ProvisionNet.String(),
			"http_port":   8080,
			"kernel":      c.Server.Kernel,
			"ramdisk":     c.Server.RAMDisk,
			"kernel_args": c.Server.KernelArgs,
		},
		"edge": map[string]any{
			"netns":    n.Netns(Edge),
			"uplink":   "up0",
			"downlink": "down0",
			"deny":     []string{ProvisionNet.String(), BMCNet.String()},
		},
		"ports": map[string]any{"netns": n.Netns(Fabric)},
	}
	if c.Server.Record != "" {
		settings["console"] = map[string]any{"record": c.Server.Record}
	}
	boot := settings["boot"].(map[string]any)
	if c.Server.Discovery {
		boot["range"], boot["discovery"] = strangerRange, true
	}
	if c.Server.Disc != "" {
		boot["media_listen"], boot["media_iso"] = netip.AddrPortFrom(bmcUplink.Addr(), discPort).String(), c.Server.Disc
	}
	if slices.ContainsFunc(c.Machines, func(m MachineConfig) bool { return m.BMC == OpenIPMI }) {
		settings["bmc"] = map[string]any{"keep_password": true} // ipmi_sim is made anew, with its first password, when the lab is started again
	}
	settings["validation"] = map[string]any{"plan": "health"} // the lab image has no CUDA: nothing could load its cards
	for k, v := range c.Server.Extra {
		settings[k] = v
	}
	b, err := yaml.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("write server configuration: %w", err)
	}
	return b, nil
}

// server keeps the controller running in the management namespace.
type server struct {
	lab    *Lab
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	wanted  bool
	proc    *process      // nil while it does not run
	starts  int           // how often it was started
	changed chan struct{} // closed and replaced when anything above changes
}

func (l *Lab) serverConfigPath() string { return filepath.Join(l.cfg.Dir, "serve.yaml") }
func (l *Lab) serverLog() string        { return filepath.Join(l.cfg.Dir, "serve.log") }

func (l *Lab) startServer() (*server, error) {
	b, err := serverConfig(l.cfg)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(l.serverConfigPath(), b, 0o600); err != nil {
		return nil, fmt.Errorf("write server configuration: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{lab: l, log: l.log, cancel: cancel, done: make(chan struct{}), wanted: true, changed: make(chan struct{})}
	go s.supervise(ctx)
	return s, nil
}

// update changes the state under the lock and wakes everyone who waits for a change.
func (s *server) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// now is the state, and a channel that is closed when it is no longer true.
func (s *server) now() (wanted bool, proc *process, starts int, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted, s.proc, s.starts, s.changed
}

// supervise starts the controller, again and again, until ctx ends.
func (s *server) supervise(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil {
		wanted, _, _, changed := s.now()
		if !wanted {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		began := time.Now()
		s.once(ctx)
		if wanted, _, _, _ := s.now(); !wanted || ctx.Err() != nil {
			continue
		}
		delay := restartDelay
		if time.Since(began) < restartSlower {
			delay = restartSlower
		}
		delay = cmp.Or(s.lab.cfg.Server.Restart, delay)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// once runs the controller until it ends, is no longer wanted, or ctx ends.
func (s *server) once(ctx context.Context) {
	cmd := s.lab.Command(context.Background(), Mgmt, s.lab.cfg.Server.Binary, "serve", "--config", s.lab.serverConfigPath())
	cmd.Dir = s.lab.cfg.Dir
	cmd.Env = append(os.Environ(), s.lab.cfg.Server.Env...)
	proc, err := s.lab.starter.start(cmd, s.lab.serverLog())
	if err != nil {
		s.log.Error("controller does not start", "err", err)
		return
	}
	s.update(func() { s.proc = proc; s.starts++ })
	defer s.update(func() { s.proc = nil })
	for {
		wanted, _, _, changed := s.now()
		if !wanted {
			proc.terminate(stopGrace)
		}
		select {
		case <-proc.done:
			if wanted {
				s.log.Warn("controller ended and is started again", "err", proc.err, "log", s.lab.serverLog())
			}
			return
		case <-ctx.Done():
			proc.terminate(stopGrace)
			return
		case <-changed:
		}
	}
}

// await waits until the state is as wanted.
func (s *server) await(ctx context.Context, is func(proc *process, starts int) bool) error {
	for {
		_, proc, starts, changed := s.now()
		if is(proc, starts) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.done:
			return errNotRunning
		case <-changed:
		}
	}
}

func (s *server) close() {
	s.cancel()
	<-s.done
}

// KillServer ends the controller without warning, as a crash would, and waits for its end. It is started again.
func (l *Lab) KillServer() error {
	if l.server == nil {
		return errNotRunning
	}
	_, proc, _, _ := l.server.now()
	if proc == nil {
		return errNotRunning
	}
	proc.kill()
	return nil
}

// StopServer ends the controller in order, and keeps it from being started again until StartServer.
func (l *Lab) StopServer(ctx context.Context) error {
	if l.server == nil {
		return errNotRunning
	}
	l.server.update(func() { l.server.wanted = false })
	if err := l.server.await(ctx, func(p *process, _ int) bool { return p == nil }); err != nil {
		return fmt.Errorf("stop server: %w", err)
	}
	return nil
}

// StartServer lets the controller run again and waits for its process.
func (l *Lab) StartServer(ctx context.Context) error {
	if l.server == nil {
		return errNotRunning
	}
	l.server.update(func() { l.server.wanted = true })
	if err := l.server.await(ctx, func(p *process, _ int) bool { return p != nil }); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	return nil
}

// WaitServer waits until the controller answers on its API.
func (n Network) WaitServer(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := n.greet(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for server: %w (last: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// greet shakes hands with the controller: it is up when it speaks TLS. Whose certificate it shows is its clients' concern.
func (n Network) greet(ctx context.Context) error {
	conn, err := n.Dial(ctx, Mgmt, "tcp", Controller.String()+":"+apiPort)
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
}
