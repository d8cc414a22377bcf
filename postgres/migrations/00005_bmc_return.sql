-- +goose Up
ALTER TABLE bmc
    ADD compared timestamptz,               -- when it was last found to be as in the baseline, after a customer had the machine
    ADD shut     text NOT NULL DEFAULT '';  -- the ways from the machine's own system to its BMC that were shut and read back so

-- +goose Down
ALTER TABLE bmc DROP compared, DROP shut;
