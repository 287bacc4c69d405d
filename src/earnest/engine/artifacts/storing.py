"""Storing: bytes that stream in become an artifact, once for each key (P7), or nothing at all."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from datetime import timedelta

from msgspec import Struct

from earnest.domain import canonical, ids
from earnest.domain.artifact import (
    Artifact,
    Content,
    Room,
    checked_media_type,
    checked_name,
)
from earnest.domain.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
)
from earnest.engine.artifacts.arriving import Arrival, given_up
from earnest.engine.artifacts.attaching import Alone, Into
from earnest.engine.artifacts.measuring import Measure
from earnest.engine.process.engine import Engine
from earnest.engine.runs.fencing import patiently
from earnest.store import artifacts
from earnest.store.artifacts import ByKey, NewArtifact
from earnest.store.database import Tx

_LOOK_AGAIN = 60  # seconds; room comes back when something is deleted or expires
_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Upload:
    """What is brought, and by whom. `owner_id`: whose it will be, the bringer's if not said.
    `size` and `sha256` are what was announced of the bytes; `kept`: how long it is kept, if not as
    long as is usual."""

    scope_id: str
    principal_id: str
    name: str
    media_type: str
    owner_id: str | None = None
    key: str | None = None
    kept: timedelta | None = None
    size: int | None = None
    sha256: bytes | None = None


class Stored(Struct, frozen=True):
    """The artifact, and whether it was there already. `spare`: the bytes that came are not needed,
    since the scope has the same already."""

    artifact: Artifact
    replayed: bool = False
    spare: bool = False


async def store(
    engine: Engine, upload: Upload, chunks: AsyncIterable[bytes], into: Into | None = None
) -> Stored:
    """Stores what comes and makes the artifact, in its scope and, `into` one, its run. Raises
    `InvalidRequest` for what does not fit or is not what was announced, `PayloadTooLarge`,
    `QuotaExceeded`, `IdempotencyConflict`, `StorageUnavailable`; then nothing of it is there."""
    into = into or Alone()
    _check(engine, upload)
    if upload.key is not None:
        known = await artifacts.by_key(
            engine.database, upload.scope_id, upload.principal_id, upload.key
        )
        if known is not None:
            return await _compare(engine, upload, chunks, into, known)
    room = await artifacts.find_room(
        engine.database, upload.scope_id, engine.settings.artifact_quota
    )
    measure = Measure(_bound(engine, room, upload.size or 0))
    arrival = await Arrival.announce(engine, upload.scope_id)
    try:
        await arrival.write(measure.pieces(chunks))
        content = measure.content()
        _check_announced(upload, content)
        stored = await _commit(engine, upload, content, arrival, into)
    except BaseException:
        await arrival.leave()
        raise
    if stored.spare:
        await arrival.leave()
    if into.run_id is not None:
        engine.bells.moved(into.run_id)
    return stored


async def _commit(
    engine: Engine, upload: Upload, content: Content, arrival: Arrival, into: Into
) -> Stored:
    new = _new(engine, upload, content, into.run_id)
    default = engine.settings.artifact_quota

    async def work(tx: Tx) -> Stored:
        row = await into.lock(tx)
        room = await artifacts.lock_room(tx, upload.scope_id, default)
        known = await _known(tx, new)
        if known is not None:
            return known
        into.judge(row)
        blob_id = await artifacts.find_content(tx, upload.scope_id, content.sha256)
        if blob_id is None:
            if not await artifacts.store_blob(tx, arrival.key, content):
                raise given_up()
            if not await artifacts.take_room(tx, upload.scope_id, content.size, default):
                raise _no_room(room)
        await artifacts.put(tx, new, blob_id or arrival.key.blob_id)
        made = await artifacts.find(tx, upload.scope_id, new.artifact_id)
        assert made is not None, "it was made by this transaction"
        await into.tell(tx, row, made)
        return Stored(made, spare=blob_id is not None)

    return await patiently(into.waits, lambda: engine.database.promise("store", work))


async def _known(tx: Tx, new: NewArtifact) -> Stored | None:
    """What stands where `new` would: the same one after a lost reply, or the one of its key."""
    same = await artifacts.find(tx, new.scope_id, new.artifact_id)
    if same is not None:
        return Stored(same)
    if new.idempotency_key is None:
        return None
    earlier = await artifacts.by_key(tx, new.scope_id, new.principal_id, new.idempotency_key)
    if earlier is None:
        return None
    _check_same(earlier, new)
    found = await artifacts.find(tx, new.scope_id, earlier.artifact_id)
    if found is None:
        raise _deleted(earlier)
    return Stored(found, replayed=True, spare=True)


async def _compare(
    engine: Engine, upload: Upload, chunks: AsyncIterable[bytes], into: Into, known: ByKey
) -> Stored:
    """Sent again with a key that has made something: what comes is compared and not stored."""
    measure = Measure(_bound(engine, None, upload.size or 0))
    async for _ in measure.pieces(chunks):
        pass
    content = measure.content()
    _check_announced(upload, content)
    _check_same(known, _new(engine, upload, content, into.run_id))
    found = await artifacts.find(engine.database, upload.scope_id, known.artifact_id)
    if found is None:
        raise _deleted(known)
    return Stored(found, replayed=True)


def _new(engine: Engine, upload: Upload, content: Content, run_id: uuid.UUID | None) -> NewArtifact:
    asked = {
        "name": upload.name,
        "media_type": checked_media_type(upload.media_type),
        "run_id": None if run_id is None else run_id.hex,
        "kept": None if upload.kept is None else upload.kept.total_seconds(),
        "sha256": content.sha256.hex(),
    }
    usual = engine.settings.artifacts_kept if run_id is None else None
    return NewArtifact(
        scope_id=upload.scope_id,
        artifact_id=ids.new_id(),
        run_id=run_id,
        principal_id=upload.principal_id,
        owner_id=upload.owner_id or upload.principal_id,
        name=upload.name,
        media_type=checked_media_type(upload.media_type),
        idempotency_key=upload.key,
        fingerprint=canonical.digest(canonical.encode(asked)),
        kept=upload.kept or usual,
    )


def _check(engine: Engine, upload: Upload) -> None:
    checked_name(upload.name)
    checked_media_type(upload.media_type)
    if upload.kept is not None and not _SHORTEST <= upload.kept <= _LONGEST:
        raise InvalidRequest("an artifact is kept for at least a minute and at most ten years")


def _bound(engine: Engine, room: Room | None, announced: int) -> Callable[[int], None]:
    """Refuses more bytes than are taken or fit, as soon as so many were announced or have come."""
    most = engine.settings.max_artifact_bytes

    def check(size: int) -> None:
        if size > most:
            raise PayloadTooLarge(f"an artifact has at most {most} bytes; send it in parts")
        if room is not None and size > room.left:
            raise _no_room(room)

    check(announced)
    return check


def _check_announced(upload: Upload, content: Content) -> None:
    if upload.size is not None and content.size != upload.size:
        raise InvalidRequest(
            f"{upload.size} bytes were announced and {content.size} came; send it again"
        )
    if upload.sha256 is not None and content.sha256 != upload.sha256:
        raise InvalidRequest(
            "the bytes that came do not have the SHA-256 that was announced "
            f"(theirs is {content.sha256.hex()}); nothing was stored, send it again"
        )


def _check_same(known: ByKey, new: NewArtifact) -> None:
    if known.fingerprint != new.fingerprint:
        raise IdempotencyConflict(
            f"the key {new.idempotency_key!r} was used for another artifact; use a new key, or "
            "send the same bytes with the same name, type and run again",
            fields={"artifact_id": ids.show("art", known.artifact_id)},
        )


def _deleted(known: ByKey) -> Conflict:
    shown = ids.show("art", known.artifact_id)
    return Conflict(f"this key made {shown}, which was deleted since; use a new key")


def _no_room(room: Room) -> QuotaExceeded:
    return QuotaExceeded(
        f"the scope has room for {room.quota} bytes of artifacts and {room.left} are left; delete "
        "some, or ask for a larger quota",
        fields={"retry_after": _LOOK_AGAIN},
    )
