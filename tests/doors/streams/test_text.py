"""A run's text as it is written: the frames, their places, and the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from earnest.domain.errors import DatabaseUnavailable
from earnest.doors.api import text_stream
from earnest.engine.attempts.texting import prune_texts
from earnest.engine.process import access, tokens
from earnest.engine.process.epoch import begin_epoch
from earnest.store import texts
from earnest.store.database import Database
from tests.doors.streams.conftest import MakeStage
from tests.doors.streams.reading import Item, Stream, reading
from tests.doors.streams.stage import ScriptedRun, Stage, until

QUICK = timedelta(seconds=0.1)
FAR = timedelta(seconds=60)
RUNNING = {"status": "running", "stage": None, "progress": None}


async def open_text(
    stage: Stage,
    run: ScriptedRun | str,
    who: str | None = "member",
    *,
    part: str = "text-events",
    **more: Any,
) -> Stream:
    return await stage.open(run, who, part=part, accept="*/*", **more)


async def deltas(stream: Stream, count: int) -> list[Item]:
    """The next deltas, with what comes between them but progress."""
    found: list[Item] = []
    while sum(item.event == "delta" for item in found) < count:
        item = await stream.next()
        assert item is not None, f"the stream ended after {found}"
        if item.event != "progress":
            found.append(item)
    return found


def shown(items: list[Item]) -> list[Any]:
    """A delta by sequence and content, anything else by its name."""
    return [
        (item.data["sequence"], item.data["content"]) if item.event == "delta" else item.event
        for item in items
    ]


async def page(stage: Stage, run: ScriptedRun, who: str = "member", **more: Any) -> dict[str, Any]:
    answer = await open_text(stage, run, who, part="text-deltas", **more)
    assert answer.status == 200
    body: dict[str, Any] = await answer.body()
    return body


# ---- what is sent ------------------------------------------------------------------------------


async def test_text_is_told_piece_by_piece_and_at_the_end_the_run(stage: Stage) -> None:
    run = await stage.run()
    stream = await open_text(stage, run)
    await run.write("Once ", "upon ")
    assert shown(await deltas(stream, 2)) == [(1, "Once "), (2, "upon ")]
    await run.write("a time")
    await run.finish()
    items = await stream.rest()
    assert shown(items) == [(3, "a time"), "progress", "terminal"]
    assert items[-2].data == {"status": "succeeded", "stage": None, "progress": None}
    url = stage.url(run).removesuffix("/events")
    async with reading(url, {"Authorization": f"Bearer {stage.tokens['member']}"}) as run_itself:
        whole = await run_itself.body()
    assert items[-1].data == {
        name: value for name, value in whole.items() if name not in ("input", "context")
    }
    assert [item.id for item in items] == ["3", "3", "4"]


async def test_a_stream_of_text_is_made_of_plain_lines(stage: Stage) -> None:
    run = await stage.run()
    await run.write("two\nlines: é")
    await run.finish()
    stream = await open_text(stage, run)
    await stream.rest()
    assert b"\r" not in stream.raw
    connected, retry, delta, progress, terminal, nothing = stream.raw.decode().split("\n\n")
    assert connected == ": connected"
    assert retry.startswith("retry: ")
    name, place, data = delta.split("\n")
    assert (name, place) == ("event: delta", "id: 1")
    told = {"sequence": 1, "attempt": 1, "content": "two\nlines: é"}
    assert json.loads(data.removeprefix("data: ")) == told
    assert progress.startswith("event: progress\ndata: ")
    assert terminal.startswith("event: terminal\nid: 2\ndata: ")
    assert nothing == ""
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["cache-control"] == "no-cache, no-transform"
    assert stream.headers["x-accel-buffering"] == "no"


async def test_how_the_run_stands_is_told_when_it_changes_and_not_again(
    make_stage: MakeStage,
) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    stream = await open_text(stage, run)
    first = await stream.next()
    assert first is not None
    assert (first.event, first.data) == ("progress", RUNNING)
    await run.append(3)
    await run.progress(1, 4, "painting")
    told = await stream.next()
    assert told is not None
    assert told.data == {"status": "running", "stage": "painting", "progress": 0.25}
    await run.progress(1, 4, "painting")
    await run.write("x")
    assert shown(await stream.until("delta")) == [(1, "x")]


async def test_who_comes_later_is_told_the_progress_that_was_told_before(stage: Stage) -> None:
    run = await stage.run()
    await run.progress(3, 4, "framing")
    for _ in range(2):
        stream = await open_text(stage, run)
        first = await stream.next()
        assert first is not None
        assert first.data == {"status": "running", "stage": "framing", "progress": 0.75}


async def test_a_new_attempt_resets_the_text_before_its_own(stage: Stage) -> None:
    run = await stage.run()
    stream = await open_text(stage, run)
    await run.write("a", "b")
    await run.break_off()
    await run.write("c")
    await run.break_off()
    await run.write("d")
    await run.finish()
    live = [item for item in await stream.rest() if item.event != "progress"]
    told = [(1, "a"), (2, "b"), "reset", (3, "c"), "reset", (4, "d"), "terminal"]
    assert shown(live) == told
    assert [item.data for item in live if item.event == "reset"] == [{"attempt": 2}, {"attempt": 3}]
    replayed = await (await open_text(stage, run)).rest()
    assert shown([item for item in replayed if item.event != "progress"]) == told


async def test_who_comes_again_between_two_attempts_hears_of_the_reset(stage: Stage) -> None:
    """P9: a reset has no place of its own, it comes with the piece after it."""
    run = await stage.run()
    await run.write("a", "b")
    await run.break_off()
    await run.write("c")
    for place in (2, 1):
        stream = await open_text(stage, run, last_event_id=str(place))
        assert shown(await deltas(stream, 3 - place))[-2:] == ["reset", (3, "c")]
    stream = await open_text(stage, run, last_event_id="3")
    await run.write("d")
    assert shown(await deltas(stream, 1)) == [(4, "d")]


# ---- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "last_event_id", "first"),
    [
        (None, None, 1),
        (0, None, 1),
        (2, None, 3),
        (None, "2", 3),
        (1, "3", 4),
        (3, "1", 4),
        ("0003", None, 4),
        (4, "4", 5),
    ],
)
async def test_the_larger_place_counts(
    stage: Stage, after: int | None, last_event_id: str | None, first: int
) -> None:
    """P9."""
    run = await stage.run()
    await run.write("a", "b", "c", "d")
    stream = await open_text(stage, run, after=after, last_event_id=last_event_id)
    await run.write("e")
    found = await deltas(stream, 6 - first)
    assert [item.data["sequence"] for item in found] == list(range(first, 6))
    assert stream.parser.last_id == "5"


@pytest.mark.parametrize(
    "text", ["-1", "abc", "1.5", "", "%202", "+2", "0x2", "1_0", "२", str(2**63)]
)
@pytest.mark.parametrize("part", ["text-events", "text-deltas"])
async def test_anything_else_is_no_place(stage: Stage, part: str, text: str) -> None:
    run = await stage.run()
    asked = "%E0%A5%A8" if text == "२" else text
    stream = await open_text(stage, run, after=asked, part=part)
    assert (stream.status, (await stream.body())["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("text", ["-1", "abc", "1.5", "1 2", "abc-2", "1\r\nLast-Event-ID: 2"])
async def test_anything_else_is_no_last_id(stage: Stage, text: str) -> None:
    run = await stage.run()
    stream = await open_text(stage, run, last_event_id=text, after=1)
    assert (stream.status, (await stream.body())["code"]) == (400, "invalid_request")


async def test_who_has_all_the_text_but_not_the_end_is_told_the_end(stage: Stage) -> None:
    """P9: the end has a place of its own."""
    run = await stage.run()
    await run.write("a", "b")
    await run.finish()
    stream = await open_text(stage, run, last_event_id="2")
    assert [item.event for item in await stream.rest()] == ["progress", "terminal"]
    assert stream.parser.last_id == "3"
    again = await open_text(stage, run, last_event_id=stream.parser.last_id)
    assert (again.status, await again.body()) == (204, None)


async def test_a_run_without_text_has_an_end_all_the_same(stage: Stage) -> None:
    run = await stage.run()
    stream = await open_text(stage, run)
    await run.finish()
    assert [item.event for item in await stream.rest()] == ["progress", "progress", "terminal"]
    assert (await open_text(stage, run, last_event_id=stream.parser.last_id)).status == 204


async def test_a_place_that_a_run_has_not_reached_begins_anew(stage: Stage) -> None:
    """Of another life of the database: what its reader has is not this text."""
    run = await stage.run()
    await run.write("a", "b")
    stream = await open_text(stage, run, after=9)
    assert shown(await deltas(stream, 2)) == ["reset", (1, "a"), (2, "b")]


async def test_a_reconnect_repeats_and_creates_nothing(stage: Stage) -> None:
    """P8."""
    run = await stage.run()
    await run.write(*"abcdefghij")
    seen: list[Any] = []
    place = 0
    while place < 10:
        stream = await open_text(stage, run, last_event_id=str(place))
        seen += shown(await deltas(stream, 2))[:3]
        place = seen[-1][0]
        stream.vanish()
    assert seen[:10] == list(enumerate("abcdefghij", 1))
    assert (await page(stage, run))["last_sequence"] == 10


async def test_readers_who_come_while_hundreds_of_pieces_are_written_miss_none(
    stage: Stage,
) -> None:
    """P9: replay goes over into live without a seam."""
    run = await stage.run()
    pieces = [f"{number} " for number in range(1, 301)]
    writing = asyncio.create_task(run.write(*pieces))

    async def read(after: int) -> list[Any]:
        stream = await open_text(stage, run, after=after)
        return shown(await deltas(stream, 300 - after))

    readers = []
    for number in range(10):
        await run.has_text(number * 25)
        readers.append((number * 20, asyncio.create_task(read(number * 20))))
    await writing
    for after, reader in readers:
        assert await reader == list(enumerate(pieces, 1))[after:]


# ---- who may, and how many ---------------------------------------------------------------------


@pytest.mark.parametrize("part", ["text-events", "text-deltas"])
@pytest.mark.parametrize(
    ("who", "status"),
    [
        ("member", 200),
        ("operator", 200),
        ("member2", 404),
        ("approver", 404),
        ("nobody", 404),
        ("other member", 404),
        ("other operator", 404),
        (None, 401),
    ],
)
async def test_only_who_sees_the_run_reads_its_text(
    stage: Stage, who: str | None, status: int, part: str
) -> None:
    """P12: also not after its end, when a stream would be 204."""
    run = await stage.run()
    await run.write("secret")
    stream = await open_text(stage, run, who, part=part)
    assert stream.status == status
    await run.finish()
    again = await open_text(stage, run, who, part=part, after=2)
    assert again.status == (204 if status == 200 and part == "text-events" else status)
    if status != 200:
        assert "secret" not in json.dumps(await again.body())


async def test_text_from_the_table_is_asked_for_as_the_reader(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12."""
    run = await stage.run()
    await run.write("a", "b")
    asked: list[Any] = []
    fetch = Database.fetch

    async def noted(database: Database, statement: str, *arguments: Any) -> list[Any]:
        asked.append((statement, arguments))
        return await fetch(database, statement, *arguments)

    monkeypatch.setattr(Database, "fetch", noted)
    await deltas(await open_text(stage, run), 2)
    await page(stage, run)
    seen_by = [arguments[:3] for statement, arguments in asked if statement == "visible_texts"]
    assert seen_by == [("demo", run.run_id, "ann")] * 2


async def test_a_revoked_token_ends_its_stream_of_text(make_stage: MakeStage) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    stream = await open_text(stage, run)
    await stream.next()
    token_id = access.read_token(stage.tokens["member"])[0]
    await tokens.revoke_token(stage.engine, "demo", token_id)
    (last,) = await stream.rest()
    assert (last.event, last.data) == ("stream_end", {"reason": "revoked"})


async def test_an_idle_stream_of_text_says_that_it_lives(make_stage: MakeStage) -> None:
    stage = await make_stage(heartbeat=QUICK)
    run = await stage.run()
    stream = await open_text(stage, run)
    await stream.next()
    with pytest.raises(TimeoutError):
        await stream.next(within=1)
    assert b"\n\n: heartbeat\n\n" in stream.raw
    await run.write("x")
    assert shown(await deltas(stream, 1)) == [(1, "x")]


async def test_streams_of_text_count_with_the_others(make_stage: MakeStage) -> None:
    stage = await make_stage(per_principal=2)
    run = await stage.run()
    one, other = await stage.open(run), await open_text(stage, run)
    await one.messages(2)
    await other.next()
    refused = await open_text(stage, run)
    (last,) = await refused.rest()
    assert (refused.status, last.event, last.data) == (200, "stream_end", {"reason": "busy"})
    assert refused.parser.retry is not None
    assert refused.parser.retry >= 5_000


@pytest.mark.parametrize("ending", ["rotated", "another life", "stopped"])
async def test_a_stream_of_text_that_is_cut_off_is_gone_on_with(
    make_stage: MakeStage, ending: str
) -> None:
    """P9."""
    short = {"shortest": QUICK * 5, "longest": QUICK * 5} if ending == "rotated" else {}
    stage = await make_stage(heartbeat=QUICK, **short)
    run = await stage.run()
    stream = await open_text(stage, run)
    await run.write("a", "b")
    items = await deltas(stream, 2)
    if ending == "another life":
        await begin_epoch(stage.engine)
    if ending == "stopped":
        stage.serving.stop()
    items += await stream.rest()
    reason = "shutdown" if ending == "stopped" else "rotated"
    assert items[-1].data == {"reason": reason}
    assert stream.parser.retry is not None
    again = await make_stage()
    await run.write("c")
    assert shown(await deltas(await open_text(again, run, last_event_id="2"), 1)) == [(3, "c")]


# ---- from elsewhere, and when things go wrong --------------------------------------------------


async def test_text_that_is_written_elsewhere_is_heard_at_once(
    make_stage: MakeStage, make_engine: Callable[..., Any]
) -> None:
    elsewhere = make_engine()
    await elsewhere.bells.start()
    stage = await make_stage(elsewhere, poll=FAR)
    run = await stage.run()
    stream = await open_text(stage, run)
    for _ in range(5):
        # The first rings may come before the other process listens.
        await run.write("x")
    assert [item.data["sequence"] for item in await deltas(stream, 5)] == [1, 2, 3, 4, 5]


async def test_without_any_bell_text_comes_a_little_later(
    make_stage: MakeStage, make_engine: Callable[..., Any]
) -> None:
    """P9, P17."""
    deaf = make_engine()  # its bells do not run
    stage = await make_stage(deaf, poll=QUICK)
    run = await stage.run()
    stream = await open_text(stage, run)
    await run.write("a", "b")
    assert shown(await deltas(stream, 2)) == [(1, "a"), (2, "b")]
    await run.finish()
    assert [item.event for item in await stream.rest()] == ["progress", "terminal"]


async def test_readers_of_one_text_share_one_look_at_the_table(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await stage.run()
    streams = [await open_text(stage, run) for _ in range(20)]
    for stream in streams:
        await stream.next()
    asked: list[str] = []
    fetch = Database.fetch

    async def noted(database: Database, statement: str, *arguments: Any) -> list[Any]:
        asked.append(statement)
        return await fetch(database, statement, *arguments)

    monkeypatch.setattr(Database, "fetch", noted)
    await run.write("a", "b", "c")
    for stream in streams:
        await deltas(stream, 3)
    assert "visible_texts" not in asked
    assert 1 <= asked.count("texts_after") <= 3


async def test_a_reader_that_does_not_read_slows_no_writing_and_is_cut_off(
    make_stage: MakeStage,
) -> None:
    """P10."""
    stage = await make_stage(send_deadline=timedelta(seconds=0.5))
    run = await stage.run()
    stalled = await open_text(stage, run, buffer=4096, limit=4096)
    async with asyncio.timeout(20):
        await run.write(*["x" * 60_000] * 30)
    await until(lambda: stage.streams.places.open == 0)
    await stalled.until_cut_off()
    assert (await page(stage, run))["last_sequence"] == 30


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DatabaseUnavailable("postgres at 10.0.0.1 is away"), text_stream._AWAY),
        (RuntimeError("a secret"), text_stream._BROKEN),
    ],
)
async def test_text_that_cannot_be_read_ends_the_stream_with_an_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    """P21: and what went wrong is not told in its own words."""
    run = await stage.run()
    await run.write("a")

    async def fails(*_: Any) -> list[Any]:
        raise error

    monkeypatch.setattr(texts, "visible", fails)
    stream = await open_text(stage, run)
    *_, last = await stream.rest()
    assert (last.event, last.data) == ("error", {"message": message})
    assert stream.parser.retry is not None
    assert stream.parser.retry >= 5_000
    monkeypatch.undo()
    assert shown(await deltas(await open_text(stage, run), 1)) == [(1, "a")]


# ---- the page ----------------------------------------------------------------------------------


async def test_the_page_holds_the_same_text(stage: Stage) -> None:
    run = await stage.run()
    await run.write("a", "b", "c")
    found = await page(stage, run, after=1)
    times = [item.pop("created_at") for item in found["items"]]
    assert times == sorted(times)
    assert found == {
        "items": [
            {"sequence": 2, "attempt": 1, "content": "b"},
            {"sequence": 3, "attempt": 1, "content": "c"},
        ],
        "next_cursor": None,
        "status": "running",
        "last_sequence": 3,
        "kept": True,
        "draft": None,
    }
    assert (await page(stage, run, after=10**15 - 1))["items"] == []


async def test_the_page_is_kept_by_nobody(stage: Stage) -> None:
    run = await stage.run()
    answer = await open_text(stage, run, part="text-deltas")
    assert answer.headers["cache-control"] == "no-store"


async def test_what_a_run_without_success_had_written_is_a_draft(stage: Stage) -> None:
    run = await stage.run()
    await run.write("void")
    await run.break_off()
    await run.write("half a ", "story")
    await run.break_off()
    await run.break_off()
    await run.ends()
    found = await page(stage, run, after=3)
    assert (found["status"], found["items"], found["draft"]) == ("failed", [], "half a story")


async def test_text_that_is_no_longer_kept_is_missing_and_the_end_still_told(
    stage: Stage,
) -> None:
    """P9."""
    run = await stage.run()
    await run.write("a", "b")
    await run.finish()
    assert await prune_texts(stage.engine, after_success=timedelta(0)) == 1
    stream = await open_text(stage, run, after=1)
    assert [item.event for item in await stream.rest()] == ["progress", "terminal"]
    assert stream.parser.last_id == "3"
    found = await page(stage, run)
    assert (found["items"], found["last_sequence"], found["kept"]) == ([], 2, False)


# ---- the contract ------------------------------------------------------------------------------


def _hold(item: Item) -> None:
    """What the shape does not know is lost on the way through it, so both ways must be equal."""
    adapter: TypeAdapter[Any] = TypeAdapter(text_stream.FRAMES.shapes[item.event])
    assert adapter.dump_python(adapter.validate_python(item.data), mode="json") == item.data


async def test_every_frame_has_its_declared_shape(make_stage: MakeStage) -> None:
    stage = await make_stage(per_principal=1)
    run = await stage.run()
    stream = await open_text(stage, run)
    await run.write("a")
    await run.break_off()
    await run.write("b")
    items = await stream.until("delta") + await stream.until("delta")
    items += await (await open_text(stage, run)).rest()
    await run.finish()
    items += await stream.rest()
    assert {item.event for item in items} == set(text_stream.FRAMES.shapes) - {"error"}
    for item in items:
        _hold(item)
    document = stage.app.openapi()["paths"]["/v1/runs/{run_id}/text-events"]["get"]
    content = document["responses"]["200"]["content"]
    assert set(content) == {"text/event-stream"}
    names = content["text/event-stream"]["x-frames"]
    assert set(names) == set(text_stream.FRAMES.shapes)
    assert "204" in document["responses"]
