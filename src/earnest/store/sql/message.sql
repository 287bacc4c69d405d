-- Messages on their way out: the outbox, the sinks, and one delivery for each message and sink.

-- name: put_message
-- $1 scope, $2 id, $3 type, $4 run or null, $5 payload.
INSERT INTO outbox (scope_id, message_id, type, run_id, payload, created_at)
VALUES ($1, $2, $3, $4, $5, clock());

-- name: put_published
-- That an attempt has published something, so that no later one does again. $1 scope, $2 run,
-- $3 name, $4 digest, $5 fence. Only under the execution's lock.
INSERT INTO step (scope_id, run_id, name, kind, digest, result, fence, created_at)
VALUES ($1, $2, $3, 'emit', $4, NULL, $5, clock())
ON CONFLICT (scope_id, run_id, name) DO NOTHING
RETURNING true;

-- name: take_messages
-- The oldest messages leave the outbox, to become deliveries in the same transaction. $1 how many.
WITH oldest AS MATERIALIZED (
    SELECT scope_id, message_id FROM outbox ORDER BY message_id LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox o USING oldest
WHERE o.scope_id = oldest.scope_id AND o.message_id = oldest.message_id
RETURNING o.*;

-- name: lock_sinks
-- The sinks of these scopes that are told of what is new; none is removed before the end of the
-- transaction. A paused one's deliveries wait. $1 scopes.
SELECT scope_id, sink_id, types FROM sink
WHERE scope_id = ANY ($1::text[]) AND state <> 'disabled'
ORDER BY scope_id, sink_id FOR KEY SHARE;

-- name: sinks_behind
-- Active sinks that the feed of their scope has more for, and that have room: less than $1
-- deliveries are pending. $2 how many sinks.
SELECT s.scope_id, s.sink_id, s.types, s.position
FROM sink s
CROSS JOIN LATERAL (
    SELECT f.position FROM feed f WHERE f.scope_id = s.scope_id ORDER BY f.position DESC LIMIT 1
) AS newest
WHERE s.state = 'active' AND newest.position > s.position
  AND (SELECT count(*) FROM (
           SELECT FROM delivery d WHERE d.scope_id = s.scope_id AND d.sink_id = s.sink_id
              AND d.state = 'pending' LIMIT $1) AS pending) < $1
LIMIT $2;

-- name: has_feed_readers
-- Does any sink follow a feed? Otherwise nobody needs it caught up.
SELECT EXISTS (SELECT FROM sink WHERE state = 'active') AS found;

-- name: advance_sink
-- $1 scope, $2 sink, $3 where it stood and $4 where it stands now in the feed. Nothing if somebody
-- else was first.
UPDATE sink SET position = $4
WHERE scope_id = $1 AND sink_id = $2 AND position = $3 AND state = 'active'
RETURNING true;

-- name: put_deliveries
-- One entry each: $1 scopes, $2 sinks, $3 delivery ids, $4 message ids, $5 types, $6 runs,
-- $7 numbers, $8 payloads, $9 when it happened.
INSERT INTO delivery (scope_id, sink_id, delivery_id, message_id, type, run_id, seq, payload,
                      happened_at, state, due_at, created_at)
SELECT d.scope_id, d.sink_id, d.delivery_id, d.message_id, d.type, d.run_id, d.seq, d.payload,
       d.happened_at, 'pending', clock(), clock()
FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::bigint[],
            $8::jsonb[], $9::timestamptz[])
    AS d (scope_id, sink_id, delivery_id, message_id, type, run_id, seq, payload, happened_at);

-- name: take_deliveries
-- What is due, taken under a lease: it comes due again at its end, $1. $2 the token of this taking,
-- $3 how many of one sink, $4 how many in all. Of the sinks $5 (of the scopes $6) so many as $7 are
-- under way here already. The pick is materialized, or it could be asked again for each row.
WITH busy AS MATERIALIZED (
    SELECT * FROM unnest($5::uuid[], $6::text[], $7::int[]) AS b (sink_id, scope_id, under_way)
), pick AS MATERIALIZED (
    SELECT d.scope_id, d.delivery_id, s.kind, s.address,
           s.secret || ARRAY(
               SELECT o.secret FROM unnest(s.old_secrets, s.old_until) AS o (secret, until)
               WHERE o.until > (SELECT clock())) AS secrets
    FROM sink s
    LEFT JOIN busy b USING (scope_id, sink_id)
    CROSS JOIN LATERAL (
        SELECT d.scope_id, d.delivery_id FROM delivery d
        WHERE d.scope_id = s.scope_id AND d.sink_id = s.sink_id AND d.state = 'pending'
          AND d.due_at <= (SELECT clock())
        ORDER BY d.due_at LIMIT greatest($3 - coalesce(b.under_way, 0), 0)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS d
    WHERE s.state = 'active'
    LIMIT $4
)
UPDATE delivery d
SET lease_token = $2, due_at = clock() + $1::interval, attempts = d.attempts + 1
FROM pick p
WHERE d.scope_id = p.scope_id AND d.delivery_id = p.delivery_id
RETURNING d.*, p.kind, p.address, p.secrets;

-- name: ack_delivery
-- It arrived. $1 scope, $2 delivery, $3 the token it was taken under, $4 the answer's status.
UPDATE delivery
SET state = 'delivered', ended_at = clock(), lease_token = NULL, last_status = $4, last_error = NULL
WHERE scope_id = $1 AND delivery_id = $2 AND lease_token = $3 AND state = 'pending'
RETURNING true;

-- name: put_off_delivery
-- It did not arrive, and is tried again after $4. $5 the answer's status, $6 what went wrong.
UPDATE delivery
SET due_at = clock() + $4::interval, lease_token = NULL, last_status = $5, last_error = $6
WHERE scope_id = $1 AND delivery_id = $2 AND lease_token = $3 AND state = 'pending'
RETURNING true;

-- name: bury_delivery
-- It did not arrive and is not tried again: a dead letter. $4 the answer's status, $5 what went
-- wrong.
UPDATE delivery
SET state = 'dead', ended_at = clock(), lease_token = NULL, last_status = $4, last_error = $5
WHERE scope_id = $1 AND delivery_id = $2 AND lease_token = $3 AND state = 'pending'
RETURNING true;

-- name: disable_sink
-- The sink says that it is gone for good: what waits for it becomes dead letters. $1 scope, $2 sink,
-- $3 why.
WITH disabled AS (
    UPDATE sink SET state = 'disabled', why = $3, version = version + 1
    WHERE scope_id = $1 AND sink_id = $2 AND state <> 'disabled'
    RETURNING scope_id, sink_id
)
UPDATE delivery d
SET state = 'dead', ended_at = clock(), lease_token = NULL, last_error = $3
FROM disabled s
WHERE d.scope_id = s.scope_id AND d.sink_id = s.sink_id AND d.state = 'pending'
RETURNING true;

-- name: prune_deliveries
-- What arrived longer than $1 ago, the oldest $2.
WITH old AS MATERIALIZED (
    SELECT scope_id, delivery_id FROM delivery
    WHERE state = 'delivered' AND ended_at < (SELECT clock()) - $1::interval
    ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM delivery d USING old
WHERE d.scope_id = old.scope_id AND d.delivery_id = old.delivery_id
RETURNING true;

-- name: lowest_position_needed
-- Up to which position a scope's feed has been read by every sink that follows it; null where none
-- does: nothing is kept for them then. $1 scope.
SELECT min(position) AS position FROM sink WHERE scope_id = $1 AND state <> 'disabled';

-- name: put_sink
-- $1 scope, $2 id, $3 kind, $4 address, $5 types, $6 description, $7 sealed secret or null, $8 who,
-- $9 key and $10 fingerprint or null. It begins with what comes after now; nothing if the key is
-- taken.
INSERT INTO sink (scope_id, sink_id, kind, address, types, description, state, position, secret,
                  created_by, created_at, idempotency_key, fingerprint)
VALUES ($1, $2, $3, $4, $5, $6, 'active',
        greatest((SELECT f.position FROM feed f WHERE f.scope_id = $1
                  ORDER BY f.position DESC LIMIT 1),
                 (SELECT p.position FROM feed_pruned p WHERE p.scope_id = $1), 0),
        $7, $8, clock(), $9, $10)
ON CONFLICT (scope_id, created_by, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING *;

-- name: sink_by_key
-- $1 scope, $2 who, $3 key.
SELECT * FROM sink WHERE scope_id = $1 AND created_by = $2 AND idempotency_key = $3;

-- name: find_sink
-- $1 scope, $2 sink.
SELECT * FROM sink WHERE scope_id = $1 AND sink_id = $2;

-- name: list_sinks
-- The oldest first. $1 scope, $2 kind or null, $3 after which id, $4 how many.
SELECT * FROM sink
WHERE scope_id = $1 AND ($2::text IS NULL OR kind = $2) AND ($3::uuid IS NULL OR sink_id > $3)
ORDER BY sink_id LIMIT $4;

-- name: change_sink
-- $1 scope, $2 sink, $3 the version that was looked at or null, $4 address, $5 types,
-- $6 description, $7 state; null leaves one as it is. What was disabled begins anew with what is
-- new.
UPDATE sink
SET address = coalesce($4, address), types = coalesce($5, types),
    description = coalesce($6, description), state = coalesce($7, state), version = version + 1,
    why = CASE WHEN coalesce($7, state) = 'active' THEN NULL ELSE why END,
    position = CASE
        WHEN state = 'disabled' AND coalesce($7, state) <> 'disabled'
        THEN greatest((SELECT f.position FROM feed f WHERE f.scope_id = $1
                       ORDER BY f.position DESC LIMIT 1), position)
        ELSE position END
WHERE scope_id = $1 AND sink_id = $2 AND ($3::int IS NULL OR version = $3)
RETURNING *;

-- name: rotate_sink_secret
-- $1 scope, $2 sink, $3 the new sealed secret, $4 how long the one before goes on signing, too. Those
-- of rotations before this one keep their time, so that one that is repeated takes none away; with
-- no time at all, only the new one is good.
UPDATE sink
SET old_secrets = CASE WHEN $4::interval > '0' THEN secret || ARRAY(
        SELECT o.secret FROM unnest(old_secrets, old_until) WITH ORDINALITY AS o (secret, until, nth)
        WHERE o.until > clock() ORDER BY o.nth LIMIT 3) ELSE '{}' END,
    old_until = CASE WHEN $4::interval > '0' THEN clock() + $4 || ARRAY(
        SELECT o.until FROM unnest(old_secrets, old_until) WITH ORDINALITY AS o (secret, until, nth)
        WHERE o.until > clock() ORDER BY o.nth LIMIT 3) ELSE '{}' END,
    secret = $3, version = version + 1
WHERE scope_id = $1 AND sink_id = $2 AND kind = 'webhook'
RETURNING *;

-- name: remove_sink
-- $1 scope, $2 sink. What waits for it goes with it.
DELETE FROM sink WHERE scope_id = $1 AND sink_id = $2 RETURNING true;

-- name: deliveries_of_sink
-- The newest first. $1 scope, $2 sink, $3 before which id, $4 how many.
SELECT d.*, s.kind, s.address FROM delivery d JOIN sink s USING (scope_id, sink_id)
WHERE d.scope_id = $1 AND d.sink_id = $2 AND ($3::uuid IS NULL OR d.delivery_id < $3)
ORDER BY d.delivery_id DESC LIMIT $4;

-- name: dead_letters
-- The oldest first. $1 scope, $2 sink, $3 type (null: any), $4 after which id, $5 how many.
SELECT d.*, s.kind, s.address FROM delivery d JOIN sink s USING (scope_id, sink_id)
WHERE d.scope_id = $1 AND d.state = 'dead' AND ($2::uuid IS NULL OR d.sink_id = $2)
  AND ($3::text IS NULL OR d.type = $3) AND ($4::uuid IS NULL OR d.delivery_id > $4)
ORDER BY d.delivery_id LIMIT $5;

-- name: pending_deliveries
-- The oldest first. $1 scope, $2 sink, $3 type (null: any), $4 after which id, $5 how many.
SELECT d.*, s.kind, s.address FROM delivery d JOIN sink s USING (scope_id, sink_id)
WHERE d.scope_id = $1 AND d.state = 'pending' AND ($2::uuid IS NULL OR d.sink_id = $2)
  AND ($3::text IS NULL OR d.type = $3) AND ($4::uuid IS NULL OR d.delivery_id > $4)
ORDER BY d.delivery_id LIMIT $5;

-- name: find_delivery
-- $1 scope, $2 delivery.
SELECT d.*, s.kind, s.address FROM delivery d JOIN sink s USING (scope_id, sink_id)
WHERE d.scope_id = $1 AND d.delivery_id = $2;

-- name: replay_delivery
-- A dead letter is sent again, with as many attempts as a new one. $1 scope, $2 delivery.
UPDATE delivery
SET state = 'pending', ended_at = NULL, attempts = 0, due_at = clock(), lease_token = NULL
WHERE scope_id = $1 AND delivery_id = $2 AND state = 'dead'
RETURNING true;
