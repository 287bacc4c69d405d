"""The client and what servers do with streams: they beat, rotate, refuse, lose their reader, and
wake up in another life of the database (P8, P9, P10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta

import pytest

from earnest import Client
from earnest.client.values import Event, Resync
from earnest.domain.errors import Busy, Unauthenticated
from earnest.doors.api.streams import StreamSettings
from earnest.engine.process import access, tokens
from earnest.engine.process.epoch import begin_epoch
from tests.client.cutting import CuttingWay
from tests.doors.streams.clients.playing import House, open_house
from tests.doors.streams.stage import Stage, until

QUICK = timedelta(seconds=0.1)


@pytest.fixture
async def stages(database_url: str) -> AsyncIterator[House]:
    async with open_house(database_url) as house:
        yield house


def client_of(stage: Stage, url: str = "", patience: float = 30, silence: float = 30) -> Client:
    token = stage.tokens["member"]
    return Client(url or stage.serving.url, token, patience=patience, silence=silence)


def numbers(told: list[Event | Resync]) -> list[int]:
    return [one.seq for one in told if isinstance(one, Event)]


async def test_a_stream_that_falls_silent_is_left_for_another_one(stages: House) -> None:
    async with stages.serve(StreamSettings(heartbeat=QUICK)) as stage:
        run = await stage.run(30)
        await run.finish()
        budget = iter([1_500, 4_000, 2**30])
        async with (
            CuttingWay(stage.serving.url, 0, lambda _: next(budget), silent=True) as way,
            client_of(stage, way.url, silence=0.5) as client,
        ):
            told = [one async for one in client.events(run.id)]
        assert (numbers(told), way.cut) == (list(range(1, 32)), 2)


async def test_a_stream_that_beats_is_not_left(stages: House) -> None:
    async with (
        stages.serve(StreamSettings(heartbeat=QUICK)) as stage,
        client_of(stage, silence=1) as client,
    ):
        run = await stage.run()
        reading = asyncio.create_task(_all_of(client, run.id))
        await until(lambda: stage.streams.places.open == 1)
        await asyncio.sleep(1.5)  # there is nothing but heartbeats to be waited for
        assert stage.streams.places.open == 1
        await run.finish()
        assert numbers(await reading) == [1, 2, 3]


async def test_streams_that_rotate_are_one_stream_to_the_reader(stages: House) -> None:
    short = timedelta(seconds=0.2)
    async with (
        stages.serve(StreamSettings(shortest=short, longest=short)) as stage,
        client_of(stage) as client,
    ):
        run = await stage.run()
        told = []
        async for one in client.events(run.id):
            told.append(one)
            if len(told) in (4, 6, 8):
                await until(lambda: stage.streams.places.open == 0)
            if len(told) % 2 == 0 and len(told) < 10:
                await run.append(2)
            if len(told) == 10:
                await run.finish()
        assert numbers(told) == list(range(1, 12))


async def test_another_life_of_the_database_is_told_by_a_resync(stages: House) -> None:
    async with (
        stages.serve(StreamSettings(heartbeat=QUICK)) as stage,
        client_of(stage) as client,
    ):
        run = await stage.run(5)
        told: list[Event | Resync] = []
        async for one in client.events(run.id):
            told.append(one)
            if isinstance(one, Event) and one.seq == 5:
                await begin_epoch(stage.engine)
            if isinstance(one, Resync):
                assert one.snapshot is not None
                assert (one.head_seq, one.snapshot.status) == (5, "running")
                await run.append(1)
                await run.finish()
        assert [one.type for one in told].count("resync_required") == 1
        assert numbers(told) == [1, 2, 3, 4, 5, 6, 7]
        ids = [one.id for one in told]
        assert len({one.partition("-")[0] for one in ids}) == 2


async def test_a_reader_that_takes_its_time_is_given_everything(stages: House) -> None:
    """P10."""
    impatient = StreamSettings(send_deadline=timedelta(seconds=0.5))
    async with stages.serve(impatient) as stage, client_of(stage) as client:
        run = await stage.run()
        told: list[Event | Resync] = []
        count = 3
        async for one in client.events(run.id):
            while not told and stage.streams.places.open:
                await run.append(200, text="x" * 15_000)
                count += 200
            told.append(one)
            if len(told) == 10:
                await run.finish()
        assert numbers(told) == list(range(1, count + 1))


async def test_a_revoked_token_ends_the_reading(stages: House) -> None:
    async with stages.serve(StreamSettings(heartbeat=QUICK)) as stage, client_of(stage) as client:
        run = await stage.run()
        reading = asyncio.create_task(_all_of(client, run.id))
        await until(lambda: stage.streams.places.open == 1)
        token_id = access.read_token(stage.tokens["member"])[0]
        await tokens.revoke_token(stage.engine, "demo", token_id)
        with pytest.raises(Unauthenticated):
            await reading


async def test_where_no_place_is_left_it_is_told_and_waiting_goes_on(stages: House) -> None:
    async with (
        stages.serve(StreamSettings(per_principal=0)) as stage,
        client_of(stage, patience=2) as client,
    ):
        run = await stage.run()
        with pytest.raises(Busy, match="busy"):
            await _all_of(client, run.id)
        waiting = asyncio.create_task(client.wait(run.id, timeout=30))
        await run.finish()
        assert await waiting


async def test_text_begins_anew_with_another_attempt(stages: House) -> None:
    async with stages.serve(StreamSettings()) as stage, client_of(stage) as client:
        run = await stage.run()
        await run.write("one ", "two ")
        await run.break_off()
        await run.write("three")
        await run.finish()
        told = [(type(one).__name__, one.content) async for one in client.text(run.id)]
        assert told == [
            ("TextPiece", "one "),
            ("TextPiece", "two "),
            ("TextReset", ""),
            ("TextPiece", "three"),
        ]


async def _all_of(client: Client, run_id: str) -> list[Event | Resync]:
    async with aclosing(client.events(run_id)) as events:
        return [one async for one in events]
