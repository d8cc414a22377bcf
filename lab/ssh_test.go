package lab

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshHost is an SSH server in a namespace that runs commands there, for one key.
func sshHost(t *testing.T, n Network, ns, addr string) (key []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private) // its host key too: nobody looks at it
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if ours, ok := k.(ssh.CryptoPublicKey).CryptoPublicKey().(ed25519.PublicKey); c.User() != "root" || !ok || !ours.Equal(public) {
			return nil, ssh.ErrNoAuth
		}
		return nil, nil
	}}
	config.AddHostKey(signer)
	var l net.Listener
	err = n.Enter(ns, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr, "22"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serveSSH(conn, config, func(command string) *exec.Cmd { return n.Command(context.Background(), ns, "sh", "-c", command) })
		}
	}()
	return pem.EncodeToMemory(block)
}

// serveSSH runs the commands of one connection, one after the other.
func serveSSH(conn net.Conn, config *ssh.ServerConfig, command func(string) *exec.Cmd) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests) // ends with the connection
	for ch := range channels {
		session, requests, err := ch.Accept()
		if err != nil {
			return
		}
		for r := range requests {
			var exec struct{ Command string }
			if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil {
				r.Reply(false, nil)
				continue
			}
			r.Reply(true, nil)
			cmd := command(exec.Command)
			cmd.Stdout, cmd.Stderr = session, session.Stderr()
			status := struct{ Code uint32 }{}
			if cmd.Run() != nil {
				status.Code = uint32(cmd.ProcessState.ExitCode())
			}
			session.SendRequest("exit-status", false, ssh.Marshal(status))
			session.Close()
		}
	}
}

func TestSSHAndBandwidth(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Fatal("iperf3 not found: install the package iperf3")
	}
	n := wired(t)
	host := EdgeUplink.Addr()
	key := sshHost(t, n, Edge, host.String())

	out, err := n.SSH(t.Context(), Internet, host, "root", key, "ip -brief link show down0")
	if err != nil || !strings.HasPrefix(out, "down0") {
		t.Errorf("SSH = %q, %v", out, err)
	}
	if _, err := n.SSH(t.Context(), Internet, host, "root", key, "echo oops >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "oops") {
		t.Errorf("a command that fails: %v", err)
	}
	if _, err := n.SSH(t.Context(), Internet, host, "nobody", key, "true"); err == nil {
		t.Error("logged in as a user who has no key")
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := n.SSH(short, Internet, host, "root", key, "sleep 2"); err == nil {
		t.Error("a command outlived its context")
	}

	// 50 Mbit/s from the internet, and whatever the box can in the other direction.
	if out, err := n.Command(t.Context(), Internet, "tc", "qdisc", "add", "dev", "up0", "root", "tbf", "rate", "50mbit", "burst", "64kb", "latency", "50ms").CombinedOutput(); err != nil {
		t.Fatalf("tc: %v: %s", err, out)
	}
	got, err := n.Bandwidth(t.Context(), host, "root", key, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got.Down < 25 || got.Down > 60 || got.Up < 2*got.Down {
		t.Errorf("bandwidth = %+v, want 50 Mbit/s down and far more up", got)
	}
}
