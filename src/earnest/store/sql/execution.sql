-- Moving executions. Every statement that changes one locks it first; many are locked in the order
-- (scope_id, run_id), so that two movers can wait for each other but never in a circle.

-- name: lock_executions
-- $1 scope, $2 runs. The clock is read when the locks are held.
WITH locked AS MATERIALIZED (
    SELECT * FROM execution
    WHERE scope_id = $1 AND run_id = ANY ($2::uuid[])
    ORDER BY scope_id, run_id
    FOR NO KEY UPDATE
)
SELECT *, clock() AS now FROM locked;

-- name: lock_with_parents
-- $1 scope, $2 runs: they and their parents, since a final move may wake the parent. Who is whose
-- parent never changes, so it may be read before the locks are taken.
WITH locked AS MATERIALIZED (
    SELECT * FROM execution
    WHERE scope_id = $1 AND run_id = ANY (ARRAY(
        SELECT unnest($2::uuid[]) UNION
        SELECT parent_run_id FROM execution
        WHERE scope_id = $1 AND run_id = ANY ($2::uuid[]) AND parent_run_id IS NOT NULL))
    ORDER BY scope_id, run_id
    FOR NO KEY UPDATE
)
SELECT *, clock() AS now FROM locked;

-- name: let_wait
-- To the end of the transaction a statement waits so long for a row. $1 a time, such as 10s.
SELECT set_config('lock_timeout', $1, true);

-- name: family_of
-- A run's parent and its children that follow it when it is cancelled, however deep. $1 scope, $2 run.
WITH RECURSIVE below AS (
    SELECT run_id, parent_run_id FROM run WHERE scope_id = $1 AND run_id = $2
    UNION ALL
    SELECT r.run_id, r.parent_run_id FROM run r JOIN below b ON r.parent_run_id = b.run_id
    WHERE r.scope_id = $1 AND NOT r.detached
)
SELECT run_id, parent_run_id FROM below;

-- name: succeed_runs
-- Group settle. $1 scopes, $2 runs, $3 fences, $4 owner tokens, $5 outputs.
-- Locks first, in a materialized step; the guards stand outside it: a plain UPDATE that waited on a
-- mere lock would judge an expired lease by the older clock. A row on which somebody sits is skipped,
-- so that it holds up no other. It, and runs with a parent, with operations still reserved or in
-- doubt, take the single path. What is locked stays where it is and is updated by its place, without
-- another walk over the index. Those missing from the answer did not succeed here.
WITH item AS (
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[], $4::uuid[], $5::jsonb[])
        AS i (scope_id, run_id, fence, owner_token, output)
), locked AS MATERIALIZED (
    SELECT e.ctid, e.scope_id, e.run_id, e.status, e.lease_until, e.doubts, e.reserved, e.undecided,
           e.parent_run_id, i.output, e.fence = i.fence AND e.owner_token = i.owner_token AS owned
    FROM item i JOIN execution e USING (scope_id, run_id)
    ORDER BY e.scope_id, e.run_id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), settled AS (
    UPDATE execution e
    SET status = 'succeeded', version = e.version + 1, output = l.output, error = NULL,
        lease_until = NULL, finished_at = clock(), last_seq = e.last_seq + 1
    FROM locked l
    WHERE e.ctid = l.ctid
      AND l.owned AND l.status = 'running' AND l.lease_until > clock()
      AND l.doubts = 0 AND l.reserved = 0 AND l.undecided = 0 AND l.parent_run_id IS NULL
    RETURNING e.scope_id, e.run_id, e.fence, e.last_seq, e.finished_at, e.instance_id,
              e.attempt_started_at
), closed AS (
    INSERT INTO past_attempt (scope_id, run_id, fence, instance_id, started_at, ended_at, outcome)
    SELECT scope_id, run_id, fence, instance_id, attempt_started_at, finished_at, 'succeeded'
    FROM settled
), told AS (
    INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
    SELECT scope_id, run_id, last_seq, 'run.succeeded', jsonb_build_object('attempt', fence),
           finished_at
    FROM settled
)
SELECT scope_id, run_id, fence FROM settled;

-- name: finish_execution
-- $1 scope, $2 run, $3 version, $4 status, $5 output, $6 error, $7 events, $8 failures.
UPDATE execution
SET status = $4, version = version + 1, output = $5, error = $6, lease_until = NULL,
    waiting_on = NULL, wake_at = NULL, retry_at = NULL, finished_at = clock(),
    last_seq = last_seq + $7, failures = $8
WHERE scope_id = $1 AND run_id = $2 AND version = $3
RETURNING version, last_seq;

-- name: requeue_execution
-- $1 scope, $2 run, $3 version, $4 delay, $5 events, $6 failures, $7 error of the last attempt.
UPDATE execution
SET status = 'queued', version = version + 1, lease_until = NULL, waiting_on = NULL,
    wake_at = NULL, ready = ($4::interval = interval '0'), due_at = clock() + $4,
    turn_at = clock() + $4 - priority * interval '1 minute',
    retry_at = CASE WHEN $4 > interval '0' THEN clock() + $4 END,
    last_seq = last_seq + $5, failures = $6, error = $7
WHERE scope_id = $1 AND run_id = $2 AND version = $3
RETURNING version, last_seq;

-- name: park_execution
-- $1 scope, $2 run, $3 version, $4 what it waits for, $5 when to wake it at the latest, $6 events.
UPDATE execution
SET status = 'waiting', version = version + 1, lease_until = NULL, waiting_on = $4, wake_at = $5,
    last_seq = last_seq + $6
WHERE scope_id = $1 AND run_id = $2 AND version = $3
RETURNING version, last_seq;

-- name: doubt_execution
-- $1 scope, $2 run, $3 version, $4 events, $5 failures.
UPDATE execution
SET status = 'unknown', version = version + 1, lease_until = NULL, waiting_on = NULL,
    wake_at = NULL, last_seq = last_seq + $4, failures = $5
WHERE scope_id = $1 AND run_id = $2 AND version = $3
RETURNING version, last_seq;

-- name: ask_to_cancel
-- $1 scope, $2 run, $3 version, $4 events. The status stays; the owner stops.
UPDATE execution
SET cancel_requested = true, version = version + 1, last_seq = last_seq + $4
WHERE scope_id = $1 AND run_id = $2 AND version = $3
RETURNING version, last_seq;

-- name: touch_execution
-- A move of one of the run's operations: events and the counts that guards read. $1 scope, $2 run,
-- $3 events, $4 change of doubts, $5 change of reserved.
UPDATE execution
SET version = version + 1, last_seq = last_seq + $3, doubts = doubts + $4, reserved = reserved + $5
WHERE scope_id = $1 AND run_id = $2
RETURNING version, last_seq;

-- name: renew_lease
-- Every write of the owner renews. $1 scope, $2 run, $3 lease. Only under the row's lock.
UPDATE execution SET lease_until = clock() + $3::interval WHERE scope_id = $1 AND run_id = $2;

-- name: close_attempt
-- $1 scope, $2 run, $3 fence, $4 outcome, $5 error.
INSERT INTO past_attempt (scope_id, run_id, fence, instance_id, started_at, ended_at, outcome,
                          error)
SELECT scope_id, run_id, fence, instance_id, attempt_started_at, clock(), $4, $5
FROM execution WHERE scope_id = $1 AND run_id = $2 AND fence = $3
ON CONFLICT DO NOTHING;

-- name: settled_as
-- Was this owner's result stored, although the reply was lost? $1 scope, $2 run, $3 fence, $4 owner.
SELECT a.outcome, a.error FROM execution e JOIN past_attempt a USING (scope_id, run_id)
WHERE e.scope_id = $1 AND e.run_id = $2 AND a.fence = $3 AND a.outcome IS NOT NULL
  AND (e.fence > $3 OR e.owner_token = $4);

-- name: active_among
-- How many of these runs are not final yet? $1 scope, $2 runs.
SELECT count(*)::int AS active FROM execution
WHERE scope_id = $1 AND run_id = ANY ($2::uuid[])
  AND status IN ('queued', 'running', 'waiting', 'unknown');
