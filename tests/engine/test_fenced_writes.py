"""What an attempt writes is written under its fence, or not at all (P5)."""

from __future__ import annotations

import asyncio

from earnest import App, Context
from earnest.domain.errors import FencedOut
from earnest.engine.leasing import Leases
from earnest.engine.remembering import Rememberer
from earnest.store import facts
from earnest.store.executions import Claimed
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench


def idle() -> App:
    app = App("idle")

    @app.run("idle")
    async def idle(ctx: Context, value: int) -> int:
        return value

    return app


async def stale_and_newer(bench: Bench, clock: ManualClock) -> tuple[Claimed, Claimed]:
    await bench.submit("idle", 1)
    (stale,) = await bench.claim()
    await clock.advance(seconds=46)
    await bench.worker._reaper.look()
    (newer,) = await bench.claim()
    return stale, newer


async def steps_of(bench: Bench, run: Claimed) -> dict[str, tuple[int, object]]:
    found = await facts.steps(bench.engine.database, SCOPE, run.run_id)
    return {step.name: (step.attempt, step.result) for step in found}


async def test_a_stale_write_does_not_slip_in_with_the_group_of_a_newer_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: both attempts write through one process in the same moment."""
    bench = make_bench(idle())
    stale, newer = await stale_and_newer(bench, clock)
    rememberer = Rememberer(bench.engine, Leases(bench.engine.settings.lease))

    async def write(claimed: Claimed, name: str, value: bytes) -> None:
        await rememberer.write(claimed, "step.completed", b"{}", name, "step", b"", value)

    answers = await asyncio.gather(
        write(stale, "of the stale one", b"1"),
        write(newer, "of the newer one", b"2"),
        write(stale, "again of the stale one", b"3"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [FencedOut, type(None), FencedOut]
    assert await steps_of(bench, newer) == {"of the newer one": (2, 2)}
