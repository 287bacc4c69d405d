-- Reading runs.

-- name: find_run
-- $1 scope, $2 run, $3 only if this principal asked for it (null: whoever did).
SELECT r.*, e.status, e.version, e.fence, e.priority, e.failures, e.max_attempts, e.due_at,
       e.retry_at, e.deadline_at, e.cancel_requested, e.doubts, e.waiting_on, e.last_seq,
       e.started_at, e.finished_at, e.output, e.error
FROM run r JOIN execution e USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3);

-- name: list_runs
-- Newest first, by id (ids are time-ordered). $1 scope, $2 principal (null: everyone's), $3 status,
-- $4 kind, $5 lane, $6 conversation, $7 labels, $8 created after, $9 created before, $10 before
-- this id, $11 how many, $12 what its kind, conversation or a label must contain (the caller
-- lowers it and escapes it for LIKE). The input stays where it is.
SELECT r.scope_id, r.run_id, r.kind, r.lane, r.principal_id, NULL::jsonb AS input, r.context,
       r.labels, r.conversation_id, r.parent_run_id, r.lineage_id, r.revision, r.retry_of,
       r.created_at, e.status, e.version, e.fence, e.priority, e.failures, e.max_attempts, e.due_at,
       e.retry_at, e.deadline_at, e.cancel_requested, e.doubts, e.waiting_on, e.last_seq,
       e.started_at, e.finished_at, NULL::jsonb AS output, e.error
FROM run r JOIN execution e USING (scope_id, run_id)
WHERE scope_id = $1
  AND ($2::text IS NULL OR r.principal_id = $2)
  AND ($3::text IS NULL OR e.status = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.lane = $5)
  AND ($6::text IS NULL OR r.conversation_id = $6)
  AND ($7::jsonb IS NULL OR r.labels @> $7)
  AND ($8::timestamptz IS NULL OR r.created_at >= $8)
  AND ($9::timestamptz IS NULL OR r.created_at < $9)
  AND ($10::uuid IS NULL OR run_id < $10)
  AND ($12::text IS NULL OR lower(r.kind) LIKE $12 OR lower(r.conversation_id) LIKE $12
       OR EXISTS (SELECT FROM jsonb_each_text(r.labels) AS l WHERE lower(l.value) LIKE $12))
ORDER BY run_id DESC LIMIT $11;

-- name: fingerprint_of
SELECT fingerprint FROM run WHERE scope_id = $1 AND run_id = $2;

-- name: attempts_of
SELECT run_id, fence, instance_id, started_at, ended_at, outcome, error FROM attempt
WHERE scope_id = $1 AND run_id = $2 ORDER BY fence;

-- name: count_runs
SELECT status, count(*)::bigint AS runs FROM execution
WHERE ($1::text IS NULL OR scope_id = $1) GROUP BY status;

-- name: endings_of
-- How several runs stand. $1 scope, $2 runs.
SELECT run_id, status, output, error FROM execution
WHERE scope_id = $1 AND run_id = ANY ($2::uuid[]);
