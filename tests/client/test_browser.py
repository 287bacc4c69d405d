"""The browser client in a real browser, on real servers (P8, P9, P10)."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from playwright.async_api import Browser

from earnest import Client
from earnest.doors.api.streams import StreamSettings
from tests.client.browser import PROGRAM, Reader, chromium, open_page
from tests.client.cutting import CuttingWay
from tests.client.house import House
from tests.doors.streams.clients.playing import open_house
from tests.doors.streams.stage import until

pytestmark = [
    pytest.mark.skipif(
        shutil.which(PROGRAM) is None,
        reason="Chromium is not installed: scripts/system-packages",
    ),
    pytest.mark.timeout(180),
]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


def in_order(reader: Reader) -> bool:
    return reader.numbers == list(range(1, len(reader.numbers) + 1))


def ended(reader: Reader) -> set[str]:
    """The runs whose end was told."""
    return {event["run_id"] for event in reader.of("event") if event.get("final")}


async def test_events_are_replayed_and_told_live_until_the_end(
    shared: House, client: Client, browser: Browser
) -> None:
    reader = await open_page(browser, shared.url)
    token = shared.tokens["member"]
    run = await client.submit("demo.text", {"words": 30, "delay_ms": 30})
    await reader.follow(run.id, token=token)
    await reader.until_over()
    events = [event async for event in client.events(run.id)]
    assert in_order(reader)
    assert [event["id"] for event in reader.of("event")] == [event.id for event in events]
    assert reader.of("event")[-1]["type"] == "run.succeeded"
    assert reader.of("end") == [{"reason": "final"}]
    # Who has everything is told so, and comes no more.
    await reader.follow(run.id, token=token, after=events[-1].id)
    await reader.until(lambda one: len(one.of("end")) == 2)
    assert len(reader.numbers) == len(events)


async def test_what_cannot_be_told_any_more_is_a_resync(
    shared: House, client: Client, browser: Browser
) -> None:
    run = await client.submit("demo.echo", {"message": "m"})
    await client.wait(run.id)
    reader = await open_page(browser, shared.url)
    await reader.follow(run.id, token=shared.tokens["member"], after="elsewhen-2")
    await reader.until_over()
    (resync,) = reader.of("resync")
    assert resync["snapshot"]["status"] == "succeeded"
    assert (reader.numbers, reader.of("end")) == ([], [{"reason": "final"}])


async def test_what_is_refused_is_told_once_and_is_over(shared: House, browser: Browser) -> None:
    reader = await open_page(browser, shared.url)
    asked: list[str] = []
    reader.page.on("request", lambda request: asked.append(request.url))
    await reader.follow("run_01m8pcwfhaehp9wtdgvb78ck3m", token="ern_wrong")
    await reader.until_over()
    await reader.follow("run_01m8pcwfhaehp9wtdgvb78ck3m", token=shared.tokens["member"])
    await reader.until(lambda one: len(one.of("error")) == 2)
    await reader.follow("run_x", token=shared.tokens["member"], after="no place")
    await reader.until(lambda one: len(one.of("error")) == 3)
    assert [error["status"] for error in reader.of("error")] == [401, 404, 400]
    assert len(asked) == 3


async def test_a_handler_that_fails_ends_it_and_is_told(
    shared: House, client: Client, browser: Browser
) -> None:
    run = await client.submit("demo.echo", {"message": "m"})
    reader = await open_page(browser, shared.url)
    await reader.page.evaluate(
        """([id, token]) => followRun(id, {
            token, onEvent: (event) => { throw new Error(`not ${event.seq}`) } }) && 0""",
        [run.id, shared.tokens["member"]],
    )
    await reader.until_over()
    assert reader.of("error") == [{"message": "not 1", "status": 0}]


async def test_a_gap_is_closed_by_coming_again(
    shared: House, client: Client, browser: Browser
) -> None:
    """Something on the way swallows one event, once."""
    run = await client.submit("demo.steps", {"count": 5})
    await client.wait(run.id)
    reader = await open_page(browser, shared.url)
    await reader.page.evaluate(
        """([id, token]) => {
          let swallowed = false;
          const swallowing = () => new TransformStream({ transform(text, out) {
            const kept = text.split("\\n\\n").filter((one) => {
              const hit = !swallowed && /^id: .*-3\\n/m.test(one);
              swallowed ||= hit;
              return !hit;
            });
            out.enqueue(kept.join("\\n\\n"));
          }});
          const through = async (url, init) => {
            const answer = await fetch(url, init);
            if (!answer.body) return answer;
            const body = answer.body.pipeThrough(new TextDecoderStream())
              .pipeThrough(swallowing()).pipeThrough(new TextEncoderStream());
            return new Response(body, { status: answer.status, headers: answer.headers });
          };
          followRun(id, { token, fetch: through });
        }""",
        [run.id, shared.tokens["member"]],
    )
    await reader.until_over()
    assert in_order(reader)
    assert len(reader.numbers) > 5
    assert reader.of("state").count("open") == 2


async def test_two_tabs_are_told_the_same_and_one_may_leave(
    shared: House, client: Client, browser: Browser
) -> None:
    first, second = [await open_page(browser, shared.url) for _ in range(2)]
    run = await client.submit("demo.text", {"words": 40, "delay_ms": 30})
    for reader in (first, second):
        await reader.follow(run.id, token=shared.tokens["member"])
        await reader.until(lambda one: len(one.numbers) >= 2)
    await first.close_stream()
    had = len(first.numbers)
    await second.until_over()
    assert in_order(second)
    assert (len(first.numbers), first.of("end"), first.of("error")) == (had, [], [])


async def test_the_scope_is_followed_over_many_runs(
    shared: House, client: Client, browser: Browser
) -> None:
    reader = await open_page(browser, shared.url)
    run = await client.submit("demo.echo", {"message": "one"})
    await reader.follow_scope(token=shared.tokens["member"])
    await reader.until(lambda one: run.id in ended(one))
    place = await reader.page.evaluate("() => last.place")
    await reader.close_stream()
    other = await client.submit("demo.echo", {"message": "two"})
    after = await open_page(browser, shared.url)
    await after.follow_scope(token=shared.tokens["member"], after=place)
    await after.until(lambda one: other.id in ended(one))
    assert {event["run_id"] for event in after.of("event")} == {other.id}
    assert in_order(after)


async def test_without_a_token_the_browsers_own_cookie_counts(
    shared: House, browser: Browser
) -> None:
    reader = await open_page(browser, shared.url)
    seen = await reader.page.evaluate(
        """() => new Promise((say) => followRun("run_x", { fetch: async (url, init) => {
            say([Object.keys(init.headers), init.credentials]);
            return new Response(null, { status: 204 });
        }}))"""
    )
    assert seen == [["Accept", "Last-Event-ID"], "same-origin"]


# ---- faults ------------------------------------------------------------------------------------


@pytest.mark.fault
async def test_it_goes_on_over_a_restart_and_over_a_kill(house: House, browser: Browser) -> None:
    house.start()
    async with Client(house.url, house.tokens["member"]) as client:
        run = await client.submit("demo.sleep", {"seconds": 5})
        reader = await open_page(browser, house.url)
        await reader.follow(run.id, token=house.tokens["member"])
        for kill in (False, True):
            had = len(reader.numbers)
            await reader.until(lambda one, had=had: len(one.numbers) >= had + 3)  # type: ignore[misc]
            await house.restart(kill=kill)
        await reader.until_over()
        assert in_order(reader)
        assert len(reader.numbers) == len([event async for event in client.events(run.id)])
    assert reader.of("event")[-1]["type"] == "run.succeeded"


@pytest.mark.fault
async def test_it_goes_on_where_the_way_cuts_anywhere(
    shared: House, client: Client, browser: Browser
) -> None:
    run = await client.submit("demo.steps", {"count": 40})
    await client.wait(run.id)
    reader, way = await _read_by(browser, shared, run.id, silent=False)
    assert way.cut > 0
    assert in_order(reader)
    assert reader.of("end") == [{"reason": "final"}]


@pytest.mark.fault
async def test_a_stream_that_falls_silent_is_left_for_another_one(
    shared: House, client: Client, browser: Browser
) -> None:
    run = await client.submit("demo.steps", {"count": 40})
    await client.wait(run.id)
    reader, way = await _read_by(browser, shared, run.id, silent=True)
    assert way.cut > 0
    assert in_order(reader)
    assert reader.of("end") == [{"reason": "final"}]


async def _read_by(
    browser: Browser, house: House, run_id: str, *, silent: bool
) -> tuple[Reader, CuttingWay]:
    """Reads a run to its end by a way that breaks once the page is there."""
    loaded = asyncio.Event()

    def budget(dice: random.Random) -> int:
        return dice.randrange(4_000, 14_000) if loaded.is_set() else 2**30

    async with CuttingWay(house.url, 5, budget, silent=silent) as way:
        reader = await open_page(browser, way.url)
        loaded.set()
        way.break_all()
        await reader.follow(run_id, token=house.tokens["member"], silence=1_000)
        await reader.until_over()
    return reader, way


async def test_a_handler_that_takes_its_time_is_given_everything(
    database_url: str, browser: Browser
) -> None:
    """P10: the server gives its reader up; what was not read is read when it comes again."""
    impatient = StreamSettings(send_deadline=timedelta(seconds=0.5))
    async with open_house(database_url) as house, house.serve(impatient) as stage:
        run = await stage.run()
        reader = await open_page(browser, stage.serving.url)
        await reader.page.evaluate(
            """([id, token]) => {
              const going = new Promise((go) => { window.go = go });
              let count = 0;
              followRun(id, { token, onEvent: async (event) => {
                await going; count += 1; if (count !== event.seq) throw new Error("out of order");
              }, onEnd: () => tell("end", { count }) });
            }""",
            [run.id, stage.tokens["member"]],
        )
        await until(lambda: stage.streams.places.open == 1)
        count = 3
        while stage.streams.places.open:
            await run.append(200, text="x" * 15_000)
            count += 200
        await run.finish()
        await reader.page.evaluate("() => go()")
        await reader.until_over()
    assert (reader.of("error"), reader.of("end")) == ([], [{"count": count}])
    assert reader.of("state").count("open") > 1
