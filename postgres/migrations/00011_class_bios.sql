-- +goose Up
-- When a profile was last changed: a job that began before it is not judged by it.
ALTER TABLE class_bios ADD COLUMN updated timestamptz NOT NULL DEFAULT now();

-- +goose Down
ALTER TABLE class_bios DROP COLUMN updated;
