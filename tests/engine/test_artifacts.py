"""Files and their content: once for each scope, within its room, whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from earnest.domain.artifact import PIECE_BYTES
from earnest.domain.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    SettingInvalid,
)
from earnest.engine.artifacts import quotas, reading, removing, storing
from earnest.engine.artifacts.reading import ArtifactDamaged
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.engine.process.scopes import ensure_scope
from earnest.store import artifacts
from earnest.store.blobs_folder import FolderBlobs
from earnest.store.database import Database
from earnest.testing.clock import ManualClock
from tests.engine.filing import DATA, SCOPE, blobs, chunks, files, read, stored, upload, used


@pytest.fixture
def place(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "artifacts")


@pytest.fixture
def engine(make_engine: Callable[..., Engine], place: FolderBlobs) -> Engine:
    made = make_engine()
    made.blobs = place
    return made


def limited(engine: Engine, **changed: Any) -> Engine:
    engine.settings = replace(engine.settings, **changed)
    return engine


# ---- content -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3_000_000])
async def test_bytes_come_back_as_they_were_brought(engine: Engine, size: int) -> None:
    data = os.urandom(size)
    made = await stored(engine, data)
    assert (made.size, made.sha256) == (size, hashlib.sha256(data).digest())
    assert await read(engine, made) == data


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (5, PIECE_BYTES), (PIECE_BYTES - 1, PIECE_BYTES + 1), (PIECE_BYTES, None), (9, 9)],
)
async def test_any_part_of_them_can_be_read(engine: Engine, start: int, end: int | None) -> None:
    made = await stored(engine)
    assert await read(engine, made, start, end) == DATA[start:end]


async def test_equal_bytes_are_stored_once_in_a_scope_and_apart_between_scopes(
    engine: Engine, place: FolderBlobs
) -> None:
    """P12: what another scope has changes nothing here, neither its time nor its room."""
    first, second = (
        await stored(engine),
        await stored(engine, name="other name", principal_id="bob"),
    )
    assert first.artifact_id != second.artifact_id
    assert len(files(place)) == 1
    assert await used(engine) == len(DATA)
    elsewhere = await stored(engine, scope_id="other")
    assert len(files(place)) == 2
    assert await used(engine, "other") == len(DATA)
    await removing.delete(engine, local(SCOPE), first.artifact_id)
    assert await read(engine, second) == DATA
    await removing.delete(engine, local(SCOPE), second.artifact_id)
    assert await used(engine) == 0
    assert await read(engine, elsewhere) == DATA


async def test_bytes_that_rotted_are_not_handed_out(engine: Engine, place: FolderBlobs) -> None:
    made = await stored(engine)
    (file,) = files(place)
    rotten = bytearray(DATA)
    rotten[PIECE_BYTES + 7] ^= 1
    file.write_bytes(rotten)
    opened = await reading.open_artifact(engine, made)
    stream = opened.stream()
    assert await anext(stream) == DATA[:PIECE_BYTES]
    with pytest.raises(ArtifactDamaged, match="has changed"):
        await anext(stream)
    assert await read(engine, made, 0, 100) == DATA[:100]


@pytest.mark.parametrize("left", [0, 5, PIECE_BYTES, 2 * PIECE_BYTES])
async def test_bytes_that_are_cut_off_are_told(
    engine: Engine, place: FolderBlobs, left: int
) -> None:
    made = await stored(engine)
    (file,) = files(place)
    os.truncate(file, left)
    with pytest.raises(ArtifactDamaged):
        await read(engine, made)


async def test_bytes_that_are_gone_are_told(engine: Engine, place: FolderBlobs) -> None:
    made = await stored(engine)
    files(place)[0].unlink()
    with pytest.raises(ArtifactDamaged, match="is not in"):
        await read(engine, made)


async def test_a_reader_of_a_deleted_artifact_is_told_that_it_was_deleted(engine: Engine) -> None:
    made = await stored(engine)
    opened = await reading.open_artifact(engine, made)
    await removing.delete(engine, local(SCOPE), made.artifact_id)
    with pytest.raises(NotFound):
        await opened.read()


async def test_files_are_their_owners_alone(engine: Engine, place: FolderBlobs) -> None:
    await stored(engine)
    (file,) = files(place)
    assert file.stat().st_mode & 0o777 == 0o600
    for folder in (place.root, file.parent, file.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


# ---- keys --------------------------------------------------------------------------------------


async def test_the_same_key_and_request_is_the_same_artifact(
    engine: Engine, place: FolderBlobs
) -> None:
    """P7."""
    first = await storing.store(engine, upload(key="k"), chunks())
    again = await storing.store(engine, upload(key="k"), chunks(size=9))
    assert (first.replayed, again.replayed) == (False, True)
    assert again.artifact == first.artifact
    for other in (upload(key="k", name="x"), upload(key="k", media_type="a/b")):
        with pytest.raises(IdempotencyConflict):
            await storing.store(engine, other, chunks())
    with pytest.raises(IdempotencyConflict):
        await storing.store(engine, upload(key="k"), chunks(b"other bytes"))
    someone = await storing.store(engine, upload(key="k", principal_id="bob"), chunks(b"his"))
    assert not someone.replayed
    assert len(files(place)) == 2


async def test_many_at_once_with_one_key_make_one_artifact(
    engine: Engine, place: FolderBlobs
) -> None:
    """P7."""
    all_stored = await asyncio.gather(
        *(storing.store(engine, upload(key="k"), chunks()) for _ in range(8))
    )
    assert len({one.artifact.artifact_id for one in all_stored}) == 1
    assert sum(not one.replayed for one in all_stored) == 1
    assert len(files(place)) == 1
    assert await blobs(engine) == {"stored": 1}


async def test_a_key_is_known_for_a_day_though_its_artifact_was_deleted(
    engine: Engine, clock: ManualClock
) -> None:
    made = await stored(engine, key="k")
    await removing.delete(engine, local(SCOPE), made.artifact_id)
    with pytest.raises(Conflict, match="deleted since"):
        await storing.store(engine, upload(key="k"), chunks())
    await removing.collect(engine)
    with pytest.raises(Conflict, match="deleted since"):
        await storing.store(engine, upload(key="k"), chunks())
    await clock.advance(seconds=24 * 3600 + 1)
    await removing.collect(engine)
    assert not (await storing.store(engine, upload(key="k"), chunks())).replayed


# ---- what is refused leaves nothing ------------------------------------------------------------


async def broken_off() -> AsyncIterator[bytes]:
    yield DATA
    raise ConnectionResetError("the caller is gone")


REFUSED: dict[str, tuple[dict[str, Any], Callable[[], AsyncIterator[bytes]], type[Exception]]] = {
    "broken off": ({}, broken_off, ConnectionResetError),
    "other digest": ({"sha256": bytes(32)}, chunks, InvalidRequest),
    "other size": ({"size": 5}, chunks, InvalidRequest),
    "too large": ({}, lambda: chunks(bytes(4_000_001)), PayloadTooLarge),
    "no room": ({"scope_id": "tight"}, chunks, QuotaExceeded),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_leaves_nothing(
    engine: Engine, place: FolderBlobs, case: str
) -> None:
    more, source, error = REFUSED[case]
    limited(engine, max_artifact_bytes=4_000_000)
    async with engine.database.connection() as tx:
        await artifacts.set_quota(tx, "tight", 1_500_000)
    with pytest.raises(error):
        await storing.store(engine, upload(**more), source())
    assert files(place) == []
    assert await blobs(engine) == {}
    assert await used(engine) == 0


async def test_what_is_announced_too_large_is_refused_before_it_comes(engine: Engine) -> None:
    async def never() -> AsyncIterator[bytes]:
        asked.append(True)
        yield b""

    asked: list[bool] = []

    limited(engine, max_artifact_bytes=10)
    with pytest.raises(PayloadTooLarge):
        await storing.store(engine, upload(size=11), never())
    limited(engine, max_artifact_bytes=100, artifact_quota=10)
    with pytest.raises(QuotaExceeded) as refusal:
        await storing.store(engine, upload(size=11), never())
    assert refusal.value.fields["retry_after"] > 0
    assert not asked


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\\b", "x" * 256, "a\x00b", "line\nbreak"])
async def test_a_name_that_is_no_name_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await storing.store(engine, upload(name=name), chunks())


@pytest.mark.parametrize("media_type", ["", "text", "a/b c", "a/b\r\nX: y", "a/b;q", "é/b"])
async def test_a_media_type_that_is_none_is_refused(engine: Engine, media_type: str) -> None:
    with pytest.raises(InvalidRequest):
        await storing.store(engine, upload(media_type=media_type), chunks())


# ---- room --------------------------------------------------------------------------------------


async def test_eight_at_once_do_not_pass_the_quota_together(
    engine: Engine, place: FolderBlobs
) -> None:
    limited(engine, artifact_quota=3 * 1000 + 999)
    tries = await asyncio.gather(
        *(stored(engine, os.urandom(1000)) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(one, QuotaExceeded) for one in tries) == 5
    assert sum(not isinstance(one, BaseException) for one in tries) == 3
    assert await used(engine) == 3000
    assert len(files(place)) == 3


async def test_a_replay_needs_no_room(engine: Engine) -> None:
    limited(engine, artifact_quota=len(DATA))
    first = await storing.store(engine, upload(key="k"), chunks())
    again = await storing.store(engine, upload(key="k"), chunks())
    assert again.replayed
    assert again.artifact == first.artifact


async def test_room_is_free_at_once_when_the_last_artifact_of_it_is_deleted(
    engine: Engine, place: FolderBlobs
) -> None:
    limited(engine, artifact_quota=len(DATA) + 5)
    made = await stored(engine)
    with pytest.raises(QuotaExceeded):
        await stored(engine, b"no room")
    await removing.delete(engine, local(SCOPE), made.artifact_id)
    assert files(place) == []
    await stored(engine, b"now there is")


async def test_only_the_first_scopes_admins_set_a_quota(engine: Engine) -> None:
    """P12: a scope does not give itself more."""
    await ensure_scope(engine, SCOPE)
    room = await quotas.set_quota(engine, local(SCOPE), SCOPE, 5)
    assert (room.quota, room.given) == (5, True)
    with pytest.raises(QuotaExceeded):
        await stored(engine, b"123456")
    assert not (await quotas.set_quota(engine, local(SCOPE), SCOPE, None)).given
    await stored(engine, b"123456")
    with pytest.raises(NotFound):
        await quotas.set_quota(engine, local(SCOPE), "nowhere", 5)


# ---- expiry ------------------------------------------------------------------------------------


async def test_an_artifact_of_no_run_ends_with_its_time(
    engine: Engine, place: FolderBlobs, clock: ManualClock
) -> None:
    short = await stored(engine, kept=timedelta(minutes=5))
    usual = await stored(engine, b"usual")
    await clock.advance(seconds=301)
    assert await removing.expire(engine) == 1
    await removing.collect(engine)
    assert await artifacts.find(engine.database, SCOPE, short.artifact_id) is None
    assert len(files(place)) == 1
    assert await used(engine) == 5
    await clock.advance(seconds=31 * 24 * 3600)
    assert await removing.expire(engine) == 1
    await removing.collect(engine)
    assert files(place) == []
    assert await artifacts.find(engine.database, SCOPE, usual.artifact_id) is None


# ---- bytes that nobody knows -------------------------------------------------------------------


async def test_bytes_that_the_database_does_not_know_are_found_and_only_they(
    engine: Engine, place: FolderBlobs, database: Database
) -> None:
    """As after the database was restored to an earlier moment."""
    kept, lost = await stored(engine), await stored(engine, b"lost")
    async with database.connection() as tx:
        await tx.execute("DELETE FROM artifact WHERE artifact_id = $1", lost.artifact_id)
        await tx.execute("DELETE FROM blob WHERE size = 4")
    stranger = place.root / "README"
    stranger.write_text("not ours")
    found = await removing.collect_unknown(engine)
    assert (found.unknown, found.removed) == (1, 0)
    looked = await removing.collect_unknown(engine, older_than=timedelta(0), removes=False)
    assert (looked.unknown, looked.removed) == (1, 0)
    found = await removing.collect_unknown(engine, older_than=timedelta(0))
    assert (found.unknown, found.removed) == (1, 1)
    assert await read(engine, kept) == DATA
    assert stranger.exists()


async def test_another_databases_bytes_are_not_taken_for_unknown(
    engine: Engine, place: FolderBlobs
) -> None:
    await stored(engine)
    (place.root / "belongs-to-somebody-else").touch()
    with pytest.raises(SettingInvalid, match="another database"):
        await removing.collect_unknown(engine, older_than=timedelta(0))
    assert len(files(place)) == 1
