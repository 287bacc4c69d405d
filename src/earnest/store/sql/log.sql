-- Log lines: written by the owner of a run while it works, read by people.

-- name: write_logs
-- Arrays of equal length, one entry for each attempt: $1 scopes, $2 runs, $3 fences, $4 owner tokens,
-- $5 its lines as JSON arrays of {number, message, fields, age}, $6 how many were left out by now; $7
-- lease. As with `write_texts`: locks first and in order, only the newest attempt of a run is looked
-- at, entries that come back without `stored` were fenced out, and on the runs of those that do not
-- come back somebody else sits. A line that is there already is not written twice.
WITH item AS (
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[], $4::uuid[], $5::jsonb[], $6::int[])
        WITH ORDINALITY AS i (scope_id, run_id, fence, owner_token, lines, left_out, place)
), newest AS (
    SELECT DISTINCT ON (scope_id, run_id) scope_id, run_id, fence, owner_token, left_out
    FROM item ORDER BY scope_id, run_id, fence DESC, place DESC
), locked AS MATERIALIZED (
    SELECT e.scope_id, e.run_id, e.status, e.lease_until, n.fence, n.left_out,
           e.fence = n.fence AND e.owner_token = n.owner_token AS owned
    FROM newest n JOIN execution e USING (scope_id, run_id)
    ORDER BY e.scope_id, e.run_id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), owned AS (
    UPDATE execution e SET lease_until = clock() + $7::interval
    FROM locked l
    WHERE e.scope_id = l.scope_id AND e.run_id = l.run_id
      AND l.owned AND l.status = 'running' AND l.lease_until > clock()
    RETURNING e.scope_id, e.run_id, e.fence, l.left_out, e.cancel_requested
), head AS (
    INSERT INTO log_head AS h (scope_id, run_id, attempt, left_out, written_at)
    SELECT scope_id, run_id, fence, left_out, clock() FROM owned
    ON CONFLICT (scope_id, run_id, attempt) DO UPDATE
    SET left_out = greatest(h.left_out, excluded.left_out), written_at = excluded.written_at
), line AS (
    INSERT INTO log_line (scope_id, run_id, attempt, number, message, fields, created_at)
    SELECT i.scope_id, i.run_id, i.fence, (l.line ->> 'number')::int, l.line ->> 'message',
           l.line -> 'fields', clock() - (l.line ->> 'age')::float8 * interval '1 s'
    FROM item i JOIN owned o USING (scope_id, run_id, fence)
    CROSS JOIN LATERAL jsonb_array_elements(i.lines) AS l (line)
    ON CONFLICT (scope_id, run_id, attempt, number) DO NOTHING
)
SELECT i.place::int, true AS stored, o.cancel_requested
FROM item i JOIN owned o USING (scope_id, run_id, fence)
UNION ALL
SELECT i.place::int, NULL, NULL
FROM item i JOIN locked l USING (scope_id, run_id)
WHERE (i.fence = l.fence AND l.owned AND l.status = 'running' AND l.lease_until > clock())
      IS NOT TRUE;

-- name: visible_logs
-- $1 scope, $2 run, $3 principal that must have asked for it (null: whoever did), $4 after this
-- attempt and $5 number, $6 only of this attempt (null: of all), $7 how many.
SELECT l.attempt, l.number, l.message, l.fields, l.created_at
FROM run r JOIN log_line l USING (scope_id, run_id)
WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3)
  AND (l.attempt, l.number) > ($4::int, $5::int) AND ($6::int IS NULL OR l.attempt = $6)
ORDER BY l.attempt, l.number LIMIT $7;

-- name: lines_left_out
-- How many lines of a run were not kept. $1 scope, $2 run, $3 only of this attempt (null: of all).
SELECT coalesce(sum(left_out), 0)::bigint AS left_out FROM log_head
WHERE scope_id = $1 AND run_id = $2 AND ($3::int IS NULL OR attempt = $3);

-- name: prune_logs
-- The lines of attempts that wrote their last one longer ago than $1, of $2 attempts at most.
WITH due AS MATERIALIZED (
    SELECT scope_id, run_id, attempt FROM log_head
    WHERE written_at < (SELECT clock()) - $1::interval
    ORDER BY written_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM log_line l USING due d
    WHERE l.scope_id = d.scope_id AND l.run_id = d.run_id AND l.attempt = d.attempt
)
DELETE FROM log_head h USING due d
WHERE h.scope_id = d.scope_id AND h.run_id = d.run_id AND h.attempt = d.attempt
RETURNING true;
