-- Processes that hold leases.

-- name: enter_instance
-- $1 instance, $2 lock number, $3 host, $4 process, and what it serves: $5 lanes, $6 run kinds,
-- $7 effects, $8 how many runs at once.
INSERT INTO instance (instance_id, lock_number, host, process, started_at, lanes, kinds, effects,
                      slots)
VALUES ($1, $2, $3, $4, clock(), $5, $6, $7, $8)
ON CONFLICT (instance_id) DO UPDATE
SET ended_at = NULL, lanes = excluded.lanes, kinds = excluded.kinds, effects = excluded.effects,
    slots = excluded.slots;

-- name: leave_instance
UPDATE instance SET ended_at = clock() WHERE instance_id = $1;

-- name: bury_instances
-- Dead instances that hold nothing any more are not looked at again. $1 instances.
UPDATE instance i SET ended_at = clock()
WHERE instance_id = ANY ($1::uuid[]) AND ended_at IS NULL
  AND NOT EXISTS (SELECT FROM execution e
                  WHERE e.instance_id = i.instance_id AND e.status = 'running');

-- name: prune_instances
-- Processes that ended long ago, hold nothing, and sent no call of which it is open whether it went
-- through: that they ended is no proof for anybody any more. $1 how long ago, $2 how many.
WITH forgotten AS MATERIALIZED (
    SELECT i.instance_id FROM instance i
    WHERE i.ended_at < clock() - $1::interval
      AND NOT EXISTS (SELECT FROM execution e
                      WHERE e.instance_id = i.instance_id AND e.status = 'running')
      AND NOT EXISTS (SELECT FROM operation o
                      WHERE o.instance_id = i.instance_id AND o.state = 'submitting')
      AND NOT EXISTS (SELECT FROM operation o
                      WHERE o.instance_id = i.instance_id AND o.state = 'unknown')
    ORDER BY i.ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM instance i USING forgotten f WHERE i.instance_id = f.instance_id
RETURNING i.instance_id;

-- name: find_instance
SELECT instance_id, lock_number, host, process, ended_at FROM instance WHERE instance_id = $1;

-- name: hold_instance_lock
SELECT pg_try_advisory_lock($1::bigint) AS held;

-- name: unlocked_instances
-- Instances that have not said goodbye and whose session lock nobody holds: their connection is
-- gone. A lock number is split over two columns of pg_locks.
SELECT i.instance_id, i.host, i.process FROM instance i
WHERE i.ended_at IS NULL AND NOT EXISTS (
    SELECT FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ((l.classid::bigint << 32) | l.objid::bigint) = i.lock_number);

-- name: database_clock
-- The clock that decides, the wall clock under it, how long the server is up, and who this is.
SELECT clock() AS now, clock_timestamp() AS wall,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8 AS uptime;

-- name: durability
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit',
       'full_page_writes') ORDER BY name;
