-- +goose Up

-- What became of the data on a disk. A certificate outlives the machine, the order and the disk: nothing refers to them.
CREATE TABLE erasure (
    id         text PRIMARY KEY,
    machine_id text NOT NULL,
    order_id   text NOT NULL,           -- whose data it was; '' for nobody's
    serial     text NOT NULL,           -- of the disk
    clean      boolean NOT NULL,
    at         timestamptz NOT NULL,
    key        text NOT NULL,           -- which key signed; '' for none
    body       bytea NOT NULL           -- bareyard.signed/1, or the certificate alone where there is no key
);
CREATE INDEX erasure_machine ON erasure (machine_id, at DESC);
CREATE INDEX erasure_order ON erasure (order_id, at DESC) WHERE order_id <> '';
CREATE INDEX erasure_serial ON erasure (serial, at DESC);

-- +goose Down
DROP TABLE erasure;
