-- Artifacts: files by their content, with owner, quota and retention.

-- How much of a scope's room is taken. Whoever adds or removes an artifact locks this row first, so
-- that what is judged about the scope's blobs stays so until the commit. `used_bytes` is the size of
-- the blobs that are stored; without `quota_bytes` the default holds.
CREATE TABLE artifact_room (
    scope_id    text PRIMARY KEY,
    used_bytes  bigint NOT NULL DEFAULT 0 CHECK (used_bytes >= 0),
    quota_bytes bigint CHECK (quota_bytes >= 0)
);

-- Where bytes are, and how they stand. A name (scope_id, blob_id) is given before the first byte is
-- written and is never given again, so bytes that are discarded cannot become anybody's. `pieces`
-- are the SHA-256 of each MiB, one after the other.
CREATE TABLE blob (
    scope_id    text NOT NULL CHECK (scope_id ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
    blob_id     uuid NOT NULL,
    state       text NOT NULL CHECK (state IN ('arriving', 'stored', 'discarded')),
    size        bigint CHECK (size >= 0),
    sha256      bytea CHECK (octet_length(sha256) = 32),
    pieces      bytea,
    alive_until timestamptz,
    created_at  timestamptz NOT NULL,
    discarded_at timestamptz,
    PRIMARY KEY (scope_id, blob_id),
    UNIQUE (scope_id, blob_id, state),
    CHECK ((state = 'arriving') = (alive_until IS NOT NULL)),
    CHECK ((state = 'discarded') = (discarded_at IS NOT NULL)),
    CHECK (state <> 'stored' OR (size IS NOT NULL AND sha256 IS NOT NULL AND pieces IS NOT NULL))
);
ALTER TABLE blob ALTER COLUMN pieces SET STORAGE EXTERNAL;
-- One content is stored once in a scope; scopes know nothing of each other's.
CREATE UNIQUE INDEX blob_content ON blob (scope_id, sha256) WHERE state = 'stored';
CREATE INDEX blob_arriving ON blob (alive_until) WHERE state = 'arriving';
CREATE INDEX blob_discarded ON blob (scope_id, blob_id) WHERE state = 'discarded';

-- The foreign key names the blob's state: the database itself refuses to discard what an artifact
-- names, also one that is not committed yet. A deleted artifact names none; its row stays as long as
-- its idempotency key has to be known.
CREATE TABLE artifact (
    scope_id        text NOT NULL,
    artifact_id     uuid NOT NULL,
    blob_id         uuid,
    blob_state      text GENERATED ALWAYS AS (CASE WHEN blob_id IS NOT NULL THEN 'stored' END) STORED,
    run_id          uuid,
    principal_id    text NOT NULL,
    owner_id        text NOT NULL,
    name            text NOT NULL,
    media_type      text NOT NULL,
    idempotency_key text,
    fingerprint     bytea NOT NULL,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz,
    deleted_at      timestamptz,
    PRIMARY KEY (scope_id, artifact_id),
    FOREIGN KEY (scope_id, run_id) REFERENCES run,
    FOREIGN KEY (scope_id, blob_id, blob_state) REFERENCES blob (scope_id, blob_id, state),
    CHECK ((deleted_at IS NULL) = (blob_id IS NOT NULL))
);
CREATE UNIQUE INDEX artifact_key ON artifact (scope_id, principal_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX artifact_of_blob ON artifact (scope_id, blob_id) WHERE blob_id IS NOT NULL;
CREATE INDEX artifact_of_run ON artifact (scope_id, run_id, artifact_id)
    WHERE run_id IS NOT NULL AND blob_id IS NOT NULL;
CREATE INDEX artifact_of_owner ON artifact (scope_id, owner_id, artifact_id)
    WHERE blob_id IS NOT NULL;
CREATE INDEX artifact_kept ON artifact (scope_id, artifact_id) WHERE blob_id IS NOT NULL;
CREATE INDEX artifact_expiring ON artifact (expires_at)
    WHERE expires_at IS NOT NULL AND blob_id IS NOT NULL;
CREATE INDEX artifact_deleted ON artifact (deleted_at) WHERE deleted_at IS NOT NULL;
