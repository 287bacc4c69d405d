"""What happens on the way and while time passes: each scenario is played with a real client, a real
server, and a relay that breaks the way between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from earnest.doors.api.streams import StreamSettings
from earnest.engine.process import access, tokens
from earnest.engine.process.epoch import begin_epoch
from tests.doors.streams.clients.drivers import Seen
from tests.doors.streams.clients.playing import GIVES_UP, NotApplicable, Play
from tests.doors.streams.clients.relay import Relay, by_bytes, cut_after, refused, twice

QUICK = timedelta(seconds=0.2)
WORDS = "Grüße, 世界 🙂 \u2028 and \u0085"
"""Letters of two, three and four bytes, and some that are no end of a line here."""

Action = Callable[[Play], Awaitable[None]]


@dataclass(frozen=True, eq=False)
class Scenario:
    """`alone`: it changes the database for all streams. `settings` are the server's."""

    promise: str
    action: Action
    settings: dict[str, Any] = field(default_factory=dict)
    alone: bool = False


SCENARIOS: list[Scenario] = []


def scenario(promise: str, *, alone: bool = False, **settings: Any) -> Callable[[Action], Action]:
    def note(action: Action) -> Action:
        SCENARIOS.append(Scenario(promise, action, settings, alone))
        return action

    return note


# ---- frames on the way -------------------------------------------------------------------------


@scenario("frames 2, 3, 3, 4 after 1, 2 were seen are 1, 2, 3, 4 to a client")
async def _(play: Play) -> None:
    run = await play.run(4)
    seen, _relay = await play.follow(run, twice(2), after=1)
    await seen.has(4)
    assert seen.numbers == [2, 3, 3, 4]
    assert seen.projection(1, 2) == [1, 2, 3, 4]


@scenario("letters of several bytes survive packets of one byte")
async def _(play: Play) -> None:
    run = await play.run()
    seen, _relay = await play.follow(run, by_bytes)
    await run.append(2, text=WORDS)
    await seen.has(4)
    assert [item.data["payload"]["text"] for item in seen.items[2:]] == [WORDS, WORDS]


@scenario("a large event arrives whole")
async def _(play: Play) -> None:
    run = await play.run()
    seen, _relay = await play.follow(run)
    await run.append(1, text="界" * 5_000)
    await seen.has(3)
    assert seen.items[-1].data["payload"]["text"] == "界" * 5_000


@scenario("heartbeats are no messages, and leave the last id alone", heartbeat=QUICK)
async def _(play: Play) -> None:
    run = await play.run(4)
    seen, _relay = await play.follow(run)
    await seen.has(2, "heartbeat")
    assert seen.numbers == [1, 2, 3, 4]
    assert {item.id for item in seen.named("heartbeat")} <= {seen.items[3].id, ""}
    assert {item.data["head_seq"] for item in seen.named("heartbeat")} == {4}


@scenario("the feed tells of two runs on one stream")
async def _(play: Play) -> None:
    seen, _relay = await play.follow(None)
    await seen.has(1, "heartbeat")
    first, second = await play.run(3), await play.run(3)
    ours = {first.id, second.id}

    def complete(seen: Seen) -> bool:
        return len(_of_runs(seen, ours)) >= 6

    await seen.until(complete)
    for run_id in ours:
        assert _of_runs(seen, {run_id}) == [1, 2, 3]


def _of_runs(seen: Seen, ids: set[str]) -> list[int]:
    told = [item.data for item in seen.named("message")]
    return [event["seq"] for event in told if event["run_id"] in ids]


# ---- the connection breaks ---------------------------------------------------------------------


@scenario("cut off between two frames, it goes on after its last id")
async def _(play: Play) -> None:
    await _goes_on_after(play, 3, b"")


@scenario("cut off in the middle of a frame, it drops that and is given it whole")
async def _(play: Play) -> None:
    await _goes_on_after(play, 3, b'"payload"')


@scenario("cut off in the middle of an id, it goes on after the one before")
async def _(play: Play) -> None:
    await _goes_on_after(play, 3, b"-")


@scenario("cut off in the middle of a letter, it is given it whole")
async def _(play: Play) -> None:
    await _goes_on_after(play, 3, "🙂".encode())


async def _goes_on_after(play: Play, count: int, inside: bytes) -> None:
    play.require_coming_again()
    run = await play.run()
    await run.append(4, text=WORDS)
    cut = asyncio.Event()
    seen, relay = await play.follow(run, cut_after(count, inside, when=cut))
    await seen.has(count)
    cut.set()
    again = await relay.until_asked(2)
    assert again.last_event_id == seen.items[count - 1].id
    await run.append(1)
    await seen.has(7)
    assert seen.numbers == list(range(1, 8))
    assert seen.items[4].data["payload"]["text"] == WORDS


@scenario("cut off three times in three hundred events, it has them all once")
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(150)
    faults = (cut_after(40, b"data"), cut_after(1), cut_after(90, b"created"))
    seen, relay = await play.follow(run, *faults)
    await run.append(152)
    await seen.has(302)
    assert seen.numbers == list(range(1, 303))
    assert len(relay.asked) == 4


@scenario("it comes again not before it was told to, and not much later")
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run()
    cut = asyncio.Event()
    seen, relay = await play.follow(run, cut_after(2, when=cut))
    await seen.has(2)
    cut.set()
    again = await relay.until_asked(2)
    _check_pause(relay, again.at)


def _check_pause(relay: Relay, at: float) -> None:
    first = relay.asked[0]
    assert first.retry is not None
    waited, told = at - first.over_at, first.retry / 1000
    assert told - 0.05 <= waited <= told + 5, f"waited {waited:.2f} s, told {told:.2f} s"


@scenario("refused when it comes again, it tries once more")
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(3)
    seen, relay = await play.follow(run, cut_after(3), refused)
    await relay.until_asked(2)
    if not play.client.tries_once_more:
        await seen.until_closed()
        raise NotApplicable(GIVES_UP)
    await relay.until_asked(3)
    await run.append()
    await seen.has(4)
    assert seen.numbers == [1, 2, 3, 4]


@scenario("a text that is cut off twice is read whole, once")
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run()
    faults = (cut_after(2, b"data: ", named=b"delta"), cut_after(1, named=b"delta"))
    seen, _relay = await play.follow(run, *faults, part="text-events")
    words = ["Grüße, ", "世界 ", "🙂", " and ", "more"]
    for word in words:
        await run.write(word)
    await run.finish()
    await seen.has(1, "terminal")
    told = [item.data for item in seen.named("delta")]
    assert [piece["sequence"] for piece in told] == sorted({piece["sequence"] for piece in told})
    assert "".join(piece["content"] for piece in told) == "".join(words)


# ---- the server sends it away ------------------------------------------------------------------


@scenario("sent away to come again, it misses nothing", shortest=QUICK, longest=QUICK)
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(3)
    seen, relay = await play.follow(run)
    for times in (2, 3):
        await relay.until_asked(times)
        await run.append(2)
    await seen.has(7)
    assert seen.numbers == list(range(1, 8))
    assert {item.data["reason"] for item in seen.named("stream_end")} == {"rotated"}


@scenario("told that all places are taken, it comes again later and gets in", per_principal=1)
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(3)
    async with asyncio.timeout(10):
        other = await play.stage.open(run)
        await other.messages(3)
    seen, relay = await play.follow(run)
    await seen.has(1, "stream_end")
    assert [item.data for item in seen.items] == [{"reason": "busy"}]
    other.close()
    again = await relay.until_asked(2)
    _check_pause(relay, again.at)
    assert relay.asked[0].retry is not None
    assert relay.asked[0].retry >= 5_000
    await seen.has(3)
    assert seen.numbers == [1, 2, 3]


@scenario("a resync is told once: it goes on from the resync's id")
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(12)
    await run.forget_before(10)
    cut = asyncio.Event()
    fault = cut_after(1, named=b"resync_required", when=cut)
    seen, relay = await play.follow(run, fault, after=1)
    await seen.has(1, "resync_required")
    cut.set()
    again = await relay.until_asked(2)
    assert again.last_event_id == f"{await play.stage.epoch()}-12"
    await run.append(2)
    await seen.has(2)
    assert seen.numbers == [13, 14]
    assert len(seen.named("resync_required")) == 1


@scenario("when its token is revoked it is told, and stays away after 401", heartbeat=QUICK)
async def _(play: Play) -> None:
    engine = play.stage.engine
    token = await tokens.issue_token(engine, "demo", "ann")
    run = await play.run(3)
    seen, relay = await play.follow(run, token=token)
    await seen.has(1, "heartbeat")
    await tokens.revoke_token(engine, "demo", access.read_token(token)[0])
    await seen.until_closed()
    assert [item.data for item in seen.named("stream_end")] == [{"reason": "revoked"}]
    assert [one.status for one in relay.asked] == [200, 401][: 1 + play.client.comes_again]


@scenario("when the server stops it is told, and goes on at the next one")
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(3)
    seen, relay = await play.follow(run)
    await seen.has(3)
    async with play.house.serve(StreamSettings()) as other:
        play.stage.serving.stop()
        relay.upstream = other.serving.url
        await seen.has(1, "stream_end")
        await run.append(2)
        await seen.has(5)
    assert seen.numbers == [1, 2, 3, 4, 5], seen.told()
    assert [item.data for item in seen.named("stream_end")][:1] == [{"reason": "shutdown"}]


@scenario("when the database leads another life it is told once", alone=True, heartbeat=QUICK)
async def _(play: Play) -> None:
    play.require_coming_again()
    run = await play.run(4)
    seen, _relay = await play.follow(run)
    await seen.has(4)
    epoch = await begin_epoch(play.stage.engine)
    await seen.has(1, "resync_required")
    (resync,) = seen.named("resync_required")
    assert resync.id == f"{epoch}-4"
    await run.append()
    await seen.has(5)
    assert seen.numbers == [1, 2, 3, 4, 5]


@scenario("many come and go, and no place stays taken")
async def _(play: Play) -> None:
    run = await play.run(3)
    followed = [await play.follow(run) for _ in range(4)]
    for seen, _relay in followed:
        await seen.has(3)
    assert play.stage.streams.places.open == 4
    await run.finish()
    for seen, _relay in followed:
        await seen.until_closed()
    until = time.monotonic() + 10
    while play.stage.streams.places.open:
        assert time.monotonic() < until, "a place stayed taken"
        await asyncio.sleep(0.02)
