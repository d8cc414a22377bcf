-- +goose Up
CREATE INDEX report_kept ON report (kept); -- the oldest go first

-- +goose Down
DROP INDEX report_kept;
