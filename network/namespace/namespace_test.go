package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/namespace"
)

// made makes a namespace that goes with the test.
func made(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("byns-%d-%s", os.Getpid(), t.Name())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("make a namespace (needs root and iproute2): %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	return name
}

func TestLocks(t *testing.T) {
	name := made(t)
	open := func(ctx context.Context, how namespace.Lock) *namespace.Namespace {
		t.Helper()
		n, err := namespace.Open(ctx, name, how)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	a, b := open(t.Context(), namespace.Shared), open(t.Context(), namespace.Shared)
	refused := func(how namespace.Lock) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if n, err := namespace.Open(ctx, name, how); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %v, want to wait until the deadline", n, err)
		}
	}
	refused(namespace.Exclusive)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	c := open(t.Context(), namespace.Exclusive)
	refused(namespace.Shared)
	refused(namespace.Exclusive)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t.Context(), namespace.Shared).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDo(t *testing.T) {
	names := func() (out []string) {
		ifs, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range ifs {
			out = append(out, i.Name)
		}
		return out
	}
	name := made(t)
	if out, err := exec.Command("ip", "-n", name, "link", "add", "marker0", "type", "bridge").CombinedOutput(); err != nil {
		t.Fatalf("add device: %v\n%s", err, out)
	}
	n, err := namespace.Open(t.Context(), name, namespace.Shared)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	before := fmt.Sprint(names())
	var inside []string
	if err := n.Do(func() error { inside = names(); return nil }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(inside) != "[lo marker0]" {
		t.Errorf("inside there are %v, want lo and marker0", inside)
	}
	wrong := errors.New("wrong")
	if err := n.Do(func() error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	for range 100 {
		if after := fmt.Sprint(names()); after != before {
			t.Fatalf("a thread came back in the wrong namespace: %s, was %s", after, before)
		}
	}
}

func TestMissing(t *testing.T) {
	if _, err := namespace.Open(t.Context(), "byns-nope", namespace.Shared); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
}
