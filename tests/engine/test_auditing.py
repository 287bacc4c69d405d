"""The audit says who did what, exactly when it was done (P4, P21)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from earnest.domain import ids
from earnest.domain.audit import ACTIONS, AuditEntry
from earnest.domain.errors import Conflict, Forbidden, Inconclusive
from earnest.engine.operations import reconciling
from earnest.engine.operations.reconciling import Verdict
from earnest.engine.process import auditing
from earnest.engine.process.actors import Actor, Role, local
from earnest.engine.runs import cancelling, retrying
from earnest.store.audit import AuditFilter
from earnest.store.database import Tx
from earnest.testing.clock import ManualClock
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.handlers import work
from tests.engine.provider import Provider, shop

EVE = Actor(SCOPE, "eve", frozenset({"operator"}), token_id="4x", request_id="r-1")
SECRET = "line 17 of the statement"


async def entries(bench: Bench, **only: Any) -> list[AuditEntry]:
    return await auditing.entries(bench.engine, local(SCOPE), AuditFilter(**only), None, 100)


async def waits(ctx: Any) -> None:
    await ctx.wait_signal("go")


async def test_a_cancel_is_kept_with_who_asked_and_through_which_door(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(work(waits))
    run = await bench.done("work", None)
    for _ in range(2):  # the second one changes nothing, and leaves no entry
        await cancelling.cancel(bench.engine, SCOPE, run.run_id, EVE)
    (entry,) = await entries(bench)
    assert (entry.principal_id, entry.token_id, entry.request_id) == ("eve", "4x", "r-1")
    assert (entry.action, entry.subject) == ("run.cancelled", ids.show("run", run.run_id))
    assert entry.detail == {"outcome": "cancelled", "runs": 1}


async def test_a_cancel_that_came_too_late_is_no_entry(make_bench: MakeBench) -> None:
    bench = make_bench(work(_echo))
    run = await bench.done("work", 1)
    await cancelling.cancel(bench.engine, SCOPE, run.run_id, EVE)
    assert await entries(bench) == []


async def test_a_run_that_is_asked_twice_to_stop_is_one_entry(make_bench: MakeBench) -> None:
    bench = make_bench(work(_echo))
    run_id = await bench.submit("work", 1)
    await bench.claim()
    for _ in range(2):
        await cancelling.cancel(bench.engine, SCOPE, run_id, EVE)
    (entry,) = await entries(bench)
    assert entry.detail == {"outcome": "requested", "runs": 1}


async def test_a_retry_names_the_new_run_and_a_repeated_one_is_no_entry(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(work(waits))
    old = await bench.done("work", None)
    await bench.cancel(old.run_id)
    made = [
        await retrying.retry(bench.engine, SCOPE, old.run_id, by=EVE, key="once") for _ in range(2)
    ]
    (entry,) = await entries(bench, action="run.retried")
    new = ids.show("run", made[0].run.run_id)
    assert entry.detail == {"new_run_id": new, "revision": 2}
    assert entry.principal_id == "eve"
    with pytest.raises(Conflict):
        await retrying.retry(bench.engine, SCOPE, old.run_id, by=EVE)
    assert len(await entries(bench, action="run.retried")) == 1


async def test_a_resolution_is_kept_without_its_evidence_and_receipt(
    make_bench: MakeBench,
) -> None:
    """P21: what was said for it stands with the operation, for whoever may see that."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    operation = await bench.operation(run.run_id)
    verdict = Verdict("submitted", SECRET, "by telephone", {"id": "r-17"})
    for _ in range(2):
        await reconciling.resolve(
            bench.engine, SCOPE, operation.operation_id, verdict, by=EVE, version=operation.version
        )
    (entry,) = await entries(bench)
    assert (entry.action, entry.principal_id) == ("operation.resolved", "eve")
    assert entry.subject == ids.show("op", operation.operation_id)
    assert entry.detail == {"outcome": "submitted", "kind": operation.kind}
    for told in (SECRET, "telephone", "r-17"):
        assert told not in str(entry)


@pytest.mark.parametrize("by", [EVE, None], ids=["a person", "nobody"])
async def test_a_doubt_that_somebody_had_asked_about_is_settled_under_their_name(
    make_bench: MakeBench, clock: ManualClock, by: Actor | None
) -> None:
    """What the reconciler asks about by itself is nobody's decision."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    provider.answers.append(Inconclusive("try later"))  # to the question of the attempt itself
    run = await bench.done("buy", {"by": "never"})
    operation = await bench.operation(run.run_id)
    settled = await reconciling.look_up(bench.engine, SCOPE, operation.operation_id, by=by)
    assert settled.state == "submitted"
    found = await entries(bench, action="operation.resolved")
    assert [one.principal_id for one in found] == (["eve"] if by else [])


async def test_of_people_who_do_the_same_at_once_the_one_who_did_it_is_kept(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(work(waits))
    run = await bench.done("work", None)
    people = [Actor(SCOPE, f"p-{n}", frozenset({"operator"})) for n in range(8)]
    cancels = (cancelling.cancel(bench.engine, SCOPE, run.run_id, by) for by in people)
    await asyncio.gather(*cancels)
    assert len(await entries(bench)) == 1


async def test_no_entry_outlives_a_change_that_was_taken_back(make_bench: MakeBench) -> None:
    """P4: entry and change commit together or not at all."""
    bench = make_bench(work(_echo))

    async def change(tx: Tx) -> None:
        await auditing.keep(tx, EVE, "run.cancelled", "run_x")
        raise RuntimeError("after the entry, before the commit")

    with pytest.raises(RuntimeError, match="before the commit"):
        await bench.engine.database.promise("access", change)
    assert await entries(bench) == []


async def test_no_entry_outlives_a_cancel_whose_commit_failed(
    make_bench: MakeBench, at_points: Any
) -> None:
    """P4: and the run was not cancelled either."""
    bench = make_bench(work(waits))
    run = await bench.done("work", None)

    def die(point: str) -> None:
        if point == "cancel.before":
            raise RuntimeError("the process died here")

    at_points(die)
    with pytest.raises(RuntimeError, match="died"):
        await cancelling.cancel(bench.engine, SCOPE, run.run_id, EVE)
    at_points(None)
    assert await entries(bench) == []
    assert await bench.status(run.run_id) == "waiting"


async def test_only_an_admin_reads_the_audit_of_its_scope(make_bench: MakeBench) -> None:
    """P12."""
    bench = make_bench(work(_echo))
    await bench.engine.database.promise(
        "access", lambda tx: auditing.keep(tx, EVE, "run.cancelled", "run_x")
    )
    for role in set(Role) - {Role.ADMIN}:
        with pytest.raises(Forbidden):
            await auditing.entries(
                bench.engine, Actor(SCOPE, "x", frozenset({role})), AuditFilter(), None, 10
            )
    elsewhere = Actor("other", "eve", frozenset({Role.ADMIN}))
    assert await auditing.entries(bench.engine, elsewhere, AuditFilter(), None, 10) == []


async def test_the_audit_is_narrowed_and_paged_newest_first(make_bench: MakeBench) -> None:
    bench = make_bench(work(_echo))

    async def write(tx: Tx) -> None:
        for number in range(4):
            by = Actor(SCOPE, f"p-{number % 2}", frozenset())
            action = "run.cancelled" if number < 2 else "run.retried"
            await auditing.keep(tx, by, action, f"run_{number}", {"number": number})

    await bench.engine.database.promise("access", write)

    async def numbers(**only: Any) -> list[int]:
        return [entry.detail["number"] for entry in await entries(bench, **only)]

    assert await numbers() == [3, 2, 1, 0]
    assert await numbers(action="run.retried") == [3, 2]
    assert await numbers(principal_id="p-1") == [3, 1]
    assert await numbers(subject="run_2") == [2]
    newest = (await entries(bench))[0]
    assert await numbers(since=newest.created_at) == [3]
    assert await numbers(until=newest.created_at) == [2, 1, 0]
    page = await auditing.entries(bench.engine, local(SCOPE), AuditFilter(), newest.audit_id, 2)
    assert [entry.detail["number"] for entry in page] == [2, 1]


def test_every_action_reads_noun_and_what_happened() -> None:
    assert all(action.count(".") == 1 for action in ACTIONS)


async def _echo(ctx: Any) -> int:
    return 1
