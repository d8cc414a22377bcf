package ipmi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Controller drives BMCs. The zero value is ready; set the fields before the first use. It is safe for concurrent use.
//
// Each BMC has one session at a time, shared by those who wait for it and closed when the last of them is done, however
// that ends. What a BMC was found to need, such as its cipher suite, is remembered for the life of the Controller.
type Controller struct {
	Log     *slog.Logger  // nil is silence
	Timeout time.Duration // bound of an operation whose context has no deadline; 0 is 5 minutes
	Poll    time.Duration // between two reads of the power state; 0 is 2 s
	Settle  time.Duration // how long a host must read on after a cycle or reset that nobody saw happen; 0 is 10 s
	Silence time.Duration // how long a BMC that answers nothing is asked before a command is sent to it; 0 is to the end of the operation
	Answer  time.Duration // how long a BMC may take for one answer; 0 is 2 s for IPMI and 20 s for Redfish

	even bool // pauses are not jittered; for tests

	mu   sync.Mutex
	bmcs map[string]*bmc
}

// bmc is what a Controller knows about one BMC.
type bmc struct {
	users  int           // operations under way; guarded by Controller.mu
	turn   chan struct{} // holds a token while nobody talks to the BMC
	change chan struct{} // holds a token while nobody changes power or boot device

	sensors atomic.Pointer[sensors]     // IPMI: what its records say; nil until they were read
	asked   atomic.Pointer[biosRequest] // Redfish: the BIOS settings that were asked for last
	log     atomic.Pointer[string]      // Redfish: path of the event log
	lastJob atomic.Pointer[string]      // Redfish: the job of the last change

	console  sync.Mutex // held by the one console
	consoles []uint32   // sessions in which this Controller had the console, the latest last; guarded by console

	// Guarded by turn.
	conn conn
	as   [sha256.Size]byte // the credentials of conn
	off  holdOff
	memory

	known known
}

// memory is what was found out about a BMC.
type memory struct {
	worked  string    // the user that logged in last
	noBasic bool      // Redfish: Basic authentication was refused
	armed   *nextBoot // the override that the coming start shall see
	looked  bool      // IPMI: for sessions that died with an earlier program
}

// nextBoot is an override that was set and read back.
type nextBoot struct {
	override
	set time.Time
}

// override is what a host is to boot next, and how it is to be told.
type override struct {
	device Device
	uefi   bool
	method BootMethod
}

// asUEFI is whether the override is one for UEFI.
func (o override) asUEFI() bool { return o.uefi != (o.method == BootOtherMode) }

// persistent is whether it holds until it is changed.
func (o override) persistent() bool { return o.method == BootPersistent }

// armedFor is how long an override that was set is checked again before a start. It covers a slow power-off and the
// 60 s after which some BMCs forget; it is short enough that a change of mind elsewhere is not undone.
const armedFor = 15 * time.Minute

// conn is one session with a BMC. Its methods fail with a *failure.
type conn interface {
	power(ctx context.Context) (Power, error)
	// command sends op once; now is the state read just before.
	command(ctx context.Context, op Op, now Power) error
	// setBoot sets an override for the next boot and reads it back.
	setBoot(ctx context.Context, o override) error
	// keepsBoot reports whether the override is still set.
	keepsBoot(ctx context.Context, o override) (bool, error)
	close(ctx context.Context)
}

// errRestartUnsupported means that the BMC can neither cycle nor reset: off and on does it.
var errRestartUnsupported = fmt.Errorf("no restart: %w", ErrUnsupported)

// closeWithin bounds the end of a session, which happens even when the operation's context is over.
const closeWithin = 5 * time.Second

func (c *Controller) poll() time.Duration { return cmp.Or(c.Poll, 2*time.Second) }

func (c *Controller) log() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// within bounds an operation whose context has no deadline.
func (c *Controller) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, cmp.Or(c.Timeout, 5*time.Minute))
}

// link is one operation's hold on a BMC.
type link struct {
	c *Controller
	t Target
	b *bmc
}

// hold registers an operation with a BMC. The caller defers release.
func (c *Controller) hold(t Target) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.entry(t)
	b.users++
	return &link{c: c, t: t, b: b}
}

// about is what is known of a BMC, for those who do not speak to it.
func (c *Controller) about(t Target) *bmc {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entry(t)
}

// entry finds or makes the entry of a BMC. c.mu is held.
func (c *Controller) entry(t Target) *bmc {
	key := t.key()
	b := c.bmcs[key]
	if b == nil {
		if c.bmcs == nil {
			c.bmcs = map[string]*bmc{}
		}
		b = &bmc{turn: make(chan struct{}, 1), change: make(chan struct{}, 1)}
		b.turn <- struct{}{}
		b.change <- struct{}{}
		c.bmcs[key] = b
	}
	return b
}

// release ends the operation's hold, and the session with the last of them.
func (l *link) release() {
	<-l.b.turn // whoever holds it is bounded by one exchange
	defer func() { l.b.turn <- struct{}{} }()
	l.c.mu.Lock()
	l.b.users--
	last := l.b.users == 0
	l.c.mu.Unlock()
	if last {
		l.hangUp()
	}
}

// hangUp closes the session. The turn is held.
func (l *link) hangUp() {
	if l.b.conn == nil {
		return
	}
	conn := l.b.conn
	l.b.conn = nil
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	conn.close(ctx)
}

// do runs fn on the session, which it opens where there is none, while nobody else talks to the BMC. A session on which
// the BMC fell silent is closed.
func (l *link) do(ctx context.Context, fn func(conn) error) error {
	select {
	case <-ctx.Done():
		return over(ctx)
	case <-l.b.turn:
	}
	defer func() { l.b.turn <- struct{}{} }()
	as := l.t.credentials()
	if l.b.as != as {
		l.hangUp()
	}
	if err := l.b.off.waits(); err != nil {
		return err
	}
	if l.b.conn == nil {
		if err := l.b.off.allows(as); err != nil {
			return err
		}
		conn, err := l.open(ctx)
		l.b.off.note(as, err)
		if err != nil {
			return orOver(ctx, err)
		}
		l.b.conn, l.b.as, l.b.worked = conn, as, l.t.Username
	}
	healthy := false
	defer func() {
		if !healthy { // fn failed on the wire or panicked
			l.hangUp()
		}
	}()
	err := fn(l.b.conn)
	if err != nil {
		l.b.off.note(as, err)
	}
	healthy = err == nil || !isAny(err, ErrUnreachable, ErrCredentials, ErrLocked, ErrUntrusted)
	return orOver(ctx, err)
}

func (l *link) open(ctx context.Context) (conn, error) {
	conn, err := l.dial(ctx)
	if f, ok := err.(*failure); ok {
		f.login = true
	}
	return conn, err
}

func (l *link) dial(ctx context.Context) (conn, error) {
	switch l.t.Protocol {
	case IPMI:
		return openRMCP(ctx, l.t, &l.b.memory, &l.b.known, cmp.Or(l.c.Answer, 2*time.Second), l.c.log())
	case Redfish:
		return openRedfish(ctx, l.t, &l.b.memory, cmp.Or(l.c.Answer, 20*time.Second), l.c.log())
	}
	return nil, failf(ErrUnsupported, "no such protocol")
}

// credentials is a fingerprint of what is shown to the BMC.
func (t Target) credentials() [sha256.Size]byte {
	return sha256.Sum256([]byte(t.Username + "\x00" + t.Password + "\x00" + t.CertPin + "\x00" + t.Proven.UTC().Format(time.RFC3339Nano)))
}

func (b *bmc) keepJob(path string) { b.lastJob.Store(&path) }

func (b *bmc) job() string {
	if p := b.lastJob.Load(); p != nil {
		return *p
	}
	return ""
}

// ownConsole remembers a console session as one of ours.
func (b *bmc) ownConsole(session uint32) {
	b.consoles = append(b.consoles, session)
	if len(b.consoles) > 16 {
		b.consoles = b.consoles[1:]
	}
}

func (b *bmc) ownsConsole(session uint32) bool {
	return session != 0 && slices.Contains(b.consoles, session)
}

// over is the error of an operation whose context ended.
func over(ctx context.Context) error { return &failure{kind: ctx.Err()} }

// orOver adds the context's error to that of an exchange, if the context ended it.
func orOver(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	f, ok := err.(*failure)
	if !ok || f.kind == ctx.Err() {
		return err
	}
	with := *f
	with.cause = ctx.Err()
	return &with
}

// Power reads the power state. A BMC that answers but does not say yields Unknown and no error.
func (c *Controller) Power(ctx context.Context, t Target) (Power, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	l := c.hold(t)
	defer l.release()
	p := Unknown
	err := l.again(ctx, func() (err error) {
		p, err = l.power(ctx)
		return err
	})
	return p, t.on("read power", err)
}

// again runs fn, which may be run twice without harm, up to three times while the BMC is silent: a lost packet, or a session that
// timed out.
func (l *link) again(ctx context.Context, fn func() error) error {
	err := fn()
	for try := 1; try < 3 && errors.Is(err, ErrUnreachable) && ctx.Err() == nil; try++ {
		err = fn()
	}
	return err
}

// read runs an operation that changes nothing.
func (c *Controller) read(ctx context.Context, t Target, doing string, fn func(context.Context, *link) error) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	l := c.hold(t)
	defer l.release()
	return t.on(doing, fn(ctx, l))
}

// ipmi runs fn on the session with a BMC that is driven by IPMI.
func (l *link) ipmi(ctx context.Context, fn func(*rmcpConn) error) error {
	return on(ctx, l, fn)
}

// redfish runs fn on the session with a BMC that is driven by Redfish.
func (l *link) redfish(ctx context.Context, fn func(*rfConn) error) error {
	return on(ctx, l, fn)
}

func on[C conn](ctx context.Context, l *link, fn func(C) error) error {
	return l.do(ctx, func(any conn) error {
		c, ok := any.(C)
		if !ok {
			return failf(ErrUnsupported, "not by %s", l.t.Protocol)
		}
		return fn(c)
	})
}

// Check logs in once, reads the power state and logs out. It makes at most one attempt to log in, and it makes that one also
// where the same credentials were refused before or are locked out.
func (c *Controller) Check(ctx context.Context, t Target) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	l := c.hold(t)
	defer l.release()
	err := l.fresh(ctx)
	if err == nil {
		_, err = l.power(ctx)
	}
	return t.on("check", err)
}

// fresh closes the session and forgets why there should be no login with these credentials, so that the next exchange logs in anew.
func (l *link) fresh(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return over(ctx)
	case <-l.b.turn:
		l.hangUp()
		l.b.off.forget(l.t.credentials())
		l.b.turn <- struct{}{}
		return nil
	}
}

func (l *link) power(ctx context.Context) (Power, error) {
	p := Unknown
	err := l.do(ctx, func(conn conn) (err error) {
		p, err = conn.power(ctx)
		return err
	})
	if err != nil {
		return Unknown, err
	}
	return p, nil
}

// operate runs an operation that changes the machine while no other does.
func (c *Controller) operate(ctx context.Context, t Target, doing string, fn func(context.Context, *link) error) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	l := c.hold(t)
	defer l.release()
	select {
	case <-ctx.Done():
		return t.on(doing, over(ctx))
	case <-l.b.change:
	}
	defer func() { l.b.change <- struct{}{} }()
	return t.on(doing, fn(ctx, l))
}
