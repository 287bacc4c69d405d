-- The engine: scopes and who acts in them, runs, attempts, steps, events, operations.

-- The one clock that decides. Statements read it after their locks are taken. A test may replace
-- the function; being a plain SQL function it is inlined and costs nothing otherwise.
CREATE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;

CREATE TABLE setting (
    name  text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE scope (
    scope_id   text PRIMARY KEY CHECK (scope_id ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
    created_at timestamptz NOT NULL
);

CREATE TABLE principal (
    scope_id     text NOT NULL REFERENCES scope,
    principal_id text NOT NULL CHECK (length(principal_id) BETWEEN 1 AND 100),
    roles        text[] NOT NULL CHECK (roles <@ '{member,approver,operator,admin}'::text[]),
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (scope_id, principal_id)
);

CREATE TABLE token (
    token_id     text PRIMARY KEY,
    scope_id     text NOT NULL,
    principal_id text NOT NULL,
    secret_hash  bytea NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    FOREIGN KEY (scope_id, principal_id) REFERENCES principal
);

-- What was asked: written once, never changed.
CREATE TABLE run (
    scope_id        text NOT NULL,
    run_id          uuid NOT NULL,
    kind            text NOT NULL,
    lane            text NOT NULL,
    principal_id    text NOT NULL,
    idempotency_key text,
    fingerprint     bytea NOT NULL,
    input           jsonb NOT NULL,
    context         jsonb NOT NULL,
    labels          jsonb NOT NULL,
    conversation_id text,
    parent_run_id   uuid,
    child_name      text,
    detached        boolean NOT NULL,
    lineage_id      uuid NOT NULL,
    revision        integer NOT NULL,
    retry_of        uuid,
    traceparent     text,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id),
    FOREIGN KEY (scope_id, parent_run_id) REFERENCES run,
    FOREIGN KEY (scope_id, retry_of) REFERENCES run
);
CREATE UNIQUE INDEX run_key ON run (scope_id, principal_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- Two people who retry the same run at once make one revision. A first revision is its own lineage.
CREATE UNIQUE INDEX run_revision ON run (scope_id, lineage_id, revision) WHERE retry_of IS NOT NULL;
CREATE INDEX run_children ON run (scope_id, parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX run_conversation ON run (scope_id, conversation_id, run_id)
    WHERE conversation_id IS NOT NULL;

-- How far it is: small, changes often. `doubts` and `reserved` count the run's operations in those
-- states, kept under this row's lock, so that a guard can be judged on the locked row alone (a
-- sub-query would see the older snapshot). Attempts and events have no foreign key to it: they are
-- only ever inserted from rows that a statement has just changed here, several per run.
CREATE TABLE execution (
    scope_id         text NOT NULL,
    run_id           uuid NOT NULL,
    kind             text NOT NULL,
    lane             text NOT NULL,
    status           text NOT NULL CHECK (status IN ('queued', 'running', 'waiting', 'unknown',
                         'blocked', 'succeeded', 'failed', 'cancelled')),
    version          integer NOT NULL DEFAULT 1,
    fence            integer NOT NULL DEFAULT 0,
    owner_token      uuid,
    instance_id      uuid,
    lease_until      timestamptz,
    ready            boolean NOT NULL,
    due_at           timestamptz NOT NULL,
    turn_at          timestamptz NOT NULL,
    priority         smallint NOT NULL,
    failures         smallint NOT NULL DEFAULT 0,
    max_attempts     smallint NOT NULL CHECK (max_attempts > 0),
    fails_on_doubt   boolean NOT NULL,
    doubts           smallint NOT NULL DEFAULT 0 CHECK (doubts >= 0),
    reserved         smallint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    cancel_requested boolean NOT NULL DEFAULT false,
    parent_run_id    uuid,
    waiting_on       jsonb,
    wake_at          timestamptz,
    retry_at         timestamptz,
    deadline_at      timestamptz,
    last_seq         bigint NOT NULL DEFAULT 0,
    started_at       timestamptz,
    attempt_started_at timestamptz,
    finished_at      timestamptz,
    output           jsonb,
    error            jsonb,
    PRIMARY KEY (scope_id, run_id),
    CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CHECK ((status IN ('succeeded', 'failed', 'cancelled', 'blocked')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.05);
-- Who is next in a lane? Delayed runs stay out of it until they are due, so that no claim walks
-- over them.
CREATE INDEX run_due ON execution (lane, turn_at, run_id) WHERE status = 'queued' AND ready;
CREATE INDEX run_delayed ON execution (due_at) WHERE status = 'queued' AND NOT ready;
-- What does a process hold? The lease itself is not indexed: a renewal stays a heap-only update,
-- and there are never more rows here than workers have slots.
CREATE INDEX run_held ON execution (instance_id) WHERE status = 'running';
CREATE INDEX run_timed ON execution (wake_at) WHERE status = 'waiting' AND wake_at IS NOT NULL;
CREATE INDEX run_expiring ON execution (deadline_at)
    WHERE status IN ('queued', 'waiting') AND deadline_at IS NOT NULL;
CREATE INDEX run_status ON execution (scope_id, status, run_id)
    WHERE status IN ('waiting', 'unknown', 'blocked', 'failed');

-- Attempts that have ended. The one that runs is told by its execution: a row that is written once,
-- at the end, costs the hot path half of one that is inserted and then changed.
CREATE TABLE past_attempt (
    scope_id    text NOT NULL,
    run_id      uuid NOT NULL,
    fence       integer NOT NULL,
    instance_id uuid NOT NULL,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    outcome     text NOT NULL,
    error       jsonb,
    PRIMARY KEY (scope_id, run_id, fence)
);

CREATE VIEW attempt AS
    SELECT scope_id, run_id, fence, instance_id, started_at, ended_at, outcome, error
    FROM past_attempt
    UNION ALL
    SELECT scope_id, run_id, fence, instance_id, attempt_started_at, NULL, NULL, NULL
    FROM execution WHERE status = 'running';

CREATE TABLE step (
    scope_id   text NOT NULL,
    run_id     uuid NOT NULL,
    name       text NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('step', 'emit', 'timer')),
    digest     bytea NOT NULL,
    result     jsonb,
    fence      integer NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id, name),
    FOREIGN KEY (scope_id, run_id) REFERENCES run
);

CREATE TABLE event (
    scope_id   text NOT NULL,
    run_id     uuid NOT NULL,
    seq        bigint NOT NULL,
    type       text NOT NULL,
    payload    jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id, seq)
);

CREATE TABLE signal (
    scope_id   text NOT NULL,
    run_id     uuid NOT NULL,
    name       text NOT NULL,
    number     integer NOT NULL,
    payload    jsonb NOT NULL,
    principal_id    text NOT NULL,
    idempotency_key text,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope_id, run_id, name, number),
    FOREIGN KEY (scope_id, run_id) REFERENCES run
);
CREATE UNIQUE INDEX signal_key ON signal (scope_id, run_id, principal_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE operation (
    scope_id        text NOT NULL,
    operation_id    uuid NOT NULL,
    run_id          uuid,
    principal_id    text NOT NULL,
    name            text NOT NULL,
    kind            text NOT NULL,
    state           text NOT NULL CHECK (state IN ('reserved', 'submitting', 'submitted', 'unknown',
                        'released')),
    recovery        text NOT NULL CHECK (recovery IN ('resend', 'lookup', 'hold')),
    provider        text NOT NULL,
    resource_key    text,
    keeps_resource  boolean NOT NULL,
    live            boolean NOT NULL,
    request         jsonb NOT NULL,
    digest          bytea NOT NULL,
    fence           integer NOT NULL,
    send_count      integer NOT NULL DEFAULT 0,
    send_token      uuid,
    instance_id     uuid,
    send_window     interval,
    dedupes         boolean NOT NULL,
    absent_after    interval,
    timeout         interval NOT NULL,
    first_begun_at  timestamptz,
    submitting_at   timestamptz,
    call_until      timestamptz,
    unknown_since   timestamptz,
    submitted_at    timestamptz,
    released_at     timestamptz,
    release_reason  text CHECK (release_reason IN ('not_sent', 'absent', 'refused', 'given_up')),
    refusal         jsonb,
    receipt         jsonb,
    external_ref    text,
    lookup_count    integer NOT NULL DEFAULT 0,
    lookup_due_at   timestamptz,
    absent_since    timestamptz,
    resolution      jsonb,
    version         integer NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (scope_id, operation_id),
    FOREIGN KEY (scope_id, run_id) REFERENCES run,
    CHECK ((state = 'submitted') = (submitted_at IS NOT NULL)),
    CHECK ((state = 'released') = (release_reason IS NOT NULL)),
    CHECK ((state = 'unknown') = (unknown_since IS NOT NULL))
);
-- One resource key has one live intent (P15).
CREATE UNIQUE INDEX operation_live ON operation (scope_id, kind, resource_key)
    WHERE live AND resource_key IS NOT NULL;
CREATE INDEX operation_of_run ON operation (scope_id, run_id) WHERE run_id IS NOT NULL;
CREATE INDEX operation_made ON operation (scope_id, created_at, operation_id);
CREATE INDEX operation_unknown ON operation (scope_id, unknown_since, operation_id)
    WHERE state = 'unknown';
CREATE INDEX operation_asked_again ON operation (lookup_due_at)
    WHERE state = 'unknown' AND lookup_due_at IS NOT NULL;
CREATE INDEX operation_sending ON operation (call_until) WHERE state = 'submitting';

-- Every move of an operation, for the desk and for proof.
CREATE TABLE operation_move (
    scope_id     text NOT NULL,
    operation_id uuid NOT NULL,
    version      integer NOT NULL,
    move         text NOT NULL,
    state        text NOT NULL,
    fence        integer NOT NULL,
    by           text NOT NULL,
    detail       jsonb NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (scope_id, operation_id, version),
    FOREIGN KEY (scope_id, operation_id) REFERENCES operation
);

CREATE TABLE operation_lookup (
    scope_id     text NOT NULL,
    operation_id uuid NOT NULL,
    number       integer NOT NULL,
    answer       text NOT NULL CHECK (answer IN ('found', 'absent', 'inconclusive', 'mismatched')),
    detail       text NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (scope_id, operation_id, number),
    FOREIGN KEY (scope_id, operation_id) REFERENCES operation
);

-- What does not fit: a receipt for an operation that was since released or sent again. It moves
-- nothing by itself and waits for a person.
CREATE TABLE finding (
    scope_id     text NOT NULL,
    finding_id   uuid NOT NULL,
    operation_id uuid,
    kind         text NOT NULL,
    detail       jsonb NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (scope_id, finding_id),
    FOREIGN KEY (scope_id, operation_id) REFERENCES operation
);

-- The processes that hold leases. Each keeps a session lock on its number as long as it lives;
-- `host` and `process` let a process on the same machine prove that another one has ended.
CREATE TABLE instance (
    instance_id uuid PRIMARY KEY,
    lock_number bigint NOT NULL,
    host        text NOT NULL,
    process     text NOT NULL,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz
);
