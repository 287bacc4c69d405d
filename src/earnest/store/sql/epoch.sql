-- The life of the database that numbers belong to.

-- name: server_identity
-- The cluster and the timeline that it writes: a copy that was restored, and a standby that took
-- over, differ in one of the two.
SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS identity
FROM pg_control_system();

-- name: lock_setting
SELECT value FROM setting WHERE name = $1 FOR UPDATE;

-- name: change_setting
UPDATE setting SET value = $2 WHERE name = $1;
