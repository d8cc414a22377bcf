package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// meter is an edge's counters as a test sets them.
type meter struct {
	mu       sync.Mutex
	counters []network.Counter
	failure  error
	sites    []string // that were asked alone
}

func (m *meter) Counters(context.Context) ([]network.Counter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]network.Counter(nil), m.counters...), m.failure
}

func (m *meter) CountersAt(ctx context.Context, site string) ([]network.Counter, error) {
	m.sites = append(m.sites, site)
	return m.Counters(ctx)
}

// count sets the counters of a machine as they were at a time.
func (m *meter) count(id string, at time.Time, epoch time.Time, up, down uint64, doubt string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var rest []network.Counter
	for _, c := range m.counters {
		if c.Machine != id {
			rest = append(rest, c)
		}
	}
	for d, n := range map[network.Direction]uint64{network.Up: up, network.Down: down} {
		rest = append(rest, network.Counter{Machine: id, Direction: d, Bytes: n, Epoch: epoch.UnixNano(), At: at, Doubt: doubt})
	}
	m.counters = rest
}

// counted is a data centre with one order whose traffic is counted, and the moment it begins at.
func counted(t *testing.T) (*yard, *meter, machine.Order, time.Time) {
	t.Helper()
	y := newYard(t)
	o := y.active(1, nil)
	m := &meter{}
	y.Meter, y.Books = m, y.db
	return y, m, o, time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC)
}

func (y *yard) round(now time.Time) bool {
	y.t.Helper()
	done, err := y.TakeRound(y.t.Context(), now)
	y.must(err)
	return done
}

func (y *yard) samples(o machine.Order, from time.Time, span time.Duration) []billing.Sample {
	y.t.Helper()
	list, err := y.db.Samples(y.t.Context(), o.ID, from, from.Add(span))
	y.must(err)
	return list
}

func TestRounds(t *testing.T) {
	y, m, o, at := counted(t)
	epoch := at.Add(-time.Hour)
	const five = 5 * time.Minute
	next := func(up, down uint64, doubt string) {
		at = at.Add(five)
		m.count(o.MachineID, at, epoch, up, down, doubt)
		y.round(at)
	}
	begin := at
	m.count(o.MachineID, at, epoch, 1_000, 2_000, "")
	y.round(at) // the first reading says nothing yet
	next(38_501_000, 5_002_000, "")
	next(38_501_000, 5_002_000, "") // an idle slot is a sample, too

	// The servers are down for a round: what was delivered is known, but not when.
	at = at.Add(five)
	next(138_501_000, 15_002_000, "")
	next(139_501_000, 16_002_000, "")

	// The counters began again, as after a reinstall: what they have counted since is there, the rest is lost.
	epoch = at.Add(time.Minute)
	next(7_000, 8_000, "")

	// A reading in doubt is no reading.
	next(0, 0, "the kernel was interrupted")
	next(9_000, 9_000, "")
	next(10_000, 10_000, "")

	got := y.samples(o, begin.Add(-time.Hour), 3*time.Hour)
	var lines []string
	for _, s := range got {
		lines = append(lines, fmt.Sprintf("%s %s %d %d %s", s.Slot.UTC().Format("15:04"), s.Took, s.Up, s.Down, s.Doubt))
	}
	want := []string{
		"00:00 5m0s 38500000 5000000 ",
		"00:05 5m0s 0 0 ",
		"00:15 10m0s 100000000 10000000 it covers 10m0s: a reading before it is missing",
		"00:20 5m0s 1000000 1000000 ",
		"00:25 5m0s 7000 8000 ",
		"00:30 5m0s 0 0 the kernel was interrupted",
		"00:35 10m0s 2000 1000 it covers 10m0s: a reading before it is missing",
		"00:40 5m0s 1000 1000 ",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("samples are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	u := billing.Summarize(got, begin, at)
	if u.Up.Bytes != 38_500_000+1_000_000+7_000+1_000 || u.Doubtful != 3 || u.Measured != 5 || u.Slots != 9 || u.Up.Unbilled != 100_002_000 {
		t.Errorf("usage is %+v", u)
	}
}

// TestServersDoNotCountTwice: eight servers take the round of each slot at once; each slot has one sample, and the bytes add up.
func TestServersDoNotCountTwice(t *testing.T) {
	y, m, o, at := counted(t)
	epoch, begin := at.Add(-time.Hour), at
	var rounds int
	for i := range 6 {
		m.count(o.MachineID, at, epoch, uint64(i)*1000, uint64(i)*10, "")
		var servers sync.WaitGroup
		var mu sync.Mutex
		for range 8 {
			servers.Go(func() {
				done, err := y.TakeRound(t.Context(), at.Add(300*time.Millisecond))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if done {
					rounds++
				}
			})
		}
		servers.Wait()
		at = at.Add(5 * time.Minute)
	}
	u := billing.Summarize(y.samples(o, begin.Add(-time.Hour), 2*time.Hour), begin.Add(-time.Hour), at)
	if rounds != 6 || u.Measured != 5 || u.Up.Bytes != 5000 || u.Down.Bytes != 50 {
		t.Errorf("%d rounds, usage %+v", rounds, u)
	}
}

// TestEdgeThatDoesNotAnswer leaves out the machines behind it and nobody else; when nothing answers the slot stays open.
func TestEdgeThatDoesNotAnswer(t *testing.T) {
	y, m, o, at := counted(t)
	other := y.active(2, nil)
	epoch, begin := at.Add(-time.Hour), at
	m.count(o.MachineID, at, epoch, 0, 0, "")
	m.count(other.MachineID, at, epoch, 0, 0, "")
	y.round(at)
	at = at.Add(5 * time.Minute)
	m.mu.Lock()
	m.counters, m.failure = nil, errors.New("no route to host")
	m.mu.Unlock()
	if _, err := y.TakeRound(t.Context(), at); err == nil {
		t.Error("nothing could be read, and nobody says so")
	}
	m.count(o.MachineID, at, epoch, 500, 500, "") // one of two edges is back, within the slot
	if !y.round(at.Add(20 * time.Second)) {
		t.Error("the slot was not open any more")
	}
	m.failure = nil
	at = at.Add(5 * time.Minute)
	m.count(o.MachineID, at, epoch, 600, 600, "")
	m.count(other.MachineID, at, epoch, 900, 900, "")
	y.round(at)
	one, two := y.samples(o, begin, time.Hour), y.samples(other, begin, time.Hour)
	if len(one) != 2 || one[0].Up != 500 || one[1].Up != 100 || one[0].Doubt+one[1].Doubt != "" {
		t.Errorf("of the edge that answered: %+v", one)
	}
	if len(two) != 1 || two[0].Up != 900 || two[0].Doubt == "" {
		t.Errorf("of the one that did not: %+v", two)
	}
}

// TestTrafficGoesWithTheOrder: the next customer of a machine does not pay for the one before.
func TestTrafficGoesWithTheOrder(t *testing.T) {
	y, m, o, at := counted(t)
	epoch, begin := at.Add(-time.Hour), at
	m.count(o.MachineID, at, epoch, 100, 100, "")
	y.round(at)
	_, err := y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(o.MachineID)
	y.bootAgent(o.MachineID).until()
	y.turn(o.MachineID)
	next, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(o.MachineID)
	at = at.Add(5 * time.Minute)
	m.count(o.MachineID, at, at.Add(-time.Minute), 77, 7, "")
	y.round(at)
	if got := y.samples(o, begin, time.Hour); len(got) != 0 {
		t.Errorf("the first order has %+v", got)
	}
	if got := y.samples(next, begin, time.Hour); len(got) != 1 || got[0].Up != 77 || got[0].Down != 7 {
		t.Errorf("the second order has %+v", got)
	}
}

// TestPeriodsCloseAndOldSamplesGo: months are closed as they end, however late; hours outlive samples, and nothing grows without
// bounds.
func TestPeriodsCloseAndOldSamplesGo(t *testing.T) {
	y, _, o, _ := counted(t)
	ctx := t.Context()
	start := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	_, err := y.db.Conn.Exec(ctx, `UPDATE orders SET started = $2, until = $2::timestamptz + interval '1 year' WHERE id = $1`, o.ID, start)
	y.must(err)
	// 150 days of samples: 1 Mbit/s up, with 10 Mbit/s in one slot of ten; half of it down.
	_, err = y.db.Conn.Exec(ctx, `INSERT INTO traffic_sample (order_id, slot, machine_id, took, up, down)
		SELECT $1, $2::timestamptz + i * interval '5 minutes', 'm', 300000000000, CASE WHEN i % 10 = 0 THEN 375000000 ELSE 37500000 END, 18750000 FROM generate_series(0, 150 * 288 - 1) i`, o.ID, start)
	y.must(err)
	now := start.Add(150 * 24 * time.Hour)
	for range 2 { // once more changes nothing
		y.must(y.db.ClosePeriods(ctx, now))
		y.must(y.db.Condense(ctx, now, provisioner.Retention{}.WithDefaults()))
	}
	closed, err := y.db.Periods(ctx, o.ID)
	y.must(err)
	if len(closed) != 4 {
		t.Fatalf("%d months are closed: %+v", len(closed), closed)
	}
	for n, p := range closed {
		from, to := billing.Period(start, 1, n, time.UTC)
		if p.N != n || !p.Usage.From.Equal(from) || !p.Usage.To.Equal(to) || p.Last || p.Usage.Measured != p.Usage.Slots || p.Usage.Up.P95 != 10_000_000 || p.Usage.Down.P95 != 500_000 {
			t.Errorf("month %d: %+v", n, p)
		}
	}
	count := func(sql string) (n int) {
		y.must(y.db.Conn.QueryRow(ctx, sql).Scan(&n))
		return n
	}
	if n := count(`SELECT count(*) FROM traffic_sample`); n != 100*288 {
		t.Errorf("%d samples are left, want those of 100 days", n)
	}
	if n := count(`SELECT count(*) FROM traffic_hour`); n != 150*24-1 {
		t.Errorf("%d hours, want all but the one that may still change", n)
	}
	hours, err := y.db.Hours(ctx, o.ID, start, now)
	y.must(err)
	var up int64
	for _, h := range hours {
		up += h.Up
	}
	if want := int64(150*24-1) * 12 * 37_500_000; up < want || up > 2*want {
		t.Errorf("the hours come to %d bytes", up)
	}

	// The order ends in its fifth month: that month ends with its last sample, and no other follows.
	_, err = y.db.Conn.Exec(ctx, `UPDATE orders SET state = 'ended' WHERE id = $1`, o.ID)
	y.must(err)
	y.must(y.db.ClosePeriods(ctx, now))
	if again, _ := y.db.Periods(ctx, o.ID); len(again) != 4 {
		t.Error("the last month is closed before its last rounds are in")
	}
	y.must(y.db.ClosePeriods(ctx, now.Add(2*time.Hour)))
	y.must(y.db.ClosePeriods(ctx, now.Add(2000*time.Hour)))
	closed, err = y.db.Periods(ctx, o.ID)
	y.must(err)
	if len(closed) != 5 || !closed[4].Last || !closed[4].Usage.To.Equal(now) || closed[4].Usage.Measured != closed[4].Usage.Slots {
		t.Errorf("the last month is %+v of %d", closed[len(closed)-1], len(closed))
	}
	// In two years nothing of it is left but the months.
	y.must(y.db.Condense(ctx, now.Add(1000*24*time.Hour), provisioner.Retention{}.WithDefaults()))
	if n := count(`SELECT (SELECT count(*) FROM traffic_sample) + (SELECT count(*) FROM traffic_hour) + (SELECT count(*) FROM traffic_meter) + (SELECT count(*) FROM traffic_round)`); n != 0 {
		t.Errorf("%d rows are left after two years", n)
	}
}

// TestOrderWithoutTrafficCloses: an order that ended before it was measured is closed once, with nothing.
func TestOrderWithoutTrafficCloses(t *testing.T) {
	y, _, o, _ := counted(t)
	_, err := y.db.Conn.Exec(t.Context(), `UPDATE orders SET state = 'ended' WHERE id = $1`, o.ID)
	y.must(err)
	now := time.Now().Add(48 * time.Hour)
	y.must(y.db.ClosePeriods(t.Context(), now))
	y.must(y.db.ClosePeriods(t.Context(), now))
	closed, err := y.db.Periods(t.Context(), o.ID)
	y.must(err)
	if len(closed) != 1 || !closed[0].Last || closed[0].Usage.Up.Bytes != 0 || closed[0].Usage.Billed("higher") != 0 {
		t.Errorf("closed: %+v", closed)
	}
}

// TestLastReading: what passed between the last round and a release or a reinstall is counted, once, however often the step is tried.
func TestLastReading(t *testing.T) {
	y, m, o, at := counted(t)
	ctx, epoch := t.Context(), at.Add(-time.Hour)
	m.count(o.MachineID, at, epoch, 1_000, 2_000, "")
	y.round(at)

	// A reinstall in the middle of a slot: 500 before it, 70 of a new count after it.
	m.count(o.MachineID, at.Add(2*time.Minute), epoch, 1_500, 2_600, "")
	y.stuck = o.MachineID // the edge does not let go at first
	_, err := y.Reinstall(ctx, o.ID, "debian-12", o.Hostname, false, "")
	y.must(err)
	j := y.job(y.machine(o.MachineID).JobID)
	y.must(y.Act(ctx, provisioner.Action{Kind: provisioner.ActStep, MachineID: o.MachineID, JobID: j.ID, Turn: j.Turn}))
	y.stuck = ""
	m.count(o.MachineID, at.Add(3*time.Minute), epoch, 1_501, 2_601, "")
	y.install(o.MachineID)
	m.count(o.MachineID, at.Add(5*time.Minute), at.Add(4*time.Minute), 70, 80, "")
	y.round(at.Add(5 * time.Minute))

	// A release: its machine is nobody's by the next round.
	m.count(o.MachineID, at.Add(6*time.Minute), at.Add(4*time.Minute), 1_070, 3_080, "")
	_, err = y.Release(ctx, o.ID)
	y.must(err)
	y.turn(o.MachineID)
	y.bootAgent(o.MachineID).until()
	y.turn(o.MachineID)
	if y.machine(o.MachineID).OrderID != "" {
		t.Fatal("the machine is not back in stock")
	}
	m.counters = nil
	y.round(at.Add(10 * time.Minute))
	y.round(at.Add(15 * time.Minute))
	var lines []string
	for _, s := range y.samples(o, at.Add(-time.Hour), 3*time.Hour) {
		lines = append(lines, fmt.Sprintf("%s %s %d %d %s", s.Slot.UTC().Format("15:04"), s.Took, s.Up, s.Down, s.Doubt))
	}
	if got, want := strings.Join(lines, "\n"), "00:00 5m0s 571 681 \n00:05 5m0s 1000 3000 "; got != want {
		t.Errorf("samples are\n%s\nwant\n%s", got, want)
	}
}

// patient are Books that take as long as they like to keep what was read.
type patient struct {
	provisioner.Books
	t *testing.T
}

func (p patient) Rest(ctx context.Context, machineID, orderID string, now []network.Counter) error {
	if by, bound := ctx.Deadline(); bound && time.Until(by) < 10*time.Second {
		p.t.Errorf("a last reading must be kept within %s", time.Until(by))
	}
	return p.Books.Rest(ctx, machineID, orderID, now)
}

// paused makes what is done to a table wait until the function it returns is called with what is to happen meanwhile.
func (y *yard) paused(what, table string) (blocked func() int, resume func(sql string, args ...any)) {
	y.t.Helper()
	ctx := y.t.Context()
	_, err := y.db.Conn.Exec(ctx, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$`)
	y.must(err)
	_, err = y.db.Conn.Exec(ctx, `CREATE TRIGGER pause BEFORE `+what+` ON `+table+` FOR EACH STATEMENT EXECUTE FUNCTION pause()`)
	y.must(err)
	conn, err := y.db.Conn.Acquire(ctx)
	y.must(err)
	resumed := false
	y.t.Cleanup(func() {
		if !resumed {
			_ = conn.Conn().Close(context.Background()) // or whoever waits does so for ever
			conn.Release()
		}
	})
	for _, sql := range []string{`SELECT pg_advisory_lock(77)`, `BEGIN`} { // what happens meanwhile began before
		_, err = conn.Exec(ctx, sql)
		y.must(err)
	}
	blocked = func() int {
		return y.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	}
	return blocked, func(sql string, args ...any) {
		y.t.Helper()
		_, err := conn.Exec(ctx, sql, args...)
		y.must(err)
		for _, sql := range []string{`COMMIT`, `SELECT pg_advisory_unlock(77)`} {
			_, err = conn.Exec(ctx, sql)
			y.must(err)
		}
		resumed = true
		conn.Release()
	}
}

// until polls, as the database is another process.
func (y *yard) until(what string, is func() bool) {
	y.t.Helper()
	for range 2000 {
		if is() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	y.t.Fatalf("%s never", what)
}

// TestRoundDuringLastReading: what a round and a last reading both see is billed once.
func TestRoundDuringLastReading(t *testing.T) {
	y, m, o, at := counted(t)
	ctx, epoch, begin := t.Context(), at.Add(-time.Hour), at
	m.count(o.MachineID, at, epoch, 1_000, 2_000, "")
	y.round(at)
	at = at.Add(5 * time.Minute)
	m.count(o.MachineID, at, epoch, 1_500, 2_600, "")
	blocked, resume := y.paused("INSERT", "traffic_rest")
	counters, _ := m.Counters(ctx)
	rest, round := make(chan error, 1), make(chan error, 1)
	go func() { rest <- y.db.Rest(ctx, o.MachineID, o.ID, counters) }()
	y.until("the last reading waits", func() bool { return blocked() == 1 })
	go func() {
		_, err := y.TakeRound(ctx, at)
		round <- err
	}()
	y.until("the round waits or is over", func() bool { return len(round) == 1 || blocked() == 2 })
	resume(`SELECT 1`)
	y.must(<-rest)
	y.must(<-round)
	m.counters = nil
	y.round(at.Add(5 * time.Minute))
	var up, down int64
	for _, s := range y.samples(o, begin.Add(-time.Hour), 2*time.Hour) {
		up, down = up+s.Up, down+s.Down
	}
	if up != 500 || down != 600 {
		t.Errorf("billed are %d and %d bytes of 500 and 600", up, down)
	}
	m.sites = nil
	m.count(o.MachineID, at.Add(6*time.Minute), epoch, 1_600, 2_700, "")
	y.Books = patient{y.db, t}
	_, err := y.Release(ctx, o.ID)
	y.must(err)
	y.turn(o.MachineID)
	if len(m.sites) == 0 || m.sites[0] != "lab" {
		t.Errorf("for a last reading the edges of %q were asked", m.sites)
	}
}

// TestRoundReadBeforeLastReading: what passed after a round had read its counters is in the last reading, which that round does not drop; and
// in a count that goes on after all.
func TestRoundReadBeforeLastReading(t *testing.T) {
	for name, goesOn := range map[string]bool{"Gone": false, "Goes on": true} {
		t.Run(name, func(t *testing.T) {
			y, m, o, at := counted(t)
			ctx, epoch, begin := t.Context(), at.Add(-time.Hour), at
			m.count(o.MachineID, at, epoch, 1_000, 2_000, "")
			y.round(at)
			at = at.Add(5 * time.Minute)
			m.count(o.MachineID, at.Add(time.Second), epoch, 1_600, 2_700, "")
			counters, _ := m.Counters(ctx)
			y.must(y.db.Rest(ctx, o.MachineID, o.ID, counters))
			m.count(o.MachineID, at, epoch, 1_500, 2_600, "")
			y.round(at)
			at = at.Add(5 * time.Minute)
			wantUp, wantDown := int64(600), int64(700)
			m.counters = nil
			if goesOn {
				m.count(o.MachineID, at, epoch, 1_650, 2_750, "")
				wantUp, wantDown = 650, 750
			}
			y.round(at)
			var up, down int64
			for _, s := range y.samples(o, begin.Add(-time.Hour), 2*time.Hour) {
				up, down = up+s.Up, down+s.Down
			}
			if up != wantUp || down != wantDown {
				t.Errorf("billed are %d and %d bytes of %d and %d", up, down, wantUp, wantDown)
			}
		})
	}
}

// TestRestOf: what a counter that is about to go has counted, and whether that can be billed.
func TestRestOf(t *testing.T) {
	at := time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC)
	before := &network.Counter{Bytes: 100, Epoch: at.Add(-time.Hour).UnixNano(), At: at}
	for name, c := range map[string]struct {
		before *network.Counter
		now    network.Counter
		bytes  uint64
		sure   bool
	}{
		"Goes on":           {before, network.Counter{Bytes: 150, Epoch: before.Epoch, At: at.Add(time.Minute)}, 50, true},
		"Began since":       {before, network.Counter{Bytes: 150, Epoch: at.Add(time.Minute).UnixNano(), At: at.Add(2 * time.Minute)}, 150, true},
		"Never read":        {nil, network.Counter{Bytes: 150, Epoch: at.UnixNano(), At: at.Add(2 * time.Minute)}, 150, true},
		"Read long ago":     {before, network.Counter{Bytes: 150, Epoch: before.Epoch, At: at.Add(20 * time.Minute)}, 50, false},
		"Never read, old":   {nil, network.Counter{Bytes: 150, Epoch: before.Epoch, At: at}, 150, false},
		"In doubt":          {before, network.Counter{Bytes: 150, Epoch: before.Epoch, At: at.Add(time.Minute), Doubt: "interrupted"}, 0, false},
		"The count fell":    {before, network.Counter{Bytes: 50, Epoch: before.Epoch, At: at.Add(time.Minute)}, 0, false},
		"A round was later": {before, network.Counter{Bytes: 90, Epoch: before.Epoch, At: at.Add(-time.Second)}, 0, true},
		"Exactly one slot":  {before, network.Counter{Bytes: 150, Epoch: before.Epoch, At: at.Add(5 * time.Minute)}, 50, true},
	} {
		bytes, doubt := provisioner.RestOf(c.before, c.now)
		if bytes != c.bytes || (doubt == "") != c.sure {
			t.Errorf("%s: %d, %q", name, bytes, doubt)
		}
	}
}
