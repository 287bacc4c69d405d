-- Gauges: what is counted when somebody asks for the metrics. Each walks an index that holds only
-- what is going on now, or counts no further than $1.

-- name: gauge_unknown
-- Operations in doubt by effect, and how long the oldest has been so.
SELECT kind AS effect, count(*) AS value,
       extract(epoch FROM clock() - min(unknown_since))::float8 AS oldest
FROM operation WHERE state = 'unknown' GROUP BY kind;

-- name: gauge_queued
-- By lane: how many are due, and how long the one has waited whose turn it is.
WITH RECURSIVE lanes AS (
    SELECT (SELECT e.lane FROM execution e WHERE e.status = 'queued' AND e.ready AND e.lane > ''
            ORDER BY e.lane LIMIT 1) AS lane
    UNION ALL
    SELECT (SELECT e.lane FROM execution e
            WHERE e.status = 'queued' AND e.ready AND e.lane > l.lane ORDER BY e.lane LIMIT 1)
    FROM lanes l WHERE l.lane IS NOT NULL
)
SELECT l.lane, c.value, extract(epoch FROM clock() - f.due_at)::float8 AS oldest
FROM lanes l
CROSS JOIN LATERAL (
    SELECT count(*) AS value FROM (
        SELECT FROM execution e WHERE e.status = 'queued' AND e.ready AND e.lane = l.lane LIMIT $1
    ) AS some_of_them
) AS c
CROSS JOIN LATERAL (
    SELECT e.due_at FROM execution e
    WHERE e.status = 'queued' AND e.ready AND e.lane = l.lane
    ORDER BY e.turn_at, e.run_id LIMIT 1
) AS f;

-- name: gauge_running
-- What is in hand, by lane.
SELECT lane, count(*) AS value FROM execution WHERE status = 'running' GROUP BY lane;

-- name: gauge_approvals
-- Decisions that are waited for.
SELECT count(*) AS value FROM (
    SELECT FROM approval WHERE status = 'pending' LIMIT $1) AS some_of_them;

-- name: gauge_dead_letters
-- What could not be delivered.
SELECT count(*) AS value FROM (
    SELECT FROM delivery WHERE state = 'dead' LIMIT $1) AS some_of_them;

-- name: gauge_differences
-- What sweeps found and nobody has seen to.
SELECT effect, kind, count(*) AS value FROM sweep_difference WHERE state = 'open'
GROUP BY effect, kind;

-- name: gauge_artifacts
-- How many bytes are stored, of all scopes.
SELECT coalesce(sum(used_bytes), 0)::float8 AS value FROM artifact_room;
