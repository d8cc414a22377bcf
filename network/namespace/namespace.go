// Package namespace opens, locks and enters Linux network namespaces for the drivers below network.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// Lock says with whom a namespace is shared.
type Lock int

// Locks.
const (
	Shared    Lock = unix.LOCK_SH // with others who read
	Exclusive Lock = unix.LOCK_EX // with nobody
	None      Lock = 0            // with everybody: for who only looks
)

// Namespace is an open and locked network namespace.
type Namespace struct{ f *os.File }

// Open opens the namespace of a name, as in `ip netns`; "" is that of the calling process. It waits for the lock until ctx
// is done. The lock is on the namespace's own inode: it reaches exactly as far as the state that it guards, and goes with
// the process that holds it. A namespace that is not there is an Unavailable error.
func Open(ctx context.Context, name string, how Lock) (*Namespace, error) {
	path := "/proc/self/ns/net"
	if name != "" {
		path = filepath.Join("/run/netns", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("open network namespace %q: %v", name, err), Hint: "create it, or correct the configuration"}
	}
	if how == None {
		return &Namespace{f}, nil
	}
	if err := flock(ctx, f, how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock network namespace %q: %w", name, err), f.Close())
	}
	return &Namespace{f}, nil
}

func flock(ctx context.Context, f *os.File, how Lock) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), int(how)|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Handle returns the descriptor; it is valid until Close.
func (n *Namespace) Handle() netns.NsHandle { return netns.NsHandle(n.f.Fd()) }

// Do runs f on a thread of its own inside the namespace: for /proc/sys/net, which shows that of the thread that opens it. The
// thread ends with the goroutine, so none comes back to the others in the wrong namespace.
func (n *Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(n.Handle()); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// batchBuffer holds an nftables transaction of some 10,000 machines; the default fails with EMSGSIZE at a few thousand.
const batchBuffer = 32 << 20

// Nftables connects to the nftables of the namespace; whoever asks closes it by CloseLasting.
func (n *Namespace) Nftables() (*nftables.Conn, error) {
	buffers := func(c *mdnetlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(batchBuffer), c.SetReadBuffer(batchBuffer))
	}
	c, err := nftables.New(nftables.WithNetNSFd(int(n.Handle())), nftables.AsLasting(), nftables.WithSockOptions(buffers))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, nil
}

// Close gives the lock back.
func (n *Namespace) Close() error { return n.f.Close() }
