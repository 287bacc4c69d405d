"""The feed of a scope: many runs over one connection, each in order, for who may see them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from earnest.domain.errors import DatabaseUnavailable
from earnest.doors.api import shapes
from earnest.engine.process import access, announcing, principals, tokens
from earnest.engine.process.doorbells import Doorbells
from earnest.engine.process.engine import Engine
from earnest.engine.process.epoch import begin_epoch
from earnest.engine.streams import feeding, tails
from earnest.store import feed
from tests.doors.streams.conftest import MakeStage
from tests.doors.streams.reading import Item, Stream, connect
from tests.doors.streams.stage import FIRST, Stage, until

QUICK = timedelta(seconds=0.1)
FAR = timedelta(seconds=60)
OPERATOR = "operator"
BOB = ("demo", "bob")
SHAPES: dict[str, Any] = {
    "message": shapes.Event,
    "heartbeat": shapes.FeedHeartbeat,
    "resync_required": shapes.FeedResync,
    "stream_end": shapes.StreamEnd,
}

Told = list[tuple[str, int]]
Open = Callable[..., Any]


@pytest.fixture
async def opening() -> AsyncIterator[Open]:
    """Opens the feed of a stage, and closes it at the end."""
    opened: list[Stream] = []

    async def open_feed(
        stage: Stage,
        who: str | None = OPERATOR,
        cursor: str | None = None,
        last_event_id: str | None = None,
        **more: Any,
    ) -> Stream:
        headers = {"Accept": "text/event-stream"}
        if who is not None:
            headers["Authorization"] = f"Bearer {stage.tokens[who]}"
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        query = "" if cursor is None else f"?cursor={cursor}"
        opened.append(await connect(f"{stage.serving.url}/v1/events{query}", headers, **more))
        return opened[-1]

    yield open_feed
    for stream in opened:
        stream.close()


async def page(stage: Stage, who: str = OPERATOR, **query: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stage.serving.url) as client:
        headers = {"Authorization": f"Bearer {stage.tokens[who]}"}
        return await client.get("/v1/events", params=query, headers=headers)


def named(items: Iterable[Item]) -> Told:
    return [(item.data["run_id"], item.data["seq"]) for item in items]


def places(items: Iterable[Item]) -> list[int]:
    return [int(item.id.split("-")[1]) for item in items]


def in_order(told: Told) -> dict[str, list[int]]:
    """The numbers of each run, which must be 1, 2, 3 …"""
    by_run: dict[str, list[int]] = defaultdict(list)
    for run_id, seq in told:
        by_run[run_id].append(seq)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_run.values())
    return dict(by_run)


# ---- in order, without a gap --------------------------------------------------------------------


async def test_many_runs_are_told_over_one_connection(stage: Stage, opening: Open) -> None:
    """P9."""
    runs = [await stage.run(3) for _ in range(3)]
    stream = await opening(stage)
    told = await stream.messages(9)
    for run in runs:
        await run.append(2)
    told += await stream.messages(6)
    assert in_order(named(told)) == {run.id: [1, 2, 3, 4, 5] for run in runs}
    assert places(told) == list(range(1, 16))


async def test_an_event_is_told_as_the_runs_own_stream_tells_it(
    stage: Stage, opening: Open
) -> None:
    run = await stage.run(4)
    (own, feed_) = await stage.open(run), await opening(stage)
    assert [item.data for item in await own.messages(4)] == [
        item.data for item in await feed_.messages(4)
    ]


async def test_replay_goes_over_into_live_while_many_write(stage: Stage, opening: Open) -> None:
    """P9: readers come in the middle, at places of their own."""
    runs = [await stage.run() for _ in range(4)]
    speaking = [asyncio.create_task(run.append(60)) for run in runs]
    total = 4 * (60 + FIRST)
    whole = await opening(stage)
    readers = []
    for number in range(8):
        await runs[0].reaches(number * 6)
        readers.append(await opening(stage, cursor=str(number * 5)))
    await asyncio.gather(*speaking)
    told = named(await whole.messages(total, within=30))
    assert set(in_order(told)) == {run.id for run in runs}
    for number, reader in enumerate(readers):
        rest = await reader.messages(total - number * 5, within=30)
        assert named(rest) == told[number * 5 :]


async def test_a_reader_that_lags_is_served_from_the_table(
    stage: Stage, opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9, P10: what the hub holds is bounded; nothing is lost with it."""
    monkeypatch.setattr(tails, "KEPT_EVENTS", 4)
    monkeypatch.setattr(feeding, "PAGE", 7)
    run = await stage.run()
    prompt, late = await opening(stage), await opening(stage, buffer=4096, limit=4096)
    await run.append(150, text="x" * 2_000)
    assert places(await prompt.messages(150 + FIRST)) == list(range(1, 153))
    assert places(await late.messages(150 + FIRST)) == list(range(1, 153))
    (tail,) = (await stage.streams.life()).feed._tails.values()
    assert len(tail.frames) <= 4


async def test_more_readers_than_one_look_holds_are_all_told(
    stage: Stage, opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "LOOKED_AT_ONCE", 1)
    monkeypatch.setattr(feeding, "PAGE", 3)
    mine, theirs = await stage.run(), await stage.run(who=BOB)
    streams = [await opening(stage, who) for who in ("member", "member2", OPERATOR)]
    await mine.append(20)
    await theirs.append(20)
    told = [
        named(await stream.messages(count))
        for stream, count in zip(streams, (22, 22, 44), strict=True)
    ]
    assert [set(in_order(one)) for one in told] == [{mine.id}, {theirs.id}, {mine.id, theirs.id}]


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), RuntimeError("a mistake")])
async def test_a_look_that_fails_is_made_again(
    make_stage: MakeStage, opening: Open, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """P9."""
    stage = await make_stage(poll=QUICK)
    run = await stage.run()
    stream = await opening(stage)
    await stream.messages(2)
    failed = asyncio.Event()

    async def fails_once(*arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise error
        return await is_behind(*arguments)

    is_behind = feed.is_behind
    monkeypatch.setattr(feed, "is_behind", fails_once)
    await failed.wait()
    await run.append()
    assert named(await stream.messages(1)) == [(run.id, 3)]


# ---- where a reader begins ----------------------------------------------------------------------


async def test_a_reconnect_goes_on_after_its_last_id(stage: Stage, opening: Open) -> None:
    """P8, P9."""
    await stage.run(5)
    first = await opening(stage)
    last = (await first.messages(3))[-1]
    first.close()
    for more in ({"cursor": last.id}, {"last_event_id": last.id, "cursor": "1"}, {"cursor": "3"}):
        assert places(await (await opening(stage, **more)).messages(2)) == [4, 5]


async def test_now_tells_only_what_is_new_and_gives_a_place_at_once(
    stage: Stage, opening: Open
) -> None:
    """P9: who is cut off before anything happened comes again with that place."""
    run = await stage.run(5)
    stream = await opening(stage, cursor="now")
    (beat,) = await stream.until("heartbeat")
    assert (beat.data, beat.id) == ({"head_seq": 5}, f"{await stage.epoch()}-5")
    stream.close()
    await run.append()
    again = await opening(stage, cursor="now", last_event_id=beat.id)
    assert named(await again.messages(1)) == [(run.id, 6)]


@pytest.mark.parametrize("cursor", ["-1", "abc", "later", "1.5", "", "9" * 19 + "9", "nowx"])
async def test_what_is_no_cursor_is_refused(stage: Stage, opening: Open, cursor: str) -> None:
    assert (await opening(stage, cursor=cursor)).status == 400
    assert (await page(stage, cursor=cursor)).status_code == 400
    assert (await opening(stage, last_event_id=cursor or "x")).status == 400


# ---- what is no longer kept ---------------------------------------------------------------------


async def _prune(stage: Stage, position: int) -> None:
    await stage.streams._engine.database.promise(
        "prune", lambda tx: feed.prune(tx, "demo", position)
    )


async def test_from_the_start_is_from_the_oldest_that_is_kept(stage: Stage, opening: Open) -> None:
    """P9."""
    runs = [await stage.run() for _ in range(3)]
    await page(stage)
    await _prune(stage, 3)
    found = (await page(stage)).json()
    kept_from = found["minimum_retained_seq"]
    assert kept_from in (3, 4), "a piece of the feed is kept whole"
    assert len(found["items"]) == 7 - kept_from
    assert places(await (await opening(stage)).messages(2))[0] == kept_from
    await runs[0].append()
    assert (await page(stage)).json()["head_seq"] == 7


@pytest.mark.parametrize("cursor", ["1", "99", "abc-2"], ids=["pruned", "ahead", "other epoch"])
async def test_what_cannot_be_gone_on_from_is_told_with_a_place_that_can(
    stage: Stage, opening: Open, cursor: str
) -> None:
    """P9."""
    run = await stage.run(2)
    await page(stage)
    await run.append(2)
    await page(stage)
    await _prune(stage, 2)
    told = {"status": "resync_required", "minimum_retained_seq": 3, "head_seq": 4}
    told["after_seq"] = int(cursor.rpartition("-")[2])
    stream = await opening(stage, cursor=cursor)
    item = await stream.next()
    assert item is not None
    assert (item.event, item.data, item.id) == (
        *("resync_required", told),
        f"{await stage.epoch()}-4",
    )
    refused = await page(stage, cursor=cursor)
    assert refused.status_code == 410
    assert {**told, "status": 410, "code": "resync_required"}.items() <= refused.json().items()
    await run.append()
    assert named(await stream.messages(1)) == [(run.id, 5)]
    again = await page(stage, cursor=refused.json()["head_seq"])
    assert [item["seq"] for item in again.json()["items"]] == [5]


async def test_a_reader_whose_place_is_pruned_while_it_reads_is_told(
    stage: Stage, opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: not in silence."""
    monkeypatch.setattr(tails, "KEPT_EVENTS", 1)
    run = await stage.run()
    slow = await opening(stage, buffer=4096, limit=4096)
    for _ in range(6):
        await run.append(20, text="x" * 8_000)
        await page(stage)
    await _prune(stage, 110)
    items = await slow.until("resync_required")
    seen = places(items[1:-1])
    assert seen == list(range(1, len(seen) + 1))
    await run.append()
    (next_,) = await slow.messages(1)
    assert next_.data["seq"] == 123


async def test_events_that_are_gone_too_early_show_as_a_resync(stage: Stage, opening: Open) -> None:
    """P9: retention prunes the feed first; whoever does it by hand is noticed."""
    run = await stage.run(5)
    await page(stage)
    await run.forget_before(3)
    assert (await page(stage, cursor="0")).status_code == 410
    stream = await opening(stage)
    assert (await stream.until("resync_required"))[-1].data["head_seq"] == 5
    await run.append()
    assert named(await stream.messages(1)) == [(run.id, 6)]


# ---- who sees what ------------------------------------------------------------------------------


async def test_a_member_is_told_of_its_own_runs_alone(stage: Stage, opening: Open) -> None:
    """P12."""
    mine, theirs = await stage.run(3), await stage.run(3, BOB)
    stream, foreign = await opening(stage, "member"), await opening(stage, "other operator")
    told = await stream.messages(3)
    await theirs.append(4)
    await mine.append(2)
    told += await stream.messages(2)
    assert named(told) == [(mine.id, n) for n in range(1, 6)]
    assert places(told) == sorted(places(told))
    rest = await opening(stage, "member", cursor=told[2].id)
    assert named(await rest.messages(2)) == [(mine.id, 4), (mine.id, 5)]
    found = (await page(stage, "member2")).json()
    assert {item["run_id"] for item in found["items"]} == {theirs.id}
    assert found["cursor"] == f"{await stage.epoch()}-12"
    assert (await page(stage, "other member")).json()["items"] == []
    (beat,) = await foreign.until("heartbeat")
    assert beat.data == {"head_seq": 0}


async def test_a_member_to_whom_nothing_happens_keeps_its_place(
    make_stage: MakeStage, opening: Open
) -> None:
    """P9: what happens to others moves its place on, so that pruning does not cost it a resync."""
    stage = await make_stage(heartbeat=QUICK)
    theirs = await stage.run(5, BOB)
    stream = await opening(stage, "member")
    while (await stream.until("heartbeat"))[-1].id != f"{await stage.epoch()}-5":
        pass
    await theirs.append(150)
    while (await stream.until("heartbeat"))[-1].id != f"{await stage.epoch()}-155":
        pass


@pytest.mark.parametrize(("who", "status"), [("approver", 403), ("nobody", 403), (None, 401)])
async def test_who_sees_no_runs_is_refused(
    stage: Stage, opening: Open, who: str | None, status: int
) -> None:
    """P12."""
    assert (await opening(stage, who)).status == status


async def test_a_revoked_token_ends_the_stream_at_the_next_heartbeat(
    make_stage: MakeStage, opening: Open
) -> None:
    stage = await make_stage(heartbeat=QUICK)
    stream = await opening(stage)
    token = access.read_token(stage.tokens[OPERATOR])[0]
    await tokens.revoke_token(stage.engine, "demo", token)
    assert (await stream.rest())[-1].data == {"reason": "revoked"}


async def test_who_sees_more_or_less_than_before_comes_again_for_that(
    make_stage: MakeStage, opening: Open
) -> None:
    """P12."""
    stage = await make_stage(heartbeat=QUICK)
    theirs = await stage.run(2, BOB)
    stream = await opening(stage)
    await stream.messages(2)
    await principals.ensure_principal(stage.engine, "demo", "dan", ["member"])
    assert (await stream.rest())[-1].data == {"reason": "rotated"}
    assert theirs.id not in str((await page(stage)).json())


# ---- how long it lives --------------------------------------------------------------------------


async def test_a_feed_rotates_and_goes_on_where_it_was(
    make_stage: MakeStage, opening: Open
) -> None:
    """P8."""
    stage = await make_stage(shortest=QUICK, longest=QUICK)
    run = await stage.run(3)
    items = await (await opening(stage)).rest()
    assert items[-1].data == {"reason": "rotated"}
    await run.append()
    assert places(await (await opening(stage, last_event_id=items[-1].id)).messages(1)) == [4]


async def test_another_life_of_the_database_ends_the_feed(
    make_stage: MakeStage, opening: Open
) -> None:
    stage = await make_stage(heartbeat=QUICK)
    await stage.run(2)
    stream = await opening(stage)
    last = (await stream.messages(2))[-1]
    await begin_epoch(stage.engine)
    assert (await stream.rest())[-1].data == {"reason": "rotated"}
    again = await opening(stage, last_event_id=last.id)
    assert (await again.until("resync_required"))[-1].data["head_seq"] == 2


async def test_feeds_count_among_the_streams_of_a_principal(
    make_stage: MakeStage, opening: Open
) -> None:
    stage = await make_stage(per_principal=1)
    await opening(stage)
    assert (await (await opening(stage)).rest())[-1].data == {"reason": "busy"}


async def test_a_reader_that_does_not_read_is_cut_off_and_may_come_again(
    make_stage: MakeStage, opening: Open
) -> None:
    """P10."""
    stage = await make_stage(send_deadline=timedelta(seconds=0.3))
    run = await stage.run()
    stalled = await opening(stage, buffer=4096, limit=4096)
    await run.append(300, text="x" * 8_000)
    await until(lambda: stage.streams.places.open == 0)
    await stalled.until_cut_off()
    hub = (await stage.streams.life()).feed
    assert hub._tails == {}


async def test_a_feed_that_nobody_watches_is_not_appended_to(stage: Stage, opening: Open) -> None:
    stream = await opening(stage)
    await stream.until("heartbeat")
    hub = (await stage.streams.life()).feed
    task = hub._task
    assert task is not None
    stream.close()
    async with asyncio.timeout(10):
        await task
    run = await stage.run(5)
    database = stage.engine.database
    assert (await feed.bounds(database, ["demo"]))["demo"].head == 0
    assert named(await (await opening(stage)).messages(5)) == [(run.id, n) for n in range(1, 6)]


# ---- who tells of it ----------------------------------------------------------------------------


async def test_what_is_written_elsewhere_is_heard_at_once(
    make_stage: MakeStage, make_engine: Callable[..., Engine], opening: Open
) -> None:
    """Two servers of the same database; the bell alone tells them."""
    elsewhere = [make_engine(), make_engine()]
    for one in elsewhere:
        await one.bells.start()
    stages = [await make_stage(one, poll=FAR) for one in elsewhere]
    run = await stages[0].run()
    streams = [await opening(stage) for stage in stages]
    for stream in streams:
        await stream.messages(2)
    for _ in range(5):
        # The first rings may come before the other process listens.
        await run.append()
    told = [named(await stream.messages(5, within=5)) for stream in streams]
    assert told == [[(run.id, n) for n in range(3, 8)]] * 2


async def test_without_any_bell_it_is_found_a_little_later(
    make_stage: MakeStage, make_engine: Callable[..., Engine], opening: Open
) -> None:
    """P9, P17: nothing relies on a bell."""
    deaf = make_engine()
    deaf.bells = Doorbells(deaf.database, across=False)
    stage = await make_stage(deaf)
    run = await stage.run()
    stream = await opening(stage)
    await stream.messages(2)
    begun = time.monotonic()
    await run.append(3)
    assert named(await stream.messages(3)) == [(run.id, n) for n in (3, 4, 5)]
    assert time.monotonic() - begun < 1.5


async def test_a_run_from_an_open_transaction_of_the_user_is_told_when_it_commits(
    stage: Stage, opening: Open
) -> None:
    """P9, P17: `earnest.submit` in a transaction that stays open; all others are told at once."""
    database = stage.engine.database
    await _let_sql_submit(stage)
    user = await database.connect()
    transaction = user.transaction()
    await transaction.start()
    late = await user.fetchval("SELECT earnest.submit('demo', 'stage.scripted', '\"late\"')")
    run = await stage.run()
    stream = await opening(stage)
    told = named(await stream.messages(2))
    await run.append(3)
    told += named(await stream.messages(3))
    assert told == [(run.id, n) for n in range(1, 6)]
    stage._scripts.lines["late"] = asyncio.Queue()
    await transaction.commit()
    await user.close()
    assert named(await stream.messages(2)) == [(late, 1), (late, 2)]


async def _let_sql_submit(stage: Stage) -> None:
    await announcing.announce(stage.engine)
    async with stage.engine.database.connection() as tx:
        await tx.execute(
            "INSERT INTO database_role (role_name, scope_id, principal_id, created_at)"
            " VALUES (session_user, 'demo', 'ann', clock())"
        )


# ---- as a page ----------------------------------------------------------------------------------


async def test_pages_are_gone_through_by_their_cursors(stage: Stage) -> None:
    """P9."""
    runs = [await stage.run(4) for _ in range(3)]
    told: Told = []
    cursor: dict[str, Any] = {}
    while True:
        found = (await page(stage, limit=5, **cursor)).json()
        told += [(item["run_id"], item["seq"]) for item in found["items"]]
        if found["next_cursor"] is None:
            break
        assert found["next_cursor"] == found["cursor"]
        cursor = {"cursor": found["next_cursor"]}
    assert in_order(told) == {run.id: [1, 2, 3, 4] for run in runs}
    assert found["head_seq"] == 12
    await runs[1].append()
    (item,) = (await page(stage, cursor=found["cursor"])).json()["items"]
    assert (item["run_id"], item["seq"]) == (runs[1].id, 5)


async def test_a_page_has_all_that_was_committed_before_it_was_asked_for(stage: Stage) -> None:
    """P9: without anybody who watches, and without a bell."""
    run = await stage.run(3)
    for seq in range(4, 10):
        await run.append()
        found = (await page(stage)).json()
        assert found["items"][-1]["seq"] == seq
        assert found["head_seq"] == seq


async def test_a_page_of_now_is_empty_and_has_a_cursor(stage: Stage) -> None:
    run = await stage.run(3)
    found = (await page(stage, cursor="now")).json()
    assert (found["items"], found["next_cursor"], found["head_seq"]) == ([], None, 3)
    await run.append()
    assert [i["seq"] for i in (await page(stage, cursor=found["cursor"])).json()["items"]] == [4]


# ---- its description ----------------------------------------------------------------------------


async def test_what_is_sent_has_its_declared_shape(make_stage: MakeStage, opening: Open) -> None:
    stage = await make_stage(
        heartbeat=QUICK, shortest=timedelta(seconds=0.5), longest=timedelta(seconds=0.5)
    )
    run = await stage.run(3)
    stream = await opening(stage, cursor="77")
    await run.append()
    items = await stream.rest()
    assert {item.event for item in items} == set(SHAPES)
    for item in items:
        adapter = TypeAdapter(SHAPES[item.event])
        assert adapter.dump_python(adapter.validate_python(item.data), mode="json") == item.data
    found = (await page(stage)).json()
    adapter = TypeAdapter(shapes.FeedPage)
    assert adapter.dump_python(adapter.validate_python(found), mode="json") == found


async def test_the_document_declares_the_feed(stage: Stage) -> None:
    operation = stage.app.openapi()["paths"]["/v1/events"]["get"]
    content = operation["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    assert set(content["text/event-stream"]["x-frames"]) == set(SHAPES)
    assert "204" not in operation["responses"], "a feed has no end"
    assert {one["name"] for one in operation["parameters"]} == {"limit", "cursor", "Last-Event-ID"}
