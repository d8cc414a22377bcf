-- +goose Up
-- Entries of a BMC's event log up to which an operator has looked at the critical ones.
ALTER TABLE bmc_health ADD COLUMN acknowledged bigint NOT NULL DEFAULT 0;
-- When silence began; null while it answers.
ALTER TABLE bmc_health ADD COLUMN silent timestamptz;
CREATE INDEX bmc_event_critical ON bmc_event (machine_id, id) WHERE severity = 'critical';

ALTER TABLE bmc
    ADD COLUMN media text NOT NULL DEFAULT '', -- an image that was asked for, and that was not yet seen to be out of the drive again
    ADD COLUMN bios  jsonb;                    -- provisioner.BIOSCheck: how the settings last compared with the class's

-- This job boots its RAM disk from virtual media: the machine was not seen to boot from the network.
ALTER TABLE job ADD COLUMN media boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE job DROP COLUMN media;
ALTER TABLE bmc DROP COLUMN media, DROP COLUMN bios;
DROP INDEX bmc_event_critical;
ALTER TABLE bmc_health DROP COLUMN acknowledged, DROP COLUMN silent;
