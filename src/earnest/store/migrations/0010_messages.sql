-- The outbox, its sinks and dead letters; the inbox.

-- What an app tells the outside, written with the change that it tells. A relay spreads it over the
-- sinks and deletes it, so this table holds only what is new. Run events need no row here: the event
-- is its own record, and each sink has a place in the scope's feed.
CREATE TABLE outbox (
    scope_id   text NOT NULL,
    message_id uuid NOT NULL,
    type       text NOT NULL,
    run_id     uuid,
    payload    jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, message_id),
    FOREIGN KEY (scope_id, run_id) REFERENCES run
);
-- What is oldest? Ids begin with a time.
CREATE INDEX outbox_next ON outbox (message_id);

-- To whom it is told. `position` is how far in the scope's feed it has got; events up to there are
-- deliveries, or did not interest it. A `paused` sink keeps its place and is sent nothing; a
-- `disabled` one is told nothing more, and begins anew with what is new when it is made active.
-- Secrets are sealed; during a rotation all that are still good sign, each until its `old_until`.
CREATE TABLE sink (
    scope_id    text NOT NULL REFERENCES scope,
    sink_id     uuid NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('webhook', 'nats')),
    address     text NOT NULL,
    types       text[] NOT NULL CHECK (cardinality(types) BETWEEN 1 AND 50),
    description text NOT NULL DEFAULT '',
    state       text NOT NULL CHECK (state IN ('active', 'paused', 'disabled')),
    why         text,
    position    bigint NOT NULL,
    secret      bytea,
    old_secrets bytea[] NOT NULL DEFAULT '{}',
    old_until   timestamptz[] NOT NULL DEFAULT '{}',
    version     integer NOT NULL DEFAULT 1,
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL,
    idempotency_key text,
    fingerprint bytea,
    PRIMARY KEY (scope_id, sink_id),
    CHECK ((kind = 'webhook') = (secret IS NOT NULL)),
    CHECK (cardinality(old_secrets) = cardinality(old_until)),
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL))
);
CREATE UNIQUE INDEX sink_key ON sink (scope_id, created_by, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- One message on its way to one sink, with all that is sent of it: what it came from may be pruned
-- before it arrives. Whoever takes one sets `lease_token` and moves `due_at` to the end of its
-- lease, so that it comes due again should the one who took it be gone.
CREATE TABLE delivery (
    scope_id    text NOT NULL,
    delivery_id uuid NOT NULL,
    sink_id     uuid NOT NULL,
    message_id  uuid NOT NULL,
    type        text NOT NULL,
    run_id      uuid,
    seq         bigint,
    payload     jsonb NOT NULL,
    happened_at timestamptz NOT NULL,
    state       text NOT NULL CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts    integer NOT NULL DEFAULT 0,
    due_at      timestamptz NOT NULL,
    lease_token uuid,
    last_status integer,
    last_error  text,
    ended_at    timestamptz,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (scope_id, delivery_id),
    FOREIGN KEY (scope_id, sink_id) REFERENCES sink ON DELETE CASCADE,
    CHECK ((state = 'pending') = (ended_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE INDEX delivery_due ON delivery (scope_id, sink_id, due_at) WHERE state = 'pending';
CREATE INDEX delivery_of_sink ON delivery (scope_id, sink_id, delivery_id);
CREATE INDEX delivery_dead ON delivery (scope_id, delivery_id) WHERE state = 'dead';
CREATE INDEX delivery_pending ON delivery (scope_id, delivery_id) WHERE state = 'pending';
-- What may be pruned?
CREATE INDEX delivery_over ON delivery (ended_at) WHERE state = 'delivered';

-- Who may call in. The name is in an address that needs no token, so it is unique in the whole
-- deployment; `handler` is the app's code that a message goes to.
CREATE TABLE inbox_source (
    scope_id   text NOT NULL REFERENCES scope,
    name       text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
    handler    text NOT NULL,
    secret      bytea NOT NULL,
    old_secrets bytea[] NOT NULL DEFAULT '{}',
    old_until  timestamptz[] NOT NULL DEFAULT '{}',
    version    integer NOT NULL DEFAULT 1,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, name),
    CHECK (cardinality(old_secrets) = cardinality(old_until))
);
CREATE UNIQUE INDEX inbox_source_name ON inbox_source (name);

-- Proof that a message from outside was handled; written with its effect. It outlives its source: a
-- source that is made again must not handle what was handled.
CREATE TABLE inbox_entry (
    scope_id    text NOT NULL,
    source      text NOT NULL,
    message_id  text NOT NULL,
    outcome     jsonb NOT NULL,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, source, message_id)
);
CREATE INDEX inbox_entry_old ON inbox_entry (received_at);
