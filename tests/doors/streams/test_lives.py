"""How long a stream lives: heartbeats, rotation, who may go on reading, how many, and the end."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from earnest.domain.errors import DatabaseUnavailable, SettingInvalid
from earnest.doors.api.streams import StreamSettings
from earnest.engine.process import access, principals, tokens
from earnest.engine.process.epoch import begin_epoch
from earnest.store.database import Database
from tests.doors.streams.conftest import MakeStage
from tests.doors.streams.reading import Stream
from tests.doors.streams.stage import Stage, until

QUICK = timedelta(seconds=0.1)


async def _reason(stream: Stream) -> str:
    """Why it ended; the answer must have its proper end."""
    *_, last = await stream.rest()
    assert last.event == "stream_end"
    return str(last.data["reason"])


async def _revoke(stage: Stage, who: str) -> None:
    await tokens.revoke_token(stage.engine, "demo", access.read_token(stage.tokens[who])[0])


# ---- while it lives ----------------------------------------------------------------------------


async def test_an_idle_stream_says_that_it_lives_and_how_far_the_run_is(
    make_stage: MakeStage,
) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run(4)
    stream = await stage.open(run)
    *_, first = await stream.until("heartbeat")
    assert first.data == {"head_seq": 4}
    assert first.id == f"{await stage.epoch()}-4", "a heartbeat leaves the reader's place alone"
    await run.append()
    await stream.messages(1)
    assert (await stream.until("heartbeat"))[-1].data == {"head_seq": 5}


async def test_a_busy_stream_has_heartbeats_too(make_stage: MakeStage) -> None:
    """They are when it is asked who reads."""
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    stream = await stage.open(run)

    async def speak() -> None:
        while True:
            await run.append()

    speaking = asyncio.create_task(speak())
    found = [await stream.until("heartbeat") for _ in range(3)]
    speaking.cancel()
    assert all(len(items) > 1 for items in found[1:])


async def test_who_reads_slowly_is_looked_after_between_two_pieces(
    make_stage: MakeStage,
) -> None:
    """A revoked token does not go on reading what was waiting for it."""
    stage = await make_stage(heartbeat=QUICK, send_deadline=timedelta(seconds=60))
    run = await stage.run()
    await run.append(60, text="x" * 12_000)
    slow = await stage.open(run, buffer=4096, limit=4096)
    await _revoke(stage, "member")
    await asyncio.sleep(2 * QUICK.total_seconds())  # who reads on at once may be the faster one
    items = await slow.rest()
    assert items[-1].data == {"reason": "revoked"}
    assert len(items) < 60


async def test_a_stream_rotates_and_its_reader_comes_again_without_a_gap(
    make_stage: MakeStage,
) -> None:
    stage = await make_stage(shortest=QUICK, longest=QUICK)
    run = await stage.run(3)
    stream = await stage.open(run)
    items = await stream.rest()
    assert [item.event for item in items] == ["message"] * 3 + ["stream_end"]
    assert items[-1].data == {"reason": "rotated"}
    assert stream.parser.retry is not None
    assert stream.parser.retry <= 3_000
    await run.append()
    again = await stage.open(run, last_event_id=stream.parser.last_id)
    assert [item.data["seq"] for item in await again.messages(1)] == [4]


async def test_lives_are_of_different_lengths(make_stage: MakeStage) -> None:
    """Streams that were opened together do not end together."""
    stage = await make_stage(shortest=QUICK, longest=timedelta(seconds=2))
    run = await stage.run()
    streams = [await stage.open(run) for _ in range(8)]
    begun = time.monotonic()

    async def lifetime(stream: Stream) -> float:
        assert await _reason(stream) == "rotated"
        return time.monotonic() - begun

    ages = await asyncio.gather(*map(lifetime, streams))
    assert max(ages) - min(ages) > 0.2


def test_a_heartbeat_that_would_notice_a_revoked_token_too_late_is_refused() -> None:
    with pytest.raises(SettingInvalid):
        StreamSettings(heartbeat=timedelta(seconds=16))


# ---- who may go on reading ---------------------------------------------------------------------


async def test_a_revoked_token_ends_its_idle_stream_and_no_other(make_stage: MakeStage) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    theirs, others = await stage.open(run), await stage.open(run, "operator")
    await theirs.until("heartbeat")
    await _revoke(stage, "member")
    assert await _reason(theirs) == "revoked"
    assert (await stage.open(run)).status == 401
    await others.until("heartbeat")


async def test_who_loses_the_role_loses_the_stream(make_stage: MakeStage) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    stream = await stage.open(run, "operator")
    await stream.until("heartbeat")
    await principals.ensure_principal(stage.engine, "demo", "dan", ["member"])
    assert await _reason(stream) == "revoked"


async def test_a_page_from_the_table_is_asked_for_as_the_reader(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12: a reader that lags is served by queries that look at the run's principal."""
    stage = await make_stage()
    run = await stage.run(5)
    asked: list[Any] = []
    fetch = Database.fetch

    async def noted(database: Database, statement: str, *arguments: Any) -> list[Any]:
        asked.append((statement, arguments))
        return await fetch(database, statement, *arguments)

    monkeypatch.setattr(Database, "fetch", noted)
    await (await stage.open(run)).messages(5)
    pages = [arguments[:3] for statement, arguments in asked if statement == "visible_events"]
    assert pages == [("demo", run.run_id, "ann")]


# ---- how many ----------------------------------------------------------------------------------


async def test_one_stream_too_many_of_a_principal_is_told_to_come_later(
    make_stage: MakeStage,
) -> None:
    stage = await make_stage(per_principal=2)
    run = await stage.run()
    mine = [await stage.open(run) for _ in range(2)]
    for stream in mine:
        await stream.messages(2)
    refused = await stage.open(run)
    assert (refused.status, await _reason(refused)) == (200, "busy")
    assert refused.parser.retry is not None
    assert refused.parser.retry >= 5_000
    assert len(await (await stage.open(run, "operator")).messages(2)) == 2
    mine[0].vanish()
    assert await _gets_in(stage, run.id)


async def test_one_stream_too_many_of_the_process_is_told_to_come_later(
    make_stage: MakeStage,
) -> None:
    stage = await make_stage(per_process=1)
    run = await stage.run()
    first = await stage.open(run)
    await first.messages(2)
    assert await _reason(await stage.open(run, "operator")) == "busy"
    first.close()
    assert await _gets_in(stage, run.id)


async def _gets_in(stage: Stage, run_id: str) -> bool:
    """Tries until there is room: a place is free when the server has noticed that one left."""
    async with asyncio.timeout(5):
        while True:
            stream = await stage.open(run_id)
            if (await stream.next()).event == "message":  # type: ignore[union-attr]
                return True


async def test_every_end_gives_its_place_back(make_stage: MakeStage) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    left, vanished, ended = [await stage.open(run) for _ in range(3)]
    revoked = await stage.open(run, "operator")
    for stream in (left, vanished, ended, revoked):
        await stream.messages(2)
    assert stage.streams.places.open == 4
    life = await stage.streams.life()
    assert life.hub.watched == 1
    left.close()
    vanished.vanish()
    await _revoke(stage, "operator")
    await run.finish()
    await ended.rest()
    await revoked.rest()
    await until(lambda: not stage.streams.places.open and not life.hub.watched)


# ---- when the database is away, or another one -------------------------------------------------


async def test_who_cannot_be_served_now_is_not_sent_away_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 503 would end an `EventSource`; a page is still told the truth."""
    run = await stage.run()

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("the database does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "fetch", away)
        stream = await stage.open(run)
        assert (stream.status, await _reason(stream)) == (200, "busy")
        page = await stage.open(run, accept="application/json")
        assert (page.status, page.headers["retry-after"]) == (503, "2")


async def test_a_reader_that_can_no_longer_be_checked_is_sent_away_for_a_while(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await make_stage(heartbeat=QUICK)
    stream = await stage.open(await stage.run())
    await stream.until("heartbeat")

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("the database does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "fetch", away)
        assert await _reason(stream) == "busy"


async def test_when_the_database_leads_another_life_readers_come_again_and_resync(
    make_stage: MakeStage,
) -> None:
    """P9."""
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run(4)
    stream = await stage.open(run)
    await stream.messages(4)
    epoch = await begin_epoch(stage.engine)
    assert await _reason(stream) == "rotated"
    again = await stage.open(run, last_event_id=stream.parser.last_id)
    (resync,) = await again.until("resync_required")
    assert resync.id == f"{epoch}-4"


# ---- the server's end --------------------------------------------------------------------------


async def test_a_server_that_stops_says_so_to_its_readers(stage: Stage) -> None:
    run = await stage.run()
    streams = [await stage.open(run) for _ in range(5)]
    for stream in streams:
        await stream.messages(2)
    begun = time.monotonic()
    stage.serving.stop()
    assert [await _reason(stream) for stream in streams] == ["shutdown"] * 5
    assert time.monotonic() - begun < 2
    assert all(stream.parser.retry for stream in streams)
