"""Readers that do not read: they are cut off, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

import pytest

from tests.doors.streams.conftest import MakeStage
from tests.doors.streams.reading import Stream
from tests.doors.streams.stage import FIRST, ScriptedRun, Stage, until

SMALL = 4096
TEXT = "x" * 12_000


async def _stalled(stage: Stage, run: ScriptedRun, count: int) -> list[Stream]:
    """Readers that have seen the head of the answer and read no further."""
    return [await stage.open(run, buffer=SMALL, limit=SMALL) for _ in range(count)]


async def test_a_reader_that_does_not_read_is_cut_off_while_others_are_told_everything(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    """P10."""
    stage = await make_stage(send_deadline=timedelta(seconds=0.5))
    run = await stage.run()
    stalled, live = await _stalled(stage, run, 5), await stage.open(run, "operator")
    with caplog.at_level(logging.WARNING):
        reading = asyncio.create_task(live.messages(42))
        await run.append(40, text=TEXT)
        assert [item.data["seq"] for item in await reading] == list(range(1, 43))
        await until(lambda: stage.streams.places.open == 1)
        for stream in stalled:
            await stream.until_cut_off()
    assert caplog.records == [], "a reader that is given up is no error"


async def test_runs_do_not_wait_for_a_reader(make_stage: MakeStage) -> None:
    """P10, P17: with a deadline far away everything is written at once all the same."""
    stage = await make_stage(send_deadline=timedelta(seconds=60))
    run = await stage.run()
    await _stalled(stage, run, 5)
    begun = time.monotonic()
    await run.append(60, text=TEXT)
    await run.finish()
    assert time.monotonic() - begun < 5


async def test_what_a_stalled_reader_may_hold_is_bounded(
    make_stage: MakeStage,
) -> None:
    """P10: however much there is to be told."""
    stage = await make_stage(send_deadline=timedelta(seconds=60))
    run = await stage.run()
    await _stalled(stage, run, 3)
    await run.append(100, text=TEXT)
    held = [connection.unsent() for connection in stage.serving.connections.open_now()]
    assert len(held) == 3
    assert all(0 < size < 160 * 1024 for size in held), held


async def test_who_reads_again_in_time_misses_nothing(make_stage: MakeStage) -> None:
    stage = await make_stage(send_deadline=timedelta(seconds=60))
    run = await stage.run()
    (slow,) = await _stalled(stage, run, 1)
    await run.append(60, text=TEXT)
    assert [item.data["seq"] for item in await slow.messages(62)] == list(range(1, 63))


async def test_who_leaves_in_the_middle_is_no_error(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = await make_stage()
    run = await stage.run()
    streams = [await stage.open(run) for _ in range(6)]
    with caplog.at_level(logging.WARNING):
        speaking = asyncio.create_task(run.append(30, text=TEXT))
        for number, stream in enumerate(streams):
            await stream.messages(3)
            (stream.vanish if number % 2 else stream.close)()
        await speaking
        await until(lambda: stage.streams.places.open == 0)
    assert caplog.records == []
    assert "error" not in capsys.readouterr().out


async def test_a_server_with_stalled_readers_stops_in_time(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    """P19: those that read are told, those that do not are cut off."""
    stage = await make_stage(send_deadline=timedelta(seconds=60))
    run = await stage.run()
    stalled, live = await _stalled(stage, run, 20), await stage.open(run, "operator")
    reading = asyncio.create_task(live.rest())
    await run.append(60, text=TEXT)
    with caplog.at_level(logging.WARNING):
        begun = time.monotonic()
        stage.serving.stop()
        assert (await reading)[-1].data == {"reason": "shutdown"}
        await until(lambda: not stage.serving.connections.open_now())
        assert time.monotonic() - begun < 3
    assert caplog.records == []
    for stream in stalled:
        await stream.until_cut_off()


async def test_who_stalls_when_there_is_nothing_more_to_say_is_cut_off_too(
    make_stage: MakeStage,
) -> None:
    """P10: not only when the next event comes, and nothing of it stays with the kernel."""
    stage = await make_stage(send_deadline=timedelta(seconds=0.5))
    run = await stage.run()
    (stalled,) = await _stalled(stage, run, 1)
    await _fill(stage, run, 64 * 1024)
    await until(lambda: stage.streams.places.open == 0, seconds=5)
    await stalled.until_cut_off()
    assert len(stalled.raw) < 64 * 1024


async def test_who_does_not_take_the_end_does_not_keep_the_connection(
    make_stage: MakeStage,
) -> None:
    """P10: the server may wait for nothing any more."""
    stage = await make_stage(send_deadline=timedelta(seconds=0.5))
    run = await stage.run()
    (stalled,) = await _stalled(stage, run, 1)
    await _fill(stage, run, 0)
    await run.finish()
    await until(lambda: not stage.serving.connections.open_now())
    await stalled.until_cut_off()


async def _fill(stage: Stage, run: ScriptedRun, size: int) -> None:
    """Tells more until the only reader leaves more than `size` bytes with the server."""
    (connection,) = stage.serving.connections.open_now()
    # What another reader was given has been sent to this one too.
    pace = await stage.open(run, "operator", after=FIRST)
    while connection.unsent() <= size:
        await run.append(text=TEXT)
        await pace.messages(1)
    pace.close()
