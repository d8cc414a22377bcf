-- +goose Up

-- One time that a machine tried to start, by the port that it booted from.
CREATE TABLE boot (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    mac    macaddr NOT NULL,
    began  timestamptz NOT NULL,
    ended  timestamptz NOT NULL, -- the last line so far
    reach  int NOT NULL,         -- trace.Reach
    cut    int NOT NULL DEFAULT 0 -- lines left out
);
CREATE INDEX boot_mac ON boot (mac, number);
CREATE INDEX boot_ended ON boot (ended);

CREATE TABLE boot_line (
    boot bigint NOT NULL REFERENCES boot ON DELETE CASCADE,
    seq  int NOT NULL,
    line jsonb NOT NULL, -- trace.Line
    PRIMARY KEY (boot, seq)
);

-- A machine that network-booted and that nobody has enrolled. Its id stays with it when it is.
CREATE TABLE discovery (
    id         text PRIMARY KEY,
    state      text NOT NULL CHECK (state IN ('discovered', 'retired')), -- retired: an operator has rejected it
    mac        macaddr NOT NULL, -- that it booted from last
    addr       inet,             -- that it had then
    inventory  jsonb NOT NULL,
    reason     text NOT NULL DEFAULT '',
    first_seen timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL,
    times      int NOT NULL CHECK (times > 0)
);

-- Ports of machines that nobody has enrolled, and ports of enrolled machines that are not on their record.
CREATE TABLE sighted_mac (
    mac          macaddr PRIMARY KEY,
    discovery_id text REFERENCES discovery ON DELETE CASCADE,
    machine_id   text REFERENCES machine ON DELETE CASCADE,
    CHECK ((discovery_id IS NULL) <> (machine_id IS NULL))
);
CREATE INDEX sighted_mac_discovery ON sighted_mac (discovery_id);

-- The boot of a machine that nobody has enrolled: a nonce, and the token that it was traded for. It opens nothing but the
-- inbox.
CREATE TABLE visit (
    mac     macaddr PRIMARY KEY, -- a new boot replaces the last
    addr    inet NOT NULL,       -- the only address that may trade the nonce
    nonce   bytea NOT NULL UNIQUE,
    token   bytea UNIQUE,
    created timestamptz NOT NULL DEFAULT now()
);

-- The enrolment list: machines that are named before they are seen.
CREATE TABLE expected (
    name    text PRIMARY KEY,
    mac     macaddr UNIQUE,
    serial  text UNIQUE, -- as machine.SerialKey has it
    entry   jsonb NOT NULL, -- machine.Expected
    secret  bytea NOT NULL, -- password of the BMC, AES-GCM
    created timestamptz NOT NULL DEFAULT now(),
    CHECK (mac IS NOT NULL OR serial IS NOT NULL)
);

-- What a class's machines have beside their cards, to propose a class for a new machine. Zero: it does not matter.
CREATE TABLE class_facts (
    class     text PRIMARY KEY REFERENCES class ON DELETE CASCADE,
    memory    bigint NOT NULL CHECK (memory >= 0),   -- bytes, at least
    disks     int NOT NULL CHECK (disks >= 0),       -- at least
    disk_size bigint NOT NULL CHECK (disk_size >= 0) -- bytes of all disks together, at least
);

-- +goose Down
DROP TABLE class_facts, expected, visit, sighted_mac, discovery, boot_line, boot;
