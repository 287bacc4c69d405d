-- Scopes, principals, tokens, and small settings kept beside the facts.

-- name: put_scope
-- $1 scope, $2 who makes it, $3 key and $4 fingerprint or null. No row back: it was there, or the
-- key is used. The first scope ever made is noted: it rules what all scopes share.
WITH made AS (
    INSERT INTO scope (scope_id, created_at, created_by, idempotency_key, fingerprint)
    VALUES ($1, clock(), $2, $3, $4) ON CONFLICT DO NOTHING
    RETURNING scope_id, created_by, created_at
), noted AS (
    INSERT INTO setting (name, value) SELECT 'first_scope', scope_id FROM made
    ON CONFLICT DO NOTHING
)
SELECT scope_id, created_by, created_at FROM made;

-- name: find_scope_by_key
-- $1 who made it, $2 key.
SELECT scope_id, created_by, created_at, fingerprint FROM scope
WHERE created_by = $1 AND idempotency_key = $2;

-- name: visible_scopes
-- $1 the scope from which it is asked (null: by whoever opened the database), $2 after which scope
-- (null: from the start), $3 how many. Those of any scope but the first one see none.
SELECT scope_id, created_by, created_at FROM scope
WHERE ($1::text IS NULL
       OR EXISTS (SELECT FROM setting WHERE name = 'first_scope' AND value = $1))
  AND ($2::text IS NULL OR scope_id > $2)
ORDER BY scope_id LIMIT $3;

-- name: lock_scope
-- Whoever changes who rules a scope does so one after the other. Its members' rows may still be
-- made meanwhile.
SELECT scope_id FROM scope WHERE scope_id = $1 FOR NO KEY UPDATE;

-- name: list_scopes
SELECT scope_id FROM scope ORDER BY scope_id LIMIT $1;

-- name: has_scope
-- Also one that nobody has made but in which something was done: nothing of it may be invisible.
SELECT EXISTS (SELECT FROM scope WHERE scope_id = $1)
    OR EXISTS (SELECT FROM operation WHERE scope_id = $1)
    OR EXISTS (SELECT FROM run WHERE scope_id = $1);

-- name: put_new_principal
-- Without roles, and harmless to one that is there: then no row comes back.
INSERT INTO principal (scope_id, principal_id, roles, created_at)
VALUES ($1, $2, '{}', clock()) ON CONFLICT DO NOTHING RETURNING principal_id;

-- name: put_principal
-- $1 scope (locked), $2 principal, $3 roles, $4 whether it is disabled.
INSERT INTO principal (scope_id, principal_id, roles, created_at, disabled_at)
VALUES ($1, $2, $3::text[], clock(), CASE WHEN $4 THEN clock() END)
ON CONFLICT (scope_id, principal_id) DO UPDATE
SET roles = excluded.roles, disabled_at = excluded.disabled_at, version = principal.version + 1
RETURNING principal_id, roles, version, created_at, disabled_at;

-- name: find_principal
-- $1 scope, $2 principal.
SELECT principal_id, roles, version, created_at, disabled_at FROM principal
WHERE scope_id = $1 AND principal_id = $2;

-- name: list_principals
-- $1 scope, $2 after which one (null: from the start), $3 how many.
SELECT principal_id, roles, version, created_at, disabled_at FROM principal
WHERE scope_id = $1 AND ($2::text IS NULL OR principal_id > $2)
ORDER BY principal_id LIMIT $3;

-- name: has_other_admin
-- $1 scope (locked), $2 principal: whether anybody else is an admin.
SELECT EXISTS (SELECT FROM principal
               WHERE scope_id = $1 AND principal_id <> $2 AND 'admin' = ANY (roles));

-- name: put_token
-- $1 token, $2 scope, $3 principal, $4 digest of the text, $5 how long or $6 until when it is good
-- (both null: until revoked), $7 name, $8 who makes it, $9 the token that it replaces, $10 key and
-- $11 fingerprint or null. No row back: there is no such principal, or it is disabled, or the key is
-- used, or the token that it replaces has a successor.
INSERT INTO token (token_id, scope_id, principal_id, secret_hash, created_at, expires_at, name,
                   created_by, replaces, idempotency_key, fingerprint)
SELECT $1, scope_id, principal_id, $4, clock(), coalesce($6::timestamptz, clock() + $5::interval),
       $7, $8, $9, $10, $11
FROM principal WHERE scope_id = $2 AND principal_id = $3 AND disabled_at IS NULL
ON CONFLICT DO NOTHING
RETURNING token_id;

-- name: visible_token
-- $1 scope, $2 token. Nobody reads its digest here.
SELECT t.token_id, t.principal_id, p.roles, t.name, t.created_by, t.created_at, t.expires_at,
       t.revoked_at, t.used_on, t.replaces
FROM token t JOIN principal p USING (scope_id, principal_id)
WHERE t.scope_id = $1 AND t.token_id = $2;

-- name: list_tokens
-- $1 scope, $2 principal or null, $3 whether only those that open something, $4 before this instant
-- and $5 id (null: from the newest), $6 how many.
SELECT t.token_id, t.principal_id, p.roles, t.name, t.created_by, t.created_at, t.expires_at,
       t.revoked_at, t.used_on, t.replaces
FROM token t JOIN principal p USING (scope_id, principal_id)
WHERE t.scope_id = $1 AND ($2::text IS NULL OR t.principal_id = $2)
  AND (NOT $3 OR (t.revoked_at IS NULL AND p.disabled_at IS NULL
                  AND (t.expires_at IS NULL OR t.expires_at > clock())))
  AND ($4::timestamptz IS NULL OR (t.created_at, t.token_id) < ($4, $5))
ORDER BY t.created_at DESC, t.token_id DESC LIMIT $6;

-- name: lock_token
-- $1 scope, $2 token; whether it opens something, and the span for which it was made.
SELECT t.principal_id, t.name, t.expires_at - t.created_at AS lifetime,
       t.revoked_at IS NULL AND p.disabled_at IS NULL
       AND (t.expires_at IS NULL OR t.expires_at > clock()) AS live
FROM token t JOIN principal p USING (scope_id, principal_id)
WHERE t.scope_id = $1 AND t.token_id = $2 FOR UPDATE OF t;

-- name: find_token_by_key
-- $1 scope, $2 who made it, $3 key.
SELECT token_id, fingerprint FROM token
WHERE scope_id = $1 AND created_by = $2 AND idempotency_key = $3;

-- name: find_successor
-- $1 scope, $2 token.
SELECT token_id FROM token WHERE scope_id = $1 AND replaces = $2;

-- name: end_token
-- $1 scope, $2 token, $3 after how long: what was to end sooner still does.
UPDATE token SET expires_at = least(expires_at, clock() + $3::interval)
WHERE scope_id = $1 AND token_id = $2;

-- name: revoke_token
-- $1 scope, $2 token. No row back: it was revoked before.
UPDATE token SET revoked_at = clock()
WHERE scope_id = $1 AND token_id = $2 AND revoked_at IS NULL
RETURNING token_id;

-- name: has_other_admin_token
-- $1 scope (locked), $2 token: whether any other token opens the scope to an admin.
SELECT EXISTS (
    SELECT FROM token t JOIN principal p USING (scope_id, principal_id)
    WHERE t.scope_id = $1 AND t.token_id <> $2 AND 'admin' = ANY (p.roles)
      AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock())
);

-- name: note_use_of_token
-- $1 token. The day is enough, so that a busy token costs one write a day.
UPDATE token SET used_on = clock()::date
WHERE token_id = $1 AND used_on IS DISTINCT FROM clock()::date;

-- name: find_token
-- `remaining` is null for a token without expiry, else how many seconds it is still good.
SELECT t.scope_id, t.principal_id, t.secret_hash, p.roles,
       extract(epoch FROM t.expires_at - clock())::float8 AS remaining,
       EXISTS (SELECT FROM setting WHERE name = 'first_scope' AND value = t.scope_id)
           AS of_first_scope,
       t.used_on IS DISTINCT FROM clock()::date AS first_use_today
FROM token t JOIN principal p USING (scope_id, principal_id)
WHERE t.token_id = $1 AND t.revoked_at IS NULL AND p.disabled_at IS NULL
  AND (t.expires_at IS NULL OR t.expires_at > clock());

-- name: put_setting
INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: find_setting
SELECT value FROM setting WHERE name = $1;
