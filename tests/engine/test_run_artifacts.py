"""Artifacts that handlers make: once however many attempts pass, under the fence, told at once."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from earnest.domain import ids
from earnest.domain.artifact import ArtifactRef
from earnest.domain.errors import CodeChanged, Conflict, FencedOut, InvalidRequest, NotFound
from earnest.engine.app import App
from earnest.engine.artifacts import removing, storing
from earnest.engine.artifacts.attaching import ByAttempt, ToRun
from earnest.engine.attempts.context import Context
from earnest.engine.attempts.plain import PlainContext
from earnest.engine.process.actors import local
from earnest.store import artifacts
from earnest.store.blobs_folder import FolderBlobs
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.filing import DATA, blobs, chunks, files, read, stored, upload, used


@pytest.fixture
def place(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "artifacts")


def with_place(bench: Bench, place: FolderBlobs) -> Bench:
    bench.engine.blobs = place
    return bench


async def test_an_artifact_is_stored_once_however_many_attempts_pass(
    make_bench: MakeBench, place: FolderBlobs
) -> None:
    """P4: the event is told with it."""
    app = App("artifacts")
    made: list[ArtifactRef] = []
    asked: list[int] = []

    async def source(attempt: int) -> AsyncIterator[bytes]:
        asked.append(attempt)
        yield DATA

    @app.run("draw", retry_first="0s")
    async def draw(ctx: Context, value: None) -> str:
        made.append(await ctx.artifact("cat.png", source(ctx.attempt)))
        if ctx.attempt == 1:
            raise RuntimeError("dies after it")
        return made[-1].id

    bench = with_place(make_bench(app), place)
    run_id = await bench.submit("draw")
    await bench.drain()
    await bench.drain()
    run = await bench.find(run_id)
    assert run.output == made[0].id
    assert made[0] == made[1]
    assert (made[0].sha256, made[0].media_type) == (hashlib.sha256(DATA).hexdigest(), "image/png")
    assert asked == [1]
    (event,) = await bench.events(run_id, "artifact.created")
    assert event.payload["artifact_id"] == made[0].id
    assert len(files(place)) == 1


async def test_a_name_that_is_repeated_is_another_artifact(
    make_bench: MakeBench, place: FolderBlobs, tmp_path: Path
) -> None:
    app = App("artifacts")
    (tmp_path / "page.txt").write_bytes(b"three")

    @app.run("draw")
    async def draw(ctx: Context, value: None) -> list[bytes]:
        first = await ctx.artifact("page.txt", b"one")
        second = await ctx.artifact("page.txt", b"two")
        third = await ctx.artifact("page.txt", tmp_path / "page.txt")
        opened = [await ctx.open_artifact(one) for one in (first, second.id, third)]
        return [await one.read() for one in opened]

    bench = with_place(make_bench(app), place)
    assert (await bench.done("draw")).output == ["one", "two", "three"]


async def test_a_plain_handler_has_the_same_verbs(
    make_bench: MakeBench, place: FolderBlobs
) -> None:
    app = App("artifacts")

    @app.run("draw")
    def draw(ctx: PlainContext, value: None) -> str:
        return ctx.read_artifact(ctx.artifact("page.txt", b"plain")).decode()

    bench = with_place(make_bench(app), place)
    assert (await bench.done("draw")).output == "plain"


async def test_an_attempt_that_lost_its_lease_adds_no_artifact(
    make_bench: MakeBench, place: FolderBlobs, clock: ManualClock
) -> None:
    """P5: its bytes came too late, and nothing of them stays."""
    app = App("artifacts")

    @app.run("draw")
    async def draw(ctx: Context, value: None) -> None:
        """Never called: the test is the owner."""

    bench = with_place(make_bench(app), place)
    run_id = await bench.submit("draw")
    (stale,) = await bench.claim()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"before"
        await clock.advance(seconds=46)
        await bench.worker._minder.reaper.look()
        assert await bench.claim()
        yield b"after"

    late = ByAttempt(stale, "#artifact:page", b"", bench.engine.settings.lease, lambda: True)
    with pytest.raises(FencedOut):
        await storing.store(bench.engine, upload(principal_id=MEMBER), slowly(), late)
    assert files(place) == []
    assert await blobs(bench.engine) == {}
    assert await bench.events(run_id, "artifact.created") == []
    assert await used(bench.engine) == 0


async def test_a_handler_reads_only_what_its_principal_may_see(
    make_bench: MakeBench, place: FolderBlobs
) -> None:
    """P12: also within a scope, a member's run opens no other member's file."""
    app = App("artifacts")

    @app.run("read")
    async def read_it(ctx: Context, value: str) -> int:
        return len(await (await ctx.open_artifact(value)).read())

    bench = with_place(make_bench(app), place)
    own = await stored(bench.engine, principal_id=MEMBER)
    foreign = await stored(bench.engine, b"foreign", principal_id="somebody")
    elsewhere = await stored(bench.engine, b"elsewhere", scope_id="other", principal_id=MEMBER)
    assert (await bench.done("read", ids.show("art", own.artifact_id))).output == len(DATA)
    for one in (foreign, elsewhere):
        run = await bench.done("read", ids.show("art", one.artifact_id))
        assert run.error is not None
        assert run.error["code"] == NotFound.code


async def test_a_changed_artifact_of_the_same_name_is_changed_code(
    make_bench: MakeBench, place: FolderBlobs
) -> None:
    app = App("artifacts")

    @app.run("draw", retry_first="0s", max_attempts=2)
    async def draw(ctx: Context, value: None) -> None:
        await ctx.artifact("page", b"1", media_type=f"text/v{ctx.attempt}")
        raise RuntimeError("once more")

    bench = with_place(make_bench(app), place)
    run_id = await bench.submit("draw")
    await bench.drain()
    await bench.drain()
    run = await bench.find(run_id)
    assert run.error is not None
    assert run.error["code"] == CodeChanged.code


async def test_what_is_no_bytes_is_said_in_one_line(
    make_bench: MakeBench, place: FolderBlobs
) -> None:
    app = App("artifacts")

    @app.run("draw", max_attempts=1)
    async def draw(ctx: Context, value: None) -> None:
        await ctx.artifact("page", "text")  # type: ignore[arg-type]

    bench = with_place(make_bench(app), place)
    run = await bench.done("draw")
    assert run.error is not None
    assert "encode text first" in run.error["detail"]
    assert run.error["code"] == InvalidRequest.code


# ---- added by somebody -------------------------------------------------------------------------


def parked() -> App:
    app = App("parked")

    @app.run("parked")
    async def wait(ctx: Context, value: None) -> None:
        await ctx.wait_signal("go")

    return app


async def test_somebody_adds_to_a_run_until_it_has_ended(
    make_bench: MakeBench, place: FolderBlobs
) -> None:
    """P22: what is finished does not change."""
    bench = with_place(make_bench(parked()), place)
    run_id = await bench.submit("parked")
    await bench.drain()
    into = ToRun(SCOPE, run_id)
    first = await storing.store(bench.engine, upload(key="k"), chunks(), into)
    assert first.artifact.run_id == run_id
    await bench.cancel(run_id)
    told = await bench.told(run_id)
    with pytest.raises(Conflict):
        await storing.store(bench.engine, upload(), chunks(b"late"), into)
    again = await storing.store(bench.engine, upload(key="k"), chunks(), into)
    assert again.replayed
    assert await bench.told(run_id) == told
    assert told.count("artifact.created") == 1
    assert len(files(place)) == 1


async def test_a_runs_artifact_stays_until_the_run_has_ended(
    make_bench: MakeBench, place: FolderBlobs, clock: ManualClock
) -> None:
    bench = with_place(make_bench(parked()), place)
    run_id = await bench.submit("parked")
    await bench.drain()
    into = ToRun(SCOPE, run_id)
    kept = upload(kept=timedelta(minutes=2))
    made = (await storing.store(bench.engine, kept, chunks(), into)).artifact
    forever = (await storing.store(bench.engine, upload(), chunks(b"stays"), into)).artifact
    await clock.advance(seconds=200)
    assert await removing.expire(bench.engine) == 0
    with pytest.raises(Conflict, match="wait for its end"):
        await removing.delete(bench.engine, local(SCOPE), made.artifact_id)
    await bench.cancel(run_id)
    assert await removing.expire(bench.engine) == 1
    assert await artifacts.find(bench.engine.database, SCOPE, made.artifact_id) is None
    await clock.advance(seconds=3600 * 24 * 400)
    assert await removing.expire(bench.engine) == 0
    assert await read(bench.engine, forever) == b"stays"
