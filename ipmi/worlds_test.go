package ipmi_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	user     = "operator"
	password = "s3cret-pass"
)

// world is one of the simulated BMCs that the same test body runs on.
type world struct {
	name     string
	vendor   bmctest.Vendor
	target   ipmi.Target
	memory   *bmctest.Memory
	board    *bmctest.Board // what the BMC watches over; ipmi_sim takes it as it is when it starts
	faults   *bmctest.Faults
	sessions func() (opened, closed int) // nil where nobody counts
	logins   func() int                  // nil where nobody counts
	bits     bool                        // shows once and UEFI, loses replies, refuses cycles when off
	line     *bmctest.Line               // the host's serial port; not in the Redfish world
	addUser  func(name, password string, p ipmi.Privilege) error
	ipmi     *bmctest.IPMI    // nil in the other worlds
	redfish  *bmctest.Redfish // nil in the other worlds
}

// worlds runs body on each simulated BMC; on names some of them, or none for all.
func worlds(t *testing.T, body func(t *testing.T, w *world), on ...string) {
	for _, name := range []string{"IPMI", "ipmi_sim", "Redfish"} {
		if len(on) > 0 && !contains(on, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(t, newWorld(t, name))
		})
	}
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// vendors runs body on the Redfish service of each vendor.
func vendors(t *testing.T, body func(t *testing.T, w *world)) {
	for _, v := range bmctest.Vendors() {
		t.Run("Redfish of "+string(v), func(t *testing.T) {
			t.Parallel()
			body(t, newWorld(t, "Redfish", func(w *world) { w.vendor = v }))
		})
	}
}

type server interface {
	Listen() (string, error)
	Run(ctx context.Context) error
	Target() ipmi.Target
}

func newWorld(t *testing.T, name string, before ...func(*world)) *world {
	t.Helper()
	w := &world{name: name, faults: &bmctest.Faults{}, line: &bmctest.Line{}, board: bmctest.NewBoard(), memory: bmctest.NewMemory(bmctest.Identity{
		UUID: "a1234567-89ab-cdef-a123-456789abcdef", Serial: "BY-1", Model: "Test",
	})}
	for _, change := range before {
		change(w)
	}
	var s server
	switch name {
	case "IPMI":
		b := &bmctest.IPMI{Addr: "127.0.0.1:0", User: user, Password: password, Chassis: w.memory, Board: w.board, Faults: w.faults, Console: w.line.Open}
		s, w.ipmi, w.sessions, w.bits = b, b, b.Sessions, true
		w.logins, w.addUser = b.Logins, b.AddUser
	case "ipmi_sim":
		s = &bmctest.OpenIPMI{Addr: "127.0.0.1:0", User: user, Password: password, Chassis: w.memory, Board: w.board, Faults: w.faults, Console: w.line.Open}
	case "Redfish":
		r := &bmctest.Redfish{Addr: "127.0.0.1:0", TLS: true, User: user, Password: password, Slots: 4, Vendor: w.vendor, Chassis: w.memory, Board: w.board, Faults: w.faults}
		s, w.redfish, w.sessions, w.logins, w.bits = r, r, r.Sessions, r.Logins, true
		w.addUser = r.AddUser
	}
	serve(t, s)
	t.Cleanup(func() {
		if w.sessions == nil {
			return
		}
		if opened, closed := w.sessions(); opened != closed {
			t.Errorf("sessions: %d opened, %d closed", opened, closed)
		}
	})
	w.target = s.Target()
	if w.logins != nil { // those of the wait do not count
		before, all := w.logins(), w.logins
		w.logins = func() int { return all() - before }
	}
	return w
}

// serve runs a BMC until the test ends, and waits until it answers.
func serve(t *testing.T, s server) {
	t.Helper()
	if _, err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	// ipmi_sim takes a moment to bind its socket.
	c := &ipmi.Controller{}
	for {
		_, err := c.Power(long(t), s.Target())
		if err == nil {
			return
		}
		select {
		case <-done:
			t.FailNow()
		case <-time.After(10 * time.Millisecond):
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// quick is a controller that polls fast.
func quick() *ipmi.Controller {
	return &ipmi.Controller{Poll: 10 * time.Millisecond, Settle: 100 * time.Millisecond}
}

// brief bounds an operation that is meant to fail at its deadline.
func brief(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// long bounds an operation that is meant to succeed, on a slow machine too.
func long(t *testing.T) context.Context { return brief(t, time.Minute) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantOps(t *testing.T, w *world, want ...ipmi.Op) {
	t.Helper()
	got := w.memory.Ops()
	if len(got) != len(want) {
		t.Fatalf("operations = %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("operations = %v, want %v", got, want)
		}
	}
}
