-- Messages from outside: who may send them, and which were handled.

-- name: put_source
-- $1 scope, $2 name, $3 handler, $4 sealed secret, $5 who. Nothing if the name is taken in any scope.
INSERT INTO inbox_source (scope_id, name, handler, secret, created_by, created_at)
VALUES ($1, $2, $3, $4, $5, clock())
ON CONFLICT DO NOTHING
RETURNING *;

-- name: source_by_name
-- Whose is it? The door knows only the name. $1 name.
SELECT *, secret || ARRAY(
    SELECT o.secret FROM unnest(old_secrets, old_until) AS o (secret, until)
    WHERE o.until > (SELECT clock())) AS secrets
FROM inbox_source WHERE name = $1;

-- name: list_sources
-- $1 scope, $2 after which name, $3 how many.
SELECT * FROM inbox_source WHERE scope_id = $1 AND ($2::text IS NULL OR name > $2)
ORDER BY name LIMIT $3;

-- name: rotate_source_secret
-- $1 scope, $2 name, $3 the new sealed secret, $4 how long the one before is taken, too, as
-- in `rotate_sink_secret`.
UPDATE inbox_source
SET old_secrets = CASE WHEN $4::interval > '0' THEN secret || ARRAY(
        SELECT o.secret FROM unnest(old_secrets, old_until) WITH ORDINALITY AS o (secret, until, nth)
        WHERE o.until > clock() ORDER BY o.nth LIMIT 3) ELSE '{}' END,
    old_until = CASE WHEN $4::interval > '0' THEN clock() + $4 || ARRAY(
        SELECT o.until FROM unnest(old_secrets, old_until) WITH ORDINALITY AS o (secret, until, nth)
        WHERE o.until > clock() ORDER BY o.nth LIMIT 3) ELSE '{}' END,
    secret = $3, version = version + 1
WHERE scope_id = $1 AND name = $2
RETURNING *;

-- name: remove_source
-- $1 scope, $2 name.
DELETE FROM inbox_source WHERE scope_id = $1 AND name = $2 RETURNING true;

-- name: enter_message
-- The proof that a message is handled, before it is: who comes second waits here for the first, and
-- finds it there. $1 scope, $2 source, $3 message.
INSERT INTO inbox_entry (scope_id, source, message_id, outcome, received_at)
VALUES ($1, $2, $3, '{}', clock())
ON CONFLICT DO NOTHING
RETURNING true;

-- name: note_outcome
-- $1 scope, $2 source, $3 message, $4 what came of it.
UPDATE inbox_entry SET outcome = $4 WHERE scope_id = $1 AND source = $2 AND message_id = $3;

-- name: find_entry
-- $1 scope, $2 source, $3 message.
SELECT outcome, received_at FROM inbox_entry
WHERE scope_id = $1 AND source = $2 AND message_id = $3;

-- name: prune_entries
-- What was handled longer than $1 ago, the oldest $2.
WITH old AS MATERIALIZED (
    SELECT scope_id, source, message_id FROM inbox_entry
    WHERE received_at < (SELECT clock()) - $1::interval
    ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM inbox_entry e USING old
WHERE e.scope_id = old.scope_id AND e.source = old.source AND e.message_id = old.message_id
RETURNING true;

-- name: source_sealed_with
-- Whether a change whose reply was lost was made. $1 scope, $2 name, $3 sealed secret.
SELECT * FROM inbox_source WHERE scope_id = $1 AND name = $2 AND secret = $3;
