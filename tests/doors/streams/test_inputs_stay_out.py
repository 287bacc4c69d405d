"""P21: what a run was asked is in no stream and in no refusal; who may know it asks for the run."""

from __future__ import annotations

from typing import Any

import msgspec

from earnest.domain import canonical, ids
from tests.doors.streams.reading import Stream
from tests.doors.streams.stage import ScriptedRun, Stage

SECRET = "4242-4242"


async def asked_with_a_secret(stage: Stage, events: int) -> ScriptedRun:
    run = await stage.run(events)
    async with stage.engine.database.connection() as tx:
        await tx.execute(
            "UPDATE run SET input = $2, context = $2 WHERE run_id = $1",
            ids.read("run", run.id),
            canonical.encode({"card": SECRET}),
        )
    return run


def check(stream: Stream, told: dict[str, Any], run: ScriptedRun) -> None:
    assert told["id"] == run.id
    assert "output" in told
    assert not {"input", "context"} & set(told)
    assert SECRET.encode() not in stream.raw


async def test_the_snapshot_of_a_resync_has_no_input(stage: Stage) -> None:
    """P9, P21: the contract's members are there."""
    run = await asked_with_a_secret(stage, 12)
    await run.forget_before(10)
    stream = await stage.open(run, after=1)
    (resync,) = await stream.until("resync_required")
    members = ["status", "after_seq", "minimum_retained_seq", "head_seq", "snapshot"]
    assert list(resync.data) == members
    check(stream, resync.data["snapshot"], run)


async def test_the_refusal_of_a_page_has_no_input(stage: Stage) -> None:
    """P9, P21: an error is the last place where a secret is looked for."""
    run = await asked_with_a_secret(stage, 12)
    await run.forget_before(10)
    answer = await stage.open(run, after=1, accept="application/json")
    told = await answer.body()
    assert (answer.status, told["code"]) == (410, "resync_required")
    assert (told["after_seq"], told["minimum_retained_seq"], told["head_seq"]) == (1, 10, 12)
    assert not {"input", "context"} & set(told["snapshot"])
    assert SECRET not in msgspec.json.encode(told).decode()


async def test_the_end_of_a_text_has_no_input(stage: Stage) -> None:
    """P21: it has what came of the run."""
    run = await asked_with_a_secret(stage, 3)
    await run.write("a time")
    await run.finish()
    stream = await stage.open(run, part="text-events", accept="*/*")
    (terminal,) = [item for item in await stream.rest() if item.event == "terminal"]
    assert terminal.data["status"] == "succeeded"
    check(stream, terminal.data, run)
