-- The feed of a scope: appending to it, and reading it. `engine/streams/sequencing.py` tells how a pass
-- knows what is new.

-- name: is_feed_behind
-- Is there an event that the newest pass did not see? Or is that pass of a server whose transactions
-- had higher numbers than this one's: then everything has to be gone through again.
WITH last AS MATERIALIZED (
    SELECT seen_below, still_open FROM last_pass
)
SELECT EXISTS (SELECT FROM event WHERE written_by >= (SELECT seen_below FROM last))
    OR EXISTS (SELECT FROM event WHERE written_by = ANY ((SELECT still_open FROM last)::xid8[]))
    OR (SELECT seen_below FROM last) > pg_snapshot_xmax(pg_current_snapshot()) AS behind;

-- name: lock_feed
-- One pass at a time in a database, until the end of the transaction. The next statement has a
-- snapshot of its own, taken after this lock: never an older one than that of the pass before.
SELECT pg_advisory_xact_lock(hashtext('earnest.feed'));

-- name: take_time_for_feed
-- A transaction is taken as a whole. One that wrote for hundreds of thousands of runs takes longer
-- than other statements may; a pass that was given up would be as long again, and hold up all scopes.
SELECT set_config('statement_timeout', '0', true);

-- name: move_feed
-- Only under that lock. On another server than before, transactions have other numbers: everything
-- is gone through again. $1 what the server says of itself.
WITH last AS MATERIALIZED (
    SELECT * FROM last_pass
), moved AS (
    INSERT INTO sequenced (pass, server, seen_below, still_open, at_once)
    SELECT pass + 1, $1, CASE WHEN server IS NULL THEN seen_below ELSE '1' END,
           CASE WHEN server IS NULL THEN still_open ELSE '{}' END, at_once
    FROM last WHERE server IS DISTINCT FROM $1
    RETURNING pass
)
DELETE FROM sequenced WHERE pass = (SELECT pass - 1 FROM moved);

-- name: append_to_feed
-- One pass; only under that lock. A row comes back when there is more to do. `last.still_open` holds
-- what was under way then and may have been committed since; from `seen_below` on everything is new.
-- A pass that finds much takes the transactions below `until` only. What it finds are runs: of each
-- it takes all that is not in the feed yet, since a later number may have been written by an older
-- transaction. A run of which the feed holds nothing begins with the first event that is new.
WITH last AS MATERIALIZED (
    SELECT s.pass, s.server, s.at_once, now.snapshot,
           CASE WHEN now.fits THEN s.seen_below ELSE '1' END AS seen_below,
           CASE WHEN now.fits THEN s.still_open ELSE '{}' END AS still_open
    FROM last_pass s,
         LATERAL (SELECT n.snapshot, s.seen_below <= pg_snapshot_xmax(n.snapshot) AS fits
                  FROM (SELECT pg_current_snapshot() AS snapshot) AS n) AS now
), enough AS MATERIALIZED (
    SELECT written_by FROM event WHERE written_by >= (SELECT seen_below FROM last)
    ORDER BY written_by OFFSET (SELECT at_once - 1 FROM last) LIMIT 1
), next AS MATERIALIZED (
    SELECT least((SELECT written_by FROM event WHERE written_by > (SELECT written_by FROM enough)
                  ORDER BY written_by LIMIT 1),
                 pg_snapshot_xmax(snapshot)) AS until
    FROM last
), moved AS MATERIALIZED (
    SELECT scope_id, run_id FROM event
    WHERE written_by >= (SELECT seen_below FROM last) AND written_by < (SELECT until FROM next)
    UNION
    SELECT scope_id, run_id FROM event
    WHERE written_by = ANY ((SELECT still_open FROM last)::xid8[])
), grown AS MATERIALIZED (
    SELECT scope_id, run_id, r.principal_id, fed.up_to + 1 AS from_seq, newest.seq AS to_seq,
           newest.created_at,
           greatest((SELECT f.position FROM feed f WHERE f.scope_id = m.scope_id
                     ORDER BY f.position DESC LIMIT 1),
                    (SELECT p.position FROM feed_pruned p WHERE p.scope_id = m.scope_id), 0) AS head
    FROM moved m
    JOIN run r USING (scope_id, run_id)
    CROSS JOIN LATERAL (
        SELECT v.seq, v.created_at FROM event v
        WHERE v.scope_id = m.scope_id AND v.run_id = m.run_id ORDER BY v.seq DESC LIMIT 1
    ) AS newest
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT f.to_seq FROM feed f WHERE f.scope_id = m.scope_id AND f.run_id = m.run_id
             ORDER BY f.to_seq DESC LIMIT 1),
            (SELECT v.seq - 1 FROM event v, last
             WHERE v.scope_id = m.scope_id AND v.run_id = m.run_id
               AND (v.written_by >= last.seen_below OR v.written_by = ANY (last.still_open))
             ORDER BY v.seq LIMIT 1)) AS up_to
        OFFSET 0
    ) AS fed
    WHERE newest.seq > fed.up_to
), appended AS (
    INSERT INTO feed (scope_id, position, principal_id, run_id, from_seq, to_seq)
    SELECT scope_id,
           head + sum(to_seq - from_seq + 1) OVER (PARTITION BY scope_id ORDER BY created_at, run_id),
           principal_id, run_id, from_seq, to_seq
    FROM grown
), passed AS (
    INSERT INTO sequenced (pass, server, seen_below, still_open, at_once)
    SELECT pass + 1, server, until,
           ARRAY(SELECT open FROM pg_snapshot_xip(snapshot) AS open WHERE open < until), at_once
    FROM last, next
), before AS (
    DELETE FROM sequenced WHERE pass = (SELECT pass FROM last)
)
SELECT FROM last, next WHERE until < pg_snapshot_xmax(snapshot);

-- name: adopt_events
-- Events with numbers of transactions that this server has not come to yet were restored from
-- another one. They get one of here, so that they are found, and none is found again when the
-- server comes there. $1 how many at once.
UPDATE event v SET written_by = DEFAULT
FROM (
    SELECT scope_id, run_id, seq FROM event
    WHERE written_by >= (SELECT pg_snapshot_xmax(pg_current_snapshot()))
    ORDER BY written_by LIMIT $1
) AS foreign_
WHERE v.scope_id = foreign_.scope_id AND v.run_id = foreign_.run_id AND v.seq = foreign_.seq;

-- name: feed_bounds
-- The last position of each scope's feed, and up to which it was pruned. $1 scopes.
SELECT w.scope_id, coalesce(p.position, 0) AS pruned, greatest(last.position, p.position, 0) AS head
FROM unnest($1::text[]) AS w (scope_id)
LEFT JOIN feed_pruned p USING (scope_id)
LEFT JOIN LATERAL (
    SELECT f.position FROM feed f WHERE f.scope_id = w.scope_id ORDER BY f.position DESC LIMIT 1
) AS last ON true;

-- name: feed_after
-- What comes in several feeds. $1 scopes, $2 principals that asked for the runs (null: whoever did),
-- $3 the last position known of each, $4 how many events of each at most. A place after which nothing
-- comes has one row without an event. Where `follows` is not true, events are gone which the feed
-- still names: they are to be told as missing. Of the two ways into the feed each place goes one;
-- with one condition for both the index of principals would not be used.
SELECT w.place::int, coalesce(p.position, 0) AS pruned,
       greatest(last.position, p.position, 0) AS head, e.*
FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY
    AS w (scope_id, principal_id, position, place)
LEFT JOIN feed_pruned p USING (scope_id)
LEFT JOIN LATERAL (
    SELECT f.position FROM feed f WHERE f.scope_id = w.scope_id ORDER BY f.position DESC LIMIT 1
) AS last ON true
LEFT JOIN LATERAL (
    SELECT f.position AS row_position, f.position - f.to_seq + v.seq AS position, f.run_id,
           v.seq, v.type, v.payload, v.created_at, v.seq = f.first + v.nth - 1 AS follows
    FROM (
        SELECT f.*, greatest(f.from_seq, f.to_seq - (f.position - w.position) + 1) AS first
        FROM (
            (SELECT f.* FROM feed f
             WHERE w.principal_id IS NULL AND f.scope_id = w.scope_id AND f.position > w.position
             ORDER BY f.position LIMIT $4)
            UNION ALL
            (SELECT f.* FROM feed f
             WHERE f.principal_id = w.principal_id AND f.scope_id = w.scope_id
               AND f.position > w.position
             ORDER BY f.position LIMIT $4)
        ) AS f
    ) AS f
    LEFT JOIN LATERAL (
        SELECT v.*, row_number() OVER (ORDER BY v.seq) AS nth FROM event v
        WHERE v.scope_id = f.scope_id AND v.run_id = f.run_id AND v.seq BETWEEN f.first AND f.to_seq
        ORDER BY v.seq LIMIT $4
    ) AS v ON true
    ORDER BY f.position, v.seq LIMIT $4
) AS e ON true
ORDER BY w.place, e.row_position, e.seq;

-- name: prune_feed
-- $1 scope, $2 up to which position; a row that reaches beyond it stays. Says up to where it went.
WITH gone AS (
    DELETE FROM feed WHERE scope_id = $1 AND position <= $2 RETURNING position
)
INSERT INTO feed_pruned AS p (scope_id, position)
SELECT $1, max(position) FROM gone HAVING max(position) IS NOT NULL
ON CONFLICT (scope_id) DO UPDATE SET position = greatest(p.position, excluded.position)
RETURNING position;
