-- Sweeps: a provider's list beside what is recorded. Whoever sweeps holds a lease; what it writes
-- names the token of it.

-- name: put_sweep
-- $1 scope, $2 id, $3 effect, $4 since, $5 who, $6 key and $7 fingerprint or null. Nothing if the key
-- is taken, or a sweep of the effect is under way.
INSERT INTO sweep (scope_id, sweep_id, effect, since, state, created_by, created_at,
                   idempotency_key, fingerprint)
VALUES ($1, $2, $3, $4, 'queued', $5, clock(), $6, $7)
ON CONFLICT DO NOTHING
RETURNING *;

-- name: sweep_by_key
-- $1 scope, $2 who, $3 key.
SELECT * FROM sweep WHERE scope_id = $1 AND created_by = $2 AND idempotency_key = $3;

-- name: active_sweep
-- $1 scope, $2 effect.
SELECT * FROM sweep WHERE scope_id = $1 AND effect = $2 AND state IN ('queued', 'running');

-- name: find_sweep
-- $1 scope, $2 sweep.
SELECT * FROM sweep WHERE scope_id = $1 AND sweep_id = $2;

-- name: list_sweeps
-- The newest first. $1 scope, $2 effect, $3 state (null: any), $4 before which id, $5 how many.
SELECT * FROM sweep
WHERE scope_id = $1 AND ($2::text IS NULL OR effect = $2) AND ($3::text IS NULL OR state = $3)
  AND ($4::uuid IS NULL OR sweep_id < $4)
ORDER BY sweep_id DESC LIMIT $5;

-- name: last_complete_sweep
-- When the last complete list of an effect was asked for. $1 scope, $2 effect.
SELECT asked_at FROM sweep WHERE scope_id = $1 AND effect = $2 AND state = 'complete'
ORDER BY asked_at DESC LIMIT 1;

-- name: oldest_begin
-- When the oldest was begun of those whose receipt was stored after $3. $1 scope, $2 effect.
SELECT min(first_begun_at) AS begun FROM operation
WHERE scope_id = $1 AND kind = $2 AND state = 'submitted' AND submitted_at >= $3;


-- name: take_sweep
-- The oldest that waits, or whose sweeper is gone. $1 the effects that can be listed here, $2 token,
-- $3 lease, $4 only this one (null: any). It begins anew.
WITH pick AS MATERIALIZED (
    SELECT scope_id, sweep_id FROM sweep
    WHERE state IN ('queued', 'running') AND (state = 'queued' OR lease_until <= clock())
      AND effect = ANY ($1::text[]) AND ($4::uuid IS NULL OR sweep_id = $4)
    ORDER BY created_at LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE sweep s
SET state = 'running', owner_token = $2, lease_until = clock() + $3::interval, takes = takes + 1,
    started_at = coalesce(started_at, clock()), asked_at = clock(), stage = 'listing', listed = 0,
    matched = 0, elsewhere = 0, settled = 0, unjudged = 0, asked = 0, listed_to = NULL
FROM pick
WHERE s.scope_id = pick.scope_id AND s.sweep_id = pick.sweep_id
RETURNING s.*;

-- name: renew_sweep
-- $1 scope, $2 sweep, $3 token, $4 lease.
UPDATE sweep SET lease_until = clock() + $4::interval
WHERE scope_id = $1 AND sweep_id = $2 AND owner_token = $3 AND state = 'running'
  AND lease_until > clock()
RETURNING true;

-- name: advance_sweep
-- How far it is. $1 scope, $2 sweep, $3 token, $4 lease, $5 stage, $6 listed, $7 matched,
-- $8 elsewhere, $9 settled, $10 unjudged, $11 asked, $12 the latest time that was listed.
UPDATE sweep
SET lease_until = clock() + $4::interval, stage = $5, listed = $6, matched = $7, elsewhere = $8,
    settled = $9, unjudged = $10, asked = $11, listed_to = $12
WHERE scope_id = $1 AND sweep_id = $2 AND owner_token = $3 AND state = 'running'
  AND lease_until > clock()
RETURNING true;

-- name: hand_back_sweep
-- $1 scope, $2 sweep, $3 token.
UPDATE sweep SET state = 'queued', owner_token = NULL, lease_until = NULL, stage = NULL,
                 takes = takes - 1
WHERE scope_id = $1 AND sweep_id = $2 AND owner_token = $3 AND state = 'running'
RETURNING true;

-- name: end_sweep
-- $1 scope, $2 sweep, $3 token, $4 state, $5 why.
UPDATE sweep
SET state = $4, why = $5, owner_token = NULL, lease_until = NULL, stage = NULL, finished_at = clock()
WHERE scope_id = $1 AND sweep_id = $2 AND owner_token = $3 AND state = 'running'
  AND lease_until > clock()
RETURNING true;

-- name: see_operations
-- The list names these operations. $1 scope, $2 sweep, $3 operations.
INSERT INTO sweep_seen (scope_id, sweep_id, operation_id)
SELECT $1, $2, o.operation_id FROM unnest($3::uuid[]) AS o (operation_id)
ON CONFLICT DO NOTHING;

-- name: forget_seen
-- $1 scope, $2 sweep, $3 how many at once.
WITH part AS MATERIALIZED (
    SELECT operation_id FROM sweep_seen WHERE scope_id = $1 AND sweep_id = $2 LIMIT $3
)
DELETE FROM sweep_seen s USING part
WHERE s.scope_id = $1 AND s.sweep_id = $2 AND s.operation_id = part.operation_id
RETURNING true;


-- name: forget_sightings
-- What a sweep found before it was begun anew. $1 scope, $2 sweep, $3 how many at once.
WITH part AS MATERIALIZED (
    SELECT difference_id FROM sweep_sighting WHERE scope_id = $1 AND sweep_id = $2 LIMIT $3
)
DELETE FROM sweep_sighting s USING part
WHERE s.scope_id = $1 AND s.sweep_id = $2 AND s.difference_id = part.difference_id
RETURNING true;

-- name: operations_listed
-- The operations of these ids in this scope, and whether their runs go on. $1 scope, $2 ids.
SELECT o.*, clock() AS now, e.run_id IS NOT NULL AND e.finished_at IS NULL AS run_goes_on
FROM operation o LEFT JOIN execution e USING (scope_id, run_id)
WHERE o.scope_id = $1 AND o.operation_id = ANY ($2::uuid[]);

-- name: listed_elsewhere
-- Which of these ids are operations of other scopes. $1 scope, $2 ids. One step for each scope that
-- has operations, also of one that nobody has made: an index by id alone would cost every operation.
WITH RECURSIVE scopes AS (
    SELECT (SELECT o.scope_id FROM operation o WHERE o.scope_id > '' ORDER BY o.scope_id LIMIT 1)
    UNION ALL
    SELECT (SELECT o.scope_id FROM operation o WHERE o.scope_id > s.scope_id
            ORDER BY o.scope_id LIMIT 1)
    FROM scopes s WHERE s.scope_id IS NOT NULL
)
SELECT o.operation_id FROM scopes s
CROSS JOIN unnest($2::uuid[]) AS i (operation_id)
JOIN operation o ON o.scope_id = s.scope_id AND o.operation_id = i.operation_id
WHERE s.scope_id <> $1;

-- name: operations_by_ref
-- Whose receipts name these things of the provider, in all scopes. $1 effect, $2 the provider's
-- names.
SELECT *, clock() AS now FROM operation WHERE external_ref = ANY ($2::text[]) AND kind = $1;

-- name: unknown_of_effect
-- Operations in doubt, in all scopes, and what they asked for. $1 effect, $2 how many.
SELECT first_begun_at, digest FROM operation WHERE state = 'unknown' AND kind = $1 LIMIT $2;

-- name: submitting_of_effect
-- Calls on their way, in all scopes, and what they ask for. $1 effect, $2 how many.
SELECT first_begun_at, digest FROM operation WHERE state = 'submitting' AND kind = $1 LIMIT $2;

-- name: unlisted_operations
-- Operations that the list ought to name and does not, in the order of their receipts. $1 scope,
-- $2 effect, $3 sweep, $4 begun from when on, $5 with a receipt until when, $6 after this time and
-- $7 id, $8 how many. `known`: an earlier sweep has found the same.
SELECT o.operation_id, o.external_ref, o.first_begun_at, o.submitted_at, EXISTS (
    SELECT FROM sweep_difference d
    WHERE d.scope_id = $1 AND d.effect = $2 AND d.kind = 'record_without_effect'
      AND d.subject = o.operation_id::text AND d.state <> 'vanished'
) AS known
FROM operation o
WHERE o.scope_id = $1 AND o.kind = $2 AND o.state = 'submitted'
  AND o.submitted_at >= $4 AND o.submitted_at <= $5 AND o.first_begun_at >= $4
  AND ($6::timestamptz IS NULL OR (o.submitted_at, o.operation_id) > ($6, $7))
  AND NOT EXISTS (
    SELECT FROM sweep_seen s
    WHERE s.scope_id = $1 AND s.sweep_id = $3 AND s.operation_id = o.operation_id)
ORDER BY o.submitted_at, o.operation_id LIMIT $8;


-- name: report_differences
-- $1 scope, $2 sweep, $3 effect; one entry each: $4 new ids, $5 kinds, $6 whys, $7 subjects,
-- $8 operations, $9 ids as listed, $10 the provider's names, $11 when. One that is known is seen
-- again; one that had vanished is open again; one that a person closed stays closed.
WITH told AS (
    INSERT INTO sweep_difference AS d (scope_id, effect, difference_id, kind, why, subject,
                                       operation_id, listed_id, external_ref, happened_at, state,
                                       found_at, seen_at)
    SELECT $1, $3, i.difference_id, i.kind, i.why, i.subject, i.operation_id, i.listed_id,
           i.external_ref, i.happened_at, 'open', clock(), clock()
    FROM unnest($4::uuid[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[], $10::text[],
                $11::timestamptz[])
        AS i (difference_id, kind, why, subject, operation_id, listed_id, external_ref, happened_at)
    ON CONFLICT (scope_id, effect, kind, subject) DO UPDATE
    SET seen_at = excluded.seen_at, why = excluded.why, operation_id = excluded.operation_id,
        state = CASE WHEN d.state = 'vanished' THEN 'open' ELSE d.state END,
        ended_at = CASE WHEN d.state = 'vanished' THEN NULL ELSE d.ended_at END,
        version = d.version + (d.state = 'vanished')::int
    RETURNING d.*
), sighted AS (
    INSERT INTO sweep_sighting (scope_id, sweep_id, difference_id)
    SELECT $1, $2, difference_id FROM told
    ON CONFLICT DO NOTHING
)
INSERT INTO finding AS f (scope_id, finding_id, operation_id, kind, detail, created_at)
SELECT t.scope_id, t.difference_id, t.operation_id, t.kind,
       jsonb_build_object('why', t.why, 'effect', t.effect, 'external_ref', t.external_ref,
                          'at', t.happened_at),
       clock()
FROM told t WHERE t.state = 'open'
ON CONFLICT (scope_id, finding_id) DO UPDATE SET closed_at = NULL;

-- name: see_known_differences
-- What could not be judged this time stays as it is. $1 scope, $2 sweep, $3 effect, $4 kind,
-- $5 subjects.
INSERT INTO sweep_sighting (scope_id, sweep_id, difference_id)
SELECT $1, $2, d.difference_id FROM sweep_difference d
WHERE d.scope_id = $1 AND d.effect = $3 AND d.kind = $4 AND d.subject = ANY ($5::text[])
ON CONFLICT DO NOTHING;

-- name: vanish_differences
-- Open differences that a complete sweep would have found, and did not. $1 scope, $2 sweep, $3 effect,
-- $4 since when it looked.
WITH gone AS (
    UPDATE sweep_difference d
    SET state = 'vanished', ended_at = clock(), version = version + 1
    WHERE d.scope_id = $1 AND d.effect = $3 AND d.state = 'open' AND d.happened_at >= $4
      AND NOT EXISTS (
        SELECT FROM sweep_sighting s
        WHERE s.scope_id = $1 AND s.sweep_id = $2 AND s.difference_id = d.difference_id)
    RETURNING d.scope_id, d.difference_id
)
UPDATE finding f SET closed_at = clock() FROM gone g
WHERE f.scope_id = g.scope_id AND f.finding_id = g.difference_id;

-- name: close_difference
-- A person has seen to it. $1 scope, $2 difference, $3 the version that was looked at (null: any),
-- $4 who, $5 note.
WITH closed AS (
    UPDATE sweep_difference
    SET state = 'closed', ended_at = clock(), closed_by = $4, note = $5, version = version + 1
    WHERE scope_id = $1 AND difference_id = $2 AND state = 'open'
      AND ($3::int IS NULL OR version = $3)
    RETURNING scope_id, difference_id
)
UPDATE finding f SET closed_at = clock() FROM closed c
WHERE f.scope_id = c.scope_id AND f.finding_id = c.difference_id
RETURNING true;

-- name: find_difference
-- $1 scope, $2 difference.
SELECT * FROM sweep_difference WHERE scope_id = $1 AND difference_id = $2;

-- name: differences_of_sweep
-- What a sweep found, the oldest first. $1 scope, $2 sweep, $3 after which id, $4 how many.
SELECT d.* FROM sweep_sighting s JOIN sweep_difference d USING (scope_id, difference_id)
WHERE s.scope_id = $1 AND s.sweep_id = $2 AND ($3::uuid IS NULL OR s.difference_id > $3)
ORDER BY s.difference_id LIMIT $4;

-- name: list_differences
-- The oldest first. $1 scope, $2 state, $3 effect, $4 kind (null: any), $5 after which id, $6 how
-- many.
SELECT * FROM sweep_difference
WHERE scope_id = $1 AND ($2::text IS NULL OR state = $2) AND ($3::text IS NULL OR effect = $3)
  AND ($4::text IS NULL OR kind = $4) AND ($5::uuid IS NULL OR difference_id > $5)
ORDER BY difference_id LIMIT $6;

-- name: open_difference_counts
-- Of what a sweep found and is open, by kind. $1 scope, $2 sweep.
SELECT d.kind, count(*) AS differences
FROM sweep_sighting s JOIN sweep_difference d USING (scope_id, difference_id)
WHERE s.scope_id = $1 AND s.sweep_id = $2 AND d.state = 'open'
GROUP BY d.kind;

-- name: is_effect_served
-- Is there a process, as far as is known, that knows this effect? $1 effect.
SELECT EXISTS (SELECT FROM instance WHERE ended_at IS NULL AND $1 = ANY (effects)) AS served;
