package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Piece is a piece of a record: bytes of the host, or a place where bytes may be missing.
type Piece struct {
	At   time.Time `json:"at"`
	Data []byte    `json:"data,omitempty"`
	Gap  string    `json:"gap,omitempty"` // why bytes may be missing here, and when
}

// Record is what a console showed while a job ran.
type Record struct {
	Pieces []Piece `json:"pieces"`
	Cut    bool    `json:"cut"` // the beginning was dropped to make room
}

// Work is a job whose console is worth recording.
type Work struct{ JobID, MachineID string }

// Records keeps the records. AppendRecord keeps the newest limit bytes of a job.
type Records interface {
	Recordable(ctx context.Context) ([]Work, error) // running jobs on machines with a console
	AppendRecord(ctx context.Context, jobID string, pieces []Piece, limit int) error
	RecordedUntil(ctx context.Context, jobID string) (time.Time, error) // zero where nothing is recorded yet
	PruneRecords(ctx context.Context, keep time.Duration) (jobs int, err error)
}

// Recorder records the consoles of machines while jobs run on them. Several servers may run one each: who has the console
// records.
type Recorder struct {
	Hub     *Hub
	Records Records
	Limit   int           // bytes kept of a job; 0 is 1 MiB
	Keep    time.Duration // how long a record is kept after its job; 0 is 30 days
	Log     *slog.Logger

	every, pause time.Duration // for tests
}

// Times of a recorder.
const (
	lookEvery  = 2 * time.Second
	retryPause = 30 * time.Second // after a console that could not be opened
	flushEvery = time.Second
	flushSize  = 16 << 10
	pruneEvery = time.Hour
)

// Run records until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	if r.every == 0 {
		r.every, r.pause = lookEvery, retryPause
	}
	if r.Limit <= 0 {
		r.Limit = 1 << 20
	}
	if r.Keep <= 0 {
		r.Keep = 30 * 24 * time.Hour
	}
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	at := map[Work]*task{}
	pruned := time.Time{}
	for {
		if time.Since(pruned) > pruneEvery {
			pruned = time.Now()
			if _, err := r.Records.PruneRecords(ctx, r.Keep); err != nil && ctx.Err() == nil {
				r.Log.Warn("old console records not dropped", "err", err)
			}
		}
		list, err := r.Records.Recordable(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("no look at which consoles to record", "err", err)
		}
		if err == nil {
			r.follow(ctx, &tasks, at, list)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// task is the recording of one job.
type task struct {
	stop  context.CancelFunc
	done  chan struct{}
	again time.Time // not to be begun anew before; set before done is closed
}

// follow begins what is not being recorded and ends what is no longer to be.
func (r *Recorder) follow(ctx context.Context, tasks *sync.WaitGroup, at map[Work]*task, list []Work) {
	wanted := map[Work]bool{}
	for _, w := range list {
		wanted[w] = true
		if t := at[w]; t != nil {
			select {
			case <-t.done:
				if time.Now().Before(t.again) {
					continue
				}
			default:
				continue
			}
		}
		run, stop := context.WithCancel(ctx)
		t := &task{stop: stop, done: make(chan struct{})}
		at[w] = t
		tasks.Go(func() {
			defer close(t.done)
			defer stop()
			err := r.record(run, w)
			t.again = time.Now().Add(r.pause)
			if errors.Is(err, ipmi.ErrUnsupported) {
				t.again = time.Now().Add(24 * time.Hour) // it will not learn it in the course of this job
			}
			if err != nil && run.Err() == nil {
				r.Log.Info("console not recorded", "job", w.JobID, "err", err)
			}
		})
	}
	for w, t := range at {
		if !wanted[w] {
			t.stop()
			<-t.done
			delete(at, w)
		}
	}
}

// record writes what a console shows until ctx ends or the console does.
func (r *Recorder) record(ctx context.Context, w Work) error {
	v, err := r.Hub.Join(ctx, w.MachineID, false)
	if err != nil {
		return err
	}
	defer v.Leave()
	until, err := r.Records.RecordedUntil(ctx, w.JobID)
	if err != nil {
		return fmt.Errorf("look at console record: %w", err)
	}
	b := &batch{}
	if now := time.Now(); !until.IsZero() {
		b.pieces = append(b.pieces, Piece{At: now, Gap: fmt.Sprintf("not recorded between %s and %s", clock(until), clock(now))})
	}
	for err == nil {
		err = b.fill(ctx, v)
		if len(b.pieces) == 0 {
			continue
		}
		keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		lost := r.Records.AppendRecord(keep, w.JobID, b.pieces, r.Limit)
		cancel()
		if lost != nil {
			return fmt.Errorf("keep console record: %w", lost)
		}
		b.pieces = nil
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	end := []Piece{{At: time.Now(), Gap: "the recording ended: " + Plain(err)}}
	keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, r.Records.AppendRecord(keep, w.JobID, end, r.Limit))
}

// Plain is an error in words that name no BMC's address.
func Plain(err error) string {
	var known *machine.Error
	switch {
	case errors.As(err, &known):
		return known.Message
	case errors.Is(err, ErrSlow), errors.Is(err, errStopped), errors.Is(err, errLeft):
		return err.Error()
	}
	return ipmi.Public(err)
}

// batch gathers output, so that not every keystroke is a row.
type batch struct{ pieces []Piece }

// fill waits for output and gathers what comes within a moment.
func (b *batch) fill(ctx context.Context, v *Viewer) error {
	out, err := v.Next(ctx)
	if err != nil {
		return err
	}
	size := b.add(out)
	soon, cancel := context.WithTimeout(ctx, flushEvery)
	defer cancel()
	for size < flushSize {
		out, err := v.Next(soon)
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		}
		size += b.add(out)
	}
	return nil
}

func (b *batch) add(out ipmi.Output) int {
	if out.Gap != nil {
		b.pieces = append(b.pieces, Piece{At: out.At, Gap: GapText(*out.Gap)})
		return 0
	}
	if n := len(b.pieces); n > 0 && b.pieces[n-1].Gap == "" {
		b.pieces[n-1].Data = append(b.pieces[n-1].Data, out.Data...)
	} else {
		b.pieces = append(b.pieces, Piece{At: out.At, Data: append([]byte(nil), out.Data...)})
	}
	return len(out.Data)
}

// GapText is a gap in words.
func GapText(g ipmi.Gap) string {
	return fmt.Sprintf("bytes may be missing between %s and %s: %s", clock(g.From), clock(g.To), g.Reason)
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.0") }
