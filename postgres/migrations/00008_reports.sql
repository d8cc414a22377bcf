-- +goose Up

-- A report of a validation or an acceptance, as it was signed.
CREATE TABLE report (
    id         text PRIMARY KEY,
    machine_id text NOT NULL REFERENCES machine ON DELETE CASCADE,
    order_id   text NOT NULL DEFAULT '', -- that held the machine then
    job_id     text NOT NULL DEFAULT '',
    run_id     text NOT NULL DEFAULT '', -- of an acceptance of many machines
    class      text NOT NULL,
    plan       text NOT NULL,
    taken      timestamptz NOT NULL, -- by the machine's clock
    kept       timestamptz NOT NULL, -- by ours
    outcome    text NOT NULL CHECK (outcome IN ('pass','warn','skip','error','fail')),
    blocks     boolean NOT NULL,
    reason     text NOT NULL DEFAULT '',
    cards      int NOT NULL,
    checks     int NOT NULL,
    key        text NOT NULL DEFAULT '', -- which key signed; '' for none
    body       bytea NOT NULL            -- bareyard.signed/1, or the report alone where there is no key
);
CREATE INDEX report_machine ON report (machine_id, kept DESC);
CREATE INDEX report_order ON report (order_id, kept DESC) WHERE order_id <> '';
CREATE INDEX report_run ON report (run_id) WHERE run_id <> '';
CREATE INDEX report_class ON report (class, kept DESC);

-- The cards of each report, for their history.
CREATE TABLE report_card (
    report_id text NOT NULL REFERENCES report ON DELETE CASCADE,
    slot      text NOT NULL,
    serial    text NOT NULL DEFAULT '', -- serial number, or the UUID of a card that has none; '' where the driver was not asked
    model     text NOT NULL,            -- PCI vendor:device
    name      text NOT NULL DEFAULT '',
    firmware  text NOT NULL DEFAULT '',
    outcome   text NOT NULL,
    problems  text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (report_id, slot)
);
CREATE INDEX report_card_serial ON report_card (serial) WHERE serial <> '';

-- What was measured on each card, for the fleet's baseline.
CREATE TABLE report_rate (
    report_id text NOT NULL REFERENCES report ON DELETE CASCADE,
    slot      text NOT NULL,
    serial    text NOT NULL DEFAULT '',
    model     text NOT NULL,
    test      text NOT NULL,
    tool      text NOT NULL,
    version   text NOT NULL,
    unit      text NOT NULL,
    value     double precision NOT NULL,
    PRIMARY KEY (report_id, slot, test, tool, version)
);
CREATE INDEX report_rate_model ON report_rate (model, test);

-- Where each card is, as it was last seen.
CREATE TABLE card (
    serial     text PRIMARY KEY,
    machine_id text NOT NULL REFERENCES machine ON DELETE CASCADE,
    slot       text NOT NULL,
    model      text NOT NULL,
    report_id  text NOT NULL,        -- that saw it last
    order_id   text NOT NULL DEFAULT '', -- that held the machine then
    first_seen timestamptz NOT NULL, -- in this machine
    last_seen  timestamptz NOT NULL
);
CREATE INDEX card_machine ON card (machine_id);

-- An operator's decision that a check shall not block for a while.
CREATE TABLE waiver (
    id         text PRIMARY KEY,
    machine_id text NOT NULL REFERENCES machine ON DELETE CASCADE,
    check_id   text NOT NULL,
    card       text NOT NULL DEFAULT '', -- slot or serial number; '' for the whole check
    who        text NOT NULL,
    why        text NOT NULL,
    made       timestamptz NOT NULL,
    until      timestamptz NOT NULL CHECK (until > made),
    withdrawn  timestamptz
);
CREATE INDEX waiver_machine ON waiver (machine_id);

-- Public halves of the keys that servers sign reports with: any server can say with which key a report verifies.
CREATE TABLE report_key (
    id     text PRIMARY KEY,
    public bytea NOT NULL, -- Ed25519
    first  timestamptz NOT NULL DEFAULT now()
);

-- Validation of machines in stock, and what a job has found that must not be forgotten.
ALTER TABLE job DROP CONSTRAINT job_kind_check;
ALTER TABLE job ADD CONSTRAINT job_kind_check CHECK (kind IN ('provision','reinstall','reclaim','examine','trial','acceptance'));
ALTER TABLE job ADD COLUMN finding text NOT NULL DEFAULT '';
ALTER TABLE job ADD COLUMN comes_from text NOT NULL DEFAULT ''; -- the state to which the machine goes back
ALTER TABLE machine ADD COLUMN examined timestamptz;            -- when its health was last looked at

-- +goose Down
ALTER TABLE machine DROP COLUMN examined;
DELETE FROM job WHERE kind IN ('examine','trial');
ALTER TABLE job DROP COLUMN comes_from, DROP COLUMN finding;
ALTER TABLE job DROP CONSTRAINT job_kind_check;
ALTER TABLE job ADD CONSTRAINT job_kind_check CHECK (kind IN ('provision','reinstall','reclaim'));
DROP TABLE report_key, waiver, card, report_rate, report_card, report;
