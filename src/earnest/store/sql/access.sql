-- Scopes, principals, tokens, and small settings kept beside the facts.

-- name: put_scope
-- The first one ever made is noted: it rules what all scopes share.
WITH made AS (
    INSERT INTO scope (scope_id, created_at) VALUES ($1, clock()) ON CONFLICT DO NOTHING
    RETURNING scope_id
), noted AS (
    INSERT INTO setting (name, value) SELECT 'first_scope', scope_id FROM made
    ON CONFLICT DO NOTHING
)
SELECT scope_id FROM made;

-- name: list_scopes
SELECT scope_id FROM scope ORDER BY scope_id LIMIT $1;

-- name: has_scope
-- Also one that nobody has made but in which something was done: nothing of it may be invisible.
SELECT EXISTS (SELECT FROM scope WHERE scope_id = $1)
    OR EXISTS (SELECT FROM operation WHERE scope_id = $1)
    OR EXISTS (SELECT FROM run WHERE scope_id = $1);

-- name: put_new_principal
-- Without roles, and harmless to one that is there.
INSERT INTO principal (scope_id, principal_id, roles, created_at)
VALUES ($1, $2, '{}', clock()) ON CONFLICT DO NOTHING;

-- name: put_principal
-- No row back: there is no such scope.
INSERT INTO principal (scope_id, principal_id, roles, created_at)
SELECT scope_id, $2, $3::text[], clock() FROM scope WHERE scope_id = $1
ON CONFLICT (scope_id, principal_id) DO UPDATE SET roles = excluded.roles
RETURNING principal_id;

-- name: put_token
-- $1 token, $2 scope, $3 principal, $4 digest of the text, $5 how long it is good (null: until
-- revoked). No row back: there is no such principal. The id is random, so the same id again is the
-- same token after a lost reply.
INSERT INTO token (token_id, scope_id, principal_id, secret_hash, created_at, expires_at)
SELECT $1, scope_id, principal_id, $4, clock(), clock() + $5::interval
FROM principal WHERE scope_id = $2 AND principal_id = $3
ON CONFLICT (token_id) DO UPDATE SET secret_hash = token.secret_hash
RETURNING token_id;

-- name: revoke_token
-- $1 scope, $2 token. A row back: it is revoked, now or before.
UPDATE token SET revoked_at = coalesce(revoked_at, clock())
WHERE scope_id = $1 AND token_id = $2
RETURNING token_id;

-- name: find_token
-- `remaining` is null for a token without expiry, else how many seconds it is still good.
SELECT t.scope_id, t.principal_id, t.secret_hash, p.roles,
       extract(epoch FROM t.expires_at - clock())::float8 AS remaining,
       EXISTS (SELECT FROM setting WHERE name = 'first_scope' AND value = t.scope_id)
           AS of_first_scope
FROM token t JOIN principal p USING (scope_id, principal_id)
WHERE t.token_id = $1 AND t.revoked_at IS NULL AND p.disabled_at IS NULL
  AND (t.expires_at IS NULL OR t.expires_at > clock());

-- name: put_setting
INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: find_setting
SELECT value FROM setting WHERE name = $1;
