package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

const trialColumns = `t.run_id, t.machine_id, t.state, t.try, t.watts, t.was, t.was_why, t.job_id, t.reason, t.findings, t.started, t.finished,
	m.name, m.site, m.rack, m.class`

func trialFields(t *machine.Trial, started, finished **time.Time) []any {
	return []any{&t.RunID, &t.MachineID, &t.State, &t.Try, &t.Watts, &t.Was, &t.WasWhy, &t.JobID, &t.Reason, &t.Findings, started, finished,
		&t.Name, &t.Site, &t.Rack, &t.Class}
}

func scanTrial(row pgx.CollectableRow) (machine.Trial, error) {
	var t machine.Trial
	var started, finished *time.Time
	err := row.Scan(trialFields(&t, &started, &finished)...)
	t.Started, t.Finished = orZero(started), orZero(finished)
	return t, err
}

// openTrial finds the trial that holds a machine, if one does.
func openTrial(ctx context.Context, q querier, machineID string) (*machine.Trial, error) {
	return oneTrial(ctx, q, `t.machine_id = $1 AND t.state IN ('waiting', 'running')`, machineID)
}

func oneTrial(ctx context.Context, q querier, where string, args ...any) (*machine.Trial, error) {
	rows, err := q.Query(ctx, `SELECT `+trialColumns+` FROM trial t JOIN machine m ON m.id = t.machine_id WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read trial: %w", err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanTrial)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read trial: %w", err)
	}
	return &t, nil
}

func putTrial(ctx context.Context, tx pgx.Tx, t machine.Trial) error {
	findings := t.Findings
	if findings == nil {
		findings = []machine.Finding{}
	}
	_, err := tx.Exec(ctx, `UPDATE trial SET state=$3, try=$4, watts=$5, was=$6, was_why=$7, job_id=$8, reason=$9, findings=$10, started=$11, finished=$12
		WHERE run_id=$1 AND machine_id=$2`, t.RunID, t.MachineID, t.State, t.Try, t.Watts, t.Was, t.WasWhy, t.JobID, t.Reason, findings, nilTime(t.Started), nilTime(t.Finished))
	if err != nil {
		return fmt.Errorf("write trial: %w", err)
	}
	return nil
}

// BeginRun implements provisioner.Acceptances. Machines are locked in the order of their ids, as everywhere where more than one is.
func (db *DB) BeginRun(ctx context.Context, run machine.AcceptanceRun, machineIDs []string, fn func([]*provisioner.Work) error) error {
	sorted := slices.Clone(machineIDs)
	slices.Sort(sorted)
	return db.transition(ctx, func(tx pgx.Tx, first *provisioner.Work) error {
		works := map[string]*provisioner.Work{}
		for _, id := range sorted {
			w := &provisioner.Work{Now: first.Now, Stock: first.Stock, Moves: first.Moves, Terms: first.Terms}
			if err := lockHeld(ctx, tx, w, id); err != nil {
				return err
			}
			works[id] = w
		}
		var list []*provisioner.Work
		for _, id := range machineIDs {
			list = append(list, works[id])
		}
		if err := fn(list); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO acceptance_run (id, state, terms, created) VALUES ($1,$2,$3,$4)`, run.ID, run.State, run.AcceptanceTerms, first.Now); err != nil {
			return fmt.Errorf("write acceptance run: %w", err)
		}
		for i, w := range list {
			t := w.Trial
			if _, err := tx.Exec(ctx, `INSERT INTO trial (run_id, machine_id, position, state, try, watts, was, was_why) VALUES ($1,$2,$3,$4,$5,$6,$7,$8)`,
				run.ID, t.MachineID, i, t.State, t.Try, t.Watts, t.Was, t.WasWhy); err != nil {
				return explain("take machine "+w.Machine.Name+" into the run", err)
			}
			w.Order = nil // only looked at
			if err := db.write(ctx, tx, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// OnTrial implements provisioner.Acceptances.
func (db *DB) OnTrial(ctx context.Context, runID, machineID string, fn func(*provisioner.Work) error) error {
	return db.transition(ctx, func(tx pgx.Tx, w *provisioner.Work) error {
		if err := lockHeld(ctx, tx, w, machineID); err != nil {
			return err
		}
		held := w.Trial
		t, err := oneTrial(ctx, tx, `t.run_id = $1 AND t.machine_id = $2`, runID, machineID)
		if err != nil {
			return err
		}
		if t == nil {
			return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("machine %s is not in run %s", w.Machine.Name, runID), Hint: fmt.Sprintf("see who is with `bareyard acceptance show %s`", runID)}
		}
		if held != nil && held.RunID != runID && !t.State.Open() {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s is in acceptance run %s", w.Machine.Name, held.RunID), Hint: "wait for it, or cancel it"}
		}
		w.Trial = t
		return fn(w)
	})
}

// CallOff implements provisioner.Acceptances. It takes no lock but the run's, as EndRun.
func (db *DB) CallOff(ctx context.Context, id, why string) error {
	return db.onRun(ctx, id, func(tx pgx.Tx, state machine.RunState) error {
		next, err := machine.NextRun(state, machine.RunCancel)
		if err != nil || state == next {
			return err
		}
		return putRun(ctx, tx, id, next, why, nil)
	})
}

// EndRun implements provisioner.Acceptances.
func (db *DB) EndRun(ctx context.Context, id string, report func(machine.AcceptanceRun) ([]byte, error)) error {
	return db.onRun(ctx, id, func(tx pgx.Tx, state machine.RunState) error {
		next, err := machine.NextRun(state, machine.RunFinish)
		if err != nil {
			return err
		}
		run, err := readRun(ctx, tx, id)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(run.Trials, func(t machine.Trial) bool { return t.State.Open() }) {
			return nil // it was reopened meanwhile
		}
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&run.Finished); err != nil {
			return fmt.Errorf("end acceptance run: %w", err)
		}
		run.State = next
		signed, err := report(run)
		if err != nil {
			return err
		}
		return putRun(ctx, tx, id, next, run.Why, signed)
	})
}

// onRun calls fn with a run locked.
func (db *DB) onRun(ctx context.Context, id string, fn func(pgx.Tx, machine.RunState) error) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		state, err := lockRun(ctx, tx, id)
		if err != nil {
			return err
		}
		return fn(tx, state)
	})
	if err == nil && db.tuned.AfterCommit != nil {
		db.tuned.AfterCommit()
	}
	return err
}

// reopenRun has a run under way again, in the transition of the machine that is tried again: of a machine in a run that is over nobody would think. One
// that was called off and has no report yet stays so.
func reopenRun(ctx context.Context, tx pgx.Tx, id string) error {
	state, err := lockRun(ctx, tx, id)
	if err != nil {
		return err
	}
	if state == machine.RunCancelled {
		var unsigned bool
		if err := tx.QueryRow(ctx, `SELECT report IS NULL FROM acceptance_run WHERE id = $1`, id).Scan(&unsigned); err != nil {
			return fmt.Errorf("read acceptance run: %w", err)
		}
		if unsigned {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("run %s is being called off", id), Hint: "try again when its report is there"}
		}
	}
	next, err := machine.NextRun(state, machine.RunReopen)
	if err != nil {
		return err
	}
	return putRun(ctx, tx, id, next, "", nil)
}

func lockRun(ctx context.Context, tx pgx.Tx, id string) (state machine.RunState, err error) {
	err = tx.QueryRow(ctx, `SELECT state FROM acceptance_run WHERE id = $1 FOR UPDATE`, id).Scan(&state)
	if isNoRows(err) {
		return "", noRun(id)
	}
	if err != nil {
		return "", fmt.Errorf("lock acceptance run: %w", err)
	}
	return state, nil
}

func putRun(ctx context.Context, tx pgx.Tx, id string, state machine.RunState, why string, report []byte) error {
	_, err := tx.Exec(ctx, `UPDATE acceptance_run SET state = $2, why = $3, report = $4, finished = CASE WHEN $2 = 'running' THEN NULL ELSE now() END WHERE id = $1`, id, state, why, report)
	if err != nil {
		return fmt.Errorf("write acceptance run: %w", err)
	}
	return nil
}

func noRun(id string) error {
	return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no acceptance run %q", id), Hint: "list them with `bareyard acceptance list`"}
}

// Run returns an acceptance run with its machines and where they are.
func (db *DB) Run(ctx context.Context, id string) (machine.AcceptanceRun, error) {
	return readRun(ctx, db.pool, id)
}

func readRun(ctx context.Context, q querier, id string) (machine.AcceptanceRun, error) {
	run := machine.AcceptanceRun{ID: id, Trials: []machine.Trial{}}
	var finished *time.Time
	err := q.QueryRow(ctx, `SELECT state, terms, created, finished, why FROM acceptance_run WHERE id = $1`, id).Scan(&run.State, &run.AcceptanceTerms, &run.Created, &finished, &run.Why)
	if isNoRows(err) {
		return run, noRun(id)
	}
	if err != nil {
		return run, fmt.Errorf("read acceptance run: %w", err)
	}
	run.Finished = orZero(finished)
	rows, err := q.Query(ctx, `SELECT `+trialColumns+`, j.step, j.attempt, j.step_at, j.seen_at, j.progress FROM trial t JOIN machine m ON m.id = t.machine_id
		LEFT JOIN job j ON j.id = t.job_id AND j.state = 'running' WHERE t.run_id = $1 ORDER BY t.position`, id)
	if err != nil {
		return run, fmt.Errorf("list trials: %w", err)
	}
	run.Trials, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (machine.Trial, error) {
		var t machine.Trial
		var started, finished, stepAt, seenAt *time.Time
		var step *machine.StepName
		var attempt *int
		var progress *machine.Progress
		err := row.Scan(append(trialFields(&t, &started, &finished), &step, &attempt, &stepAt, &seenAt, &progress)...)
		t.Started, t.Finished = orZero(started), orZero(finished)
		if step != nil && attempt != nil && progress != nil {
			t.Now = &machine.TrialStage{Step: *step, Attempt: *attempt, StepAt: orZero(stepAt), SeenAt: orZero(seenAt), Progress: *progress}
		}
		return t, err
	})
	return run, err
}

// Runs lists acceptance runs, newest first, without what their machines are at.
func (db *DB) Runs(ctx context.Context) ([]machine.AcceptanceRun, error) {
	return db.runs(ctx, "true", 200)
}

// OpenRuns implements provisioner.Acceptances.
func (db *DB) OpenRuns(ctx context.Context) ([]machine.AcceptanceRun, error) {
	return db.runs(ctx, `state = 'running' OR state = 'cancelled' AND report IS NULL
		OR EXISTS (SELECT 1 FROM trial t WHERE t.run_id = acceptance_run.id AND t.state IN ('waiting', 'running'))`, 10_000)
}

func (db *DB) runs(ctx context.Context, where string, most int) ([]machine.AcceptanceRun, error) {
	rows, err := db.pool.Query(ctx, `SELECT id FROM acceptance_run WHERE `+where+` ORDER BY created DESC, id LIMIT $1`, most)
	if err != nil {
		return nil, fmt.Errorf("list acceptance runs: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list acceptance runs: %w", err)
	}
	list := []machine.AcceptanceRun{}
	for _, id := range ids {
		run, err := db.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		list = append(list, run)
	}
	return list, nil
}

// SignedReport implements provisioner.Acceptances.
func (db *DB) SignedReport(ctx context.Context, id string) (signed []byte, err error) {
	err = db.pool.QueryRow(ctx, `SELECT report FROM acceptance_run WHERE id = $1`, id).Scan(&signed)
	if isNoRows(err) {
		return nil, noRun(id)
	}
	if err != nil {
		return nil, fmt.Errorf("read report of acceptance run: %w", err)
	}
	return signed, nil
}

// TrialReports implements provisioner.Acceptances: the validation reports of the machines of a run, by machine.
func (db *DB) TrialReports(ctx context.Context, id string) (map[string]json.RawMessage, error) {
	rows, err := db.pool.Query(ctx, `SELECT t.machine_id, j.result FROM trial t JOIN job j ON j.id = t.job_id WHERE t.run_id = $1 AND j.result IS NOT NULL`, id)
	if err != nil {
		return nil, fmt.Errorf("read reports of acceptance run: %w", err)
	}
	out := map[string]json.RawMessage{}
	var machineID string
	var result json.RawMessage
	_, err = pgx.ForEachRow(rows, []any{&machineID, &result}, func() error {
		out[machineID] = slices.Clone(result)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read reports of acceptance run: %w", err)
	}
	return out, nil
}

// Racked implements provisioner.Acceptances.
func (db *DB) Racked(ctx context.Context) ([]machine.Machine, error) { return db.Machines(ctx, "") }

// OneTender implements provisioner.Acceptances.
func (db *DB) OneTender(ctx context.Context, fn func() error) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtext('acceptance'))`).Scan(&mine); err != nil {
			return fmt.Errorf("take lock of acceptance runs: %w", err)
		}
		if !mine {
			return nil
		}
		return fn()
	})
}
