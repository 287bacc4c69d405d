-- Submitting: one statement writes what was asked, its execution and its first event, or nothing.

-- name: submit_run
-- No row back means that the key, the id or the revision exists already: read it and compare.
WITH asked AS (
    INSERT INTO run (scope_id, run_id, kind, lane, principal_id, idempotency_key, fingerprint,
                     input, context, labels, conversation_id, parent_run_id, child_name, detached,
                     lineage_id, revision, retry_of, traceparent, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
            clock())
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
-- Many at once, for one scope and principal: arrays of equal length, one element a run.
-- Those whose key or id exists already are left out of the answer.
WITH item AS (
    SELECT * FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::jsonb[],
                         $9::smallint[], $10::smallint[], $11::boolean[], $12::interval[])
        AS i (run_id, kind, lane, idempotency_key, fingerprint, input, priority, max_attempts,
              fails_on_doubt, deadline)
), asked AS (
    INSERT INTO run (scope_id, run_id, kind, lane, principal_id, idempotency_key, fingerprint,
                     input, context, labels, detached, lineage_id, revision, created_at)
    SELECT $1, run_id, kind, lane, $2, idempotency_key, fingerprint, input, '{}', '{}', false,
           run_id, 1, clock()
    FROM item
    ON CONFLICT DO NOTHING
    RETURNING scope_id, run_id, created_at
), queued AS (
    INSERT INTO execution (scope_id, run_id, kind, lane, status, ready, due_at, turn_at, priority,
                           max_attempts, fails_on_doubt, deadline_at, last_seq)
    SELECT a.scope_id, a.run_id, i.kind, i.lane, 'queued', true, a.created_at,
           a.created_at - i.priority * interval '1 minute', i.priority, i.max_attempts,
           i.fails_on_doubt, a.created_at + i.deadline, 1
    FROM asked a JOIN item i USING (run_id)
), told AS (
    INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
    SELECT a.scope_id, a.run_id, 1, 'run.submitted',
           jsonb_build_object('kind', i.kind, 'lane', i.lane), a.created_at
    FROM asked a JOIN item i USING (run_id)
)
SELECT run_id FROM asked;

-- name: find_run_by_key
SELECT run_id, fingerprint FROM run
WHERE scope_id = $1 AND principal_id = $2 AND idempotency_key = $3;

-- name: newest_revision
SELECT run_id, revision FROM run
WHERE scope_id = $1 AND (run_id = $2 OR (lineage_id = $2 AND retry_of IS NOT NULL))
ORDER BY revision DESC LIMIT 1;
