-- +goose Up
-- Why a run was called off: whoever finishes calling it off says so of each of its machines.
ALTER TABLE acceptance_run ADD why text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE acceptance_run DROP COLUMN why;
