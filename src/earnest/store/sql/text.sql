-- Live text: written by the owner of a run while it works, read by who watches.

-- name: write_texts
-- Arrays of equal length: $1 scopes, $2 runs, $3 fences, $4 owner tokens, $5 pieces of text; $6
-- lease. Pieces of one run come in their order. As with `write_facts`: locks first and in order,
-- only the newest attempt of a run is looked at, pieces that come back without a sequence were
-- fenced out, and on the runs of those that do not come back somebody else sits. Heads are changed
-- under the locks of their executions and quotas after them, in order; a bound that would be passed
-- refuses the whole statement.
WITH item AS (
    SELECT *, octet_length(content) AS bytes,
           row_number() OVER (PARTITION BY scope_id, run_id, fence ORDER BY place)::int AS number
    FROM unnest($1::text[], $2::uuid[], $3::int[], $4::uuid[], $5::text[]) WITH ORDINALITY
        AS i (scope_id, run_id, fence, owner_token, content, place)
), written AS (
    SELECT DISTINCT ON (scope_id, run_id) scope_id, run_id, fence, owner_token,
           count(*) OVER (PARTITION BY scope_id, run_id, fence)::int AS pieces,
           sum(bytes) OVER (PARTITION BY scope_id, run_id, fence)::int AS bytes
    FROM item ORDER BY scope_id, run_id, fence DESC
), locked AS MATERIALIZED (
    SELECT e.scope_id, e.run_id, e.status, e.lease_until, w.fence, w.pieces, w.bytes,
           e.fence = w.fence AND e.owner_token = w.owner_token AS owned
    FROM written w JOIN execution e USING (scope_id, run_id)
    ORDER BY e.scope_id, e.run_id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), owned AS (
    UPDATE execution e SET lease_until = clock() + $6::interval
    FROM locked l
    WHERE e.scope_id = l.scope_id AND e.run_id = l.run_id
      AND l.owned AND l.status = 'running' AND l.lease_until > clock()
    RETURNING e.scope_id, e.run_id, e.fence, l.pieces, l.bytes, e.cancel_requested
), grown AS (
    INSERT INTO text_head AS h (scope_id, run_id, attempt, first_sequence, last_sequence, bytes)
    SELECT scope_id, run_id, fence, 1, pieces, bytes FROM owned
    ON CONFLICT (scope_id, run_id) DO UPDATE
    SET attempt = excluded.attempt,
        first_sequence = CASE WHEN h.attempt = excluded.attempt THEN h.first_sequence
                              ELSE h.last_sequence + 1 END,
        last_sequence = h.last_sequence + excluded.last_sequence,
        bytes = h.bytes + excluded.bytes
    RETURNING scope_id, run_id, attempt, first_sequence, last_sequence
), charged AS (
    INSERT INTO text_quota AS q (scope_id, principal_id, bytes)
    SELECT r.scope_id, r.principal_id, sum(o.bytes)
    FROM owned o JOIN run r USING (scope_id, run_id)
    GROUP BY r.scope_id, r.principal_id
    ORDER BY r.scope_id, r.principal_id
    ON CONFLICT (scope_id, principal_id) DO UPDATE SET bytes = q.bytes + excluded.bytes
), told AS (
    INSERT INTO text_delta (scope_id, run_id, sequence, attempt, content, resets, created_at)
    SELECT i.scope_id, i.run_id, g.last_sequence - o.pieces + i.number, i.fence, i.content,
           g.last_sequence - o.pieces + i.number = g.first_sequence AND g.first_sequence > 1,
           clock()
    FROM item i
    JOIN owned o USING (scope_id, run_id, fence)
    JOIN grown g USING (scope_id, run_id)
)
SELECT i.place::int, g.last_sequence - o.pieces + i.number AS sequence, o.cancel_requested
FROM item i JOIN owned o USING (scope_id, run_id, fence) JOIN grown g USING (scope_id, run_id)
UNION ALL
SELECT i.place::int, NULL, NULL
FROM item i JOIN locked l USING (scope_id, run_id)
WHERE (i.fence = l.fence AND l.owned AND l.status = 'running' AND l.lease_until > clock())
      IS NOT TRUE;

-- name: text_head
-- $1 scope, $2 run.
SELECT attempt, first_sequence, last_sequence, bytes, pruned_at FROM text_head
WHERE scope_id = $1 AND run_id = $2;

-- name: text_standings
-- How several runs stand, as who watches their text is told. $1 scopes, $2 runs, $3 the last event
-- of each that was looked at for progress.
SELECT w.scope_id, w.run_id, e.status, e.fence, e.last_seq, h.last_sequence, p.payload
FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS w (scope_id, run_id, seq)
JOIN execution e USING (scope_id, run_id)
LEFT JOIN text_head h USING (scope_id, run_id)
LEFT JOIN LATERAL (
    SELECT v.payload FROM event v
    WHERE v.scope_id = w.scope_id AND v.run_id = w.run_id AND v.seq > w.seq
      AND v.type = 'run.progress'
    ORDER BY v.seq DESC LIMIT 1
) AS p ON true;

-- name: texts_after
-- What is new of several runs. $1 scopes, $2 runs, $3 the last sequence known of each; of each
-- $4 pieces at most, and no more than about $5 bytes.
SELECT w.scope_id, d.run_id, d.sequence, d.attempt, d.content, d.resets, d.created_at
FROM unnest($1::text[], $2::uuid[], $3::int[]) AS w (scope_id, run_id, sequence)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT t.*, sum(octet_length(t.content)) OVER (ORDER BY t.sequence)
                    - octet_length(t.content) AS bytes_before
        FROM text_delta t
        WHERE t.scope_id = w.scope_id AND t.run_id = w.run_id AND t.sequence > w.sequence
        ORDER BY t.sequence LIMIT $4
    ) AS t WHERE t.bytes_before < $5
) AS d
ORDER BY w.scope_id, d.run_id, d.sequence;

-- name: visible_texts
-- $1 scope, $2 run, $3 principal that must have asked for it (null: whoever did), $4 after which
-- sequence, $5 how many, $6 about how many bytes.
SELECT * FROM (
    SELECT d.run_id, d.sequence, d.attempt, d.content, d.resets, d.created_at,
           sum(octet_length(d.content)) OVER (ORDER BY d.sequence) - octet_length(d.content)
               AS bytes_before
    FROM run r JOIN text_delta d USING (scope_id, run_id)
    WHERE scope_id = $1 AND run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3)
      AND d.sequence > $4
    ORDER BY d.sequence LIMIT $5
) AS d WHERE bytes_before < $6
ORDER BY sequence;

-- name: prune_texts
-- $1 how long text is kept after success, $2 how long after any other end, $3 of how many runs at
-- once. The heads stay: their sequences are not given twice.
WITH due AS MATERIALIZED (
    SELECT h.scope_id, h.run_id, h.bytes
    FROM text_head h JOIN execution e USING (scope_id, run_id)
    WHERE h.pruned_at IS NULL AND e.finished_at
          < clock() - CASE e.status WHEN 'succeeded' THEN $1::interval ELSE $2::interval END
    LIMIT $3
    FOR UPDATE OF h SKIP LOCKED
), marked AS (
    UPDATE text_head h SET pruned_at = clock() FROM due d
    WHERE h.scope_id = d.scope_id AND h.run_id = d.run_id
    RETURNING h.scope_id, h.run_id, d.bytes
), gone AS (
    DELETE FROM text_delta t USING due d
    WHERE t.scope_id = d.scope_id AND t.run_id = d.run_id
), given_back AS (
    SELECT r.scope_id, r.principal_id, sum(m.bytes) AS bytes
    FROM marked m JOIN run r USING (scope_id, run_id)
    GROUP BY r.scope_id, r.principal_id
), locked AS MATERIALIZED (
    SELECT q.scope_id, q.principal_id, g.bytes
    FROM given_back g JOIN text_quota q USING (scope_id, principal_id)
    ORDER BY q.scope_id, q.principal_id
    FOR NO KEY UPDATE OF q
), freed AS (
    UPDATE text_quota q SET bytes = greatest(q.bytes - l.bytes, 0) FROM locked l
    WHERE q.scope_id = l.scope_id AND q.principal_id = l.principal_id
)
SELECT scope_id, run_id FROM marked;
