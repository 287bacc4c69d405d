"""Two movers of the same rows wait for each other, never in a circle, and both come out right.

A third connection holds a row, so that the two surely meet: the first to come is the first to go on
when the row is let go. A deadlock would be retried in silence, so the server's own count is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from earnest.domain import canonical, ids
from earnest.domain.approval import Decision, Proposal
from earnest.domain.errors import ApprovalExpired, Conflict
from earnest.domain.operation import EffectTerms, Recovery
from earnest.domain.run import RunStatus, Wait
from earnest.engine.app import App
from earnest.engine.approvals import deciding
from earnest.engine.attempts import parenting, reaping
from earnest.engine.attempts.settling import Ending, Settled, Settler, Wish, settle_alone
from earnest.engine.operations import recording
from earnest.engine.operations.recording import Proof
from earnest.engine.process.actors import Actor
from earnest.engine.process.effects import Call, Effect
from earnest.engine.process.engine import Engine
from earnest.engine.runs import cancelling, retrying, signalling
from earnest.engine.runs.leasing import HeldLease, Leases, boot_seconds
from earnest.store import approvals, executions, operations
from earnest.store.database import Database
from earnest.store.executions import Claimed
from earnest.store.statements import sql
from earnest.testing.clock import ManualClock
from tests.store.given import (
    KIND,
    LEASE,
    SCOPE,
    arrays,
    begun,
    claim,
    claimed,
    event_types,
    execution,
    insert,
    locked,
    new_run,
    submitted,
)

Work = Coroutine[Any, Any, Any]

_app = App("locks")


@_app.run(KIND)
async def _work(ctx: object, value: str) -> str:
    """Never called: the test plays the handler."""
    return value


class Refund(Effect[dict[str, int], dict[str, int]]):
    kind = "locks.refund"

    async def submit(self, call: Call, request: dict[str, int]) -> dict[str, int]:
        """Never called: the test plays the provider."""
        raise NotImplementedError


HOLD = EffectTerms(Refund.kind, Recovery.HOLD)


@pytest.fixture
def engine(database: Database) -> Engine:
    return Engine(database, _app.kinds, {Refund.kind: Refund()})


@pytest.fixture(autouse=True)
async def no_deadlock(database: Database) -> AsyncIterator[None]:
    """Fails a test in which the server had to end a circle."""
    before = await _deadlocks(database)
    yield
    assert await _deadlocks(database) == before


async def _deadlocks(database: Database) -> int:
    async with database.connection() as tx:
        await tx.execute("SELECT pg_stat_force_next_flush()")
    async with database.connection() as tx:
        count: int = await tx.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
    return count


@asynccontextmanager
async def held(database: Database, *run_ids: uuid.UUID) -> AsyncIterator[None]:
    """Rows that somebody else has locked."""
    async with database.connection() as tx, tx.transaction():
        await executions.lock(tx, SCOPE, run_ids)
        yield


async def meet(database: Database, row: uuid.UUID, *works: Work) -> list[Any]:
    """Lets all come to a row that is held, one after the other, and lets the row go."""
    tasks = []
    async with held(database, row):
        for count, work in enumerate(works, 1):
            tasks.append(asyncio.create_task(work))
            await _waiting(database, count)
    return await asyncio.gather(*tasks)


async def _waiting(database: Database, count: int) -> None:
    """Returns when that many connections wait for a lock."""
    query = (
        "SELECT count(*), pg_sleep(0.002) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with database.connection() as tx:
        while await tx.fetchval(query) != count:
            pass


both_orders = pytest.mark.parametrize("swapped", [False, True], ids=["first", "second"])


def in_order(swapped: bool, *works: Work) -> tuple[Work, ...]:
    return tuple(reversed(works)) if swapped else works


def settle(engine: Engine, taken: Claimed, ending: Ending) -> Work:
    return settle_alone(engine, taken, ending)


SUCCESS = Ending(Wish.SUCCEED, output=b"1")

# ---- parents and children -----------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A parent that waits for its children, which run."""

    parent: Claimed
    children: list[Claimed]


async def _family(database: Database, *, child_first: bool, children: int = 1) -> Family:
    """`child_first`: the children's ids come before their parent's, and so do their locks."""
    (parent,) = await claimed(database)
    async with database.connection() as tx:
        base = parent.run_id.int + (-children if child_first else 1)
        run_ids = [uuid.UUID(int=base + number) for number in range(children)]
        for run_id in run_ids:
            assert await insert(tx, new_run(run_id=run_id, parent_run_id=parent.run_id))
        async with tx.transaction():
            waits = [Wait("children", run_ids=tuple(run_ids)).as_json()]
            await executions.park(tx, await locked(tx, parent.run_id), [], waits, None)
        return Family(parent, await claim(tx))


@both_orders
@pytest.mark.parametrize("child_first", [False, True], ids=["parent's id", "child's id"])
async def test_a_child_that_succeeds_meets_the_cancel_of_its_parent(
    engine: Engine, database: Database, swapped: bool, child_first: bool
) -> None:
    family = await _family(database, child_first=child_first)
    (child,) = family.children
    cancel = cancelling.cancel(engine, SCOPE, family.parent.run_id, "somebody")
    works = in_order(swapped, settle(engine, child, SUCCESS), cancel)
    await meet(database, family.parent.run_id, *works)
    assert (await execution(database, child.run_id))["status"] == "succeeded"
    assert (await execution(database, family.parent.run_id))["status"] == "cancelled"


@pytest.mark.parametrize("child_first", [False, True], ids=["parent's id", "child's id"])
async def test_children_that_end_at_once_wake_their_parent_once(
    engine: Engine, database: Database, child_first: bool
) -> None:
    family = await _family(database, child_first=child_first, children=4)
    works = [settle(engine, child, SUCCESS) for child in family.children]
    await meet(database, family.parent.run_id, *works)
    assert (await execution(database, family.parent.run_id))["status"] == "queued"
    assert (await event_types(database, family.parent.run_id)).count("run.woken") == 1


@both_orders
async def test_a_child_that_is_made_meets_the_cancel_of_its_parent(
    engine: Engine, database: Database, swapped: bool
) -> None:
    """Whoever comes first: no child goes on below a parent that was asked to stop."""
    (parent,) = await claimed(database)
    made = parenting.submit_child(
        engine, parent, _lease(parent), engine.kinds[KIND], "in", "child", detached=False
    )
    cancel = cancelling.cancel(engine, SCOPE, parent.run_id, "somebody")
    works = in_order(swapped, _outcome(made), cancel)
    answers = await meet(database, parent.run_id, *works)
    child_id = ids.child_id(parent.run_id, "child")
    if swapped:
        assert answers[1] == "StopAsked"
        async with database.connection() as tx:
            assert await executions.lock(tx, SCOPE, [child_id]) == {}
    else:
        assert answers[0] == child_id
        assert (await execution(database, child_id))["status"] == "cancelled"


def _lease(taken: Claimed) -> HeldLease:
    return Leases(LEASE).hold(taken, boot_seconds(), lambda: None, lambda: None)


async def _outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except Exception as error:
        return type(error).__name__


# ---- decisions ----------------------------------------------------------------------------------


@both_orders
@pytest.mark.parametrize("other", ["cancel", "expire", "the other decision"])
async def test_a_decision_meets_what_else_may_come_to_its_run(
    engine: Engine, database: Database, clock: ManualClock, swapped: bool, other: str
) -> None:
    """P11: executions first, then approvals; who comes second finds what the first has done."""
    (taken,) = await claimed(database)
    asked = Proposal(
        ids.approval_id(taken.run_id, "go"), "go", b"1", canonical.digest(b"1"), "approver",
        "alice", expires_in=timedelta(hours=1),
    )  # fmt: skip
    parked = Ending(Wish.PARK, waits=(Wait("approval", name="go", approval=asked),))
    assert await settle(engine, taken, parked) is Settled.WAITING
    if other == "expire":
        await clock.advance(hours=1)
    others: dict[str, Callable[[], Work]] = {
        "cancel": lambda: cancelling.cancel(engine, SCOPE, taken.run_id, "somebody"),
        "expire": lambda: reaping.expire_approvals(engine),
        "the other decision": lambda: _decide(engine, asked, Decision.REJECT),
    }
    works = in_order(swapped, _decide(engine, asked, Decision.APPROVE), others[other]())
    await meet(database, taken.run_id, *works)
    found = await approvals.find(database, SCOPE, asked.approval_id)
    row = await execution(database, taken.run_id)
    assert found is not None
    expected = {
        "cancel": ("cancelled", "cancelled" if swapped else "approved"),
        "expire": ("queued", "expired"),
        "the other decision": ("queued", "rejected" if swapped else "approved"),
    }
    assert ((row["status"], found.status), row["undecided"]) == (expected[other], 0)


async def _decide(engine: Engine, asked: Proposal, decision: Decision) -> None:
    actor = Actor(SCOPE, "ann", frozenset({"approver"}))
    verdict = deciding.Verdict(decision, asked.digest.hex())
    with contextlib.suppress(Conflict, ApprovalExpired):
        await deciding.decide(engine, actor, asked.approval_id, verdict, version=1)


# ---- operations ---------------------------------------------------------------------------------


@both_orders
async def test_a_receipt_meets_the_reaper_that_takes_the_run_away(
    engine: Engine, database: Database, clock: ManualClock, swapped: bool
) -> None:
    """First or late, the receipt is stored, and the run goes on."""
    (taken,) = await claimed(database)
    async with database.connection() as tx, tx.transaction():
        made = await begun(tx, run_id=taken.run_id, terms=HOLD)
        await executions.touch(tx, SCOPE, taken.run_id, [], doubts=1)
    await clock.advance(seconds=45)
    receipt = recording.confirm(
        engine, SCOPE, made.operation_id, b'{"id": 1}', "1", Proof("owner", token=made.send_token)
    )
    lose = database.promise("reap", lambda tx: reaping.lose(engine, tx, taken.key))
    await meet(database, taken.run_id, *in_order(swapped, receipt, lose))
    row = await execution(database, taken.run_id)
    assert (row["status"], row["doubts"]) == ("queued", 0)
    stored = await operations.find(database, SCOPE, made.operation_id)
    assert stored is not None
    assert (stored.state, stored.receipt) == ("submitted", {"id": 1})


# ---- waiting and waking (P25) -------------------------------------------------------------------


@both_orders
async def test_a_run_that_parks_meets_the_signal_that_it_waits_for(
    engine: Engine, database: Database, swapped: bool
) -> None:
    (taken,) = await claimed(database)
    park = settle(engine, taken, Ending(Wish.PARK, waits=(Wait("signal", name="go", number=1),)))
    signal = signalling.signal(engine, SCOPE, taken.run_id, "go", 1, by="somebody")
    await meet(database, taken.run_id, *in_order(swapped, park, signal))
    assert (await execution(database, taken.run_id))["status"] == "queued"
    assert "run.woken" in await event_types(database, taken.run_id)


@both_orders
async def test_a_parent_that_parks_meets_the_end_of_its_last_child(
    engine: Engine, database: Database, swapped: bool
) -> None:
    (parent,) = await claimed(database)
    (child_id,) = await submitted(database, parent_run_id=parent.run_id)
    async with database.connection() as tx:
        (child,) = await claim(tx)
    park = settle(engine, parent, Ending(Wish.PARK, waits=(Wait("children", run_ids=(child_id,)),)))
    await meet(database, parent.run_id, *in_order(swapped, park, settle(engine, child, SUCCESS)))
    assert (await execution(database, parent.run_id))["status"] == "queued"


# ---- owners and others --------------------------------------------------------------------------


@both_orders
async def test_an_owner_that_settles_meets_the_reaper(
    engine: Engine, database: Database, clock: ManualClock, swapped: bool
) -> None:
    """The lease has run out: whoever comes first, the owner is fenced out."""
    (taken,) = await claimed(database)
    await clock.advance(seconds=45)
    lose = database.promise("reap", lambda tx: reaping.lose(engine, tx, taken.key))
    works = in_order(swapped, settle(engine, taken, SUCCESS), lose)
    answers = await meet(database, taken.run_id, *works)
    assert set(answers) == {Settled.FENCED, True}
    assert (await execution(database, taken.run_id))["status"] == "queued"


@both_orders
async def test_an_owner_that_fails_meets_a_cancel(
    engine: Engine, database: Database, swapped: bool
) -> None:
    (taken,) = await claimed(database)
    fail = settle(engine, taken, Ending(Wish.FAIL, error={"code": "x"}))
    cancel = cancelling.cancel(engine, SCOPE, taken.run_id, "somebody")
    answers = await meet(database, taken.run_id, *in_order(swapped, fail, cancel))
    status = (await execution(database, taken.run_id))["status"]
    told = answers[0 if swapped else 1].outcome
    assert (status, told) == (("cancelled", "requested") if swapped else ("failed", "too_late"))


async def test_two_people_who_retry_at_once_make_one_new_run(
    engine: Engine, database: Database
) -> None:
    (taken,) = await claimed(database)
    await settle(engine, taken, Ending(Wish.FAIL, error={"code": "x"}))
    works = [
        _outcome(retrying.retry(engine, SCOPE, taken.run_id, by="alice", key=key))
        for key in ("k", "k", None)
    ]
    first, again, other = await meet(database, taken.run_id, *works)
    assert (first.replayed, again.replayed) == (False, True)
    assert first.run.run_id == again.run.run_id
    assert other == Conflict.__name__


# ---- many at once -------------------------------------------------------------------------------


async def test_groups_that_name_the_same_runs_in_any_order_do_not_circle_and_settle_each_once(
    database: Database,
) -> None:
    taken = await claimed(database, 60)
    orders = [taken, taken[::-1], taken[30:] + taken[:30], taken[::2] + taken[1::2]]

    async def succeed(order: list[Claimed]) -> int:
        async with database.connection() as tx:
            return len(await tx.fetch(sql("succeed_runs"), *arrays(order), [b"1"] * len(order)))

    counts = await asyncio.gather(*(succeed(order) for order in orders))
    assert sum(counts) == 60


async def test_groups_renewals_cancels_and_reapers_in_a_crowd_do_not_circle(
    engine: Engine, database: Database, clock: ManualClock
) -> None:
    taken = await claimed(database, 40)
    await clock.advance(seconds=44)
    settler = Settler(engine)
    verbs: list[Callable[[Claimed], Work]] = [
        lambda one: settler.settle(one, SUCCESS),
        lambda one: cancelling.cancel(engine, SCOPE, one.run_id, "somebody"),
        lambda one: signalling.signal(engine, SCOPE, one.run_id, "go", 1, by="x", key="k"),
        lambda one: _renew(database, taken[::-1]),
        lambda one: database.promise("reap", lambda tx: reaping.lose(engine, tx, one.key)),
    ]
    turns = itertools.cycle(verbs)
    await asyncio.gather(*(_outcome(next(turns)(one)) for one in [*taken, *taken[::-1]]))
    for one in taken:
        row = await execution(database, one.run_id)
        assert row["status"] in (RunStatus.SUCCEEDED, RunStatus.RUNNING)
        await event_types(database, one.run_id)


async def _renew(database: Database, taken: list[Claimed]) -> None:
    async with database.connection() as tx:
        await tx.fetch(sql("renew_leases"), *arrays(taken), LEASE)
