-- The audit: one row for each thing that somebody decided or changed.

-- name: put_audit
-- $1 scope, $2 id, $3 principal, $4 token or null, $5 action, $6 subject, $7 detail, $8 request or
-- null.
INSERT INTO audit (scope_id, audit_id, principal_id, token_id, action, subject, detail, request_id,
                   created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock());

-- name: list_audit
-- $1 scope, $2 action, $3 subject, $4 principal, $5 from and $6 before which instant (null: any),
-- $7 before which id (null: from the newest), $8 how many.
SELECT audit_id, principal_id, token_id, action, subject, detail, request_id, created_at
FROM audit
WHERE scope_id = $1
  AND ($2::text IS NULL OR action = $2)
  AND ($3::text IS NULL OR subject = $3)
  AND ($4::text IS NULL OR principal_id = $4)
  AND ($5::timestamptz IS NULL OR created_at >= $5)
  AND ($6::timestamptz IS NULL OR created_at < $6)
  AND ($7::uuid IS NULL OR audit_id < $7)
ORDER BY audit_id DESC LIMIT $8;
