"""Whatever process dies, and wherever: no artifact without its bytes, no bytes for ever without an
artifact, and the room is counted right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earnest.domain import crash_points
from earnest.domain.artifact import Artifact
from earnest.domain.errors import Conflict, DatabaseUnavailable, NotFound
from earnest.engine.artifacts import reading, removing, storing
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.store import artifacts
from earnest.store.blobs_folder import FolderBlobs
from earnest.testing.clock import ManualClock
from tests.engine.filing import DATA, SCOPE, blobs, chunks, files, read, stored, upload, used

pytestmark = pytest.mark.fault


@pytest.fixture
def place(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "artifacts")


@pytest.fixture
def engine(make_engine: Callable[..., Engine], place: FolderBlobs) -> Engine:
    made = make_engine()
    made.blobs = place
    return made


async def check_whole(engine: Engine, place: FolderBlobs, scope_id: str = SCOPE) -> list[Artifact]:
    """Every artifact has its bytes, every byte that is stored its artifact, the room is right."""
    found = await artifacts.listed(engine.database, scope_id, None, None, 1000)
    for one in found:
        assert len(await read(engine, one)) == one.size
    contents = {one.sha256: one.size for one in found}
    assert await used(engine, scope_id) == sum(contents.values())
    return found


async def check_collected(engine: Engine, place: FolderBlobs) -> None:
    """After a collection nothing lies there but what artifacts name."""
    await removing.collect(engine)
    states = await blobs(engine)
    assert set(states) <= {"stored"}
    assert len(files(place)) == states.get("stored", 0)


# ---- processes that die ------------------------------------------------------------------------

_DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from earnest.domain import crash_points
from earnest.engine.artifacts import removing, storing
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs
from earnest.store.database import Database
from tests.engine.filing import DATA, SCOPE, stored, upload

url, place, point = sys.argv[1:]

def die(): os.kill(os.getpid(), signal.SIGKILL)

async def chunks():
    yield DATA
    if point == "half way":
        yield DATA
        die()

async def main():
    async with Database(url) as database:
        engine = Engine(database)
        engine.blobs = FolderBlobs(Path(place))
        if point.startswith("delete:"):
            made = await stored(engine)
            crash_points.install(lambda at: die() if at == point.removeprefix("delete:") else None)
            await removing.delete(engine, local(SCOPE), made.artifact_id)
        else:
            crash_points.install(lambda at: die() if at == point else None)
            await storing.store(engine, upload(key="k"), chunks())

asyncio.run(main())
"""

POINTS = {
    "announce.before": (0, 0),
    "announce.after": (0, 0),
    "half way": (0, 1),
    "write.after": (0, 1),
    "store.before": (0, 1),
    "store.after": (1, 1),
    "delete:discard.before": (1, 1),
    "delete:discard.after": (0, 1),
    "delete:collect.before": (0, 0),
    "delete:collect.after": (0, 0),
}


@pytest.mark.parametrize("point", POINTS)
async def test_a_process_that_is_killed_leaves_nothing_by_halves(
    engine: Engine, place: FolderBlobs, clock: ManualClock, point: str
) -> None:
    """Killed at `point`; then so many artifacts are there, and so many files lie in the place. P7:
    who sends it again with the same key has one artifact, whatever was there before."""
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DYING, engine.database.url, str(place.root), point
    )
    assert await dying.wait() == -signal.SIGKILL
    made, left = POINTS[point]
    assert len(await check_whole(engine, place)) == made
    assert len(files(place)) == left
    await removing.collect(engine)
    assert len(files(place)) == (left if point in ARRIVING else made), "it may still be at work"
    await clock.advance(seconds=301)
    await check_collected(engine, place)
    assert len(await check_whole(engine, place)) == made
    again = await storing.store(engine, upload(key="k"), chunks())
    assert again.replayed is (point == "store.after")
    await check_whole(engine, place)
    await check_collected(engine, place)


ARRIVING = {"announce.after", "half way", "write.after", "store.before"}


async def test_a_collector_does_not_take_what_arrives_for_left_behind(
    engine: Engine, place: FolderBlobs
) -> None:
    """Also one that looks for bytes of which the database knows nothing, however young."""
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield DATA
        under_way.set()
        await go_on.wait()
        yield b"the end"

    storing_it = asyncio.create_task(storing.store(engine, upload(), slowly()))
    await under_way.wait()
    assert await removing.collect(engine) == 0
    found = await removing.collect_unknown(engine, older_than=timedelta(0))
    assert found.removed == 0
    go_on.set()
    made = (await storing_it).artifact
    assert await read(engine, made) == DATA + b"the end"


async def test_an_upload_that_was_given_up_is_told_so(
    engine: Engine, place: FolderBlobs, clock: ManualClock
) -> None:
    """Its process was frozen for longer than anybody waits; its bytes were taken away meanwhile."""

    async def slowly() -> AsyncIterator[bytes]:
        yield DATA
        await clock.advance(seconds=301)
        assert await removing.collect(engine) == 1
        yield b"the end"

    with pytest.raises(Conflict, match="given up"):
        await storing.store(engine, upload(), slowly())
    await check_whole(engine, place)
    await check_collected(engine, place)


async def test_a_database_that_is_gone_when_it_counts_leaves_it_to_a_collector(
    engine: Engine, place: FolderBlobs, clock: ManualClock
) -> None:
    """Whether it was stored is not known then: nothing is taken away that might be named."""

    def cut(point: str) -> None:
        if point == "store.after":
            crash_points.install(None)
            raise DatabaseUnavailable("the reply was lost")

    crash_points.install(cut)
    with pytest.raises(DatabaseUnavailable):
        await storing.store(engine, upload(key="k"), chunks())
    (made,) = await check_whole(engine, place)
    again = await storing.store(engine, upload(key="k"), chunks())
    assert again.replayed
    assert again.artifact == made
    await check_collected(engine, place)


# ---- any order ---------------------------------------------------------------------------------

CONTENTS = [b"one", b"two" * 1000, bytes(1_200_000)]
_DEEDS = st.sampled_from(
    ["store 0", "store 1", "store 2", "keyed 0", "keyed 1", "delete", "break off", "collect",
     "collect unknown", "read"]
)  # fmt: skip


async def do(engine: Engine, scope_id: str, deed: str, chance: random.Random) -> None:
    word, _, number = deed.partition(" ")
    await asyncio.sleep(chance.random() / 200)
    if word in ("store", "keyed"):
        key = number if word == "keyed" else None
        await stored(engine, CONTENTS[int(number)], scope_id=scope_id, key=key)
    elif word == "break":
        await break_off(engine, scope_id)
    elif deed == "collect":
        await removing.collect(engine)
    elif word == "collect":
        await removing.collect_unknown(engine, older_than=timedelta(0))
    else:
        await with_one(engine, scope_id, word, chance)


async def break_off(engine: Engine, scope_id: str) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield CONTENTS[2]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await storing.store(engine, upload(scope_id=scope_id), source())


async def with_one(engine: Engine, scope_id: str, word: str, chance: random.Random) -> None:
    found = await artifacts.listed(engine.database, scope_id, None, None, 100)
    if not found:
        return
    one = chance.choice(found)
    try:
        if word == "delete":
            await removing.delete(engine, local(scope_id), one.artifact_id)
        else:
            opened = await reading.open_artifact(engine, one)
            assert await opened.read() in CONTENTS
    except NotFound:
        pass  # somebody was faster


@settings(
    max_examples=int(os.environ.get("EARNEST_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    workers=st.lists(st.lists(_DEEDS, min_size=1, max_size=5), min_size=2, max_size=4),
    seed=st.integers(0, 2**16),
)
async def test_in_any_order_artifacts_have_their_bytes_and_the_room_is_right(
    engine: Engine, place: FolderBlobs, workers: list[list[str]], seed: int
) -> None:
    """P12 beside it: each example has a scope of its own."""
    chance = random.Random(seed)
    scope_id = f"scope-{chance.getrandbits(60):x}"

    async def work(deeds: list[str]) -> None:
        for deed in deeds:
            await forgiving(do(engine, scope_id, deed, chance))

    await asyncio.gather(*(work(deeds) for deeds in workers))
    await check_whole(engine, place, scope_id)
    await check_collected(engine, place)


async def forgiving(work: Awaitable[None]) -> None:
    """A key whose artifact was deleted makes no other; that is no fault."""
    try:
        await work
    except Conflict as error:
        if "deleted since" not in error.detail:
            raise
