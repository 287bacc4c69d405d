-- Scopes, principals, tokens, and small settings kept beside the facts.

-- name: put_scope
INSERT INTO scope (scope_id, created_at) VALUES ($1, clock()) ON CONFLICT DO NOTHING;

-- name: put_principal
INSERT INTO principal (scope_id, principal_id, roles, created_at) VALUES ($1, $2, $3, clock())
ON CONFLICT (scope_id, principal_id) DO UPDATE SET roles = excluded.roles;

-- name: put_token
INSERT INTO token (token_id, scope_id, principal_id, secret_hash, created_at, expires_at)
VALUES ($1, $2, $3, $4, clock(), clock() + $5::interval);

-- name: revoke_token
UPDATE token SET revoked_at = clock() WHERE token_id = $1 AND revoked_at IS NULL;

-- name: find_token
SELECT t.scope_id, t.principal_id, t.secret_hash, p.roles
FROM token t JOIN principal p USING (scope_id, principal_id)
WHERE t.token_id = $1 AND t.revoked_at IS NULL
  AND (t.expires_at IS NULL OR t.expires_at > clock());

-- name: put_setting
INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: find_setting
SELECT value FROM setting WHERE name = $1;
