"""Artifacts, blobs and the room of a scope as rows.

Whoever adds or removes artifacts locks the scope's room first (`lock_room`); what is read after
that about the scope's blobs holds until the commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from earnest.domain.artifact import DEFAULT_QUOTA, Artifact, BlobKey, BlobState, Content, Room
from earnest.store.database import Database, Record, Tx
from earnest.store.statements import sql
from earnest.store.visible import Sight

_FIRST = uuid.UUID(int=0)


class NewArtifact(Struct, frozen=True):
    """An artifact about to be made. `kept`: `None` as long as its run."""

    scope_id: str
    artifact_id: uuid.UUID
    run_id: uuid.UUID | None
    principal_id: str
    owner_id: str
    name: str
    media_type: str
    idempotency_key: str | None
    fingerprint: bytes
    kept: timedelta | None


class ByKey(Struct, frozen=True):
    """What a key made."""

    artifact_id: uuid.UUID
    fingerprint: bytes
    deleted: bool


class Doomed(Struct, frozen=True):
    """An artifact that is about to be deleted."""

    artifact_id: uuid.UUID
    blob_id: uuid.UUID


# ---- room --------------------------------------------------------------------------------------


async def lock_room(tx: Tx, scope_id: str, default: int = DEFAULT_QUOTA) -> Room:
    """The scope's room, locked until the end of the transaction."""
    await tx.execute(sql("open_room"), scope_id)
    return _as_room(await tx.fetchrow(sql("lock_room"), scope_id), default)


async def find_room(database: Database, scope_id: str, default: int = DEFAULT_QUOTA) -> Room:
    return _as_room(await database.fetchrow("find_room", scope_id), default)


async def rooms(
    database: Database, after: str, limit: int, default: int = DEFAULT_QUOTA
) -> list[tuple[str, Room]]:
    """The rooms of scopes that ever had an artifact or a quota, by scope."""
    rows = await database.fetch("list_rooms", after, limit)
    return [(row["scope_id"], _as_room(row, default)) for row in rows]


async def take_room(tx: Tx, scope_id: str, size: int, default: int = DEFAULT_QUOTA) -> bool:
    """False where so many bytes more would pass the quota; then nothing is changed."""
    return await tx.fetchval(sql("take_room"), scope_id, size, default) is not None


async def set_quota(tx: Tx, scope_id: str, quota: int | None, default: int = DEFAULT_QUOTA) -> Room:
    return _as_room(await tx.fetchrow(sql("set_artifact_quota"), scope_id, quota), default)


def _as_room(row: Record | None, default: int) -> Room:
    if row is None:
        return Room(0, default, given=False)
    quota = row["quota_bytes"]
    return Room(row["used_bytes"], default if quota is None else quota, quota is not None)


# ---- blobs -------------------------------------------------------------------------------------


async def announce(tx: Tx, key: BlobKey, alive: timedelta) -> None:
    """From now on the name is taken, and for so long nobody asks what became of it."""
    await tx.execute(sql("announce_blob"), key.scope_id, key.blob_id, alive)


async def keep_arriving(tx: Tx, key: BlobKey, alive: timedelta) -> bool:
    """False when it was given up."""
    return await tx.fetchval(sql("keep_arriving"), key.scope_id, key.blob_id, alive) is not None


async def find_content(tx: Tx, scope_id: str, sha256: bytes) -> uuid.UUID | None:
    """The blob of these bytes; only under the room's lock."""
    found: uuid.UUID | None = await tx.fetchval(sql("find_content"), scope_id, sha256)
    return found


async def store_blob(tx: Tx, key: BlobKey, content: Content) -> bool:
    """Its bytes are all there. False when it was given up before."""
    stored = await tx.fetchval(
        sql("store_blob"),
        key.scope_id,
        key.blob_id,
        content.size,
        content.sha256,
        content.pieces,
    )
    return stored is not None


async def discard_arriving(tx: Tx, key: BlobKey) -> bool:
    return await tx.fetchval(sql("discard_arriving"), key.scope_id, key.blob_id) is not None


async def give_up_arriving(tx: Tx, limit: int) -> int:
    return len(await tx.fetch(sql("give_up_arriving"), limit))


async def discard_unnamed(tx: Tx, scope_id: str, blob_ids: Sequence[uuid.UUID]) -> list[BlobKey]:
    """Discards those that no artifact names, and gives their room back. Only under the room's lock;
    whoever else is about to name one of them is waited for."""
    rows = await tx.fetch(sql("lock_blobs"), scope_id, blob_ids)
    locked = [row["blob_id"] for row in rows]
    gone = await tx.fetch(sql("discard_unnamed"), scope_id, locked) if locked else []
    return [BlobKey(scope_id, row["blob_id"]) for row in gone]


async def discarded(database: Database, after: BlobKey | None, limit: int) -> list[BlobKey]:
    scope_id, blob_id = ("", _FIRST) if after is None else (after.scope_id, after.blob_id)
    rows = await database.fetch("discarded_blobs", scope_id, blob_id, limit)
    return [_as_key(row) for row in rows]


async def forget_blobs(tx: Tx, keys: Sequence[BlobKey]) -> None:
    """Their bytes are gone; their names are never given again."""
    await tx.execute(sql("forget_blobs"), *_columns(keys))


async def is_stored(database: Database, key: BlobKey) -> bool:
    row = await database.fetchrow("blob_state", key.scope_id, key.blob_id)
    return row is not None and row["state"] == BlobState.STORED


async def known(database: Database, keys: Sequence[BlobKey]) -> set[BlobKey]:
    """Those that are somebody's: arriving, stored, or discarded and to be removed in their turn."""
    return {_as_key(row) for row in await database.fetch("known_blobs", *_columns(keys))}


async def sample(database: Database, limit: int) -> list[tuple[BlobKey, int]]:
    """Some of the blobs that artifacts name, with their sizes."""
    rows = await database.fetch("sample_blobs", limit)
    return [(_as_key(row), row["size"]) for row in rows]


def _columns(keys: Sequence[BlobKey]) -> tuple[list[str], list[uuid.UUID]]:
    return [key.scope_id for key in keys], [key.blob_id for key in keys]


def _as_key(row: Record) -> BlobKey:
    return BlobKey(row["scope_id"], row["blob_id"])


# ---- artifacts ---------------------------------------------------------------------------------


async def put(tx: Tx, new: NewArtifact, blob_id: uuid.UUID) -> None:
    await tx.execute(
        sql("put_artifact"),
        new.scope_id,
        new.artifact_id,
        blob_id,
        new.run_id,
        new.principal_id,
        new.owner_id,
        new.name,
        new.media_type,
        new.idempotency_key,
        new.fingerprint,
        new.kept,
    )


async def remember(
    tx: Tx,
    scope_id: str,
    run_id: uuid.UUID,
    name: str,
    digest: bytes,
    result: bytes,
    fence: int,
) -> None:
    """Remembers in its run what was made, under a name that no step can have; only under the
    execution's lock."""
    await tx.execute(sql("remember_artifact"), scope_id, run_id, name, digest, result, fence)


async def by_key(source: Tx | Database, scope_id: str, principal_id: str, key: str) -> ByKey | None:
    asked = (scope_id, principal_id, key)
    if isinstance(source, Database):
        row = await source.fetchrow("artifact_by_key", *asked)
    else:
        row = await source.fetchrow(sql("artifact_by_key"), *asked)
    if row is None:
        return None
    return ByKey(row["artifact_id"], row["fingerprint"], row["deleted_at"] is not None)


async def find(
    source: Tx | Database, scope_id: str, artifact_id: uuid.UUID, owned_by: str | None = None
) -> Artifact | None:
    """The artifact unless it was deleted; `owned_by`: whose it must be, `None` anybody's."""
    asked = (scope_id, artifact_id, owned_by)
    if isinstance(source, Database):
        row = await source.fetchrow("find_artifact", *asked)
    else:
        row = await source.fetchrow(sql("find_artifact"), *asked)
    return None if row is None else _as_artifact(row)


async def find_for_run(
    database: Database, scope_id: str, artifact_id: uuid.UUID, principal_id: str
) -> Artifact | None:
    row = await database.fetchrow("artifact_for_run", scope_id, artifact_id, principal_id)
    return None if row is None else _as_artifact(row)


async def content(
    database: Database, scope_id: str, artifact_id: uuid.UUID
) -> tuple[BlobKey, Content] | None:
    row = await database.fetchrow("artifact_content", scope_id, artifact_id)
    if row is None:
        return None
    return BlobKey(scope_id, row["blob_id"]), Content(row["size"], row["sha256"], row["pieces"])


async def listed(
    database: Database,
    scope_id: str,
    owned_by: str | None,
    before: uuid.UUID | None,
    limit: int,
) -> list[Artifact]:
    """A page, the newest first."""
    if owned_by is None:
        rows = await database.fetch("list_artifacts", scope_id, before, limit)
    else:
        rows = await database.fetch("list_artifacts_of_owner", scope_id, owned_by, before, limit)
    return [_as_artifact(row) for row in rows]


async def of_run(
    database: Database, sight: Sight, after: uuid.UUID | None, limit: int
) -> list[Artifact]:
    """A page of a run's, the oldest first; who may not see the run finds none."""
    rows = await database.fetch(
        "list_artifacts_of_run", sight.scope_id, sight.run_id, sight.asked_by, after, limit
    )
    return [_as_artifact(row) for row in rows]


async def lock_doomed(
    tx: Tx,
    scope_id: str,
    artifact_ids: Sequence[uuid.UUID],
    owned_by: str | None = None,
    *,
    only_expired: bool = False,
) -> list[Doomed]:
    """Those that are there (and whose time is over), locked."""
    rows = await tx.fetch(sql("lock_artifacts"), scope_id, artifact_ids, owned_by, only_expired)
    return [Doomed(row["artifact_id"], row["blob_id"]) for row in rows]


async def delete(tx: Tx, scope_id: str, doomed: Sequence[Doomed]) -> list[BlobKey]:
    """Deletes locked artifacts; returns the blobs that nobody names any more."""
    await tx.execute(sql("delete_artifacts"), scope_id, [one.artifact_id for one in doomed])
    return await discard_unnamed(tx, scope_id, sorted({one.blob_id for one in doomed}))


async def expired(database: Database, limit: int) -> list[tuple[str, uuid.UUID]]:
    rows = await database.fetch("expired_artifacts", limit)
    return [(row["scope_id"], row["artifact_id"]) for row in rows]


async def forget(tx: Tx, key_kept: timedelta, limit: int) -> int:
    """Removes the rows of deleted artifacts whose keys need not be known any more."""
    return len(await tx.fetch(sql("forget_artifacts"), key_kept, limit))


def _as_artifact(row: Record) -> Artifact:
    return Artifact(
        scope_id=row["scope_id"],
        artifact_id=row["artifact_id"],
        run_id=row["run_id"],
        principal_id=row["principal_id"],
        owner_id=row["owner_id"],
        name=row["name"],
        media_type=row["media_type"],
        size=row["size"],
        sha256=row["sha256"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
