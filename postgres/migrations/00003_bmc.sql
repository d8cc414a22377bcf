-- +goose Up
-- How a machine boots: '' from the network, 'virtual-media' by an image that its BMC inserts.
ALTER TABLE machine ADD COLUMN boot text NOT NULL DEFAULT '' CHECK (boot IN ('', 'virtual-media'));

-- Starts of this attempt after which the machine was not seen on the wire.
ALTER TABLE job ADD COLUMN boots int NOT NULL DEFAULT 0;

-- What is known of a machine's BMC, beside how to reach it.
CREATE TABLE bmc (
    machine_id  text PRIMARY KEY REFERENCES machine ON DELETE CASCADE,
    next_secret bytea,       -- a password that may be in force already; sealed. machine.bmc_secret is kept until this one was seen to work
    rotated     timestamptz, -- when the password was last changed and seen to work
    knowledge   jsonb NOT NULL DEFAULT '{}', -- ipmi.Knowledge
    in_band     text NOT NULL DEFAULT '' CHECK (in_band IN ('', 'open', 'closed', 'absent')), -- as the RAM disk saw it at the last hand-over
    in_band_why text NOT NULL DEFAULT '',
    in_band_at  timestamptz,
    baseline    jsonb, -- ipmi.Baseline at the last hand-over, or what an operator accepted
    found       jsonb, -- ipmi.Baseline as it was last compared
    inventory   jsonb, -- ipmi.Inventory
    inventory_at timestamptz,
    bios_until  timestamptz -- BIOS settings were asked for; they must hold by then
);
INSERT INTO bmc (machine_id) SELECT id FROM machine;

-- Health, written by whoever polls the BMC; due is the claim: who moves it on polls.
CREATE TABLE bmc_health (
    machine_id text PRIMARY KEY REFERENCES machine ON DELETE CASCADE,
    due        timestamptz NOT NULL DEFAULT now(),
    at         timestamptz,             -- of the last poll that was answered
    failed     int NOT NULL DEFAULT 0,  -- polls in a row that were not
    error      text NOT NULL DEFAULT '',
    overall    text NOT NULL DEFAULT 'unknown',
    power      text NOT NULL DEFAULT 'unknown',
    readings   jsonb NOT NULL DEFAULT '[]',
    unread     jsonb NOT NULL DEFAULT '[]',
    cursor     text NOT NULL DEFAULT '' -- behind which the event log is read
);
CREATE INDEX bmc_health_due ON bmc_health (due);
INSERT INTO bmc_health (machine_id) SELECT id FROM machine;

-- Entries of the BMCs' event logs.
CREATE TABLE bmc_event (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    machine_id text NOT NULL REFERENCES machine ON DELETE CASCADE,
    entry      text NOT NULL,        -- the BMC's own name for it
    at         timestamptz,          -- by the BMC's clock; null where that was not set
    read_at    timestamptz NOT NULL,
    severity   text NOT NULL,
    sensor     text NOT NULL,
    kind       text NOT NULL,
    message    text NOT NULL,
    cleared    boolean NOT NULL
);
CREATE INDEX bmc_event_machine ON bmc_event (machine_id, id);

-- The last sign of a machine on the provisioning network since it was switched on: a hint.
CREATE TABLE sighting (
    machine_id text PRIMARY KEY REFERENCES machine ON DELETE CASCADE,
    at         timestamptz NOT NULL,
    what       text NOT NULL
);

-- Which server holds a machine's serial console: a BMC has one.
CREATE TABLE console (
    machine_id text PRIMARY KEY REFERENCES machine ON DELETE CASCADE,
    node       text NOT NULL,
    until      timestamptz NOT NULL
);

-- What a console showed while a job ran.
CREATE TABLE console_record (
    job_id  text NOT NULL REFERENCES job ON DELETE CASCADE,
    seq     int NOT NULL,            -- from 1; where the first is not 1, the beginning was dropped to make room
    at      timestamptz NOT NULL,
    data    bytea,                   -- bytes of the host; null for a gap
    gap     text NOT NULL DEFAULT '', -- why bytes may be missing here
    PRIMARY KEY (job_id, seq)
);

-- BIOS settings that machines of a class shall have.
CREATE TABLE class_bios (
    class      text PRIMARY KEY REFERENCES class ON DELETE CASCADE,
    attributes jsonb NOT NULL,
    policy     text NOT NULL CHECK (policy IN ('warn', 'quarantine'))
);

-- +goose StatementBegin
CREATE FUNCTION new_machine_bmc() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO bmc (machine_id) VALUES (NEW.id);
    INSERT INTO bmc_health (machine_id) VALUES (NEW.id);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER bmc AFTER INSERT ON machine FOR EACH ROW EXECUTE FUNCTION new_machine_bmc();

-- +goose Down
DROP TRIGGER bmc ON machine;
DROP FUNCTION new_machine_bmc;
DROP TABLE class_bios, console_record, console, sighting, bmc_event, bmc_health, bmc;
ALTER TABLE job DROP COLUMN boots;
ALTER TABLE machine DROP COLUMN boot;
