-- Approvals: a person's decision about one exact request.

-- What is put to somebody, and what was decided. `operation_id` and `effect` are there where it is
-- about an operation of the run: then `proposal` is its request and `digest` the request's digest, and
-- nothing else may be sent under it. `expires_at` limits deciding. `decision_key` is the key of the
-- request that decided, per who asked.
CREATE TABLE approval (
    scope_id          text NOT NULL,
    approval_id       uuid NOT NULL,
    run_id            uuid NOT NULL,
    name              text NOT NULL,
    operation_id      uuid,
    effect            text,
    proposal          jsonb NOT NULL,
    digest            bytea NOT NULL,
    role              text NOT NULL CHECK (role IN ('approver', 'operator', 'admin')),
    status            text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved',
                          'rejected', 'expired', 'cancelled')),
    version           integer NOT NULL DEFAULT 1,
    requested_at      timestamptz NOT NULL,
    expires_at        timestamptz,
    decided_by        text,
    decided_at        timestamptz,
    note              text NOT NULL DEFAULT '',
    decision_key      text,
    proposer          text NOT NULL,
    excludes_proposer boolean NOT NULL,
    PRIMARY KEY (scope_id, approval_id),
    FOREIGN KEY (scope_id, run_id) REFERENCES run,
    FOREIGN KEY (scope_id, operation_id) REFERENCES operation,
    CHECK ((operation_id IS NULL) = (effect IS NULL)),
    CHECK ((status IN ('approved', 'rejected')) = (decided_at IS NOT NULL)),
    CHECK ((decided_by IS NULL) = (decided_at IS NULL)),
    CHECK (NOT (excludes_proposer AND decided_by IS NOT DISTINCT FROM proposer))
);
CREATE INDEX approval_of_run ON approval (scope_id, run_id);
-- What waits for a decision in a scope, and what was ever put to it?
CREATE INDEX approval_pending ON approval (scope_id, requested_at, approval_id)
    WHERE status = 'pending';
CREATE INDEX approval_made ON approval (scope_id, requested_at, approval_id);
CREATE INDEX approval_of_proposer ON approval (scope_id, proposer, requested_at, approval_id);
CREATE INDEX approval_expiring ON approval (expires_at)
    WHERE status = 'pending' AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX approval_decision_key ON approval (scope_id, decided_by, decision_key)
    WHERE decision_key IS NOT NULL;

-- How many approvals of the run are pending, kept under this row's lock: an ending looks at them only
-- where there are any.
ALTER TABLE execution ADD COLUMN undecided smallint NOT NULL DEFAULT 0 CHECK (undecided >= 0);

-- The approval without which it is not begun; null where none is needed. No foreign key: the intent is
-- durable before it is put to anybody.
ALTER TABLE operation ADD COLUMN approval_id uuid;
