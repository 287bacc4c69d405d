-- Tokens are rotated with an overlap and known by name; what people do is kept in an audit.

ALTER TABLE scope
    ADD COLUMN created_by text NOT NULL DEFAULT 'local',
    ADD COLUMN idempotency_key text,
    ADD COLUMN fingerprint bytea,
    ADD CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL));
CREATE UNIQUE INDEX scope_key ON scope (created_by, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- Two people who change a principal at once are told apart by its version. Who is disabled has no
-- roles, so that whatever asks for one refuses, and its tokens open nothing.
ALTER TABLE principal
    ADD COLUMN version integer NOT NULL DEFAULT 1,
    ADD COLUMN disabled_at timestamptz,
    ADD CHECK (disabled_at IS NULL OR roles = '{}');

-- `replaces` is the token of which this one is the successor; the old one expires at the end of the
-- overlap. The key and fingerprint are those of the request that made it, per who asked.
ALTER TABLE token
    DROP CONSTRAINT token_pkey,
    ADD PRIMARY KEY (scope_id, token_id),
    ADD COLUMN name text CHECK (length(name) BETWEEN 1 AND 200),
    ADD COLUMN created_by text NOT NULL DEFAULT 'local',
    ADD COLUMN replaces text,
    ADD COLUMN idempotency_key text,
    ADD COLUMN fingerprint bytea,
    ADD COLUMN used_on date,
    ADD CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    ADD FOREIGN KEY (scope_id, replaces) REFERENCES token;
-- Whose is it? The door knows only the token's id.
CREATE UNIQUE INDEX token_id ON token (token_id);
CREATE UNIQUE INDEX token_key ON token (scope_id, created_by, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX token_made ON token (scope_id, created_at, token_id);
-- A token has one successor, whoever asks for it at once.
CREATE UNIQUE INDEX token_successor ON token (scope_id, replaces) WHERE replaces IS NOT NULL;

-- Who decided, resolved, cancelled, retried, issued a token: one row for each change, written in
-- its transaction. No foreign keys: who acted may be a local operator who is no principal, and the
-- entry outlives what it is about.
CREATE TABLE audit (
    scope_id     text NOT NULL,
    audit_id     uuid NOT NULL,
    principal_id text NOT NULL,
    token_id     text,
    action       text NOT NULL CHECK (action ~ '^[a-z]+[.][a-z_]+$'),
    subject      text NOT NULL,
    detail       jsonb NOT NULL,
    request_id   text,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (scope_id, audit_id)
);
CREATE INDEX audit_subject ON audit (scope_id, subject, audit_id);
CREATE INDEX audit_principal ON audit (scope_id, principal_id, audit_id);
CREATE INDEX audit_action ON audit (scope_id, action, audit_id);

-- Keys are led by the scope, as everywhere.
ALTER TABLE database_role DROP CONSTRAINT database_role_pkey, ADD PRIMARY KEY (scope_id, role_name);
