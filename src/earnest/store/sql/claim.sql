-- Claiming and holding: who works on what, under which lease.
-- `(SELECT clock())` is read once and can bound an index; a bare volatile clock() would be asked
-- again for every row and the scan would walk past all that is not due yet.

-- name: claim_runs
-- $1 lane, $2 kinds, $3 instance, $4 lease, $5 how many.
-- The pick is materialized: inlined, the planner would lock rows again for every row it updates. What
-- it has locked stays where it is until the end of the statement, so the update finds it by its place
-- and walks no index. A row that somebody had changed in between is passed over; it is still queued.
WITH pick AS MATERIALIZED (
    SELECT ctid FROM execution
    WHERE lane = $1 AND status = 'queued' AND ready AND kind = ANY ($2::text[])
      AND (deadline_at IS NULL OR deadline_at > clock())
    ORDER BY turn_at, run_id
    LIMIT $5
    FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE execution e
    SET status = 'running', version = e.version + 1, fence = e.fence + 1,
        owner_token = gen_random_uuid(), instance_id = $3, lease_until = clock() + $4::interval,
        started_at = coalesce(e.started_at, clock()), attempt_started_at = clock(), retry_at = NULL,
        last_seq = e.last_seq + 1
    FROM pick
    WHERE e.ctid = pick.ctid
    RETURNING e.scope_id, e.run_id, e.kind, e.lane, e.fence, e.owner_token, e.last_seq,
              e.parent_run_id, e.failures, e.max_attempts, e.deadline_at, e.doubts, e.reserved,
              e.lease_until
), told AS (
    INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
    SELECT scope_id, run_id, last_seq, 'attempt.started',
           jsonb_build_object('attempt', fence), clock()
    FROM claimed
)
SELECT c.*, r.input, r.principal_id, nullif(r.context, '{}') AS context,
       nullif(r.labels, '{}') AS labels, r.traceparent, r.conversation_id
FROM claimed c JOIN run r USING (scope_id, run_id);

-- name: ripen_runs
-- Delayed runs whose time has come join the queue. $1 how many at once. Materialized as above: asked
-- again for each row that it updates, the pick would go beyond its limit.
WITH pick AS MATERIALIZED (
    SELECT scope_id, run_id FROM execution
    WHERE status = 'queued' AND NOT ready AND due_at <= (SELECT clock())
    ORDER BY due_at LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE execution e SET ready = true, turn_at = e.due_at - e.priority * interval '1 minute'
FROM pick
WHERE e.scope_id = pick.scope_id AND e.run_id = pick.run_id
RETURNING e.lane;

-- name: next_due
-- When does the next delayed run become due, in seconds from now?
SELECT extract(epoch FROM min(due_at) - clock())::float8 AS seconds
FROM (SELECT due_at FROM execution WHERE status = 'queued' AND NOT ready
      ORDER BY due_at LIMIT 1) AS first;

-- name: renew_leases
-- $1 scopes, $2 runs, $3 fences, $4 owner tokens, $5 lease. Locks by key alone and skips what is
-- locked, so that one stuck row cannot let every other lease lapse; the guards are judged after,
-- on the locked row and by the clock read then. What does not come back was busy. A process may
-- hold two fences of one run, an attempt that it lost beside its next one: each is judged by itself.
WITH item AS (
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[], $4::uuid[])
        AS i (scope_id, run_id, fence, owner_token)
), locked AS MATERIALIZED (
    SELECT e.scope_id, e.run_id, i.fence, e.status, e.cancel_requested, e.lease_until,
           e.fence = i.fence AND e.owner_token = i.owner_token AS owned
    FROM item i JOIN execution e USING (scope_id, run_id)
    ORDER BY e.scope_id, e.run_id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), renewed AS (
    UPDATE execution e SET lease_until = clock() + $5::interval
    FROM locked l
    WHERE e.scope_id = l.scope_id AND e.run_id = l.run_id
      AND l.owned AND l.status = 'running' AND l.lease_until > clock()
    RETURNING e.scope_id, e.run_id, e.fence
)
SELECT l.scope_id, l.run_id, l.fence, l.cancel_requested,
       CASE WHEN n.run_id IS NOT NULL THEN 'renewed'
            WHEN l.owned AND l.status <> 'running' AND NOT EXISTS (
                SELECT FROM past_attempt a
                WHERE a.scope_id = l.scope_id AND a.run_id = l.run_id AND a.fence = l.fence
                  AND a.outcome = 'lost') THEN 'settled'
            ELSE 'refused' END AS answer
FROM locked l LEFT JOIN renewed n USING (scope_id, run_id, fence);

-- name: cancelled_among
-- Which of the held runs were asked to stop? $1 instance.
SELECT scope_id, run_id, fence FROM execution
WHERE instance_id = $1 AND status = 'running' AND cancel_requested;

-- name: held_by
-- What the database thinks that an instance holds. $1 instance.
SELECT scope_id, run_id, fence, owner_token FROM execution
WHERE instance_id = $1 AND status = 'running';

-- name: lapsed_runs
-- Running runs whose lease has run out, or whose instance is among the dead. $1 dead instances,
-- $2 how many. Materialized: to get the order for nothing, the planner would walk over the primary
-- key, and so over all that ever ran.
WITH lapsed AS MATERIALIZED (
    SELECT scope_id, run_id, fence FROM execution
    WHERE status = 'running'
      AND (lease_until <= clock() OR instance_id = ANY ($1::uuid[]))
)
SELECT scope_id, run_id, fence FROM lapsed ORDER BY scope_id, run_id LIMIT $2;

-- name: timed_runs
-- Waiting runs whose time has come. $1 how many.
SELECT scope_id, run_id FROM execution
WHERE status = 'waiting' AND wake_at <= (SELECT clock())
ORDER BY wake_at LIMIT $1;

-- name: expiring_runs
-- Queued and waiting runs whose deadline has passed. $1 how many.
SELECT scope_id, run_id FROM execution
WHERE status IN ('queued', 'waiting') AND deadline_at <= (SELECT clock())
ORDER BY deadline_at LIMIT $1;
