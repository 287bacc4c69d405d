-- Approvals. The run's execution is locked before an approval; every change of one is made under that
-- lock.

-- name: put_approval
-- $1 scope, $2 approval, $3 run, $4 name, $5 operation and $6 effect (null: none), $7 proposal,
-- $8 digest, $9 role, $10 how long it may be decided (null: as long as the run lives), $11 proposer,
-- $12 whether the proposer may not decide: then nobody may who asked for the run or retried it, or one
-- that it came from. No row back: it was asked for before.
WITH RECURSIVE origin AS (
    SELECT scope_id, run_id, parent_run_id, retry_of, principal_id, retried_by
    FROM run WHERE scope_id = $1 AND run_id = $3 AND $12
    UNION
    SELECT r.scope_id, r.run_id, r.parent_run_id, r.retry_of, r.principal_id, r.retried_by
    FROM origin o CROSS JOIN LATERAL (VALUES (o.parent_run_id), (o.retry_of)) AS f (run_id)
         JOIN run r ON r.scope_id = $1 AND r.run_id = f.run_id
)
INSERT INTO approval (scope_id, approval_id, run_id, name, operation_id, effect, proposal, digest,
                      role, requested_at, expires_at, proposer, excludes_proposer, excluded)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock(), clock() + $10::interval, $11, $12,
        ARRAY(SELECT principal_id FROM origin UNION
              SELECT retried_by FROM origin WHERE retried_by IS NOT NULL))
ON CONFLICT DO NOTHING
RETURNING approval_id;

-- name: find_approval
SELECT * FROM approval WHERE scope_id = $1 AND approval_id = $2;

-- name: approvals_of
SELECT * FROM approval WHERE scope_id = $1 AND run_id = $2 ORDER BY requested_at, approval_id;

-- name: visible_approval
-- $1 scope, $2 approval, $3 whether all of the scope's are seen; else those that are addressed to one
-- of the roles $4 or were asked for by the principal $5.
SELECT * FROM approval
WHERE scope_id = $1 AND approval_id = $2 AND ($3 OR role = ANY ($4::text[]) OR proposer = $5);

-- name: lock_approval
WITH locked AS MATERIALIZED (
    SELECT * FROM approval WHERE scope_id = $1 AND approval_id = $2 FOR NO KEY UPDATE
)
SELECT *, clock() AS now FROM locked;

-- name: count_undecided
-- $1 scope, $2 run, $3 how many more. Only under the execution's lock.
UPDATE execution SET undecided = undecided + $3 WHERE scope_id = $1 AND run_id = $2;

-- name: decide_approval
-- $1 scope, $2 approval, $3 version, $4 status, $5 by whom, $6 note, $7 the request's key or null.
UPDATE approval
SET status = $4, version = version + 1, decided_by = $5, decided_at = clock(), note = $6,
    decision_key = $7
WHERE scope_id = $1 AND approval_id = $2 AND version = $3 AND status = 'pending'
RETURNING *;

-- name: expire_approvals
-- Those of a run whose time is over. $1 scope, $2 run. Only under the execution's lock.
UPDATE approval SET status = 'expired', version = version + 1
WHERE scope_id = $1 AND run_id = $2 AND status || '' = 'pending' AND expires_at <= clock()
RETURNING *;

-- name: cancel_approvals
-- The run has ended: nobody decides any more. $1 scope, $2 run. Only under the execution's lock.
WITH closed AS (
    UPDATE approval SET status = 'cancelled', version = version + 1
    WHERE scope_id = $1 AND run_id = $2 AND status || '' = 'pending'
)
UPDATE execution SET undecided = 0 WHERE scope_id = $1 AND run_id = $2;

-- name: expiring_approvals
-- Runs with an approval whose time is over; a run with several may come more than once. $1 how many.
SELECT scope_id, run_id FROM approval
WHERE status = 'pending' AND expires_at <= (SELECT clock())
ORDER BY expires_at LIMIT $1;

-- name: list_pending_approvals
-- Oldest first: $1 scope, $2 whether all of the scope's are seen; else those that are addressed to one
-- of the roles $3 or were asked for by the principal $4. $5 after this instant and $6 id (null: from
-- the start), $7 how many.
SELECT * FROM approval
WHERE scope_id = $1 AND status = 'pending' AND ($2 OR role = ANY ($3::text[]) OR proposer = $4)
  AND ($5::timestamptz IS NULL OR (requested_at, approval_id) > ($5, $6))
ORDER BY requested_at, approval_id LIMIT $7;

-- name: list_approvals
-- As above, in any status or in $8.
SELECT * FROM approval
WHERE scope_id = $1 AND ($2 OR role = ANY ($3::text[]) OR proposer = $4)
  AND ($5::timestamptz IS NULL OR (requested_at, approval_id) > ($5, $6))
  AND ($8::text IS NULL OR status = $8)
ORDER BY requested_at, approval_id LIMIT $7;

-- name: list_approvals_of_proposer
-- $1 scope, $2 principal, $3 after this instant and $4 id (null: from the start), $5 how many,
-- $6 status (null: any).
SELECT * FROM approval
WHERE scope_id = $1 AND proposer = $2
  AND ($3::timestamptz IS NULL OR (requested_at, approval_id) > ($3, $4))
  AND ($6::text IS NULL OR status = $6)
ORDER BY requested_at, approval_id LIMIT $5;

-- name: summaries_of
-- Runs as lists show them. $1 scope, $2 runs.
SELECT r.scope_id, r.run_id, r.kind, r.lane, r.principal_id, NULL::jsonb AS input, r.context,
       r.labels, r.conversation_id, r.parent_run_id, r.lineage_id, r.revision, r.retry_of,
       r.created_at, e.status, e.version, e.fence, e.priority, e.failures, e.max_attempts, e.due_at,
       e.retry_at, e.deadline_at, e.cancel_requested, e.doubts, e.waiting_on, e.last_seq,
       e.started_at, e.finished_at, NULL::jsonb AS output, e.error
FROM run r JOIN execution e USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = ANY ($2::uuid[]);
