package main

// What people see of a serial console. Rules: the host's bytes go to standard output as they are, because they are for a terminal;
// what we have to say goes to standard error, on lines of its own, in brackets; a terminal is put back as it was, however it ends.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/bareyard/bareyard/api/client"
)

type consoleFlags struct {
	ReadOnly bool `help:"Look, and send no keys."`
	TakeOver bool `help:"End the session of whoever else has the console at the BMC. For operators."`
}

func (c consoleFlags) options() client.ConsoleOptions {
	return client.ConsoleOptions{Write: !c.ReadOnly, TakeOver: c.TakeOver}
}

type machineConsole struct {
	oneMachine
	consoleFlags
}

// Help is shown with the command.
func (machineConsole) Help() string { return escapes }

const escapes = `After Enter, ~. ends the console, ~B sends a break, ~? says what there is, and ~~ is one ~.`

// Run opens a machine's console.
func (m *machineConsole) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		conn, err := c.MachineConsole(ctx, m.Machine, m.options())
		if err != nil {
			return err
		}
		return attach(ctx, t, conn, m.Machine, !m.ReadOnly)
	})
}

type orderConsole struct {
	remote
	Order string `arg:"" help:"The order."`
	consoleFlags
}

// Help is shown with the command.
func (orderConsole) Help() string { return escapes }

// Run opens the console of an order's machine.
func (o *orderConsole) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		conn, err := c.OrderConsole(ctx, o.Order, o.options())
		if err != nil {
			return err
		}
		return attach(ctx, t, conn, "order "+o.Order, !o.ReadOnly)
	})
}

// attach joins this terminal to a console until one of them ends.
func attach(ctx context.Context, t *terminal, conn *client.Console, name string, write bool) error {
	defer conn.Close()
	restore, err := rawTerminal(os.Stdin)
	if err != nil {
		return err
	}
	defer restore()
	say := func(format string, a ...any) { fmt.Fprintf(t.err, "\r\n[%s]\r\n", fmt.Sprintf(format, a...)) }
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	typed := make(chan struct{})
	go func() { // ends with ctx
		defer close(typed)
		if err := typeOn(ctx, os.Stdin, conn, write, say); err != nil {
			cancel(err)
		}
	}()
	err = show(ctx, t.out, conn, name, say)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	<-typed
	restore()
	switch {
	case errors.Is(err, errHungUp):
		say("console of %s closed", name)
		return nil
	case errors.Is(err, errEnded):
		return nil // it was said
	}
	return err
}

var (
	errHungUp = errors.New("the user closed the console")
	errEnded  = errors.New("the server closed the console")
)

// show writes what the host says.
func show(ctx context.Context, out io.Writer, conn *client.Console, name string, say func(string, ...any)) error {
	for {
		data, m, err := conn.Next(ctx)
		switch {
		case err != nil:
			return err
		case m == nil:
			if _, err := out.Write(data); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
		case m.Kind == "open":
			say("console of %s, %s; Enter ~. ends it", name, m.Text)
		case m.Kind == "end":
			say("console of %s closed: %s", name, m.Text)
			return errEnded
		default:
			say("%s", m.Text)
		}
	}
}

// typeOn sends what is typed until ctx ends or the user hangs up. At the end of a file that is no terminal it returns nil: the
// console goes on showing.
func typeOn(ctx context.Context, in *os.File, conn *client.Console, write bool, say func(string, ...any)) error {
	keys := escapeReader{atStart: true}
	buf := make([]byte, 4096)
	for {
		ready, err := readable(ctx, in)
		if err != nil || !ready {
			return err
		}
		n, err := in.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read keys: %w", err)
		}
		for _, x := range keys.take(buf[:n]) {
			switch {
			case x.escape == '.':
				return errHungUp
			case x.escape == '?':
				say("~. ends the console, ~B sends a break, ~~ is one ~; each after Enter")
				continue
			case !write:
				continue
			case x.escape == 'B':
				err = conn.Break(ctx)
			default:
				err = conn.Write(ctx, x.keys)
			}
			if err != nil {
				return nil // show says why
			}
		}
	}
}

// readable waits until there is something to read, in steps, so that it ends with ctx: a read of a terminal cannot be called off.
func readable(ctx context.Context, f *os.File) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for keys: %w", err)
		}
		if n > 0 {
			return true, nil
		}
	}
	return false, nil
}

// rawTerminal hands every key to us, Ctrl-C too, and returns what puts the terminal back. Anything but a terminal is left as it is.
func rawTerminal(f *os.File) (restore func(), err error) {
	if !term.IsTerminal(int(f.Fd())) {
		return func() {}, nil
	}
	was, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("take the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), was) }, nil
}

// typed is keys, or an escape: the character after a ~ at the start of a line.
type typed struct {
	keys   []byte
	escape byte
}

// escapeReader finds the escapes in what is typed.
type escapeReader struct {
	atStart bool // of a line
	tilde   bool // a ~ at the start of a line was typed and not sent yet
}

func (r *escapeReader) take(in []byte) (out []typed) {
	var keys bytes.Buffer
	flush := func() {
		if keys.Len() > 0 {
			out = append(out, typed{keys: bytes.Clone(keys.Bytes())})
			keys.Reset()
		}
	}
	for _, b := range in {
		switch {
		case r.tilde && (b == '.' || b == '?' || b == 'B'):
			flush()
			out = append(out, typed{escape: b})
			r.tilde, r.atStart = false, true
			continue
		case r.tilde:
			r.tilde = false
			keys.WriteByte('~')
			if b == '~' {
				r.atStart = false
				continue
			}
		case r.atStart && b == '~':
			r.tilde = true
			continue
		}
		keys.WriteByte(b)
		r.atStart = b == '\r' || b == '\n'
	}
	flush()
	return out
}
