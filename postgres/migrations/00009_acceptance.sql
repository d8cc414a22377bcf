-- +goose Up
-- A run tries new machines, each by a job of its own. What was asked of it does not change; its report is written when it ends.
CREATE TABLE acceptance_run (
    id       text PRIMARY KEY,
    state    text NOT NULL CHECK (state IN ('running', 'finished', 'cancelled')),
    terms    jsonb NOT NULL, -- machine.AcceptanceTerms
    report   bytea,          -- signed JSON, once it is finished
    created  timestamptz NOT NULL DEFAULT now(),
    finished timestamptz,
    CHECK ((state = 'running') = (finished IS NULL))
);

-- A machine's part in a run. It changes only under the lock of its machine.
CREATE TABLE trial (
    run_id     text NOT NULL REFERENCES acceptance_run ON DELETE CASCADE,
    machine_id text NOT NULL REFERENCES machine,
    position   int NOT NULL,
    state      text NOT NULL CHECK (state IN ('waiting', 'running', 'passed', 'failed', 'incomplete', 'cancelled')),
    try        int NOT NULL CHECK (try > 0),
    watts      int NOT NULL CHECK (watts >= 0),
    was        text NOT NULL,           -- state of the machine before the run took it
    was_why    text NOT NULL,
    job_id     text NOT NULL DEFAULT '',
    reason     text NOT NULL DEFAULT '',
    findings   jsonb NOT NULL DEFAULT '[]',
    started    timestamptz,
    finished   timestamptz,
    PRIMARY KEY (run_id, machine_id),
    CHECK ((state IN ('waiting', 'running')) = (finished IS NULL))
);
-- no machine is in two runs at a time
CREATE UNIQUE INDEX trial_open ON trial (machine_id) WHERE state IN ('waiting', 'running');

ALTER TABLE job
    DROP CONSTRAINT job_kind_check, -- the program knows its kinds
    ADD CHECK (kind <> ''),
    ADD acceptance jsonb; -- machine.AcceptanceWork

-- +goose Down
DELETE FROM job WHERE kind = 'acceptance';
ALTER TABLE job
    DROP COLUMN acceptance,
    DROP CONSTRAINT job_kind_check,
    ADD CONSTRAINT job_kind_check CHECK (kind IN ('provision','reinstall','reclaim','examine','trial','acceptance'));
DROP TABLE trial, acceptance_run;
