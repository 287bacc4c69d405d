-- Submitting: one statement writes what was asked, its execution and its first event, or nothing.

-- name: submit_run
-- No row back means that the key, the id or the revision exists already: read it and compare.
WITH asked AS (
    INSERT INTO run (scope_id, run_id, kind, lane, principal_id, idempotency_key, fingerprint,
                     input, context, labels, conversation_id, parent_run_id, child_name, detached,
                     lineage_id, revision, retry_of, traceparent, created_at, retried_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
            clock(), $25)
    ON CONFLICT DO NOTHING
    RETURNING scope_id, run_id, created_at
), due AS (
    SELECT *, greatest(created_at, $19::timestamptz) AS due_at FROM asked
), queued AS (
    INSERT INTO execution (scope_id, run_id, kind, lane, status, ready, due_at, turn_at, priority,
                           max_attempts, fails_on_doubt, parent_run_id, deadline_at, last_seq)
    SELECT scope_id, run_id, $3, $4, 'queued', due_at = created_at, due_at,
           due_at - $20::smallint * interval '1 minute', $20, $21, $22, $12,
           created_at + $23::interval, 1
    FROM due
), told AS (
    INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
    SELECT scope_id, run_id, 1, 'run.submitted', $24, created_at FROM asked
)
SELECT created_at, due_at, created_at + $23::interval AS deadline_at FROM due;

-- name: submit_runs
-- Many of one kind at once. $1 scope, $2 principal, $3 kind, $4 lane, $5 max attempts, $6 fails on
-- doubt, $7 deadline, and arrays of equal length: $8 ids, $9 keys, $10 fingerprints, $11 inputs.
-- Those whose key or id exists already are left out of the answer. What executions and events need
-- comes back from the first insert: a join with the arrays would be a nested loop over them.
WITH asked AS (
    INSERT INTO run (scope_id, run_id, kind, lane, principal_id, idempotency_key, fingerprint,
                     input, context, labels, detached, lineage_id, revision, created_at)
    SELECT $1, run_id, $3, $4, $2, key, fingerprint, input, '{}', '{}', false, run_id, 1, clock()
    FROM unnest($8::uuid[], $9::text[], $10::bytea[], $11::jsonb[])
        AS i (run_id, key, fingerprint, input)
    ON CONFLICT DO NOTHING
    RETURNING scope_id, run_id, created_at
), queued AS (
    INSERT INTO execution (scope_id, run_id, kind, lane, status, ready, due_at, turn_at, priority,
                           max_attempts, fails_on_doubt, deadline_at, last_seq)
    SELECT scope_id, run_id, $3, $4, 'queued', true, created_at, created_at, 0, $5, $6,
           created_at + $7::interval, 1
    FROM asked
), told AS (
    INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
    SELECT scope_id, run_id, 1, 'run.submitted',
           jsonb_build_object('kind', $3::text, 'lane', $4::text), created_at
    FROM asked
)
SELECT run_id FROM asked;

-- name: find_run_by_key
SELECT run_id, fingerprint FROM run
WHERE scope_id = $1 AND principal_id = $2 AND idempotency_key = $3;

-- name: newest_revision
SELECT run_id, revision FROM run
WHERE scope_id = $1 AND (run_id = $2 OR (lineage_id = $2 AND retry_of IS NOT NULL))
ORDER BY revision DESC LIMIT 1;
