-- +goose Up
CREATE TABLE class (
    name          text PRIMARY KEY,
    description   text NOT NULL,
    accelerator   text NOT NULL,
    count         int NOT NULL CHECK (count >= 0),
    monthly_price bigint NOT NULL CHECK (monthly_price >= 0),
    currency      text NOT NULL
);

CREATE TABLE image (
    name         text PRIMARY KEY,
    digest       text NOT NULL,
    size         bigint NOT NULL CHECK (size > 0),
    default_user text NOT NULL,
    bios         boolean NOT NULL,
    uefi         boolean NOT NULL,
    driver       boolean NOT NULL,
    created      timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE line (
    name          text PRIMARY KEY,
    site          text NOT NULL,
    min_bandwidth int NOT NULL, -- Mbit/s
    max_bandwidth int NOT NULL, -- Mbit/s
    cool_down     interval NOT NULL
);

CREATE TABLE machine (
    id         text PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    site       text NOT NULL,
    rack       text NOT NULL,
    class      text NOT NULL REFERENCES class,
    state      text NOT NULL CHECK (state IN ('discovered','enrolled','accepting','available','reserved','provisioning','active',
                                              'reclaiming','pool','maintenance','quarantined','retired')),
    reason     text NOT NULL DEFAULT '',
    firmware   text NOT NULL CHECK (firmware IN ('bios','uefi')),
    hardware   jsonb NOT NULL,
    bmc        jsonb NOT NULL,
    bmc_secret bytea NOT NULL, -- AES-GCM, see postgres/seal.go
    boot_addr  inet NOT NULL UNIQUE,
    order_id   text NOT NULL DEFAULT '',
    job_id     text NOT NULL DEFAULT '',
    public     boolean NOT NULL DEFAULT false,
    port_open  boolean NOT NULL DEFAULT false,
    created    timestamptz NOT NULL DEFAULT now(),
    updated    timestamptz NOT NULL DEFAULT now(),
    -- an idle machine belongs to nobody and is open to nobody
    CHECK (state <> 'available' OR (order_id = '' AND job_id = '' AND NOT public))
);
CREATE INDEX machine_stock ON machine (class, updated) WHERE state = 'available';

CREATE TABLE machine_mac (
    mac        macaddr PRIMARY KEY,
    machine_id text NOT NULL REFERENCES machine ON DELETE CASCADE
);

CREATE TABLE orders (
    id           text PRIMARY KEY,
    project      text NOT NULL,
    idem_key     text,          -- Idempotency-Key of the request that placed it
    digest       text NOT NULL, -- content of that request
    class        text NOT NULL REFERENCES class,
    image        text NOT NULL,
    image_digest text NOT NULL,
    line         text NOT NULL REFERENCES line,
    bandwidth    int NOT NULL CHECK (bandwidth > 0),
    ssh_keys     text[] NOT NULL,
    hostname     text NOT NULL,
    months       int NOT NULL CHECK (months > 0),
    price        bigint NOT NULL CHECK (price >= 0),
    currency     text NOT NULL,
    state        text NOT NULL CHECK (state IN ('placed','provisioning','active','expired','ended','cancelled','failed')),
    reason       text NOT NULL DEFAULT '',
    machine_id   text NOT NULL DEFAULT '',
    job_id       text NOT NULL DEFAULT '',
    address      inet,
    tried        text[] NOT NULL DEFAULT '{}',
    placed       timestamptz NOT NULL DEFAULT now(),
    started      timestamptz,
    until        timestamptz,
    updated      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project, idem_key),
    CHECK (state NOT IN ('active','expired') OR (machine_id <> '' AND started IS NOT NULL AND until > started))
);
-- no machine is in two living orders
CREATE UNIQUE INDEX order_machine ON orders (machine_id) WHERE machine_id <> '' AND state IN ('placed','provisioning','active','expired');

CREATE TABLE job (
    id           text PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('provision','reinstall','reclaim')),
    machine_id   text NOT NULL REFERENCES machine,
    order_id     text NOT NULL DEFAULT '',
    state        text NOT NULL CHECK (state IN ('running','succeeded','failed','cancelled')),
    attempt      int NOT NULL CHECK (attempt > 0),
    step         text NOT NULL,
    turn         int NOT NULL,
    try          int NOT NULL,
    reason       text NOT NULL DEFAULT '',
    image        text NOT NULL DEFAULT '',
    image_digest text NOT NULL DEFAULT '',
    driver       boolean NOT NULL,
    wipe_data    boolean NOT NULL,
    progress     jsonb NOT NULL,
    result       jsonb,
    started      timestamptz NOT NULL,
    step_at      timestamptz NOT NULL,
    seen_at      timestamptz NOT NULL,
    due          timestamptz NOT NULL,
    finished     timestamptz,
    CHECK ((state = 'running') = (finished IS NULL))
);
CREATE UNIQUE INDEX job_one_active ON job (machine_id) WHERE state = 'running';
CREATE INDEX job_due ON job (due) WHERE state = 'running';

CREATE TABLE ticket (
    hash       bytea PRIMARY KEY,
    role       text NOT NULL CHECK (role IN ('nonce','agent','os')),
    machine_id text NOT NULL REFERENCES machine,
    job_id     text NOT NULL,
    attempt    int NOT NULL,
    addr       inet,
    parent     bytea, -- the nonce that an agent token was traded for
    used       boolean NOT NULL DEFAULT false,
    created    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ticket_job ON ticket (job_id, attempt);

CREATE TABLE event (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    kind       text NOT NULL,
    machine_id text NOT NULL DEFAULT '',
    order_id   text NOT NULL DEFAULT '',
    job_id     text NOT NULL DEFAULT '',
    attempt    int NOT NULL DEFAULT 0,
    step       text NOT NULL DEFAULT '',
    text       text NOT NULL
);
CREATE INDEX event_machine ON event (machine_id, id);
CREATE INDEX event_order ON event (order_id, id);

CREATE TABLE charge (
    order_id text NOT NULL REFERENCES orders,
    begins   timestamptz NOT NULL,
    ends     timestamptz NOT NULL CHECK (ends > begins),
    amount   bigint NOT NULL,
    currency text NOT NULL,
    PRIMARY KEY (order_id, begins)
);

CREATE TABLE address (
    addr     inet PRIMARY KEY,
    line     text NOT NULL REFERENCES line,
    order_id text UNIQUE,              -- who holds it
    free_at  timestamptz NOT NULL DEFAULT '-infinity' -- in the future while it cools down
);
CREATE INDEX address_free ON address (line, free_at) WHERE order_id IS NULL;
-- Who had an address when, for the abuse desk.
CREATE TABLE assignment (
    addr     inet NOT NULL REFERENCES address,
    order_id text NOT NULL,
    during   tstzrange NOT NULL,
    EXCLUDE USING gist (addr inet_ops WITH =, during WITH &&)
);

-- Settings that all replicas share: the CA of the agents' API.
CREATE TABLE setting (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE api_token (
    hash    bytea PRIMARY KEY,
    role    text NOT NULL CHECK (role IN ('operator','customer')),
    project text NOT NULL CHECK ((role = 'customer') = (project <> '')),
    created timestamptz NOT NULL DEFAULT now()
);

-- +goose StatementBegin
CREATE FUNCTION tell_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('bareyard_event', NEW.id::text);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tell AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION tell_event();

-- +goose Down
DROP TABLE api_token, setting, assignment, address, charge, event, ticket, job, orders, machine_mac, machine, line, image, class;
DROP FUNCTION tell_event;
