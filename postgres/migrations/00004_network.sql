-- +goose Up
-- Lines: a carrier at a site, and what it sells.
ALTER TABLE line
    ADD carrier       text NOT NULL DEFAULT '',
    ADD step          int NOT NULL DEFAULT 1 CHECK (step > 0),       -- Mbit/s, from min_bandwidth up
    ADD min_down      int NOT NULL DEFAULT 0 CHECK (min_down >= 0),  -- Mbit/s to the machine; 0: as from it
    ADD max_down      int NOT NULL DEFAULT 0 CHECK (max_down >= 0),
    ADD models        text[] NOT NULL DEFAULT '{fixed}' CHECK (models <@ '{fixed,burst}' AND models <> '{}'),
    ADD percentile    text NOT NULL DEFAULT 'higher' CHECK (percentile IN ('up', 'down', 'higher')),
    ADD max_addresses int NOT NULL DEFAULT 8 CHECK (max_addresses > 0); -- of each family, per order

-- Stocks of addresses of one family on one line.
CREATE TABLE address_pool (
    name      text PRIMARY KEY,
    line      text NOT NULL REFERENCES line,
    bits      int NOT NULL CHECK (bits IN (32, 56, 64)), -- 32: IPv4
    cool_down interval NOT NULL CHECK (cool_down >= '0')
);
-- No address is in two ranges.
CREATE TABLE address_range (
    range cidr NOT NULL,
    pool  text NOT NULL REFERENCES address_pool,
    EXCLUDE USING gist (range inet_ops WITH &&)
);

-- What there was before pools: one of each line, and of each address a range.
INSERT INTO address_pool (name, line, bits, cool_down) SELECT DISTINCT l.name || '-v4', l.name, 32, l.cool_down FROM line l JOIN address a ON a.line = l.name;
INSERT INTO address_range (range, pool) SELECT addr, line || '-v4' FROM address;

ALTER TABLE assignment DROP CONSTRAINT assignment_addr_fkey; -- what happened stays true when an address is given up
ALTER TABLE address
    DROP CONSTRAINT address_order_id_key, -- an order may hold several
    ADD pool       text REFERENCES address_pool,
    ADD family     int GENERATED ALWAYS AS (family(addr)) STORED,
    ADD state      text NOT NULL DEFAULT 'stock' CHECK (state IN ('stock', 'reserved', 'gateway', 'conflict')),
    ADD note       text NOT NULL DEFAULT '',     -- why it is not in stock
    ADD since      timestamptz,                  -- held since
    ADD leaving    boolean NOT NULL DEFAULT false, -- being taken off its machine: held still, but no longer wanted at the edge
    ADD next_order text NOT NULL DEFAULT '',     -- leaving for this order; '': for the stock
    ADD CHECK (order_id IS NULL OR state = 'stock'),
    ADD CHECK (order_id IS NOT NULL OR NOT leaving);
UPDATE address SET pool = line || '-v4', since = CASE WHEN order_id IS NOT NULL THEN now() END;
ALTER TABLE address ALTER pool SET NOT NULL;
DROP INDEX address_free;
CREATE INDEX address_free ON address (line, family, free_at, addr) WHERE order_id IS NULL AND state = 'stock';
CREATE INDEX address_order ON address (order_id) WHERE order_id IS NOT NULL;
CREATE INDEX address_pool_of ON address (pool);

-- Who had an address, and on which machine.
ALTER TABLE assignment
    ADD project    text NOT NULL DEFAULT '',
    ADD machine_id text NOT NULL DEFAULT '';
UPDATE assignment a SET project = o.project, machine_id = o.machine_id FROM orders o WHERE o.id = a.order_id;
CREATE INDEX assignment_order ON assignment (order_id);

-- An order that gets another machine takes its addresses along: a new line of the history.
-- +goose StatementBegin
CREATE FUNCTION follow_machine() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE moved inet[];
BEGIN
    UPDATE assignment SET machine_id = NEW.machine_id WHERE order_id = NEW.id AND upper_inf(during) AND machine_id = '';
    WITH ended AS (
        UPDATE assignment SET during = tstzrange(lower(during), clock_timestamp())
        WHERE order_id = NEW.id AND upper_inf(during) AND machine_id <> NEW.machine_id RETURNING addr)
    SELECT array_agg(addr) INTO moved FROM ended;
    INSERT INTO assignment (addr, order_id, project, machine_id, during)
        SELECT a, NEW.id, NEW.project, NEW.machine_id, tstzrange(clock_timestamp(), NULL) FROM unnest(moved) a;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER follow AFTER UPDATE OF machine_id ON orders FOR EACH ROW WHEN (OLD.machine_id IS DISTINCT FROM NEW.machine_id)
    EXECUTE FUNCTION follow_machine();

-- What an order's network is: what was ordered, what is added for a while, and what is taken away.
ALTER TABLE orders
    ADD bandwidth_down   int,                        -- Mbit/s to the machine; bandwidth is from it
    ADD model            text NOT NULL DEFAULT 'fixed' CHECK (model IN ('fixed', 'burst')),
    ADD committed        int NOT NULL DEFAULT 0 CHECK (committed >= 0), -- burst: Mbit/s that are paid for in any case
    ADD extra_up         int NOT NULL DEFAULT 0 CHECK (extra_up >= 0),  -- Mbit/s of the packs that act
    ADD extra_down       int NOT NULL DEFAULT 0 CHECK (extra_down >= 0),
    ADD limit_mbit       int NOT NULL DEFAULT 0 CHECK (limit_mbit >= 0), -- 0: not limited
    ADD limit_reason     text NOT NULL DEFAULT '',
    ADD blackhole_until  timestamptz,
    ADD blackhole_reason text NOT NULL DEFAULT '',
    ADD change_due       timestamptz;                -- when the next of it changes by itself
UPDATE orders SET bandwidth_down = bandwidth;
ALTER TABLE orders ALTER bandwidth_down SET NOT NULL, ADD CHECK (bandwidth_down > 0);
CREATE INDEX order_change_due ON orders (change_due) WHERE change_due IS NOT NULL;

CREATE TABLE bandwidth_change (
    id       text PRIMARY KEY,
    order_id text NOT NULL REFERENCES orders,
    kind     text NOT NULL CHECK (kind IN ('upgrade', 'downgrade', 'pack')),
    state    text NOT NULL CHECK (state IN ('waiting', 'acting', 'over', 'withdrawn')),
    up       int NOT NULL, -- Mbit/s: the new bandwidth; of a pack, what it adds
    down     int NOT NULL,
    was_up   int NOT NULL, -- Mbit/s ordered before
    was_down int NOT NULL,
    made     timestamptz NOT NULL,
    begins   timestamptz NOT NULL,
    ends     timestamptz,  -- of a pack
    days     int NOT NULL DEFAULT 0,
    term     jsonb NOT NULL, -- what is left of the paid term when it begins
    CHECK ((kind = 'pack') = (ends IS NOT NULL))
);
CREATE INDEX bandwidth_change_order ON bandwidth_change (order_id, made);
CREATE UNIQUE INDEX bandwidth_change_waiting ON bandwidth_change (order_id) WHERE kind = 'downgrade' AND state = 'waiting';

-- Answers to requests that carried an Idempotency-Key.
CREATE TABLE request (
    order_id text NOT NULL REFERENCES orders,
    key      text NOT NULL,
    digest   text NOT NULL,
    answer   jsonb NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, key)
);

-- Work for people, see network.Task.
CREATE TABLE task (
    id      text PRIMARY KEY,
    kind    text NOT NULL,
    subject text NOT NULL,
    title   text NOT NULL,
    steps   text[] NOT NULL,
    proof   text NOT NULL, -- how to see that it is done
    wanted  text NOT NULL,
    state   text NOT NULL CHECK (state IN ('open', 'done', 'refused', 'withdrawn')),
    opened  timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed  timestamptz,
    closer  text NOT NULL DEFAULT '',
    note    text NOT NULL DEFAULT '',
    CHECK ((state = 'open') = (closed IS NULL))
);
CREATE UNIQUE INDEX task_open ON task (kind, subject) WHERE state = 'open';
CREATE INDEX task_latest ON task (kind, subject, opened DESC);

-- Reverse DNS: what is wanted, and whether the name server was told.
CREATE TABLE ptr (
    addr    inet PRIMARY KEY,
    prefix  inet NOT NULL REFERENCES address, -- the address that it is, or lies in
    name    text NOT NULL,                    -- '': to be cleared; then the row goes
    state   text NOT NULL CHECK (state IN ('waiting', 'set')),
    problem text NOT NULL DEFAULT '',
    tries   int NOT NULL DEFAULT 0,
    due     timestamptz NOT NULL DEFAULT now(),
    busy    timestamptz NOT NULL DEFAULT now(), -- until then a server is telling the name server
    CHECK (masklen(addr) IN (32, 128) AND (name <> '' OR state = 'waiting'))
);
CREATE INDEX ptr_prefix ON ptr (prefix);
CREATE INDEX ptr_due ON ptr (due) WHERE state = 'waiting';

-- Traffic. A round reads all counters for a slot of five minutes; whoever commits it first has done it.
CREATE TABLE traffic_round (
    slot timestamptz PRIMARY KEY
);
-- The newest reading of each counter that can be trusted.
CREATE TABLE traffic_meter (
    machine_id text NOT NULL,
    direction  text NOT NULL CHECK (direction IN ('up', 'down')),
    bytes      bigint NOT NULL,
    epoch      bigint NOT NULL, -- Unix nanoseconds
    slack      bigint NOT NULL, -- nanoseconds
    at         timestamptz NOT NULL,
    PRIMARY KEY (machine_id, direction)
);
-- What an order's machine was delivered in a slot, in bytes.
CREATE TABLE traffic_sample (
    order_id   text NOT NULL,
    slot       timestamptz NOT NULL,
    machine_id text NOT NULL,
    took       bigint NOT NULL, -- nanoseconds between the readings
    up         bigint NOT NULL CHECK (up >= 0),
    down       bigint NOT NULL CHECK (down >= 0),
    doubt      text NOT NULL DEFAULT '', -- why it is not billed
    PRIMARY KEY (order_id, slot)
);
CREATE INDEX traffic_sample_slot ON traffic_sample USING brin (slot);
-- The same by the hour, for longer. Bytes and peaks of what can be trusted.
CREATE TABLE traffic_hour (
    order_id  text NOT NULL,
    hour      timestamptz NOT NULL,
    measured  int NOT NULL,
    doubtful  int NOT NULL,
    up        bigint NOT NULL,
    down      bigint NOT NULL,
    peak_up   bigint NOT NULL, -- bit/s of the busiest slot
    peak_down bigint NOT NULL,
    PRIMARY KEY (order_id, hour)
);
CREATE INDEX traffic_hour_hour ON traffic_hour USING brin (hour);
-- Months of orders, counted from hand-over, that are over: what bills are made of.
CREATE TABLE traffic_period (
    order_id text NOT NULL REFERENCES orders,
    n        int NOT NULL, -- from 0
    usage    jsonb NOT NULL, -- see billing.Usage
    last     boolean NOT NULL, -- the order has ended
    closed   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, n)
);
CREATE TABLE traffic_upkeep (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    rolled timestamptz NOT NULL -- hours before this are in traffic_hour
);

-- +goose Down
DROP TABLE traffic_upkeep, traffic_period, traffic_hour, traffic_sample, traffic_meter, traffic_round, ptr, task, request, bandwidth_change;
DROP TRIGGER follow ON orders;
DROP FUNCTION follow_machine;
ALTER TABLE orders DROP bandwidth_down, DROP model, DROP committed, DROP extra_up, DROP extra_down, DROP limit_mbit, DROP limit_reason,
    DROP blackhole_until, DROP blackhole_reason, DROP change_due;
DROP INDEX assignment_order;
ALTER TABLE assignment DROP project, DROP machine_id;
DROP INDEX address_free, address_order;
CREATE INDEX address_free ON address (line, free_at) WHERE order_id IS NULL;
ALTER TABLE address DROP pool, DROP family, DROP state, DROP note, DROP since, DROP leaving, DROP next_order;
-- Before, an order held one address, and what had happened was forgotten with the address.
UPDATE address a SET order_id = NULL WHERE EXISTS (SELECT 1 FROM address b JOIN orders o ON o.id = b.order_id
    WHERE b.order_id = a.order_id AND b.addr <> a.addr AND (b.addr = o.address OR b.addr < a.addr AND a.addr IS DISTINCT FROM o.address));
ALTER TABLE address ADD CONSTRAINT address_order_id_key UNIQUE (order_id);
DELETE FROM assignment s WHERE NOT EXISTS (SELECT 1 FROM address a WHERE a.addr = s.addr);
ALTER TABLE assignment ADD CONSTRAINT assignment_addr_fkey FOREIGN KEY (addr) REFERENCES address;
DROP TABLE address_range, address_pool;
ALTER TABLE line DROP carrier, DROP step, DROP min_down, DROP max_down, DROP models, DROP percentile, DROP max_addresses;
