package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

// daemonEnv makes the test program run the lab that it holds, as bareyard lab run would.
const daemonEnv = "BAREYARD_TEST_LAB"

// TestMain lets the test program stand in for the programs that a lab starts.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := error(nil)
	switch text := os.Getenv(daemonEnv); {
	case os.Getenv(loadEnv) != "":
		err = runLoad(ctx, os.Getenv(loadEnv))
	case len(os.Args) == 4 && os.Args[1] == "serve":
		err = fakeServe(ctx, os.Args[3])
	case text != "":
		var cfg Config
		if err = json.Unmarshal([]byte(text), &cfg); err == nil {
			cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			err = Run(ctx, cfg)
		}
	default:
		stop()
		goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
			os.RemoveAll(built.dir)
			os.Exit(code)
		}))
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// fakeServe stands in for bareyard serve: it speaks TLS where the configuration says, until ctx ends.
func fakeServe(ctx context.Context, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var cfg struct {
		APIListen string `json:"api_listen"`
	}
	if err := yaml.Unmarshal(b, &cfg); err != nil {
		return err
	}
	pair, err := selfSigned(Controller)
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", cfg.APIListen, &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil
		}
		_ = conn.(*tls.Conn).Handshake() // a client that does not want to is gone
		conn.Close()
	}
}

// daemon is the command that runs a lab in a process of its own.
func daemon(t *testing.T, cfg Config) *exec.Cmd {
	t.Helper()
	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(b))
	return cmd
}
