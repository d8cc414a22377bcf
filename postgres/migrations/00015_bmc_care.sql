-- +goose Up
ALTER TABLE bmc DROP COLUMN bios;

-- What a BMC's event log holds behind the cursor is older than our reading of it: it was not yet read to its end.
ALTER TABLE bmc_health ADD COLUMN history boolean NOT NULL DEFAULT true;
UPDATE bmc_health SET history = false WHERE at IS NOT NULL;

-- An operator took it out of its customer's hands, and not a job that failed: he alone gives it back.
ALTER TABLE machine ADD COLUMN parked boolean NOT NULL DEFAULT false;
UPDATE machine SET parked = true WHERE state = 'maintenance' AND reason NOT LIKE '% job failed at %';

-- +goose Down
ALTER TABLE machine DROP COLUMN parked;
ALTER TABLE bmc_health DROP COLUMN history;
ALTER TABLE bmc ADD COLUMN bios jsonb;
