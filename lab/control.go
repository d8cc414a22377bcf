package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/bareyard/bareyard/machine"
)

const (
	controlSocket = "lab.sock"
	maxSocketPath = 107 // struct sockaddr_un: 108 bytes with the zero at the end
)

// Status is what a running lab says about itself.
type Status struct {
	Name     string          `json:"name"`
	PID      int             `json:"pid"`
	Dir      string          `json:"dir"`
	Netns    []string        `json:"netns"`
	Machines []MachineStatus `json:"machines"`
	Server   *ServerStatus   `json:"server,omitempty"`
}

// MachineStatus is a machine as the lab sees it.
type MachineStatus struct {
	Name      string           `json:"name"`
	Simulated bool             `json:"simulated,omitempty"`
	On        bool             `json:"on"`
	PID       int              `json:"pid,omitempty"`
	Firmware  machine.Firmware `json:"firmware"`
	BMCKind   BMCKind          `json:"bmc_kind"`
	BMC       string           `json:"bmc"`       // address, in namespace bmc and mgmt
	BootAddr  string           `json:"boot_addr"` // on the provisioning network
	SerialLog string           `json:"serial_log,omitempty"`
}

// ServerStatus is the controller as the lab sees it.
type ServerStatus struct {
	PID    int    `json:"pid"`    // 0 while it does not run
	Starts int    `json:"starts"` // how often it was started
	Config string `json:"config"`
	Log    string `json:"log"`
	API    string `json:"api"` // reachable in namespace mgmt
	Socket string `json:"socket"`
}

// Status describes the lab.
func (l *Lab) Status() Status {
	s := Status{Name: l.cfg.Name, PID: os.Getpid(), Dir: l.cfg.Dir}
	for _, ns := range namespaces() {
		s.Netns = append(s.Netns, l.Netns(ns))
	}
	for i, h := range l.hosts {
		p := h.self()
		m := MachineStatus{Name: p.Name, Simulated: p.Simulated, Firmware: p.Firmware, BMCKind: p.BMC, BMC: l.bmcs[i].record.Address, BootAddr: p.bootAddr.String()}
		m.On, _ = h.chassis().Power(context.Background()) // neither kind has an error to tell
		if q, ok := h.(*Machine); ok {
			m.PID, m.SerialLog = q.PID(), q.SerialLog()
		}
		s.Machines = append(s.Machines, m)
	}
	if l.server != nil {
		_, proc, starts, _ := l.server.now()
		s.Server = &ServerStatus{
			Starts: starts, Config: l.serverConfigPath(), Log: l.serverLog(),
			API: "https://" + Controller.String() + ":" + apiPort, Socket: filepath.Join(l.cfg.Dir, serverSocket),
		}
		if proc != nil {
			s.Server.PID = proc.cmd.Process.Pid
		}
	}
	return s
}

// ServeControl answers Clients on the socket in the lab's folder until ctx ends or one of them takes the lab down.
func (l *Lab) ServeControl(ctx context.Context) error {
	path := filepath.Join(l.cfg.Dir, controlSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return fmt.Errorf("protect socket: %w", err)
	}
	ctx, down := context.WithCancel(ctx)
	defer down()
	srv := &http.Server{Handler: l.control(down), ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan struct{})
	go func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := srv.Shutdown(grace); err != nil {
			srv.Close() // a client that does not let go
		}
		close(stopped)
	}()
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		down()
		<-stopped
		return fmt.Errorf("serve control socket: %w", err)
	}
	<-stopped
	return nil
}

func (l *Lab) control(down func()) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, fn func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := fn(r)
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				w.WriteHeader(http.StatusConflict)
				answer = controlError{Code: machine.CodeOf(err), Message: err.Error()}
			}
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				l.log.Warn("control client went away", "err", err)
			}
		})
	}
	done := struct{}{}
	handle("GET /status", func(*http.Request) (any, error) { return l.Status(), nil })
	handle("GET /inventory", func(*http.Request) (any, error) { return l.Inventory(), nil })
	handle("POST /machines/{name}/cut", func(r *http.Request) (any, error) {
		h := l.host(r.PathValue("name"))
		if h == nil {
			return nil, &machine.Error{Code: machine.NotFound, Message: "no machine " + r.PathValue("name")}
		}
		h.PowerCut()
		return done, nil
	})
	handle("POST /server/kill", func(*http.Request) (any, error) { return done, l.KillServer() })
	handle("POST /server/stop", func(r *http.Request) (any, error) { return done, l.StopServer(r.Context()) })
	handle("POST /server/start", func(r *http.Request) (any, error) { return done, l.StartServer(r.Context()) })
	handle("POST /down", func(*http.Request) (any, error) { down(); return done, nil })
	return mux
}

type controlError struct {
	Code    machine.Code `json:"code"`
	Message string       `json:"message"`
}

// Client talks to a lab that another process runs.
type Client struct {
	dir  string
	http http.Client
}

// NewClient returns a client for the lab in a folder. It connects with each call.
func NewClient(dir string) *Client {
	path := filepath.Join(dir, controlSocket)
	return &Client{dir: dir, http: http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}}
}

// Status asks what the lab is like. While no lab runs in the folder, the error is Unavailable.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.call(ctx, "GET", "/status", &s)
	return s, err
}

// Inventory lists the machines as an operator enrols them.
func (c *Client) Inventory(ctx context.Context) (r []Record, err error) {
	err = c.call(ctx, "GET", "/inventory", &r)
	return r, err
}

// PowerCut takes the power from a machine.
func (c *Client) PowerCut(ctx context.Context, name string) error {
	return c.call(ctx, "POST", "/machines/"+name+"/cut", nil)
}

// KillServer ends the controller as a crash would; the lab starts it again.
func (c *Client) KillServer(ctx context.Context) error {
	return c.call(ctx, "POST", "/server/kill", nil)
}

// StopServer ends the controller in order and keeps it down.
func (c *Client) StopServer(ctx context.Context) error {
	return c.call(ctx, "POST", "/server/stop", nil)
}

// StartServer lets the controller run again.
func (c *Client) StartServer(ctx context.Context) error {
	return c.call(ctx, "POST", "/server/start", nil)
}

// Down asks the lab to end. It returns before that has happened.
func (c *Client) Down(ctx context.Context) error { return c.call(ctx, "POST", "/down", nil) }

func (c *Client) call(ctx context.Context, method, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &machine.Error{Code: machine.Unavailable, Message: "no lab is running in " + c.dir, Hint: "start one: bareyard lab up"}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e controlError
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			return fmt.Errorf("ask the lab: %s", resp.Status)
		}
		return &machine.Error{Code: e.Code, Message: e.Message}
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read the lab's answer: %w", err)
	}
	return nil
}
