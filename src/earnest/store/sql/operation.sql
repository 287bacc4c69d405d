-- Operations. Inside a run the execution is locked before the operation; every move writes one line
-- of history and raises the version.

-- name: lock_operation
WITH locked AS MATERIALIZED (
    SELECT * FROM operation WHERE scope_id = $1 AND operation_id = $2 FOR NO KEY UPDATE
)
SELECT *, clock() AS now FROM locked;

-- name: find_operation
-- $1 scope, $2 operation, $3 only if it is this principal's (null: whose ever).
SELECT *, clock() AS now FROM operation
WHERE scope_id = $1 AND operation_id = $2 AND ($3::text IS NULL OR principal_id = $3);

-- name: watch_call
-- An operation and the process that made its last call. $1 scope, $2 operation.
SELECT o.*, clock() AS now, coalesce(i.host, '') AS host, coalesce(i.process, '') AS process
FROM operation o LEFT JOIN instance i USING (instance_id)
WHERE o.scope_id = $1 AND o.operation_id = $2;

-- name: operations_of
SELECT *, clock() AS now FROM operation WHERE scope_id = $1 AND run_id = $2
ORDER BY created_at, operation_id;

-- name: reserve_operation
-- $1 scope, $2 operation, $3 run, $4 principal, $5 name, $6 kind, $7 recovery, $8 provider,
-- $9 resource key, $10 keeps resource, $11 request, $12 digest, $13 fence, $14 window, $15 dedupes,
-- $16 absent_after, $17 timeout, $18 has a released hook, $19 the approval that it needs (null: none).
-- No row back: the id exists, or the resource key has a live intent.
INSERT INTO operation (scope_id, operation_id, run_id, principal_id, name, kind, state, recovery,
                       provider, resource_key, keeps_resource, live, request, digest, fence,
                       send_window, dedupes, absent_after, timeout, has_released_hook, approval_id,
                       created_at)
VALUES ($1, $2, $3, $4, $5, $6, 'reserved', $7, $8, $9, $10, true, $11, $12, $13, $14, $15, $16,
        $17, $18, $19, clock())
ON CONFLICT DO NOTHING
RETURNING version;

-- name: reserve_again
-- A released operation (not sent, or proved absent) is tried once more under the same id.
-- $1 scope, $2 operation, $3 version, $4 fence, $5 has a released hook, $6 the approval that it needs,
-- if it needed none before.
UPDATE operation
SET state = 'reserved', version = version + 1, fence = $4, has_released_hook = $5,
    approval_id = coalesce(approval_id, $6),
    release_reason = NULL, released_at = NULL, live = true, send_token = NULL, absent_since = NULL, lookup_due_at = NULL,
    refusal = NULL, resolution = NULL
WHERE scope_id = $1 AND operation_id = $2 AND version = $3 AND state = 'released'
  AND release_reason IN ('not_sent', 'absent')
RETURNING version;

-- name: need_approval
-- A reserved operation needs an approval from now on. $1 scope, $2 operation, $3 approval.
UPDATE operation SET approval_id = $3
WHERE scope_id = $1 AND operation_id = $2 AND state = 'reserved' AND approval_id IS NULL;

-- name: begin_operation
-- The last thing before the call, and `send again`: $1 scope, $2 operation, $3 version, $4 fence,
-- $5 send token, $6 instance, $7 how long the call may take. Who sends it again has taken the next
-- question with it: the claim stays, so that a new doubt is not taken by others at once. What needs an
-- approval is begun, and sent again, only under one of exactly this operation, effect and request.
UPDATE operation
SET state = 'submitting', version = version + 1, fence = $4, send_token = $5, instance_id = $6,
    send_count = send_count + 1, submitting_at = clock(), call_until = clock() + $7::interval,
    first_begun_at = coalesce(first_begun_at, clock()), unknown_since = NULL
WHERE scope_id = $1 AND operation_id = $2 AND version = $3
  AND (state = 'reserved' OR (state IN ('submitting', 'unknown') AND recovery = 'resend'))
  AND (approval_id IS NULL OR EXISTS (
      SELECT FROM approval a
      WHERE a.scope_id = operation.scope_id AND a.approval_id = operation.approval_id
        AND a.status = 'approved' AND a.operation_id = operation.operation_id
        AND a.effect = operation.kind AND a.digest = operation.digest))
RETURNING version;

-- name: confirm_operation
-- The receipt is stored, however it was reached. $1 scope, $2 operation, $3 version, $4 receipt,
-- $5 external reference, $6 resolution (null when the call itself answered).
UPDATE operation
SET state = 'submitted', version = version + 1, receipt = $4, external_ref = $5,
    submitted_at = clock(), unknown_since = NULL, lookup_due_at = NULL, resolution = $6,
    live = keeps_resource
WHERE scope_id = $1 AND operation_id = $2 AND version = $3 AND state IN ('submitting', 'unknown')
RETURNING version;

-- name: release_operation
-- $1 scope, $2 operation, $3 version, $4 reason, $5 refusal, $6 resolution.
UPDATE operation
SET state = 'released', version = version + 1, release_reason = $4, refusal = $5,
    released_at = clock(), unknown_since = NULL, lookup_due_at = NULL, resolution = $6, live = false
WHERE scope_id = $1 AND operation_id = $2 AND version = $3
  AND state IN ('reserved', 'submitting', 'unknown')
RETURNING version;

-- name: doubt_operation
-- $1 scope, $2 operation, $3 version, $4 when to ask the provider (null: nobody can be asked). The
-- state is compared so that the index on calls under way does not match: planned while there are
-- hardly any, each doubt would walk over all of them.
UPDATE operation
SET state = 'unknown', version = version + 1, unknown_since = clock(),
    lookup_due_at = greatest(lookup_due_at, clock() + $4::interval)
WHERE scope_id = $1 AND operation_id = $2 AND version = $3 AND state || '' = 'submitting'
RETURNING version;

-- name: free_resource
-- The thing behind a resource key is gone: the row stays as its tombstone, the key may be used
-- again under a new operation id. $1 scope, $2 operation.
UPDATE operation SET live = false, version = version + 1
WHERE scope_id = $1 AND operation_id = $2 AND state = 'submitted' AND live
RETURNING version, kind, resource_key;

-- name: live_intent
SELECT operation_id FROM operation
WHERE scope_id = $1 AND kind = $2 AND resource_key = $3 AND live;

-- name: note_move
-- $1 scope, $2 operation, $3 version, $4 move, $5 state, $6 fence, $7 by, $8 detail.
INSERT INTO operation_move (scope_id, operation_id, version, move, state, fence, by, detail,
                            created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock());

-- name: moves_of
SELECT version, move, state, fence, by, detail, created_at FROM operation_move
WHERE scope_id = $1 AND operation_id = $2 ORDER BY version;

-- name: lookups_of
SELECT number, answer, detail, created_at FROM operation_lookup
WHERE scope_id = $1 AND operation_id = $2 ORDER BY number;

-- name: take_due_questions
-- Unknown operations whose next question is due: the due time moves on by $1 as a claim, so that
-- two processes do not ask at once and a crash in between only delays. $2 kinds, $3 how many; the
-- pick is materialized, or it could be asked again for each row and go beyond that.
WITH pick AS MATERIALIZED (
    SELECT scope_id, operation_id FROM operation
    WHERE state = 'unknown' AND lookup_due_at <= (SELECT clock()) AND kind = ANY ($2::text[])
    ORDER BY lookup_due_at LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE operation o SET lookup_due_at = clock() + $1::interval
FROM pick
WHERE o.scope_id = pick.scope_id AND o.operation_id = pick.operation_id
RETURNING o.scope_id, o.operation_id;

-- name: note_lookup
-- An answer that settles nothing. $1 scope, $2 operation, $3 version, $4 answer, $5 detail,
-- $6 when to ask again. The state is compared so that the index on unknown operations does not match:
-- planned while there are hardly any, each answer would walk over all of them.
WITH asked AS (
    UPDATE operation
    SET lookup_count = lookup_count + 1, lookup_due_at = clock() + $6::interval,
        absent_since = CASE WHEN $4 = 'absent' THEN coalesce(absent_since, clock()) END
    WHERE scope_id = $1 AND operation_id = $2 AND version = $3 AND unknown_since IS NOT NULL
    RETURNING scope_id, operation_id, lookup_count
)
INSERT INTO operation_lookup (scope_id, operation_id, number, answer, detail, created_at)
SELECT scope_id, operation_id, lookup_count, $4, $5, clock() FROM asked
RETURNING number;

-- name: note_final_lookup
-- The answer that settles it, written with the move. $1 scope, $2 operation, $3 answer, $4 detail.
WITH asked AS (
    UPDATE operation SET lookup_count = lookup_count + 1
    WHERE scope_id = $1 AND operation_id = $2
    RETURNING scope_id, operation_id, lookup_count
)
INSERT INTO operation_lookup (scope_id, operation_id, number, answer, detail, created_at)
SELECT scope_id, operation_id, lookup_count, $3, $4, clock() FROM asked
RETURNING number;

-- name: overdue_calls
-- Calls whose sender has had its time, or is among the dead: those standing alone, and those that a
-- reconciler sent again for a run that nobody holds. The call of a running run is watched by the
-- run's lease; a queued run's next attempt looks after it. $1 grace after the call's end, $2 dead
-- instances, $3 how many.
SELECT o.scope_id, o.operation_id, o.run_id, o.send_token FROM operation o
LEFT JOIN execution e USING (scope_id, run_id)
WHERE o.state = 'submitting'
  AND (o.run_id IS NULL OR e.status NOT IN ('running', 'queued'))
  AND (o.call_until + $1::interval <= clock() OR o.instance_id = ANY ($2::uuid[]))
ORDER BY o.call_until LIMIT $3;

-- name: put_finding
-- $1 scope, $2 its id (once, however often it is put), $3 operation, $4 kind, $5 detail.
INSERT INTO finding (scope_id, finding_id, operation_id, kind, detail, created_at)
VALUES ($1, $2, $3, $4, $5, clock())
ON CONFLICT (scope_id, finding_id) DO NOTHING;

-- name: findings_of
-- Those of sweeps as long as their difference is open.
SELECT finding_id, operation_id, kind, detail, created_at FROM finding
WHERE scope_id = $1 AND operation_id = $2 AND closed_at IS NULL ORDER BY created_at;

-- name: list_unknown_operations
-- The desk: longest in doubt first. $1 scope, $2 after this instant and $3 id (null: from the
-- start), $4 how many.
SELECT *, clock() AS now FROM operation
WHERE scope_id = $1 AND state = 'unknown'
  AND ($2::timestamptz IS NULL OR (unknown_since, operation_id) > ($2, $3))
ORDER BY unknown_since, operation_id LIMIT $4;

-- name: doubts_by_scope
-- In all scopes.
SELECT scope_id, count(*) AS doubts FROM operation WHERE state = 'unknown'
GROUP BY scope_id ORDER BY scope_id;

-- name: list_operations
-- Oldest first. $1 scope, $2 state (null: any), $3 after this instant and $4 id (null: from the
-- start), $5 how many.
SELECT *, clock() AS now FROM operation
WHERE scope_id = $1 AND ($2::text IS NULL OR state = $2)
  AND ($3::timestamptz IS NULL OR (created_at, operation_id) > ($3, $4))
ORDER BY created_at, operation_id LIMIT $5;
