package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner/console"
)

// ClaimConsole implements console.Claims.
func (db *DB) ClaimConsole(ctx context.Context, machineID, node string, life time.Duration) (holder string, err error) {
	err = db.pool.QueryRow(ctx, `INSERT INTO console AS c (machine_id, node, until) VALUES ($1, $2, now() + $3)
		ON CONFLICT (machine_id) DO UPDATE SET
			node  = CASE WHEN c.node = $2 OR c.until < now() THEN $2 ELSE c.node END,
			until = CASE WHEN c.node = $2 OR c.until < now() THEN now() + $3 ELSE c.until END
		RETURNING node`, machineID, node, life).Scan(&holder)
	if err != nil {
		return "", fmt.Errorf("claim console: %w", err)
	}
	return holder, nil
}

// ReleaseConsole implements console.Claims.
func (db *DB) ReleaseConsole(ctx context.Context, machineID, node string) error {
	if _, err := db.pool.Exec(ctx, `DELETE FROM console WHERE machine_id = $1 AND node = $2`, machineID, node); err != nil {
		return fmt.Errorf("release console: %w", err)
	}
	return nil
}

// Recordable implements console.Records.
func (db *DB) Recordable(ctx context.Context) ([]console.Work, error) {
	rows, err := db.pool.Query(ctx, `SELECT j.id, j.machine_id FROM job j JOIN machine m ON m.id = j.machine_id
		WHERE j.state = 'running' AND (m.bmc->>'protocol' = 'ipmi' OR coalesce(m.bmc->>'ipmi', '') <> '')`)
	return collect[console.Work](rows, err, "list consoles to record")
}

// AppendRecord implements console.Records.
func (db *DB) AppendRecord(ctx context.Context, jobID string, pieces []console.Piece, limit int) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		for _, p := range pieces {
			_, err := tx.Exec(ctx, `INSERT INTO console_record (job_id, seq, at, data, gap)
				SELECT $1, coalesce(max(seq), 0) + 1, $2, $3, $4 FROM console_record WHERE job_id = $1`, jobID, p.At, p.Data, p.Gap)
			if err != nil {
				return fmt.Errorf("write console record: %w", err)
			}
		}
		_, err := tx.Exec(ctx, `DELETE FROM console_record r USING (
				SELECT seq, sum(coalesce(length(data), 0) + 64) OVER (ORDER BY seq DESC) AS newer FROM console_record WHERE job_id = $1) s
			WHERE r.job_id = $1 AND r.seq = s.seq AND s.newer > $2`, jobID, limit)
		if err != nil {
			return fmt.Errorf("bound console record: %w", err)
		}
		return nil
	})
}

// RecordedUntil implements console.Records.
func (db *DB) RecordedUntil(ctx context.Context, jobID string) (time.Time, error) {
	var at *time.Time
	if err := db.pool.QueryRow(ctx, `SELECT max(at) FROM console_record WHERE job_id = $1`, jobID).Scan(&at); err != nil {
		return time.Time{}, fmt.Errorf("look at console record: %w", err)
	}
	return orZero(at), nil
}

// PruneRecords implements console.Records.
func (db *DB) PruneRecords(ctx context.Context, keep time.Duration) (jobs int, err error) {
	err = db.pool.QueryRow(ctx, `WITH gone AS (DELETE FROM console_record r USING job j
			WHERE j.id = r.job_id AND j.finished < now() - $1::interval RETURNING r.job_id)
		SELECT count(DISTINCT job_id) FROM gone`, keep).Scan(&jobs)
	if err != nil {
		return 0, fmt.Errorf("drop old console records: %w", err)
	}
	return jobs, nil
}

// ConsoleRecord returns what the console showed while a job ran.
func (db *DB) ConsoleRecord(ctx context.Context, jobID string) (console.Record, error) {
	if _, err := db.Job(ctx, jobID); err != nil {
		return console.Record{}, err
	}
	rows, err := db.pool.Query(ctx, `SELECT at, data, gap FROM console_record WHERE job_id = $1 ORDER BY seq`, jobID)
	pieces, err := collect[console.Piece](rows, err, "read console record")
	if err != nil {
		return console.Record{}, err
	}
	if len(pieces) == 0 {
		return console.Record{}, &machine.Error{Code: machine.NotFound, Message: "nothing was recorded of the console during this job",
			Hint: "it may be too old, or the BMC has no serial console for us: `bareyard machine console` says why"}
	}
	var first int
	if err := db.pool.QueryRow(ctx, `SELECT min(seq) FROM console_record WHERE job_id = $1`, jobID).Scan(&first); err != nil {
		return console.Record{}, fmt.Errorf("read console record: %w", err)
	}
	return console.Record{Pieces: pieces, Cut: first > 1}, nil
}
