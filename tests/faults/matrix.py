"""The crash matrix: every point × before and after its commit × first and later passing × banks ×
seeds. A case names who dies where; the rest of it (order of the runs, how others learn of the
death, a second death) follows from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from earnest.domain.crash_points import OF_RUNS
from earnest.testing.crashing import Crash
from tests.faults.driving import Play, Stage, new_scope, seeded
from tests.faults.judging import Verdict, judge
from tests.faults.plan import BANKS, make_plan
from tests.faults.workload import Bank

Occurrence = Literal["first", "later"]

SIDES = ("before", "after")
SEEDS = range(3)
OCCURRENCES: tuple[Occurrence, ...] = ("first", "later")

# Asked for by a client, which then is the one that dies. A resolution is a worker's where the
# bank can be asked; children are submitted by workers.
OF_THE_DOOR = frozenset({"submit", "cancel", "signal", "decide", "retry", "resolve"})
# Nobody can ask the opaque bank.
NEVER = frozenset({("look_up", "opaque")})
# How often a plan passes a point for certain, where that is not often.
MOST_PASSINGS = {
    "cancel": 3, "retry": 2, "signal": 2, "decide": 3, "resolve": 2, "expire": 2, "doubt": 2,
    "release": 2, "reap": 2, "look_up": 2, "renew": 3, "wake": 2, "record": 4, "submit": 2,
    "emit": 2, "step": 4,
}  # fmt: skip
OFTEN = 5

# How the others learn that a worker is dead: the operating system proves it, its session lock
# stays free for a while, or its lease runs out.
DEATHS: tuple[tuple[bool, float], ...] = ((True, 0.3), (False, 0.3), (False, 60.0))
# Where a first worker dies so that the next one has something to reap.
EARLY = ("confirm.after:2", "call.after:2", "step.after:3", "begin.after:3", "park.before:2")
# Where a second one may die, while it takes over from the first.
SECOND = "claim reap step emit reserve begin call record confirm doubt settle park wake".split()


@dataclass(frozen=True)
class Case:
    name: str
    side: str
    occurrence: Occurrence
    bank: Bank
    seed: int

    def __str__(self) -> str:
        return f"{self.name}.{self.side}-{self.occurrence}-{self.bank}-{self.seed}"

    @property
    def by_client(self) -> bool:
        if self.name == "resolve":
            return self.bank != "queryable"
        if self.name == "submit":
            return self.seed % 2 == 0
        return self.name in OF_THE_DOOR

    def crash(self) -> Crash:
        most = MOST_PASSINGS.get(self.name, OFTEN)
        passing = 1 if self.occurrence == "first" else seeded(self, "passing").randint(2, most)
        return Crash(f"{self.name}.{self.side}", passing)


@dataclass(frozen=True)
class Outcome:
    """`crashes` are the real deaths at named points, the case's own and those around it. `missed`
    names the case's own point when nobody died there; then the case shows nothing."""

    case: Case
    crashes: tuple[str, ...]
    missed: str
    verdict: Verdict

    def faults(self) -> list[str]:
        return [*([f"nobody died at {self.missed}"] if self.missed else []), *self.verdict.all()]


def every_case(seeds: range) -> Iterator[Case]:
    for name in OF_RUNS:
        for side in SIDES:
            yield from cases_of(name, side, seeds)


def cases_of(name: str, side: str, seeds: range) -> Iterator[Case]:
    for occurrence in OCCURRENCES:
        for bank in BANKS:
            if (name, bank) not in NEVER:
                for seed in seeds:
                    yield Case(name, side, occurrence, bank, seed)


async def play(case: Case, stage: Stage) -> Outcome:
    """Plays the case to its end. Raises `TimeoutError` when it comes to none."""
    crash, scope, random_ = case.crash(), new_scope(), seeded(case)
    known_host, dead_after = DEATHS[case.seed % len(DEATHS)]
    plan = make_plan(case.bank, scope, random_)
    door = crash if case.by_client else None
    around = [Crash.parse(random_.choice(EARLY))] if case.name == "reap" else []
    own = [] if case.by_client else [crash]
    # A person may have to wait for the worker that is sending it again: that one must live.
    after = [] if case.name == "resolve" else [_second(random_)]
    played = Play(
        stage, scope, plan, [*around, *own, *after], door,
        held_until_crash=case.name == "renew", known_host=known_host,
        settings={"dead_after": dead_after, "claim_batch": random_.choice((1, 3, 20))},
    )  # fmt: skip
    await played.run()
    reached = tuple(str(child.crash) for child in played.died if child.crashed())
    missed = "" if str(crash) in reached else str(crash)
    return Outcome(case, reached, missed, await judge(played))


def _second(random_: random.Random) -> Crash:
    point = f"{random_.choice(SECOND)}.{random_.choice(SIDES)}"
    return Crash(point, random_.randint(1, 3))
