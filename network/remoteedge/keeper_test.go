package remoteedge_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/remoteedge"
)

func keep(t *testing.T, edge network.Edge, file string) (*remoteedge.Keeper, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	return remoteedge.NewKeeper(edge, file, slog.New(slog.NewTextHandler(&log, nil))), &log
}

// runFor runs a keeper for a while.
func runFor(t *testing.T, k *remoteedge.Keeper, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := k.Run(ctx, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// TestKeeperRemembers reboots the box: the kernel has forgotten, no server is there.
func TestKeeperRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "edge.json")
		first := &memory{}
		k, _ := keep(t, first, file)
		if err := k.Apply(t.Context(), []network.Port{port("a", 1), port("b", 2), port("c", 3)}, nil); err != nil {
			t.Fatal(err)
		}
		if err := k.Apply(t.Context(), nil, []string{"b"}); err != nil {
			t.Fatal(err)
		}
		again := &memory{ports: map[string]network.Port{"stranger": port("stranger", 9)}}
		k, _ = keep(t, again, file)
		runFor(t, k, 25*time.Second)
		if !again.has("a") || again.has("b") || !again.has("c") || again.has("stranger") {
			t.Errorf("after a reboot the edge carries %v", again.ports)
		}
		if again.applied != 5 {
			t.Errorf("applied %d times in 25 s, want guards, at once with a look at the whole, and every 10 s", again.applied)
		}
	})
}

// TestKeeperRepairs tampers with the edge while the keeper runs, and has the edge fail for a while.
func TestKeeperRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &memory{}
		k, log := keep(t, edge, filepath.Join(t.TempDir(), "edge.json"))
		if err := k.Apply(t.Context(), []network.Port{port("a", 1)}, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx, 10*time.Second) }()
		synctest.Wait()
		edge.mu.Lock()
		edge.ports, edge.fail = nil, errors.New("the device is gone")
		edge.mu.Unlock()
		// What the server asks for meanwhile fails, but is not forgotten.
		if err := k.Apply(t.Context(), []network.Port{port("b", 2)}, nil); err == nil {
			t.Error("a failing edge applied something")
		}
		time.Sleep(30 * time.Second)
		edge.mu.Lock()
		edge.fail = nil
		edge.mu.Unlock()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if !edge.has("a") || !edge.has("b") {
			t.Error("the edge does not carry what it carried and what was asked for meanwhile")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "the device is gone") || !strings.Contains(log.String(), "as it is wanted again") {
			t.Errorf("the log does not tell:\n%s", log)
		}
	})
}

// TestKeeperShowsWhatItWants: a server that reads an edge whose kernel has forgotten sees, and can take away, what would come
// back.
func TestKeeperShowsWhatItWants(t *testing.T) {
	edge := &memory{}
	k, _ := keep(t, edge, filepath.Join(t.TempDir(), "edge.json"))
	if err := k.Apply(t.Context(), []network.Port{port("a", 1), port("b", 2)}, nil); err != nil {
		t.Fatal(err)
	}
	delete(edge.ports, "a")
	have, err := k.Read(t.Context())
	if err != nil || len(have) != 2 || have[0].Machine != "a" || have[0].Mode != "" || have[1].Mode != network.On {
		t.Errorf("read %v, %v", have, err)
	}
	if err := network.Reconcile(t.Context(), k, []network.Port{port("b", 2)}); err != nil {
		t.Fatal(err)
	}
	if have, err := k.Read(t.Context()); err != nil || len(have) != 1 {
		t.Errorf("what nobody wants is still wanted: %v, %v", have, err)
	}
}

// TestKeeperRefuses: what the edge refuses, or contradicts what it carries, leaves no trace.
func TestKeeperRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge.json")
	edge := &memory{}
	k, _ := keep(t, edge, file)
	if err := k.Apply(t.Context(), []network.Port{port("a", 1)}, nil); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Apply(t.Context(), []network.Port{port("b", 1)}, nil); machine.CodeOf(err) != machine.Conflict || edge.applied != 1 {
		t.Errorf("an address that is another's: %v", err)
	}
	edge.fail = &machine.Error{Code: machine.Exhausted, Message: "full"}
	if err := k.Apply(t.Context(), []network.Port{port("b", 2)}, nil); machine.CodeOf(err) != machine.Exhausted {
		t.Errorf("a full edge: %v", err)
	}
	edge.fail = nil
	again := &memory{}
	k, _ = keep(t, again, file)
	if err := k.Apply(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(unsaved(after), unsaved(before)) {
		t.Errorf("what was refused is remembered: %s, %v", after, err)
	}
}

// unsaved takes out when a memory was written.
func unsaved(text []byte) []byte { return text[bytes.Index(text, []byte(`"ports"`)):] }

// TestKeeperWithoutMemory adopts what the edge carries completely, and says so.
func TestKeeperWithoutMemory(t *testing.T) {
	for name, text := range map[string]string{"None": "", "Damaged": "{\"ports\": [{", "Contradicts": `{"ports": [{"machine": "a"}, {"machine": "a"}]}`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "edge.json")
				if text != "" {
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				tampered := port("b", 2)
				tampered.Mode = ""
				edge := &memory{ports: map[string]network.Port{"a": port("a", 1), "b": tampered}}
				k, log := keep(t, edge, file)
				runFor(t, k, time.Second)
				if !edge.has("a") || edge.has("b") || !strings.Contains(log.String(), "keeping what the edge carries") {
					t.Errorf("edge carries %v, log:\n%s", edge.ports, log)
				}
			})
		})
	}
}

// TestKeeperEndsBlackhole: the timer that the customer sees is kept to the second, with no server there.
func TestKeeperEndsBlackhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := &memory{}
		k, _ := keep(t, edge, filepath.Join(t.TempDir(), "edge.json"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx, time.Hour) }()
		synctest.Wait()
		p := port("a", 1)
		p.Mode, p.Until, p.Then = network.Blackhole, time.Now().Add(90*time.Second), network.Limited
		if err := k.Apply(t.Context(), []network.Port{p}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(89 * time.Second)
		if got := edge.mode("a"); got != network.Blackhole {
			t.Errorf("after 89 s the mode is %s", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := edge.mode("a"); got != network.Limited {
			t.Errorf("after 91 s the mode is %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
