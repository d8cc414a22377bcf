package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
)

// How patient a simulated machine is. Real ones are no quicker to give up; the pauses are short because tests wait for them.
const (
	firmwareTries = 60
	firmwarePause = 500 * time.Millisecond
	agentBeat     = 500 * time.Millisecond
	agentPatience = 10 * time.Minute
	osPause       = 200 * time.Millisecond
	osTries       = 3000
)

// loadAgent asks the boot server as iPXE does, and returns the archive of this boot, or nil when it is told to boot the disk.
func (s *Simulated) loadAgent(l *life) ([]byte, error) {
	if s.NoPXE {
		return nil, errors.New("the firmware has no boot from the network")
	}
	script, err := s.fetch(l, "/boot/ipxe/"+s.provMAC+".ipxe")
	if err != nil || !strings.Contains(string(script), "/boot/archive/") {
		return nil, err
	}
	return s.fetch(l, "/boot/archive/"+s.provMAC)
}

// loadDisc reads the disc in the drive by way of the BMC, and returns the archive on it.
func (s *Simulated) loadDisc(l *life) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.net.Dial(ctx, BMCs, network, address)
	}}, Timeout: 10 * time.Second}
	body, err := get(l.ctx, client, s.disc())
	if err != nil {
		return nil, err
	}
	at := bytes.Index(body, []byte("070701")) // of a cpio archive, which nothing else on the disc is
	if at < 0 {
		return nil, errors.New("nothing on the disc boots")
	}
	return body[at:], nil
}

// errRefused is a boot server's no.
var errRefused = errors.New("refused")

// fetch gets a file from the boot server. It asks again while nobody answers.
func (s *Simulated) fetch(l *life, path string) ([]byte, error) {
	client := &http.Client{Transport: s.wire(l, &http.Transport{DisableKeepAlives: true}), Timeout: 10 * time.Second}
	var err error
	for range firmwareTries {
		var body []byte
		body, err = get(l.ctx, client, fmt.Sprintf("http://%s:8080%s", Controller, path))
		if err == nil || errors.Is(err, errRefused) {
			return body, err
		}
		if !pause(l.ctx, firmwarePause) {
			return nil, l.ctx.Err()
		}
	}
	return nil, err
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode >= 500:
		return nil, fmt.Errorf("get %s: %s", url, res.Status)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("get %s: %w: %s", url, errRefused, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, 64<<20))
}

// wire is a life's way to the network: from the machine's own address, and cut when the life is mute.
type wire struct {
	life *life
	*http.Transport
}

func (s *Simulated) wire(l *life, t *http.Transport) wire {
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.dial(ctx, l, network, address)
	}
	return wire{l, t}
}

// RoundTrip implements http.RoundTripper.
func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.life.mute.Load() {
		return nil, errors.New("network is unreachable")
	}
	return w.Transport.RoundTrip(r)
}

// dial connects from the machine's own address.
func (s *Simulated) dial(ctx context.Context, l *life, network, address string) (conn net.Conn, err error) {
	err = s.net.Enter(Racks, func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: l.addr.AsSlice()}, Timeout: 5 * time.Second}
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// client is the HTTP client of a boot, from the machine's own address.
func (s *Simulated) client(l *life, boot agent.Boot) (*http.Client, error) {
	c, err := boot.Client()
	if err != nil {
		return nil, err
	}
	t, ok := c.Transport.(*http.Transport)
	if !ok {
		return nil, errors.New("make client: not an http.Transport")
	}
	c.Transport = s.wire(l, t)
	return c, nil
}

// runAgent is the RAM disk.
func (s *Simulated) runAgent(l *life, archive []byte) error {
	raw, err := fileIn(archive, strings.TrimPrefix(agent.BootPath, "/"))
	if err != nil {
		return err
	}
	boot, err := agent.ParseBoot(raw)
	if err != nil {
		return err
	}
	client, err := s.client(l, boot)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	err = agent.Run(l.ctx, agent.Config{Boot: boot, Hands: &hands{s, l}, Client: client, Log: s.log, Beat: agentBeat, Patience: agentPatience})
	s.log.Debug("the agent ends and powers the machine off", "err", err)
	return err
}

// fileIn finds a file in a cpio archive.
func fileIn(archive []byte, name string) ([]byte, error) {
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive)))
	if err != nil {
		return nil, fmt.Errorf("read boot archive: %w", err)
	}
	for _, r := range records {
		if strings.TrimPrefix(r.Name, "/") == name {
			return io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
		}
	}
	return nil, fmt.Errorf("read boot archive: no %s", name)
}

// vendorData is what the simulated cloud-init reads of a seed.
type vendorData struct {
	Files []struct{ Path, Content string } `json:"write_files"`
	Run   [][]string                       `json:"runcmd"`
}

// runOS is the first boot of the installed system: the validator's conversation, with the token that the seed put in place.
// Later boots have nothing to say.
func (s *Simulated) runOS(l *life) error {
	s.mu.Lock()
	disk := s.disk
	s.mu.Unlock()
	if disk.seed == nil {
		return errors.New("no bootable system on the disk")
	}
	if disk.phoned {
		return nil
	}
	boot, token, err := s.readSeed(disk.seed)
	if err != nil {
		return err
	}
	client, err := s.client(l, boot)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	report := machine.Report{Step: machine.StepFirstBoot, Phase: machine.Done}
	for range osTries {
		in, status, err := say(l.ctx, client, boot.Server, token, report)
		switch {
		case status == http.StatusGone || status == http.StatusUnauthorized:
			return nil
		case err == nil && in.Do == machine.DoFinish:
			s.mu.Lock()
			s.disk.phoned = true
			s.mu.Unlock()
			return nil
		case err == nil && in.Do == machine.DoStep && in.Step == machine.StepAccept:
			result, err := s.try(l, client, boot.Server, token, in)
			if err != nil {
				return err
			}
			report = machine.Report{Step: in.Step, Phase: machine.Done, Result: result}
			continue
		case err == nil && in.Do == machine.DoStep:
			report = machine.Report{Step: in.Step, Phase: machine.Done, Result: s.validate(in)}
			continue
		case err == nil:
			report = machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle}
		}
		if !pause(l.ctx, osPause) {
			return l.ctx.Err()
		}
	}
	return errors.New("the server is silent")
}

// readSeed finds what the validator needs, as cloud-init would put it in place.
func (s *Simulated) readSeed(seed map[string]string) (boot agent.Boot, token string, err error) {
	var vendor vendorData
	if err := yaml.Unmarshal([]byte(seed["vendor-data"]), &vendor); err != nil {
		return boot, "", fmt.Errorf("read seed: %w", err)
	}
	if len(vendor.Run) == 0 || len(vendor.Run[0]) == 0 {
		return boot, "", errors.New("read seed: it runs nothing")
	}
	boot = agent.Boot{Server: vendor.Run[0][len(vendor.Run[0])-1], MAC: s.provMAC}
	for _, f := range vendor.Files {
		switch {
		case strings.HasSuffix(f.Path, "/ca.pem"):
			boot.CA = f.Content
		case strings.HasSuffix(f.Path, "/token"):
			token = f.Content
		}
	}
	return boot, token, nil
}

// validate judges, with the real rules, what a machine with the recorded parts would show.
func (s *Simulated) validate(in machine.Instruction) json.RawMessage {
	s.mu.Lock()
	lost := s.trouble.LostCards
	s.mu.Unlock()
	facts := s.facts(s.Absent + lost)
	var expect machine.Expect
	if in.Expect != nil {
		expect = *in.Expect
	}
	if in.Validate != nil {
		facts.Plan = accelerator.Plan(in.Validate.Plan)
	}
	raw, err := json.Marshal(accelerator.Judge(facts, expect, accelerator.Rules{}))
	if err != nil {
		panic(err) // a report of our own always encodes
	}
	return raw
}

// facts are what such a machine shows, with so many of its cards gone.
func (s *Simulated) facts(gone int) accelerator.Facts {
	h := s.record().Hardware
	facts := accelerator.Facts{Taken: time.Now(), Log: accelerator.KernelLog{Records: 1}}
	for _, a := range h.Accelerators[:max(0, len(h.Accelerators)-gone)] {
		facts.PCI.Cards = append(facts.PCI.Cards, accelerator.PCICard{Slot: a.Slot, Vendor: a.Vendor, Device: a.Device, Class: "030200",
			Answers: accelerator.Measured(true, "", "sysfs"), AERFatal: accelerator.Unsupported[int64]("sysfs")})
	}
	facts.Driver = []accelerator.Driver{{Vendor: "10de", Fault: &accelerator.Fault{Kind: accelerator.FaultAbsent, Detail: "the image brings none"}}}
	facts.Host.Memory = accelerator.Measured(int64(s.Memory)<<20, "bytes", "proc")
	facts.Host.Nouveau = accelerator.Measured(false, "", "proc")
	for _, d := range h.Disks {
		facts.Host.Disks = append(facts.Host.Disks, accelerator.HostDisk{Name: d.Serial, Serial: accelerator.Measured(d.Serial, "", "sysfs"), Size: accelerator.Measured(d.Size, "bytes", "sysfs")})
	}
	for _, n := range h.NICs {
		facts.Host.NICs = append(facts.Host.NICs, accelerator.HostNIC{Name: string(n.Role), MAC: accelerator.Measured(n.MAC, "", "sysfs"), Carrier: accelerator.Measured(true, "", "sysfs")})
	}
	return facts
}

// say sends one report of the installed system, and returns the answer and its status.
func say(ctx context.Context, client *http.Client, server, token string, r machine.Report) (in machine.Instruction, status int, err error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return in, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server+"/agent/v1/report", bytes.NewReader(raw))
	if err != nil {
		return in, 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return in, 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return in, res.StatusCode, fmt.Errorf("report: %s", res.Status)
	}
	return in, res.StatusCode, json.NewDecoder(res.Body).Decode(&in)
}

// pause waits and reports whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
