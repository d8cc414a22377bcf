-- +goose Up
-- Ids are drawn before a transaction commits, so a later id can be seen before an earlier one. Readers that go on from the last id that they
-- saw take only events of transactions before which none is still under way.
ALTER TABLE event ADD COLUMN txid xid8 NOT NULL DEFAULT pg_current_xact_id();

-- +goose Down
ALTER TABLE event DROP COLUMN txid;
