-- The parts of a run as pages, for whoever may see the run: $3 is the principal that must have asked
-- for it (null: whoever did). Whoever may not see it gets no rows, as if there was nothing.

-- name: visible_events
-- $1 scope, $2 run, $3 principal, $4 after which number, $5 how many, $6 about how many bytes (null:
-- however many).
SELECT run_id, seq, type, payload, created_at FROM (
    SELECT v.run_id, v.seq, v.type, v.payload, v.created_at, size.bytes,
           sum(size.bytes) OVER (ORDER BY v.seq) AS bytes_so_far
    FROM run r JOIN event v USING (scope_id, run_id),
         LATERAL (SELECT CASE WHEN $6::int IS NULL THEN 0 ELSE octet_length(v.payload::text) END
                  OFFSET 0) AS size (bytes)
    WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3)
      AND v.seq > $4
    ORDER BY v.seq LIMIT $5
) AS v WHERE bytes_so_far - bytes < coalesce($6::int, 1)
ORDER BY seq;

-- name: oldest_event
-- The first number that is still there.
SELECT min(v.seq) AS seq FROM run r JOIN event v USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3);

-- name: visible_attempts
-- $1 scope, $2 run, $3 principal, $4 after which number, $5 how many.
SELECT a.run_id, a.fence, a.instance_id, a.started_at, a.ended_at, a.outcome, a.error
FROM run r JOIN attempt a USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3) AND a.fence > $4
ORDER BY a.fence LIMIT $5;

-- name: visible_steps
-- $1 scope, $2 run, $3 principal, $4 after this instant and $5 name (null: from the start), $6 how
-- many.
SELECT s.name, s.kind, s.digest, s.result, s.fence, s.created_at
FROM run r JOIN step s USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3)
  AND ($4::timestamptz IS NULL OR (s.created_at, s.name) > ($4, $5))
ORDER BY s.created_at, s.name LIMIT $6;

-- name: visible_operations
-- $1 scope, $2 run, $3 principal, $4 after this instant and $5 id (null: from the start), $6 how
-- many.
SELECT o.* FROM run r JOIN operation o USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3)
  AND ($4::timestamptz IS NULL OR (o.created_at, o.operation_id) > ($4, $5))
ORDER BY o.created_at, o.operation_id LIMIT $6;

-- name: lookups_of_all
-- $1 scope, $2 operations.
SELECT operation_id, number, answer, detail, created_at FROM operation_lookup
WHERE scope_id = $1 AND operation_id = ANY ($2::uuid[]) ORDER BY operation_id, number;
