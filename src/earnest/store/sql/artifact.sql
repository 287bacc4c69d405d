-- Artifacts, their blobs and the room of a scope. Lock order: execution, room, artifacts, blobs.

-- name: open_room
-- $1 scope.
INSERT INTO artifact_room (scope_id) VALUES ($1) ON CONFLICT (scope_id) DO NOTHING;

-- name: lock_room
-- Who holds it is the only one of us that adds or removes artifacts of the scope. $1 scope.
SELECT used_bytes, quota_bytes FROM artifact_room WHERE scope_id = $1 FOR NO KEY UPDATE;

-- name: find_room
-- $1 scope.
SELECT used_bytes, quota_bytes FROM artifact_room WHERE scope_id = $1;

-- name: list_rooms
-- By scope. $1 after this one, $2 how many.
SELECT scope_id, used_bytes, quota_bytes FROM artifact_room
WHERE scope_id > $1 ORDER BY scope_id LIMIT $2;

-- name: take_room
-- $1 scope, $2 bytes, $3 quota where the scope has none of its own. No row back: it does not fit.
UPDATE artifact_room SET used_bytes = used_bytes + $2::bigint
WHERE scope_id = $1 AND used_bytes + $2::bigint <= coalesce(quota_bytes, $3::bigint)
RETURNING used_bytes;

-- name: set_artifact_quota
-- $1 scope, $2 bytes (null: the default).
INSERT INTO artifact_room (scope_id, quota_bytes) VALUES ($1, $2)
ON CONFLICT (scope_id) DO UPDATE SET quota_bytes = excluded.quota_bytes
RETURNING used_bytes, quota_bytes;

-- name: announce_blob
-- Before its first byte is written. $1 scope, $2 blob, $3 how long nobody asks what became of it.
INSERT INTO blob (scope_id, blob_id, state, alive_until, created_at)
VALUES ($1, $2, 'arriving', clock() + $3::interval, clock())
ON CONFLICT (scope_id, blob_id) DO NOTHING;

-- name: keep_arriving
-- $1 scope, $2 blob, $3 how long. No row back: it was given up.
UPDATE blob SET alive_until = clock() + $3::interval
WHERE scope_id = $1 AND blob_id = $2 AND state = 'arriving' RETURNING blob_id;

-- name: find_content
-- $1 scope, $2 SHA-256.
SELECT blob_id FROM blob WHERE scope_id = $1 AND sha256 = $2 AND state = 'stored';

-- name: store_blob
-- $1 scope, $2 blob, $3 size, $4 SHA-256, $5 those of its pieces. No row back: it was given up.
UPDATE blob SET state = 'stored', alive_until = NULL, size = $3, sha256 = $4, pieces = $5
WHERE scope_id = $1 AND blob_id = $2 AND state = 'arriving' RETURNING blob_id;

-- name: discard_arriving
-- What an upload left that came to nothing. $1 scope, $2 blob.
UPDATE blob SET state = 'discarded', alive_until = NULL, discarded_at = clock()
WHERE scope_id = $1 AND blob_id = $2 AND state = 'arriving' RETURNING blob_id;

-- name: give_up_arriving
-- Uploads of which nothing was heard for too long. $1 how many.
WITH late AS MATERIALIZED (
    SELECT scope_id, blob_id FROM blob
    WHERE state = 'arriving' AND alive_until < (SELECT clock())
    ORDER BY alive_until LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE blob b SET state = 'discarded', alive_until = NULL, discarded_at = clock() FROM late l
WHERE b.scope_id = l.scope_id AND b.blob_id = l.blob_id AND b.state = 'arriving'
RETURNING b.scope_id, b.blob_id;

-- name: lock_blobs
-- Whoever is about to name one of them is waited for, and waits from here on. $1 scope, $2 blobs.
SELECT blob_id FROM blob WHERE scope_id = $1 AND blob_id = ANY ($2::uuid[]) AND state = 'stored'
ORDER BY blob_id FOR UPDATE;

-- name: discard_unnamed
-- A statement of its own after the lock: it sees what was committed before. $1 scope, $2 blobs.
WITH gone AS (
    UPDATE blob b SET state = 'discarded', discarded_at = clock()
    WHERE b.scope_id = $1 AND b.blob_id = ANY ($2::uuid[]) AND b.state = 'stored'
      AND NOT EXISTS (SELECT FROM artifact a WHERE a.scope_id = $1 AND a.blob_id = b.blob_id)
    RETURNING b.blob_id, b.size
), given_back AS (
    UPDATE artifact_room SET used_bytes = used_bytes - (SELECT sum(size) FROM gone)
    WHERE scope_id = $1 AND EXISTS (SELECT FROM gone)
)
SELECT blob_id FROM gone;

-- name: discarded_blobs
-- After this one, in order: those that could not be removed hold up no others. $1 scope, $2 blob,
-- $3 how many.
SELECT scope_id, blob_id FROM blob
WHERE state = 'discarded' AND (scope_id, blob_id) > ($1, $2)
ORDER BY scope_id, blob_id LIMIT $3;

-- name: forget_blobs
-- Their bytes are gone. $1 scopes, $2 blobs.
DELETE FROM blob b USING unnest($1::text[], $2::uuid[]) AS i (scope_id, blob_id)
WHERE b.scope_id = i.scope_id AND b.blob_id = i.blob_id AND b.state = 'discarded';

-- name: blob_state
-- $1 scope, $2 blob.
SELECT state FROM blob WHERE scope_id = $1 AND blob_id = $2;

-- name: known_blobs
-- Which of these are somebody's, in any state. $1 scopes, $2 blobs.
SELECT b.scope_id, b.blob_id
FROM unnest($1::text[], $2::uuid[]) AS i (scope_id, blob_id)
JOIN blob b ON b.scope_id = i.scope_id AND b.blob_id = i.blob_id;

-- name: sample_blobs
-- Some at both ends of all names. $1 how many of each.
(SELECT b.scope_id, b.blob_id, b.size FROM blob b
 WHERE b.state = 'stored' ORDER BY b.scope_id, b.blob_id LIMIT $1)
UNION
(SELECT b.scope_id, b.blob_id, b.size FROM blob b
 WHERE b.state = 'stored' ORDER BY b.scope_id DESC, b.blob_id DESC LIMIT $1);

-- name: uncollected_blobs
-- Uploads that ended in nothing, and contents that were discarded. $1 since how long.
SELECT count(*) AS blobs, extract(epoch FROM clock() - min(late_at))::float8 AS seconds FROM (
    SELECT alive_until AS late_at FROM blob
    WHERE state = 'arriving' AND alive_until < (SELECT clock() - $1::interval)
    UNION ALL
    SELECT discarded_at FROM blob
    WHERE state = 'discarded' AND discarded_at < (SELECT clock() - $1::interval)
) AS late;

-- name: put_artifact
-- $1 scope, $2 artifact, $3 blob, $4 run, $5 who brought it, $6 who owns it, $7 name, $8 media type,
-- $9 key, $10 fingerprint, $11 how long it is kept (null: as long as its run).
INSERT INTO artifact (scope_id, artifact_id, blob_id, run_id, principal_id, owner_id, name,
                      media_type, idempotency_key, fingerprint, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, clock(), clock() + $11::interval);

-- name: remember_artifact
-- $1 scope, $2 run, $3 name, $4 digest, $5 result, $6 fence. Only under the execution's lock.
INSERT INTO step (scope_id, run_id, name, kind, digest, result, fence, created_at)
VALUES ($1, $2, $3, 'step', $4, $5, $6, clock());

-- name: artifact_by_key
-- Also one that was deleted. $1 scope, $2 who brought it, $3 key.
SELECT artifact_id, fingerprint, deleted_at FROM artifact
WHERE scope_id = $1 AND principal_id = $2 AND idempotency_key = $3;

-- name: find_artifact
-- $1 scope, $2 artifact, $3 whose it must be (null: anybody's).
SELECT a.*, b.size, b.sha256 FROM artifact a JOIN blob b USING (scope_id, blob_id)
WHERE a.scope_id = $1 AND a.artifact_id = $2 AND ($3::text IS NULL OR a.owner_id = $3);

-- name: artifact_for_run
-- As a run's handler may read it: its principal's own, or any if that is an operator. $1 scope,
-- $2 artifact, $3 principal.
SELECT a.*, b.size, b.sha256 FROM artifact a JOIN blob b USING (scope_id, blob_id)
WHERE a.scope_id = $1 AND a.artifact_id = $2 AND (a.owner_id = $3 OR EXISTS (
    SELECT FROM principal p
    WHERE p.scope_id = $1 AND p.principal_id = $3 AND 'operator' = ANY (p.roles)));

-- name: artifact_content
-- $1 scope, $2 artifact.
SELECT b.blob_id, b.size, b.sha256, b.pieces FROM artifact a JOIN blob b USING (scope_id, blob_id)
WHERE a.scope_id = $1 AND a.artifact_id = $2;

-- name: list_artifacts
-- The newest first. $1 scope, $2 before this artifact (null: from the newest), $3 how many.
SELECT a.*, b.size, b.sha256 FROM artifact a JOIN blob b USING (scope_id, blob_id)
WHERE a.scope_id = $1 AND a.blob_id IS NOT NULL AND ($2::uuid IS NULL OR a.artifact_id < $2)
ORDER BY a.artifact_id DESC LIMIT $3;

-- name: list_artifacts_of_owner
-- $1 scope, $2 owner, $3 before this artifact (null: from the newest), $4 how many.
SELECT a.*, b.size, b.sha256 FROM artifact a JOIN blob b USING (scope_id, blob_id)
WHERE a.scope_id = $1 AND a.owner_id = $2 AND a.blob_id IS NOT NULL
  AND ($3::uuid IS NULL OR a.artifact_id < $3)
ORDER BY a.artifact_id DESC LIMIT $4;

-- name: list_artifacts_of_run
-- The oldest first, for whoever may see the run. $1 scope, $2 run, $3 principal that must have asked
-- for it (null: whoever did), $4 after this artifact (null: from the oldest), $5 how many.
SELECT a.*, b.size, b.sha256
FROM run r
JOIN artifact a ON a.scope_id = r.scope_id AND a.run_id = r.run_id
JOIN blob b ON b.scope_id = a.scope_id AND b.blob_id = a.blob_id
WHERE r.scope_id = $1 AND r.run_id = $2 AND ($3::text IS NULL OR r.principal_id = $3)
  AND a.blob_id IS NOT NULL AND ($4::uuid IS NULL OR a.artifact_id > $4)
ORDER BY a.artifact_id LIMIT $5;

-- name: lock_artifacts
-- $1 scope, $2 artifacts, $3 whose they must be (null: anybody's), $4 only those whose time is over.
SELECT artifact_id, blob_id, run_id FROM artifact
WHERE scope_id = $1 AND artifact_id = ANY ($2::uuid[]) AND blob_id IS NOT NULL
  AND ($3::text IS NULL OR owner_id = $3) AND (NOT $4 OR expires_at < clock())
ORDER BY artifact_id FOR UPDATE;

-- name: delete_artifacts
-- Only under their locks. $1 scope, $2 artifacts.
UPDATE artifact SET blob_id = NULL, deleted_at = clock(), expires_at = NULL
WHERE scope_id = $1 AND artifact_id = ANY ($2::uuid[]);

-- name: expired_artifacts
-- A run's not before the run has ended. $1 how many.
SELECT a.scope_id, a.artifact_id FROM artifact a
LEFT JOIN execution e ON e.scope_id = a.scope_id AND e.run_id = a.run_id
WHERE a.expires_at < (SELECT clock()) AND a.blob_id IS NOT NULL
  AND (a.run_id IS NULL OR e.finished_at IS NOT NULL)
ORDER BY a.expires_at LIMIT $1;

-- name: forget_artifacts
-- Rows of deleted artifacts, once their keys need not be known. $1 how long a key is known at least,
-- $2 how many.
WITH old AS MATERIALIZED (
    SELECT scope_id, artifact_id FROM artifact
    WHERE deleted_at IS NOT NULL
      AND (idempotency_key IS NULL OR created_at < clock() - $1::interval)
    ORDER BY deleted_at LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM artifact a USING old
WHERE a.scope_id = old.scope_id AND a.artifact_id = old.artifact_id
RETURNING a.artifact_id;
