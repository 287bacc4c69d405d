"""Many callers at once: claims, settles, cancels and reads of the same runs fit one order."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from earnest.domain.run import RetryPolicy
from earnest.engine.app import App
from earnest.engine.attempts.reaping import Reaper
from earnest.engine.attempts.settling import Ending, Settler, Wish
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import Instance
from earnest.engine.runs import cancelling, submitting
from earnest.store import executions, facts, runs
from earnest.store.database import Database
from earnest.store.executions import Claimed
from earnest.testing.clock import ManualClock
from tests.model.history import ATTEMPTS, History
from tests.model.linearity import Call, Told, check, told

SCOPE, LANE, KIND = "busy", "default", "work"
_app = App("busy")


@_app.run(KIND, max_attempts=4)
async def _work(ctx: object, number: int) -> int:
    """Never called: the test plays the handler."""
    return number


@dataclass
class Crowd:
    """Callers on one database, each with an engine of its own, and all that they heard."""

    database: Database
    clock: ManualClock
    run_ids: list[uuid.UUID]
    chance: random.Random
    ticks: itertools.count[int] = field(default_factory=itertools.count)
    calls: dict[uuid.UUID, list[Call]] = field(default_factory=lambda: defaultdict(list))

    def engine(self) -> Engine:
        return Engine(self.database, _app.kinds, instance=Instance())

    def any_run(self) -> uuid.UUID:
        return self.chance.choice(self.run_ids)

    def note(
        self, run_id: uuid.UUID, verb: str, began: int, answer: str, fence: int = 0, number: int = 0
    ) -> None:
        self.calls[run_id].append(Call(verb, began, next(self.ticks), answer, fence, number))

    async def work(self, rounds: int) -> None:
        """A worker that claims, and settles what it has some time, perhaps too late."""
        engine, hands = self.engine(), list[Claimed]()
        settler = Settler(engine)
        for _ in range(rounds):
            if not hands or self.chance.random() < 0.4:
                hands += await self._claim(engine)
            elif hands:
                await self._settle(settler, hands.pop(self.chance.randrange(len(hands))))

    async def _claim(self, engine: Engine) -> list[Claimed]:
        began, instance_id, lease = (
            next(self.ticks),
            engine.instance.instance_id,
            engine.settings.lease,
        )
        claimed = await self.database.promise(
            "claim", lambda tx: executions.claim(tx, LANE, [KIND], instance_id, lease, 2)
        )
        for one in claimed:
            self.note(one.run_id, "claim", began, "claimed", one.fence)
        return claimed

    async def _settle(self, settler: Settler, claimed: Claimed) -> None:
        wish = self.chance.choice([Wish.SUCCEED, Wish.RETRY, Wish.RETRY, Wish.HAND_BACK])
        retry = RetryPolicy(max_attempts=4, longest=_NO_TIME, first=_NO_TIME)
        began = next(self.ticks)
        settled = await settler.settle(claimed, Ending(wish, error={"code": "x"}, retry=retry))
        self.note(claimed.run_id, wish.value, began, settled.value, claimed.fence)

    async def cancel(self, rounds: int) -> None:
        engine = self.engine()
        for _ in range(rounds):
            run_id, began = self.any_run(), next(self.ticks)
            cancelled = await cancelling.cancel(engine, SCOPE, run_id, "somebody")
            self.note(run_id, "cancel", began, cancelled.outcome.value)

    async def read(self, rounds: int) -> None:
        for _ in range(rounds):
            run_id, began = self.any_run(), next(self.ticks)
            run = await runs.find(self.database, SCOPE, run_id)
            assert run is not None
            self.note(run_id, "read", began, run.status.value, number=run.last_seq)

    async def reap(self, rounds: int) -> None:
        """Time passes, and what has lapsed is taken away."""
        reaper = Reaper(self.engine())
        for _ in range(rounds):
            await self.clock.advance(seconds=self.chance.choice([1, 1, 46]))
            await reaper.look()


_NO_TIME = RetryPolicy().first * 0


async def _crowd(database: Database, clock: ManualClock, seed: int, count: int) -> Crowd:
    engine = Engine(database, _app.kinds)
    run_ids = await submitting.submit_many(engine, SCOPE, "me", KIND, list(range(count)))
    return Crowd(database, clock, run_ids, random.Random(seed))


async def _finish(crowd: Crowd) -> None:
    """Whoever still holds a run has lost it by now."""
    await crowd.clock.advance(seconds=46)
    await Reaper(crowd.engine()).look()


@pytest.mark.parametrize("seed", range(3))
async def test_what_many_callers_heard_at_once_fits_one_order(
    database: Database, clock: ManualClock, seed: int
) -> None:
    crowd = await _crowd(database, clock, seed, count=12)
    workers = [crowd.work(30) for _ in range(4)]
    await asyncio.gather(*workers, crowd.cancel(8), crowd.read(60), crowd.reap(12))
    await _finish(crowd)
    for run_id in crowd.run_ids:
        events = await facts.events(database, SCOPE, run_id, 0, 1000)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        check(told(events), crowd.calls[run_id])
    async with database.connection() as connection:
        History().check(await connection.fetch(ATTEMPTS, SCOPE))


# ---- the checker itself -------------------------------------------------------------------------

_ONE_LIFE = (
    Told("run.submitted"),
    Told("attempt.started", 1),
    Told("attempt.lost", 1),
    Told("run.retry_scheduled"),
    Told("attempt.started", 2),
    Told("run.succeeded", 2),
)
_CLAIMED = Call("claim", 0, 1, "claimed", 1)
_CLAIMED_AGAIN = Call("claim", 4, 5, "claimed", 2)
_SUCCEEDED = Call("succeed", 8, 9, "succeeded", 2)


def test_a_history_that_fits_is_accepted() -> None:
    late = Call("succeed", 10, 11, "fenced", 1)
    overlapping = Call("cancel", 6, 10, "too_late")
    check(_ONE_LIFE, [_CLAIMED, _CLAIMED_AGAIN, _SUCCEEDED, late, overlapping])


@pytest.mark.parametrize(
    "wrong",
    [
        Call("succeed", 2, 3, "succeeded", 1),
        Call("cancel", 2, 3, "too_late"),
        Call("cancel", 10, 11, "cancelled"),
        Call("succeed", 6, 7, "fenced", 2),
        Call("read", 10, 11, "running", number=5),
        Call("read", 10, 11, "succeeded", number=5),
    ],
    ids=str,
)
def test_what_nobody_can_have_heard_is_refused(wrong: Call) -> None:
    with pytest.raises(AssertionError):
        check(_ONE_LIFE, [_CLAIMED, _CLAIMED_AGAIN, _SUCCEEDED, wrong])


@pytest.mark.parametrize(
    "events",
    [
        (Told("run.submitted"), Told("attempt.started", 1), Told("attempt.started", 2)),
        (Told("run.submitted"), Told("run.succeeded", 1)),
        (*_ONE_LIFE, Told("attempt.started", 3)),
    ],
    ids=["two owners", "nobody's success", "after the end"],
)
def test_events_that_no_run_can_tell_are_refused(events: tuple[Told, ...]) -> None:
    with pytest.raises(AssertionError):
        check(events, [])


def test_calls_whose_moves_are_in_the_wrong_order_are_refused() -> None:
    swapped = Call("claim", 10, 11, "claimed", 1)
    with pytest.raises(AssertionError):
        check(_ONE_LIFE, [swapped, _CLAIMED_AGAIN, _SUCCEEDED])
