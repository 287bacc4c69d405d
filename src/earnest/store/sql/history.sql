-- Runs that have not ended, and what is recorded of one: for whoever tries new code on them.
-- Each list goes by an index that holds only what is going on now. Their arguments are the same:
-- $1 kinds (null: all), $2 of how many percent (the same ones each time), $3 how many at most.
-- A run that was asked to stop is not attempted again.

-- name: queued_in_flight
SELECT scope_id, run_id, kind, status FROM execution
WHERE status = 'queued' AND ready AND NOT cancel_requested
  AND ($1::text[] IS NULL OR kind = ANY ($1))
  AND ($2::int >= 100 OR abs(hashtext(run_id::text)::bigint) % 100 < $2)
LIMIT $3;

-- name: delayed_in_flight
SELECT scope_id, run_id, kind, status FROM execution
WHERE status = 'queued' AND NOT ready AND NOT cancel_requested
  AND ($1::text[] IS NULL OR kind = ANY ($1))
  AND ($2::int >= 100 OR abs(hashtext(run_id::text)::bigint) % 100 < $2)
LIMIT $3;

-- name: running_in_flight
SELECT scope_id, run_id, kind, status FROM execution
WHERE status = 'running' AND NOT cancel_requested
  AND ($1::text[] IS NULL OR kind = ANY ($1))
  AND ($2::int >= 100 OR abs(hashtext(run_id::text)::bigint) % 100 < $2)
LIMIT $3;

-- name: parked_in_flight
-- Scope by scope: by the next one that has runs, found in the primary key.
WITH RECURSIVE found AS (
    SELECT min(scope_id) AS scope_id FROM execution WHERE scope_id > ''
    UNION ALL
    SELECT (SELECT min(e.scope_id) FROM execution e WHERE e.scope_id > f.scope_id)
    FROM found f WHERE f.scope_id IS NOT NULL
)
SELECT e.scope_id, e.run_id, e.kind, e.status FROM found s
CROSS JOIN LATERAL (
    SELECT * FROM execution w
    WHERE w.scope_id = s.scope_id AND w.status IN ('waiting', 'unknown')
) AS e
WHERE NOT e.cancel_requested
  AND ($1::text[] IS NULL OR e.kind = ANY ($1))
  AND ($2::int >= 100 OR abs(hashtext(e.run_id::text)::bigint) % 100 < $2)
LIMIT $3;

-- name: children_of
-- $1 scope, $2 run: what it asked of others, and how they stand.
SELECT r.run_id, r.child_name, r.fingerprint, e.status, e.output, e.error
FROM run r JOIN execution e USING (scope_id, run_id)
WHERE r.scope_id = $1 AND r.parent_run_id = $2;
