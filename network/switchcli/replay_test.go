package switchcli_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bareyard/bareyard/network/switchcli"
)

const (
	user     = "bareyard"
	password = "Zq9!canary'\"%s"
	enable   = "enable-Zq9!canary"
)

// step is a prompt, what must be typed after it, and what comes back.
type step struct{ prompt, typed, output string }

// promptRE is a line of a transcript that somebody has typed in, or that waits.
var promptRE = regexp.MustCompile(`^(<[\w.-]+>|\[[~*]?[\w./-]*\d[\w./-]*\]|[\w.-]+(?:\([^)]*\))?[>#] ?|Password: |.*\[Y/N\]:? ?|.*\[Y/N/C\]: ?)(.*)$`)

// session reads a section of a transcript.
func session(t *testing.T, dialect, section string) []step {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("testdata", dialect+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(a.Comment), "no real switch was used") {
		t.Fatalf("testdata/%s.txt does not say where it comes from", dialect)
	}
	for _, f := range a.Files {
		if f.Name != section {
			continue
		}
		steps := []step{{}} // what comes before the first prompt
		for line := range strings.Lines(string(f.Data)) {
			line = strings.TrimSuffix(line, "\n")
			if m := promptRE.FindStringSubmatch(line); m != nil {
				steps = append(steps, step{prompt: m[1], typed: m[2]})
				continue
			}
			last := &steps[len(steps)-1]
			last.output += line + "\r\n"
		}
		return steps
	}
	t.Fatalf("testdata/%s.txt has no section %q", dialect, section)
	return nil
}

// replay is an SSH server that plays one session of a switch after the other.
type replay struct {
	t        *testing.T
	listener net.Listener
	config   *ssh.ServerConfig
	key      ssh.Signer
	wg       sync.WaitGroup

	mu       sync.Mutex
	sessions [][]step
	problems []string
	silent   bool // nothing comes back
}

func newReplay(t *testing.T, sessions ...[]step) *replay {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &replay{t: t, sessions: sessions}
	if r.key, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	r.config = &ssh.ServerConfig{PasswordCallback: func(c ssh.ConnMetadata, p []byte) (*ssh.Permissions, error) {
		if c.User() != user || string(p) != password {
			return nil, fmt.Errorf("denied")
		}
		return nil, nil
	}}
	r.config.AddHostKey(r.key)
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	r.wg.Go(func() {
		for {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = r.listener.Close()
		r.wg.Wait()
	})
	return r
}

func (r *replay) problem(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, a...))
}

func (r *replay) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	conn, channels, requests, err := ssh.NewServerConn(c, r.config)
	if err != nil {
		return // who is not let in has no session
	}
	defer func() { _ = conn.Close() }()
	go ssh.DiscardRequests(requests) // ends with the connection
	n, ok := <-channels              // a switch has one session a login
	if !ok {
		return
	}
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	go func() { // ends with the channel
		for q := range requests {
			_ = q.Reply(q.Type == "pty-req" || q.Type == "shell", nil)
		}
	}()
	r.mu.Lock()
	if len(r.sessions) == 0 {
		r.problems = append(r.problems, "a session more than was expected")
		r.mu.Unlock()
		return
	}
	steps := r.sessions[0]
	r.sessions = r.sessions[1:]
	r.mu.Unlock()
	r.play(ch, steps)
	_ = ch.Close()
}

// play echoes what is typed and answers with what the transcript says.
func (r *replay) play(ch ssh.Channel, steps []step) {
	say := func(s string) {
		if !r.silent {
			_, _ = ch.Write([]byte(s))
		}
	}
	say(steps[0].output + steps[1].prompt)
	i, line, buf := 1, "", make([]byte, 1024)
	for i < len(steps) {
		n, err := ch.Read(buf)
		if err != nil {
			if i < len(steps)-1 { // the last line is a farewell
				r.problem("it hung up before %q", steps[i].prompt+steps[i].typed)
			}
			return
		}
		for _, b := range buf[:n] {
			if b != '\n' && b != '\r' {
				line += string(b)
				if !strings.HasPrefix(steps[i].prompt, "Password") {
					say(string(b))
				}
				continue
			}
			typed := line
			line = ""
			if typed == "" {
				say("\r\n" + steps[i].prompt)
				continue
			}
			if typed != steps[i].typed {
				r.problem("typed %q after %q, want %q", typed, steps[i].prompt, steps[i].typed)
				return
			}
			out := "\r\n" + steps[i].output
			if i++; i == len(steps) {
				return
			}
			say(out + steps[i].prompt)
		}
	}
}

// done checks that every session was played to its end.
func (r *replay) done(t *testing.T) {
	t.Helper()
	_ = r.listener.Close()
	r.wg.Wait()
	for _, p := range r.problems {
		t.Error(p)
	}
	if n := len(r.sessions); n > 0 {
		t.Errorf("%d sessions were not begun", n)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (r *replay) config1(t *testing.T, dialect string) switchcli.Switch {
	t.Helper()
	addr := r.listener.Addr().(*net.TCPAddr)
	known := knownhosts.Line([]string{knownhosts.Normalize(addr.String())}, r.key.PublicKey())
	return switchcli.Switch{
		Dialect: dialect, Host: "127.0.0.1", Port: addr.Port, User: user, PasswordFile: write(t, password), EnableFile: write(t, enable), KnownHosts: write(t, known),
	}
}

func driver(t *testing.T, s switchcli.Switch) *switchcli.Driver {
	t.Helper()
	d, err := switchcli.New(map[string]switchcli.Switch{"sw1": s})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
