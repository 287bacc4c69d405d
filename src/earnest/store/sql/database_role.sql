-- As whom database roles submit from SQL.

-- name: map_role
SELECT map_role($1, $2, $3);

-- name: unmap_role
-- $1 role, $2 scope. What the role was granted stays: without a mapping it opens nothing.
DELETE FROM database_role WHERE role_name = $1 AND scope_id = $2 RETURNING role_name;

-- name: list_mapped_roles
SELECT role_name, principal_id FROM database_role WHERE scope_id = $1 ORDER BY role_name;
