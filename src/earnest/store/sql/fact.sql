-- What an owner writes while it works: steps, emitted events, progress, signals it reads.

-- name: write_facts
-- One entry a run: $1 scopes, $2 runs, $3 fences, $4 owner tokens, $5 the place of its first fact,
-- $6 how many it has. One entry a fact, those of a run beside each other: $7 event types,
-- $8 payloads, $9 step names (null: only an event), $10 step kinds, $11 digests, $12 results,
-- $13 marks. $14 lease. Of each run it is said whether its facts were stored, or it was fenced out; a run on
-- which somebody else sits is skipped, so that it holds up no other, and is missing from the answer.
-- The facts are taken out of their arrays by place: a join with them would be a nested loop over all
-- of them for each.
WITH locked AS MATERIALIZED (
    SELECT e.scope_id, e.run_id, e.status, e.lease_until, i.first, i.together,
           e.fence = i.fence AND e.owner_token = i.owner_token AS owned
    FROM unnest($1::text[], $2::uuid[], $3::int[], $4::uuid[], $5::int[], $6::int[])
        AS i (scope_id, run_id, fence, owner_token, first, together)
    JOIN execution e USING (scope_id, run_id)
    ORDER BY e.scope_id, e.run_id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), owned AS (
    UPDATE execution e
    SET last_seq = e.last_seq + l.together, lease_until = clock() + $14::interval
    FROM locked l
    WHERE e.scope_id = l.scope_id AND e.run_id = l.run_id
      AND l.owned AND l.status = 'running' AND l.lease_until > clock()
    RETURNING e.scope_id, e.run_id, e.fence, e.last_seq - l.together AS seq_before, l.first,
              l.together, e.cancel_requested
), fact AS MATERIALIZED (
    SELECT o.scope_id, o.run_id, o.fence, o.seq_before + place - o.first + 1 AS seq,
           ($7::text[])[place] AS type, ($8::jsonb[])[place] AS payload,
           ($9::text[])[place] AS name, ($10::text[])[place] AS kind,
           ($11::bytea[])[place] AS digest, ($12::jsonb[])[place] AS result,
           ($13::bigint[])[place] AS mark
    FROM owned o CROSS JOIN LATERAL generate_series(o.first, o.first + o.together - 1) AS place
), kept AS (
    INSERT INTO step (scope_id, run_id, name, kind, digest, result, fence, created_at)
    SELECT scope_id, run_id, name, kind, digest, result, fence, clock()
    FROM fact WHERE name IS NOT NULL
), told AS (
    INSERT INTO event (scope_id, run_id, seq, type, payload, mark, created_at)
    SELECT scope_id, run_id, seq, type, payload, mark, clock() FROM fact
)
SELECT scope_id, run_id, cancel_requested, true AS stored FROM owned
UNION ALL
SELECT scope_id, run_id, false, false FROM locked
WHERE (owned AND status = 'running' AND lease_until > clock()) IS NOT TRUE;

-- name: lock_to_look
-- The runs of facts that may be stored already; one on which somebody else sits is missing. $1 scopes,
-- $2 runs, each once.
SELECT e.scope_id, e.run_id, e.cancel_requested
FROM unnest($1::text[], $2::uuid[]) AS i (scope_id, run_id)
JOIN execution e USING (scope_id, run_id)
ORDER BY e.scope_id, e.run_id
FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: stored_marks
-- Which of these facts are stored. One entry a fact: $1 scopes, $2 runs, $3 marks.
SELECT mark FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS i (scope_id, run_id, mark)
WHERE EXISTS (
    SELECT FROM event e
    WHERE e.scope_id = i.scope_id AND e.run_id = i.run_id AND e.mark = i.mark);

-- name: append_events
-- $1 scope, $2 run, $3 the last number before these, $4 types, $5 payloads.
INSERT INTO event (scope_id, run_id, seq, type, payload, created_at)
SELECT $1, $2, $3 + place, type, payload, clock()
FROM unnest($4::text[], $5::jsonb[]) WITH ORDINALITY AS e (type, payload, place);

-- name: put_timer
-- A remembered instant, counted from now by the database's clock. $1 scope, $2 run, $3 name,
-- $4 digest, $5 span, $6 fence. Only under the execution's lock.
INSERT INTO step (scope_id, run_id, name, kind, digest, result, fence, created_at)
VALUES ($1, $2, $3, 'timer', $4, jsonb_build_object('until', clock() + $5::interval), $6, clock())
ON CONFLICT (scope_id, run_id, name) DO NOTHING;

-- name: steps_of
SELECT name, kind, digest, result, fence, created_at FROM step
WHERE scope_id = $1 AND run_id = $2 ORDER BY created_at, name;

-- name: events_of
-- $1 scope, $2 run, $3 after which number, $4 how many.
SELECT run_id, seq, type, payload, created_at FROM event
WHERE scope_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT $4;

-- name: put_signal
-- $1 scope, $2 run, $3 name, $4 payload, $5 principal, $6 key. Only under the execution's lock.
INSERT INTO signal (scope_id, run_id, name, number, payload, principal_id, idempotency_key,
                    created_at)
SELECT $1, $2, $3, coalesce(max(number), 0) + 1, $4, $5, $6, clock()
FROM signal WHERE scope_id = $1 AND run_id = $2 AND name = $3
RETURNING number;

-- name: signal_by_key
SELECT name, number, payload FROM signal
WHERE scope_id = $1 AND run_id = $2 AND principal_id = $3 AND idempotency_key = $4;

-- name: signals_of
SELECT name, number, payload FROM signal WHERE scope_id = $1 AND run_id = $2
ORDER BY name, number;

-- name: signal_exists
SELECT true AS found FROM signal
WHERE scope_id = $1 AND run_id = $2 AND name = $3 AND number = $4;

-- name: events_after
-- What is new of several runs. $1 scopes, $2 runs, $3 the last number known of each, $4 how many of
-- each at most.
SELECT w.scope_id, e.run_id, e.seq, e.type, e.payload, e.created_at
FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS w (scope_id, run_id, seq)
CROSS JOIN LATERAL (
    SELECT * FROM event v
    WHERE v.scope_id = w.scope_id AND v.run_id = w.run_id AND v.seq > w.seq
    ORDER BY v.seq LIMIT $4
) AS e
ORDER BY w.scope_id, e.run_id, e.seq;
