"""Every client × every case: what is played, side by side, and what came of it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.doors.streams.cases import CASES, Case
from tests.doors.streams.clients.contract import play_case
from tests.doors.streams.clients.drivers import Client, Driver
from tests.doors.streams.clients.playing import House, NotApplicable, playing
from tests.doors.streams.clients.scenarios import SCENARIOS, Scenario

SIDE_BY_SIDE = 6
_WITHIN = 90.0  # seconds for one case

Played = Case | Scenario
EVERY_CASE: tuple[Played, ...] = (*CASES, *SCENARIOS)


@dataclass(frozen=True)
class Verdict:
    """`why` it was not as promised, or why the client cannot be asked for it; `None` if all was
    well."""

    promise: str
    applies: bool = True
    why: str | None = None

    @property
    def kept(self) -> bool:
        return self.why is None or not self.applies


async def play_all(
    house: House, client: Client, driver: Driver, cases: Sequence[Played] = EVERY_CASE
) -> list[Verdict]:
    """The verdicts in the order of the cases."""
    room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def in_turn(case: Played) -> Verdict:
        async with room:
            return await judge(house, client, driver, case)

    together = [case for case in cases if not is_alone(case)]
    verdicts = dict(zip(together, await asyncio.gather(*map(in_turn, together)), strict=True))
    for case in cases:
        if is_alone(case):
            verdicts[case] = await judge(house, client, driver, case)
    return [verdicts[case] for case in cases]


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}: {last.line}"


def is_alone(case: Played) -> bool:
    return isinstance(case, Scenario) and case.alone


async def judge(house: House, client: Client, driver: Driver, case: Played) -> Verdict:
    settings = case.settings if isinstance(case, Scenario) else {}
    try:
        async with asyncio.timeout(_WITHIN), playing(house, client, driver, **settings) as play:
            if isinstance(case, Scenario):
                await case.action(play)
            else:
                await play_case(play, case)
    except NotApplicable as reason:
        return Verdict(case.promise, applies=False, why=str(reason))
    except Exception as error:
        return Verdict(case.promise, why=f"{error!r} at {_place(error)}")
    return Verdict(case.promise)
