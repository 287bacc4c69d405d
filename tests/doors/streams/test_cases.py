"""The cases, read with a reader of our own over sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from earnest.store import visible
from tests.doors.streams.cases import CASES, Case
from tests.doors.streams.reading import Item, Projection, Stream
from tests.doors.streams.stage import ScriptedRun, Stage


async def _arranged(stage: Stage, case: Case) -> ScriptedRun:
    run = await stage.run(case.events)
    if case.final:
        await run.finish()
    await run.forget_before(case.kept_from)
    return run


async def _happen(run: ScriptedRun, case: Case) -> None:
    await run.append(case.append)
    if case.finish:
        await run.finish()


async def _items(stream: Stream, run: ScriptedRun, case: Case) -> list[Item]:
    """All that the case expects, or everything up to the end."""
    # What happens before the resync is part of its snapshot.
    resync = await stream.until("resync_required") if case.resync else []
    rest = stream.messages(len(case.given)) if case.reason is None else stream.rest()
    _, items = await asyncio.gather(_happen(run, case), rest)
    return resync + items


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.promise.replace(" ", "_"))
async def test_a_stream_keeps_to_its_contract(stage: Stage, case: Case) -> None:
    """P9, P12."""
    epoch = await stage.epoch()
    run = await _arranged(stage, case)
    after, last_id = (
        None if text is None else text.replace("{epoch}", epoch)
        for text in (case.after, case.last_event_id)
    )
    stream = await stage.open(run, case.who, after=after, last_event_id=last_id)
    assert stream.status == case.status
    if case.status != 200:
        _check_refusal(case, await stream.body())
        return
    items = await _items(stream, run, case)
    told = [item.data["seq"] for item in items if item.event == "message"]
    assert told == list(case.given)
    assert items[0].event == ("resync_required" if case.resync else "message")
    if case.id:
        assert stream.parser.last_id == case.id.replace("{epoch}", epoch)
    if case.reason is not None:
        assert (items[-1].event, items[-1].data) == ("stream_end", {"reason": case.reason})


def _check_refusal(case: Case, body: object) -> None:
    if case.status == 204:
        assert body is None
    else:
        codes = {400: "invalid_request", 401: "unauthenticated", 404: "not_found"}
        assert isinstance(body, dict)
        assert body["code"] == codes[case.status]


async def test_a_resync_tells_the_run_and_what_is_kept(stage: Stage) -> None:
    """P9: the same as the page's refusal."""
    run = await stage.run(12)
    await run.forget_before(10)
    stream = await stage.open(run, after=1)
    (resync,) = await stream.until("resync_required")
    snapshot = resync.data.pop("snapshot")
    assert resync.data == {
        "status": "resync_required",
        "after_seq": 1,
        "minimum_retained_seq": 10,
        "head_seq": 12,
    }
    assert (snapshot["id"], snapshot["status"], snapshot["last_seq"]) == (run.id, "running", 12)
    assert resync.id == f"{await stage.epoch()}-12"


async def test_who_comes_again_after_a_resync_is_not_sent_round_in_circles(stage: Stage) -> None:
    run = await stage.run(12)
    await run.forget_before(10)
    first = await stage.open(run, after=1)
    await first.until("resync_required")
    first.close()
    second = await stage.open(run, last_event_id=first.parser.last_id)
    await run.append()
    (item,) = await second.until("message")
    assert item.data["seq"] == 13


async def test_events_that_are_forgotten_while_they_are_read_are_told_by_a_resync(
    stage: Stage,
) -> None:
    """P9: never a gap in silence."""
    run = await stage.run()
    stream = await stage.open(run)
    await stream.messages(2)
    async with stage.engine.database.connection() as tx, tx.transaction():
        # The next events are gone before anybody can have read them.
        await tx.execute(
            "UPDATE execution SET last_seq = last_seq + 3 WHERE run_id = $1", run.run_id
        )
    await run.append()
    resync = (await stream.until("resync_required"))[-1]
    assert (resync.data["after_seq"], resync.data["head_seq"]) == (2, 6)
    await run.append()
    assert [item.data["seq"] for item in await stream.messages(1)] == [7]


async def test_what_happens_while_a_resync_is_on_its_way_comes_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9."""
    run = await stage.run(12)
    await run.forget_before(10)
    other = await stage.open(run, "operator", after=12)
    look = visible.oldest_event

    async def look_slowly(*arguments: Any) -> int | None:
        found = await look(*arguments)
        await run.append(2)
        await other.messages(2)  # so the hub knows of them
        return found

    monkeypatch.setattr(visible, "oldest_event", look_slowly)
    stream = await stage.open(run, after=1)
    (resync,) = await stream.until("resync_required")
    assert resync.data["head_seq"] == 12
    assert [item.data["seq"] for item in await stream.messages(2)] == [13, 14]


async def test_an_event_is_told_as_the_page_tells_it(stage: Stage) -> None:
    run = await stage.run(3)
    await run.finish()
    stream = await stage.open(run)
    told = [item.data for item in await stream.rest() if item.event == "message"]
    page = await stage.open(run, accept="application/json")
    assert told == (await page.body())["items"]
    assert [event.get("final") for event in told] == [None, None, None, True]
    assert list(told[0]) == ["seq", "type", "run_id", "created_at", "payload"]


async def test_a_stream_is_made_of_plain_lines(stage: Stage) -> None:
    run = await stage.run(3)
    await run.finish()
    stream = await stage.open(run, after=3)
    await stream.rest()
    assert b"\r" not in stream.raw
    epoch = await stage.epoch()
    opened, event, end, nothing = stream.raw.decode().split("\n\n")
    assert opened.startswith("retry: ")
    first, second = event.split("\n")
    assert first == f"id: {epoch}-4"
    assert json.loads(second.removeprefix("data: "))["type"] == "run.succeeded"
    assert end == 'event: stream_end\ndata: {"reason":"final"}'
    assert nothing == ""
    assert stream.parser.retry is not None
    assert 1_000 <= stream.parser.retry <= 3_000


async def test_nothing_on_the_way_may_keep_or_change_a_stream(stage: Stage) -> None:
    stream = await stage.open(await stage.run())
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["cache-control"] == "no-cache, no-transform"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.headers["x-content-type-options"] == "nosniff"
    assert stream.headers["x-request-id"]


async def test_a_run_that_is_not_there_cannot_be_streamed(stage: Stage) -> None:
    for text in ("run_01h455vb4pex5vsknk084sn02q", "nonsense"):
        stream = await stage.open(text)
        assert (stream.status, (await stream.body())["code"]) == (404, "not_found")


async def test_a_stream_is_asked_for_with_get_alone(stage: Stage) -> None:
    run = await stage.run()
    stream = await stage.open(run, method="HEAD")
    assert (stream.status, stream.headers["allow"]) == (405, "get")


async def test_two_last_ids_and_a_cursor_of_pages_are_refused(stage: Stage) -> None:
    run = await stage.run()
    twice = await stage.open(run, last_event_id="1\r\nLast-Event-ID: 2")
    paged = await stage.open(run, after="1&cursor=x")
    for stream in (twice, paged):
        assert (stream.status, (await stream.body())["code"]) == (400, "invalid_request")


def test_a_client_applies_the_next_ignores_what_it_has_and_sees_a_gap() -> None:
    """P9: frames 2, 3, 3, 4 after 1, 2 were seen."""
    client = Projection([1, 2])
    for seq in (2, 3, 3, 4):
        client.take(seq)
    assert (client.seen, client.after_seq) == ([1, 2, 3, 4], 4)
    with pytest.raises(AssertionError, match="gap"):
        client.take(6)
