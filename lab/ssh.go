package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// SSH runs a command on the host at addr, as a user who logs in from a namespace with a private key (PEM), and returns what
// it wrote to its standard output. Any host key will do: in a lab, machines are installed again and again.
func (n Network) SSH(ctx context.Context, ns string, addr netip.Addr, user string, key []byte, command string) (string, error) {
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("read SSH key: %w", err)
	}
	hostPort := net.JoinHostPort(addr.String(), "22")
	conn, err := n.Dial(ctx, ns, "tcp", hostPort)
	if err != nil {
		return "", fmt.Errorf("connect to %s: %w", addr, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	c, channels, requests, err := ssh.NewClientConn(conn, hostPort, &ssh.ClientConfig{
		User:            user,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return "", fmt.Errorf("log in on %s: %w", addr, err)
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return "", fmt.Errorf("open SSH session: %w", err)
	}
	defer session.Close()
	var out, errs bytes.Buffer
	session.Stdout, session.Stderr = &out, &errs
	if err := session.Run(command); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return out.String(), fmt.Errorf("run %q on %s: %w: %s", command, addr, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Bandwidth is what TCP carried, in Mbit/s.
type Bandwidth struct {
	Down float64 `json:"down"` // from the internet to the machine
	Up   float64 `json:"up"`   // from the machine to the internet
}

// Bandwidth measures what a customer on the internet gets to and from the machine at addr, for the given time in each
// direction. The machine's image must have iperf3, and so must this box.
func (n Network) Bandwidth(ctx context.Context, addr netip.Addr, user string, key []byte, each time.Duration) (Bandwidth, error) {
	var b Bandwidth
	for _, d := range []struct {
		result *float64
		args   []string
	}{{&b.Down, nil}, {&b.Up, []string{"--reverse"}}} {
		// One server per run: it ends after its client has gone. It listens a moment after it has gone to the background.
		if _, err := n.SSH(ctx, Internet, addr, user, key, "iperf3 --server --one-off --daemon && sleep 1"); err != nil {
			return b, fmt.Errorf("start iperf3: %w", err)
		}
		args := append([]string{"--client", addr.String(), "--json", "--time", fmt.Sprint(max(1, int(each.Seconds())))}, d.args...)
		out, err := n.Command(ctx, Internet, "iperf3", args...).Output()
		rate, parsed := iperfRate(out)
		if parsed != nil {
			return b, fmt.Errorf("measure bandwidth: %w (iperf3: %v)", parsed, err)
		}
		*d.result = rate
	}
	return b, nil
}

// iperfRate reads the receiver's rate, in Mbit/s, from the report of iperf3 --json.
func iperfRate(report []byte) (float64, error) {
	var r struct {
		Error string
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return 0, fmt.Errorf("read iperf3's report: %w", err)
	}
	if r.Error != "" {
		return 0, fmt.Errorf("iperf3: %s", r.Error)
	}
	if r.End.Received.BitsPerSecond == 0 {
		return 0, fmt.Errorf("iperf3 reports no traffic")
	}
	return r.End.Received.BitsPerSecond / 1e6, nil
}
