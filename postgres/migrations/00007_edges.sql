-- +goose Up
-- Whether it is known that nobody else uses an address that an order holds, and who was found to use one that is set aside.
ALTER TABLE address
    ADD proven  boolean NOT NULL DEFAULT true,
    ADD used_by text NOT NULL DEFAULT '';
CREATE INDEX address_used_by ON address (used_by) WHERE used_by <> '';

-- What was delivered since the last round by a counter that is no more. The next round adds it to its samples.
CREATE TABLE traffic_rest (
    order_id   text NOT NULL,
    machine_id text NOT NULL,
    direction  text NOT NULL CHECK (direction IN ('up', 'down')),
    epoch      bigint NOT NULL, -- of that counter
    bytes      bigint NOT NULL CHECK (bytes >= 0),
    took       bigint NOT NULL, -- nanoseconds since the reading before
    at         timestamptz NOT NULL,
    doubt      text NOT NULL DEFAULT '',
    PRIMARY KEY (order_id, machine_id, direction, epoch)
);

-- Addresses of which NetBox is to be told what has become of them.
CREATE TABLE netbox_address (
    addr    inet PRIMARY KEY,
    state   text NOT NULL CHECK (state IN ('waiting', 'told')),
    since   timestamptz NOT NULL DEFAULT clock_timestamp(), -- changed last
    due     timestamptz NOT NULL DEFAULT now(),
    busy    timestamptz NOT NULL DEFAULT now(), -- until then a server is telling NetBox
    tries   int NOT NULL DEFAULT 0,
    problem text NOT NULL DEFAULT ''
);
CREATE INDEX netbox_address_due ON netbox_address (due) WHERE state = 'waiting';
INSERT INTO netbox_address (addr, state) SELECT addr, 'waiting' FROM address WHERE order_id IS NOT NULL;

-- +goose StatementBegin
CREATE FUNCTION tell_netbox() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE changed inet;
BEGIN
    IF TG_TABLE_NAME = 'assignment' THEN
        changed := NEW.addr;
    ELSIF TG_OP = 'DELETE' THEN
        changed := OLD.prefix;
    ELSE
        changed := NEW.prefix;
    END IF;
    INSERT INTO netbox_address (addr, state) VALUES (changed, 'waiting')
        ON CONFLICT (addr) DO UPDATE SET state = 'waiting', since = clock_timestamp(), due = now(), tries = 0, problem = '';
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tell_netbox AFTER INSERT OR UPDATE ON assignment FOR EACH ROW EXECUTE FUNCTION tell_netbox();
CREATE TRIGGER tell_netbox AFTER INSERT OR DELETE OR UPDATE OF name ON ptr FOR EACH ROW EXECUTE FUNCTION tell_netbox();

-- +goose Down
DROP TRIGGER tell_netbox ON ptr;
DROP TRIGGER tell_netbox ON assignment;
DROP FUNCTION tell_netbox;
DROP TABLE netbox_address, traffic_rest;
DROP INDEX address_used_by;
ALTER TABLE address DROP proven, DROP used_by;
