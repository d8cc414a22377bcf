package frr

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Speaker is FRR on this box.
type Speaker struct{ cfg Config }

// NewSpeaker returns the speaker of a configuration; nothing is touched yet.
func NewSpeaker(cfg Config) (*Speaker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Speaker{cfg}, nil
}

// vtysh runs FRR's shell. What it is given may hold a password, and is in no error.
func (s *Speaker) vtysh(ctx context.Context, args ...string) ([]byte, error) {
	if s.cfg.Sockets != "" {
		args = append([]string{"--vty_socket", s.cfg.Sockets}, args...)
	}
	cmd := exec.CommandContext(ctx, "vtysh", args...)
	cmd.Env = append(os.Environ(), "VTYSH_PAGER=cat")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String() + stdout.String())
		if len(said) > 300 {
			said = said[:300] + " …"
		}
		if errors.Is(err, exec.ErrNotFound) {
			return nil, &machine.Error{Code: machine.Unavailable, Message: "vtysh is not installed", Hint: "install FRR: apt install frr, with bgpd=yes in /etc/frr/daemons"}
		}
		return nil, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("FRR does not do as it is told: %v: %s", err, said), Hint: "see whether zebra and bgpd run: vtysh -c 'show daemons'"}
	}
	return stdout.Bytes(), nil
}

// rounds bounds how often what FRR has is compared with what is wanted: who takes a neighbor away takes all of its lines.
const rounds = 4

// Apply brings FRR's running configuration to what is wanted. It is idempotent, and leaves alone what is not ours. It does not save: it
// is called again after FRR was started.
func (s *Speaker) Apply(ctx context.Context) (changed bool, err error) {
	for range rounds {
		text, err := s.vtysh(ctx, "-c", "show running-config")
		if err != nil {
			return changed, err
		}
		lines, err := changes(s.cfg, parse(string(text)))
		if err != nil {
			return changed, err
		}
		if len(lines) == 0 {
			return changed, nil
		}
		changed = true
		if err := s.load(ctx, lines); err != nil {
			return changed, err
		}
	}
	return changed, &machine.Error{Code: machine.Unavailable, Message: "FRR keeps writing its configuration differently than we do", Hint: "compare `vtysh -c 'show running-config'` with docs/network.md, and tell us the version"}
}

// load has vtysh read commands from a file: arguments are for everybody to see.
func (s *Speaker) load(ctx context.Context, lines []string) error {
	f, err := os.CreateTemp("", "bareyard-frr-") // mode 0600
	if err != nil {
		return fmt.Errorf("write commands for FRR: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write commands for FRR: %w", err)
	}
	_, err = s.vtysh(ctx, "-f", f.Name())
	return err
}

// Announced returns what each neighbor that is up has been told.
func (s *Speaker) Announced(ctx context.Context) (map[netip.Addr]map[netip.Prefix]bool, error) {
	out := map[netip.Addr]map[netip.Prefix]bool{}
	for _, f := range families() {
		var summary struct {
			Peers map[string]struct {
				State string `json:"state"`
			} `json:"peers"`
		}
		if err := s.ask(ctx, &summary, "show bgp %s unicast summary json", f.afi); err != nil {
			return nil, err
		}
		for _, n := range s.cfg.Neighbors {
			if !f.of(n.Address) || summary.Peers[n.Address.String()].State != "Established" {
				continue
			}
			var told struct {
				Routes map[string]json.RawMessage `json:"advertisedRoutes"`
			}
			if err := s.ask(ctx, &told, "show bgp %s unicast neighbors %s advertised-routes json", f.afi, n.Address); err != nil {
				return nil, err
			}
			out[n.Address] = make(map[netip.Prefix]bool, len(told.Routes))
			for route := range told.Routes {
				if p, err := netip.ParsePrefix(route); err == nil {
					out[n.Address][p] = true
				}
			}
		}
	}
	return out, nil
}

func (s *Speaker) ask(ctx context.Context, into any, format string, a ...any) error {
	question := fmt.Sprintf(format, a...)
	text, err := s.vtysh(ctx, "-c", question)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read FRR's answer to %q: %w", question, err)
	}
	return nil
}

// Trouble says what the neighbors do not know of these ports, or should not: nothing when all is well.
func (s *Speaker) Trouble(ctx context.Context, ports []network.Port) ([]string, error) {
	told, err := s.Announced(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range s.cfg.Neighbors {
		if told[n.Address] == nil {
			out = append(out, fmt.Sprintf("the session with %s is down", n.Address))
		}
	}
	held := map[netip.Prefix]bool{}
	for _, p := range ports {
		for _, a := range p.Addrs {
			held[a] = true
			if !slices.ContainsFunc(s.cfg.Ranges, func(r netip.Prefix) bool { return r.Bits() <= a.Bits() && r.Contains(a.Addr()) }) {
				out = append(out, fmt.Sprintf("%s of machine %s is in none of the ranges: nobody is told of it", a, p.Machine))
				continue
			}
			for _, n := range s.cfg.Neighbors {
				known := told[n.Address]
				if known == nil || n.Address.Is4() != a.Addr().Is4() {
					continue
				}
				passes := p.Mode == network.On || p.Mode == network.Limited
				switch wanted := p.Mode == network.Blackhole || n.Hosts && passes; {
				case p.Mode == "" || known[a] == wanted:
				case wanted:
					out = append(out, fmt.Sprintf("%s has not been told of %s of machine %s, which is %s", n.Address, a, p.Machine, p.Mode))
				default:
					out = append(out, fmt.Sprintf("%s is still told of %s of machine %s, which is %s", n.Address, a, p.Machine, p.Mode))
				}
			}
		}
	}
	for _, n := range s.cfg.Neighbors {
		for _, a := range slices.SortedFunc(maps.Keys(told[n.Address]), netip.Prefix.Compare) {
			if !held[a] && slices.ContainsFunc(s.cfg.Ranges, func(r netip.Prefix) bool { return r != a && r.Contains(a.Addr()) && r.Bits() < a.Bits() }) {
				out = append(out, fmt.Sprintf("%s is told of %s, which no machine has", n.Address, a))
			}
		}
	}
	return out, nil
}

// Edge is a Linux edge whose addresses FRR announces.
type Edge struct {
	network.Edge
	speaker *Speaker
	log     *slog.Logger

	mu      sync.Mutex
	trouble []string
}

// Announce returns the edge with its speaker. Run keeps them together.
func Announce(edge network.Edge, s *Speaker, log *slog.Logger) *Edge {
	return &Edge{Edge: edge, speaker: s, log: log}
}

// Probe implements network.Prober where the edge that announces does.
func (e *Edge) Probe(ctx context.Context, addrs []netip.Prefix) ([]network.Answer, error) {
	return network.Probe(ctx, e.Edge, "", addrs)
}

// Caps implements network.Edge, and says what the neighbors do not know.
func (e *Edge) Caps(ctx context.Context) (network.Caps, error) {
	caps, err := e.Edge.Caps(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	caps.Announces, caps.Trouble = true, append(slices.Clone(caps.Trouble), e.trouble...)
	return caps, err
}

// Run keeps FRR's configuration as it is wanted and looks whether the neighbors know what they should, until ctx ends. The edge
// does its work without FRR; an address that is not announced is for a person to see.
func (e *Edge) Run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		trouble, err := e.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			trouble = []string{err.Error()}
		}
		e.tell(trouble)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (e *Edge) look(ctx context.Context) ([]string, error) {
	changed, err := e.speaker.Apply(ctx)
	if err != nil {
		return nil, err
	}
	if changed {
		e.log.Info("FRR was not configured as wanted, and is now")
	}
	ports, err := e.Read(ctx)
	if err != nil {
		return nil, err
	}
	return e.speaker.Trouble(ctx, ports)
}

// shown bounds how much trouble is told at once: a carrier that is down is trouble for every machine.
const shown = 10

// tell notes the trouble, and logs it when it has changed.
func (e *Edge) tell(trouble []string) {
	if n := len(trouble) - shown; n > 0 {
		trouble = append(slices.Clip(trouble[:shown]), fmt.Sprintf("and %d more", n))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(trouble, e.trouble) {
		return
	}
	e.trouble = trouble
	if len(trouble) == 0 {
		e.log.Info("FRR announces all that it should")
		return
	}
	e.log.Warn("FRR does not announce all that it should", "trouble", strings.Join(trouble, "; "))
}
