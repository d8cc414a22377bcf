// Package switchcli opens, closes, limits and describes the ports of switches through their command lines, over SSH.
//
// Huawei (VRP 5, and VRP 8 as huawei-ce), H3C, Ruijie, Cisco (IOS, NX-OS) and Arista are spoken. Their dialects were written by the
// vendors' manuals and are tested against transcripts composed from those, which a small SSH server replays: no real switch was
// used. Try a port that nobody needs before you rely on it.
//
// A change is made in one session: what is configured is read, the difference is written, committed, read back, and saved. A port
// that was opened is not saved as open: a switch that starts anew comes up with it closed, as long as that was saved once.
package switchcli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/scrapli/scrapligo/channel"
	"github.com/scrapli/scrapligo/driver/network"
	"github.com/scrapli/scrapligo/driver/options"
	"github.com/scrapli/scrapligo/platform"
	"github.com/scrapli/scrapligo/transport"
	"github.com/scrapli/scrapligo/util"

	"github.com/bareyard/bareyard/machine"
)

// Switch is how to reach a switch.
type Switch struct {
	Dialect      string
	Host         string
	Port         int // zero means 22
	User         string
	PasswordFile string // its first line is the password
	KeyFile      string // private key, instead of a password or beside it
	EnableFile   string // password of privileged mode, where one is asked for
	KnownHosts   string // file with the switch's host key, as ssh-keyscan writes it
	Legacy       bool   // also offer the algorithms that old switches know, which are broken
}

// Validate returns an Invalid error that names the field.
func (s Switch) Validate() error {
	switch _, ok := dialects()[s.Dialect]; {
	case !ok:
		return invalid("dialect", fmt.Sprintf("%q is no dialect", s.Dialect), "use one of "+strings.Join(Dialects(), ", "))
	case s.Host == "":
		return invalid("address", "the switch has no address", "give its management address")
	case s.User == "":
		return invalid("user", "nobody logs in", "give the user that may configure ports")
	case s.PasswordFile == "" && s.KeyFile == "":
		return invalid("password_file", "there is neither a password nor a key", "give the file of one")
	case s.KnownHosts == "":
		return invalid("known_hosts", "nobody knows the switch's host key", "write it down: ssh-keyscan ADDRESS > FILE, and compare it at the switch")
	}
	return nil
}

// Driver sets ports, which are named SWITCH:PORT. It keeps no state; sessions to one switch take turns.
type Driver struct {
	switches map[string]Switch
	turns    map[string]chan struct{}
	timeout  time.Duration
}

// New returns the driver of switches by their names; nothing is dialled yet.
func New(switches map[string]Switch) (*Driver, error) {
	d := &Driver{switches: switches, turns: map[string]chan struct{}{}, timeout: 15 * time.Second}
	for name, s := range switches {
		if err := s.Validate(); err != nil {
			var e *machine.Error
			if errors.As(err, &e) {
				e.Message = "switch " + name + ": " + e.Message
			}
			return nil, err
		}
		d.turns[name] = make(chan struct{}, 1)
	}
	return d, nil
}

func invalid(field, message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: field, Message: message, Hint: hint}
}

// Set opens or closes a port.
func (d *Driver) Set(ctx context.Context, port string, open bool) error {
	return d.change(ctx, port, !open, func(_ dialect, c *config) error {
		c.shut = !open
		return nil
	})
}

// Pin is what these dialects are not trusted with: a static secure address is told to each family in a different way, and gets a
// machine locked out when it is told wrongly. A Linux edge checks MAC and IP addresses by itself.
func (d *Driver) Pin(context.Context, string, string) error { return nil }

// Rate limits a port, in kbit/s; zero both for no limit. A dialect that cannot refuses it with Invalid.
func (d *Driver) Rate(ctx context.Context, port string, up, down int) error {
	return d.change(ctx, port, true, func(l dialect, c *config) error {
		if l.rate == nil {
			return invalid("bandwidth", "this dialect limits no port", "limit it at the edge")
		}
		if up < 0 || down < 0 || (up == 0) != (down == 0) {
			return invalid("bandwidth", fmt.Sprintf("%d/%d kbit/s is no limit", up, down), "limit both ways, or neither with 0")
		}
		// Comware and VRP take multiples of 8 kbit/s only.
		c.up, c.down = (up+7)/8*8, (down+7)/8*8
		return nil
	})
}

// Describe writes a description at a port, or takes it away when it is "".
func (d *Driver) Describe(ctx context.Context, port, text string) error {
	if text != "" && !descriptionRE.MatchString(text) {
		return invalid("description", fmt.Sprintf("%q is no description", text), "use up to 60 letters, digits, dots, dashes and underscores")
	}
	return d.change(ctx, port, true, func(_ dialect, c *config) error {
		c.description = text
		return nil
	})
}

// Open reports whether a port is open: what is configured, not whether a cable is in.
func (d *Driver) Open(ctx context.Context, port string) (bool, error) {
	open := false
	err := d.session(ctx, port, func(s *session) error {
		c, err := s.read()
		open = !c.shut
		return err
	})
	return open, err
}

// change brings a port to what edit makes of what it is.
func (d *Driver) change(ctx context.Context, port string, save bool, edit func(dialect, *config) error) error {
	return d.session(ctx, port, func(s *session) error {
		have, err := s.read()
		if err != nil {
			return err
		}
		want := have
		if err := edit(s.dialect, &want); err != nil {
			return err
		}
		lines := s.dialect.lines(have, want)
		if len(lines) == 0 {
			return nil
		}
		if err := s.configure(lines); err != nil {
			return err
		}
		got, err := s.read()
		if err != nil {
			return err
		}
		if got != want {
			return s.fail("it took the commands and did not do what they say: see its log")
		}
		if !save {
			return nil
		}
		return s.save()
	})
}

// session is one login for one port.
type session struct {
	dialect
	name    string // of the switch
	port    string
	driver  *network.Driver
	secrets []string
}

// session logs in, calls fn and logs out again.
func (d *Driver) session(ctx context.Context, port string, fn func(*session) error) error {
	name, local, ok := strings.Cut(port, ":")
	sw, known := d.switches[name]
	if !ok || !known {
		return &machine.Error{Code: machine.NotFound, Field: "port", Message: fmt.Sprintf("%q is at no switch that is configured", port), Hint: "write it as SWITCH:PORT, e.g. sw1:GigabitEthernet0/0/7"}
	}
	if !portRE.MatchString(local) {
		return invalid("port", fmt.Sprintf("%q is not the name of a switch port", local), "write it as the switch does, e.g. GigabitEthernet0/0/7")
	}
	select {
	case d.turns[name] <- struct{}{}:
		defer func() { <-d.turns[name] }()
	case <-ctx.Done():
		return fmt.Errorf("wait for switch %s: %w", name, ctx.Err())
	}
	s := &session{dialect: dialects()[sw.Dialect], name: name, port: local}
	if err := s.dial(ctx, sw, d.timeout); err != nil {
		return err
	}
	// The library knows no contexts: whoever gives up cuts the line.
	stop := context.AfterFunc(ctx, func() { _ = s.driver.Transport.Close(true) })
	err := fn(s)
	switch {
	case !stop():
	case err != nil:
		_ = s.driver.Transport.Close(true) // no farewell: it may be asked what is to become of half a configuration
	default:
		_ = s.driver.Close()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("configure switch %s: %w", name, ctx.Err())
	}
	return err
}

func (s *session) dial(ctx context.Context, sw Switch, timeout time.Duration) error {
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	opts := []util.Option{
		options.WithTransportType(transport.StandardTransport), options.WithAuthUsername(sw.User), options.WithSSHKnownHostsFile(sw.KnownHosts),
		options.WithTimeoutSocket(timeout), options.WithTimeoutOps(timeout), options.WithTermWidth(511),
	}
	if sw.Port != 0 {
		opts = append(opts, options.WithPort(sw.Port))
	}
	if s.levels != nil {
		opts = append(opts, options.WithPrivilegeLevels(s.levels))
	}
	for _, x := range []struct {
		file string
		with func(string) util.Option
	}{{sw.PasswordFile, options.WithAuthPassword}, {sw.EnableFile, options.WithAuthSecondary}} {
		if x.file == "" {
			continue
		}
		secret, err := readSecret(x.file)
		if err != nil {
			return err
		}
		s.secrets = append(s.secrets, secret)
		opts = append(opts, x.with(secret))
	}
	if sw.KeyFile != "" {
		opts = append(opts, options.WithAuthPrivateKey(sw.KeyFile, ""))
	}
	if sw.Legacy {
		opts = append(opts, legacy()...)
	}
	p, err := platform.NewPlatform(s.platform, sw.Host, opts...)
	if err == nil {
		s.driver, err = p.GetNetworkDriver()
	}
	if err == nil {
		err = s.driver.Open()
	}
	if err != nil {
		return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("log in to switch %s: %s", s.name, s.clean(err.Error())), Hint: "see its address, host key, user and password, and its access list"}
	}
	return nil
}

// readSecret reads the first line of a file.
func readSecret(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", invalid("password_file", file+" begins with an empty line", "write the secret into its first line")
	}
	return line, nil
}

// legacy offers what Go's SSH client does by default, and what it has given up.
func legacy() []util.Option {
	return []util.Option{
		options.WithStandardTransportExtraCiphers([]string{"aes128-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr", "aes128-cbc", "3des-cbc"}),
		options.WithStandardTransportExtraKexs([]string{"curve25519-sha256", "ecdh-sha2-nistp256", "diffie-hellman-group14-sha256", "diffie-hellman-group14-sha1", "diffie-hellman-group1-sha1"}),
		options.WithStandardTransportHostKeyAlgorithms([]string{"ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"}),
	}
}

// clean takes secrets out of what a switch or a library has said.
func (s *session) clean(text string) string {
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, "…")
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = text[:300] + " …"
	}
	return text
}

func (s *session) fail(format string, a ...any) error {
	return &machine.Error{Code: machine.Unavailable, Field: "port", Message: fmt.Sprintf("switch %s, port %s: %s", s.name, s.port, s.clean(fmt.Sprintf(format, a...))),
		Hint: "correct the port in the machine's record, or see to the switch"}
}

// check says when a switch has refused a command.
func (s *session) check(said, answer string) error {
	if s.refused.MatchString(answer) {
		return s.fail("it refuses %q: %s", said, answer)
	}
	return nil
}

// read reads what is configured at the port.
func (s *session) read() (config, error) {
	command := fmt.Sprintf(s.show, s.port)
	r, err := s.driver.SendCommand(command)
	if err != nil {
		return config{}, s.fail("%q: %v", command, err)
	}
	if err := s.check(command, r.Result); err != nil {
		return config{}, err
	}
	c, err := s.parse(r.Result)
	if err != nil {
		return c, s.fail("%v: %s", err, r.Result)
	}
	return c, nil
}

// configure writes lines into the port's section. After one that is refused nothing more is written; what was is not saved.
func (s *session) configure(lines []string) error {
	all := append([]string{"interface " + s.port}, lines...)
	all = append(all, s.leave)
	if s.commit != "" {
		all = append(all, s.commit)
	}
	for _, line := range all {
		r, err := s.driver.SendConfig(line)
		if err != nil {
			return s.fail("%q: %v", line, err)
		}
		if err := s.check(line, r.Result); err != nil {
			return err
		}
	}
	return nil
}

// save writes the running configuration to where the switch starts from.
func (s *session) save() error {
	if err := s.driver.AcquirePriv(s.exec); err != nil {
		return s.fail("leave configuration: %v", err)
	}
	var events []*channel.SendInteractiveEvent
	for _, e := range s.dialect.save {
		events = append(events, &channel.SendInteractiveEvent{ChannelInput: e.say, ChannelResponse: e.question})
	}
	r, err := s.driver.SendInteractive(events)
	if err != nil {
		return s.fail("save: %v", err)
	}
	if err := s.check("save", r.Result); err != nil {
		return err
	}
	if !s.saved.MatchString(r.Result) {
		return s.fail("it does not say that it saved: %s", r.Result)
	}
	return nil
}
