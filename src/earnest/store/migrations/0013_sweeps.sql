-- Sweeps: what a provider did, compared with what is recorded.

-- One look at one provider, from `since` on. It is made by whoever takes it under a lease; what a
-- dead one left is begun again from the start. `asked_at` is when the list was asked for: nothing
-- that came later can be missed in it. The counts are those of the present listing.
CREATE TABLE sweep (
    scope_id    text NOT NULL REFERENCES scope,
    sweep_id    uuid NOT NULL,
    effect      text NOT NULL,
    since       timestamptz NOT NULL,
    state       text NOT NULL CHECK (state IN ('queued', 'running', 'complete', 'incomplete')),
    why         text,
    stage       text CHECK (stage IN ('listing', 'listing_again', 'asking')),
    takes       integer NOT NULL DEFAULT 0,
    owner_token uuid,
    lease_until timestamptz,
    asked_at    timestamptz,
    listed      bigint NOT NULL DEFAULT 0,
    matched     bigint NOT NULL DEFAULT 0,
    elsewhere   bigint NOT NULL DEFAULT 0,
    settled     bigint NOT NULL DEFAULT 0,
    unjudged    bigint NOT NULL DEFAULT 0,
    asked       bigint NOT NULL DEFAULT 0,
    listed_to   timestamptz,
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL,
    started_at  timestamptz,
    finished_at timestamptz,
    idempotency_key text,
    fingerprint bytea,
    PRIMARY KEY (scope_id, sweep_id),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('complete', 'incomplete')) = (finished_at IS NOT NULL)),
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL))
);
-- One at a time looks at an effect of a scope.
CREATE UNIQUE INDEX sweep_active ON sweep (scope_id, effect) WHERE state IN ('queued', 'running');
CREATE UNIQUE INDEX sweep_key ON sweep (scope_id, created_by, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX sweep_complete ON sweep (scope_id, effect, asked_at) WHERE state = 'complete';

-- Which operations a listing has named; kept only while its sweep goes on.
CREATE TABLE sweep_seen (
    scope_id     text NOT NULL,
    sweep_id     uuid NOT NULL,
    operation_id uuid NOT NULL,
    PRIMARY KEY (scope_id, sweep_id, operation_id),
    FOREIGN KEY (scope_id, sweep_id) REFERENCES sweep
);

-- What one side has and the other has not. The same difference is one row, however many sweeps find
-- it. `closed`: a person has seen to it; `vanished`: a later sweep did not find it any more.
CREATE TABLE sweep_difference (
    scope_id      text NOT NULL,
    difference_id uuid NOT NULL,
    effect        text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('effect_without_record', 'record_without_effect')),
    why           text NOT NULL CHECK (why IN ('no_operation', 'released', 'another_effect',
                      'another_request', 'not_listed')),
    subject       text NOT NULL,
    operation_id  uuid,
    listed_id     text,
    external_ref  text,
    happened_at   timestamptz NOT NULL,
    state         text NOT NULL CHECK (state IN ('open', 'closed', 'vanished')),
    found_at      timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL,
    ended_at      timestamptz,
    closed_by     text,
    note          text,
    version       integer NOT NULL DEFAULT 1,
    PRIMARY KEY (scope_id, difference_id),
    FOREIGN KEY (scope_id, operation_id) REFERENCES operation,
    CHECK ((state = 'open') = (ended_at IS NULL)),
    CHECK ((state = 'closed') = (closed_by IS NOT NULL))
);
CREATE UNIQUE INDEX sweep_difference_once ON sweep_difference (scope_id, effect, kind, subject);
CREATE INDEX sweep_difference_open ON sweep_difference (scope_id, effect, happened_at)
    WHERE state = 'open';

-- Which sweep found which difference.
CREATE TABLE sweep_sighting (
    scope_id      text NOT NULL,
    sweep_id      uuid NOT NULL,
    difference_id uuid NOT NULL,
    PRIMARY KEY (scope_id, sweep_id, difference_id),
    FOREIGN KEY (scope_id, sweep_id) REFERENCES sweep,
    FOREIGN KEY (scope_id, difference_id) REFERENCES sweep_difference
);

-- A finding of a sweep is over when its difference is.
ALTER TABLE finding ADD COLUMN closed_at timestamptz;

-- Whose is an effect that comes without an operation's id? An entry is made when a receipt is stored.
CREATE INDEX operation_ref ON operation (external_ref, kind) WHERE external_ref IS NOT NULL;
-- What has to be in a list? An entry is made when a receipt is stored.
CREATE INDEX operation_submitted ON operation (scope_id, kind, submitted_at, operation_id)
    WHERE state = 'submitted';
