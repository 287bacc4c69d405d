-- Why a run stands where it stands. All of it is read in one snapshot.

-- name: explained_run
-- $1 scope, $2 run, $3 only if this principal asked for it (null: whoever did). No input, no output.
SELECT r.scope_id, r.run_id, r.kind, r.lane, r.created_at, e.status, e.fence, e.instance_id,
       e.lease_until, e.ready, e.due_at, e.turn_at, e.failures, e.max_attempts, e.cancel_requested,
       e.waiting_on, e.wake_at, e.retry_at, e.deadline_at, e.attempt_started_at, e.finished_at,
       e.error, r.lineage_id, r.revision, clock() AS now
FROM run r JOIN execution e USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3);

-- name: newest_event_of_types
-- $1 scope, $2 run, $3 types.
SELECT created_at FROM event WHERE scope_id = $1 AND run_id = $2 AND type = ANY ($3::text[])
ORDER BY seq DESC LIMIT 1;

-- name: backlog_before
-- How many runs of a lane are before one, and how many of these are its scope's: $1 lane,
-- $2 its turn, $3 run, $4 scope, $5 how far to count.
SELECT count(*)::int AS ahead, (count(*) FILTER (WHERE scope_id = $4))::int AS own
FROM (SELECT scope_id FROM execution
      WHERE lane = $1 AND status = 'queued' AND ready AND (turn_at, run_id) < ($2, $3)
      ORDER BY turn_at, run_id LIMIT $5) AS before;

-- name: standings_of
-- How several runs stand. $1 scope, $2 runs.
SELECT run_id, kind, status FROM execution
WHERE scope_id = $1 AND run_id = ANY ($2::uuid[]) ORDER BY run_id;

-- name: workers_about
-- The processes that have not said goodbye: whether their session lock is held (they live), what
-- they serve, and how many runs they hold.
SELECT i.instance_id, i.lanes, i.kinds, i.effects, i.slots, i.started_at, EXISTS (
           SELECT FROM pg_locks l
           WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND ((l.classid::bigint << 32) | l.objid::bigint) = i.lock_number) AS lives,
       (SELECT count(*)::int FROM execution e
        WHERE e.instance_id = i.instance_id AND e.status = 'running') AS held
FROM instance i WHERE i.ended_at IS NULL ORDER BY i.started_at;

-- name: submitted_of_lineage
-- What was done outside for any revision of a lineage, or for runs that it asked for: $1 scope,
-- $2 lineage, $3 how many at most.
WITH RECURSIVE family AS (
    SELECT $2::uuid AS run_id
    UNION
    SELECT r.run_id FROM family f JOIN run r
        ON r.scope_id = $1
       AND (r.parent_run_id = f.run_id OR (r.lineage_id = f.run_id AND r.retry_of IS NOT NULL))
)
SELECT operation_id, name, kind FROM operation
WHERE scope_id = $1 AND run_id IN (SELECT run_id FROM family) AND state = 'submitted'
ORDER BY created_at, operation_id LIMIT $3;
