"""The client-neutral cases of `tests/doors/streams/cases.py`, held against a client."""

from __future__ import annotations

import asyncio

from tests.doors.streams.cases import Case
from tests.doors.streams.clients.drivers import Seen
from tests.doors.streams.clients.playing import Play
from tests.doors.streams.clients.relay import Relay
from tests.doors.streams.stage import ScriptedRun


async def play_case(play: Play, case: Case) -> None:
    """Raises `AssertionError` where the client was not given what it is owed, `NotApplicable` where
    it cannot ask for it."""
    epoch = await play.stage.epoch()
    run = await _arranged(play, case)
    after, last_id = (
        None if text is None else text.replace("{epoch}", epoch)
        for text in (case.after, case.last_event_id)
    )
    seen, relay = await play.follow(run, after=after, last_event_id=last_id, who=case.who)
    if case.status == 200:
        await _watch(case, run, seen)
        if case.reason is not None:
            await _until_it_stays_away(play, seen, relay)
        _check(case, epoch, seen)
    else:
        await seen.until_closed()
        assert (seen.items, seen.opened) == ([], 0), seen.told()
        assert [one.status for one in relay.asked] == [case.status]
        assert seen.status in (case.status, None), "a browser does not say"


async def _arranged(play: Play, case: Case) -> ScriptedRun:
    run = await play.run(case.events)
    if case.final:
        await run.finish()
    await run.forget_before(case.kept_from)
    return run


async def _watch(case: Case, run: ScriptedRun, seen: Seen) -> None:
    if case.resync:
        # What happens before it is part of its snapshot.
        await seen.has(1, "resync_required")
    async with asyncio.timeout(30):
        await run.append(case.append)
        if case.finish:
            await run.finish()
    await seen.has(len(case.given))


async def _until_it_stays_away(play: Play, seen: Seen, relay: Relay) -> None:
    """After the end it comes once more with its last id, and 204 tells it to stay away."""
    await seen.until_closed()
    again = [one.last_event_id for one in relay.asked[1:]]
    assert again == ([seen.last_id] if play.client.comes_again else [])
    assert relay.asked[-1].status == (204 if play.client.comes_again else 200)


def _check(case: Case, epoch: str, seen: Seen) -> None:
    assert seen.numbers == list(case.given), seen.told()
    assert len(seen.named("resync_required")) == case.resync
    if case.id:
        assert seen.last_id == case.id.replace("{epoch}", epoch)
    ends = [item.data for item in seen.named("stream_end")]
    assert ends == ([] if case.reason is None else [{"reason": case.reason}])
