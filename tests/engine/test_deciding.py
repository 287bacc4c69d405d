"""Deciding: one truth, whoever decides when; what a bank was sent equals what was approved (P11).

The bank is the simulator, in a process of its own; its truth is compared with the digest of what
somebody looked at.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from earnest import App, Context
from earnest.apps.demo.bank import BANKS, RefundRequest
from earnest.domain.errors import (
    ApprovalExpired,
    Conflict,
    EarnestError,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PreconditionRequired,
    ProposalChanged,
    StaleVersion,
)
from earnest.engine.approvals.deciding import Decided
from earnest.engine.attempts import reaping
from earnest.engine.process import access, principals, scopes, tokens
from earnest.engine.process.actors import Actor
from earnest.engine.runs import retrying
from earnest.store import operations
from earnest.store.database import Database
from earnest.store.operations import Note
from earnest.testing.clock import ManualClock
from earnest.testing.simulator import Simulator
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.deciders import (
    ANN,
    BEN,
    PROPOSER,
    all_asked,
    an_order,
    asked,
    asks_first,
    close_banks,
    decide,
    refund_asked_for,
    refunds,
    sent_digests,
)

MakeRefunds = Callable[..., Bench]


@pytest.fixture
async def make_refunds(
    make_bench: MakeBench, simulator: Simulator, clock: ManualClock
) -> AsyncIterator[MakeRefunds]:
    made: list[App] = []

    def make(**terms: Any) -> Bench:
        made.append(refunds(simulator, **terms))
        return make_bench(made[-1])

    yield make
    for app in made:
        await close_banks(app)


async def audited(bench: Bench, run_id: uuid.UUID) -> int:
    found: int = await bench.value(
        "SELECT count(*) FROM audit a JOIN approval p USING (scope_id)"
        " WHERE p.run_id = $1 AND a.action = 'approval.decided'", run_id
    )  # fmt: skip
    return found


async def attempted(
    bench: Bench, run_id: uuid.UUID, decision: str, **changed: Any
) -> Decided | EarnestError:
    try:
        return await decide(bench, await asked(bench, run_id), decision, **changed)
    except EarnestError as error:
        return error


async def a_door_of_its_own(opened: AsyncExitStack, bench: Bench) -> Bench:
    """The same app in another process: an engine with a connection of its own."""
    database = Database(bench.engine.database.url, size=1, patience=5)
    await opened.enter_async_context(database)
    return Bench(replace(bench.engine, database=database), bench.worker)


# ---- one truth ---------------------------------------------------------------------------------


@pytest.mark.parametrize("time", range(3))
async def test_of_eight_racing_decisions_one_is_the_truth(
    make_refunds: MakeRefunds, simulator: Simulator, time: int
) -> None:
    """P11: four people say yes and four say no, each through a process of its own; all of them
    stand before the run's lock when it is let go."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    found = await asked(bench, run_id)
    async with AsyncExitStack() as doors:
        async with bench.holding(run_id):
            race = [
                asyncio.create_task(
                    decide(
                        await a_door_of_its_own(doors, bench), found,
                        "approve" if n % 2 else "reject",
                        Actor(SCOPE, f"person {n}", frozenset({"approver"})),
                    )
                )
                for n in range(8)
            ]  # fmt: skip
            await bench.wait_for_lock_waiters(8)
        results = await asyncio.gather(*race, return_exceptions=True)
    assert Counter(type(one).__name__ for one in results) == {"Decided": 4, "Conflict": 4}
    truth, *others = [one.approval for one in results if isinstance(one, Decided)]
    assert others == [truth] * 3
    assert await audited(bench, run_id) == 1
    assert len(await bench.events(run_id, "approval.decided")) == 1
    await bench.drain()
    expected = [found.digest] if truth.status == "approved" else []
    assert sent_digests(simulator, order) == expected
    assert (await bench.find(run_id)).status == ("succeeded" if expected else "failed")


async def test_two_processes_that_decide_at_once_wait_for_each_other(
    make_refunds: MakeRefunds, make_bench: MakeBench, simulator: Simulator
) -> None:
    """P11: both stand before the run's lock; the first to get it has decided."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    found = await asked(bench, run_id)
    async with bench.holding(run_id):
        both = [
            asyncio.create_task(decide(bench, found, "approve", ANN)),
            asyncio.create_task(decide(bench, found, "reject", BEN)),
        ]
        await bench.wait_for_lock_waiters(2)
    results = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["Conflict", "Decided"]
    assert await audited(bench, run_id) == 1


async def test_the_same_decision_again_is_harmless_whatever_version_it_names(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11: before the run went on, and after it has ended."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    first = await decide(bench, await asked(bench, run_id), "approve")
    again = await decide(bench, await asked(bench, run_id), "approve", BEN, version=1)
    await bench.drain()
    late = await decide(bench, await asked(bench, run_id), "approve", version=None)
    assert first.approval == again.approval == late.approval
    assert first.approval.decided_by == "ann"
    assert await audited(bench, run_id) == 1
    assert sent_digests(simulator, order) == [first.approval.digest]


@pytest.mark.parametrize(("first", "then"), [("approve", "reject"), ("reject", "approve")])
async def test_a_decision_is_not_taken_back(
    make_refunds: MakeRefunds, simulator: Simulator, first: str, then: str
) -> None:
    """P11."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    await decide(bench, await asked(bench, run_id), first)
    with pytest.raises(Conflict, match="stays so"):
        await decide(bench, await asked(bench, run_id), then)
    await bench.drain()
    with pytest.raises(Conflict, match="stays so"):
        await decide(bench, await asked(bench, run_id), then)
    assert len(sent_digests(simulator, order)) == (first == "approve")


# ---- about exactly that ------------------------------------------------------------------------


async def test_what_the_bank_was_sent_is_what_was_approved(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11: by the digest of what the bank's own log has."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    assert sent_digests(simulator, order) == []
    decided = await decide(bench, await asked(bench, run_id), "approve")
    await bench.drain()
    assert sent_digests(simulator, order) == [decided.approval.digest]
    assert decided.approval.proposal == {"order_id": order, "amount": "20.00"}


@pytest.mark.parametrize("digest", ["00" * 32, "", "ÿ"])
async def test_a_decision_about_another_digest_is_refused(
    make_refunds: MakeRefunds, simulator: Simulator, digest: str
) -> None:
    """P11: also when it was decided already."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    for _ in range(2):
        with pytest.raises(ProposalChanged):
            await decide(bench, await asked(bench, run_id), "approve", digest=digest)
    await decide(bench, await asked(bench, run_id), "reject")
    with pytest.raises(ProposalChanged):
        await decide(bench, await asked(bench, run_id), "reject", digest=digest)


def changed_by(attempt_two: dict[str, Any]) -> Any:
    """A handler that asks for something else once it was decided: its code was changed."""

    async def ask(ctx: Context, request: RefundRequest) -> Any:
        new = ctx.attempt > 1
        if new and "amount" in attempt_two:
            request = RefundRequest(order_id=request.order_id, amount=attempt_two["amount"])
        bank = BANKS[attempt_two.get("bank", "queryable") if new else "queryable"]
        approval = None if new and attempt_two.get("unasked") else ctx.approve()
        return await ctx.operation("refund", bank, request, approval=approval)

    return ask


@pytest.mark.parametrize(
    "change",
    [{"amount": "2000.00"}, {"bank": "opaque"}, {"unasked": True}],
    ids=["another amount", "another effect", "no approval any more"],
)
async def test_code_that_was_changed_after_the_approval_sends_nothing(
    make_refunds: MakeRefunds, simulator: Simulator, change: dict[str, Any]
) -> None:
    """P11: nothing is sent under an approval of something else."""
    bench, order = make_refunds(ask=changed_by(change), max_attempts=2), an_order()
    run_id = await refund_asked_for(bench, order)
    await decide(bench, await asked(bench, run_id), "approve")
    await bench.drain()
    run = await bench.find(run_id)
    assert run.error is not None
    assert (run.status, run.error["code"]) == ("failed", "code_changed")
    assert sent_digests(simulator, order) == []
    assert (await asked(bench, run_id)).status == "approved"


async def test_a_changed_request_asks_anew_under_its_own_name(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11: the old decision stays as history, and allows nothing but its own request."""

    async def ask(ctx: Context, request: RefundRequest) -> Any:
        more = RefundRequest(order_id=request.order_id, amount="30.00")
        if ctx.attempt == 1:
            return await asks_first(ctx, request)
        return await ctx.operation("more", BANKS["queryable"], more, approval=ctx.approve())

    bench, order = make_refunds(ask=ask), an_order()
    run_id = await refund_asked_for(bench, order)
    await decide(bench, await asked(bench, run_id), "approve")
    await bench.drain()
    assert (await bench.status(run_id), sent_digests(simulator, order)) == ("waiting", [])
    (second,) = [one for one in await all_asked(bench, run_id) if one.status == "pending"]
    await decide(bench, second, "approve", BEN)
    await bench.drain()
    assert sent_digests(simulator, order) == [second.digest]


@pytest.mark.parametrize("status", ["pending", "rejected", "expired", "cancelled"])
async def test_begin_itself_refuses_what_is_not_approved(
    make_refunds: MakeRefunds, simulator: Simulator, status: str
) -> None:
    """P11: whoever comes to begin it, by whatever way, the database refuses."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    decided = ", decided_at = now(), decided_by = 'x'" if status == "rejected" else ""
    await bench.execute(f"UPDATE approval SET status = '{status}'{decided}")
    operation = await bench.operation(run_id)
    async with bench.engine.database.connection() as tx:
        with pytest.raises(StaleVersion, match="cannot begin"):
            await operations.begin(
                tx, operation, Note("begin", "test"), send_token=uuid.uuid4(), instance_id=None,
                span=operation.timeout,
            )  # fmt: skip


@pytest.mark.parametrize("column", ["digest", "effect", "operation_id"])
async def test_begin_itself_refuses_the_approval_of_something_else(
    make_refunds: MakeRefunds, simulator: Simulator, column: str
) -> None:
    """P11: an approved row of another digest, effect or operation is none."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    other = await refund_asked_for(bench, an_order())
    await decide(bench, await asked(bench, run_id), "approve")
    await bench.execute(
        f"UPDATE approval SET {column} = "
        + {
            "digest": "'\\x00'",
            "effect": "'bank.other'",
            "operation_id": f"(SELECT operation_id FROM operation WHERE run_id = '{other}')",
        }[column]
        + " WHERE run_id = $1",
        run_id,
    )
    operation = await bench.operation(run_id)
    async with bench.engine.database.connection() as tx:
        with pytest.raises(StaleVersion, match="cannot begin"):
            await operations.begin(
                tx, operation, Note("begin", "test"), send_token=uuid.uuid4(), instance_id=None,
                span=operation.timeout,
            )  # fmt: skip


async def test_a_call_in_doubt_is_sent_again_only_as_it_was_approved(
    make_refunds: MakeRefunds, simulator: Simulator, clock: ManualClock
) -> None:
    """P11, P2: a `resend` whose answer was lost; the bank does it once."""

    async def ask(ctx: Context, request: RefundRequest) -> Any:
        return await ctx.operation("refund", BANKS["keyed"], request, approval=ctx.approve())

    bench, order = make_refunds(ask=ask), an_order()
    run_id = await refund_asked_for(bench, order)
    decided = await decide(bench, await asked(bench, run_id), "approve")
    simulator.put_fault("bank", "accept_then_drop", match=order)
    await bench.drain()
    assert (await bench.find(run_id)).status == "succeeded"
    assert sent_digests(simulator, order) == [decided.approval.digest]
    assert (await bench.operation(run_id)).send_count == 2


# ---- in time -----------------------------------------------------------------------------------


async def test_a_decision_that_comes_late_is_refused_before_and_after_the_engine_said_so(
    make_refunds: MakeRefunds, simulator: Simulator, clock: ManualClock
) -> None:
    """P11: the row alone does not count; the database's clock does."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    await clock.advance(hours=24)
    for swept in (False, True):
        if swept:
            await bench.drain()
        assert (await asked(bench, run_id)).status == ("expired" if swept else "pending")
        for decision in ("approve", "reject"):
            with pytest.raises(ApprovalExpired):
                await decide(bench, await asked(bench, run_id), decision)
    assert sent_digests(simulator, order) == []
    assert await audited(bench, run_id) == 0


async def test_a_decision_in_the_last_moment_counts_though_the_engine_looks_later(
    make_refunds: MakeRefunds, simulator: Simulator, clock: ManualClock
) -> None:
    """P11: what was approved in time does not expire."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    await clock.advance(hours=23, minutes=59, seconds=59)
    decided = await decide(bench, await asked(bench, run_id), "approve")
    await clock.advance(hours=1)
    await bench.drain()
    assert (await bench.find(run_id)).status == "succeeded"
    assert sent_digests(simulator, order) == [decided.approval.digest]


async def test_a_decision_and_the_end_of_its_time_meet_and_one_counts(
    make_refunds: MakeRefunds, simulator: Simulator, clock: ManualClock
) -> None:
    """P11: the engine stands before the run's lock when the decision comes."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    found = await asked(bench, run_id)
    async with bench.holding(run_id):
        deciding = asyncio.create_task(decide(bench, found, "approve"))
        await bench.wait_for_lock_waiters(1)
        await clock.advance(hours=24)
    with pytest.raises(ApprovalExpired):
        await deciding
    assert await reaping.expire_approvals(bench.engine) == 1
    assert (await asked(bench, run_id)).status == "expired"


# ---- cancels -----------------------------------------------------------------------------------


async def test_an_approval_of_a_cancelled_run_is_refused_and_says_why(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11, P20: cancel, then approve."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    await bench.cancel(run_id)
    for decision in ("approve", "reject"):
        with pytest.raises(Conflict, match="is cancelled; there is nothing left to decide"):
            await decide(bench, await asked(bench, run_id), decision)
    await bench.drain()
    assert (await asked(bench, run_id)).status == "cancelled"
    assert (await bench.operation(run_id)).release_reason == "given_up"
    assert sent_digests(simulator, order) == []


async def test_a_cancel_after_the_approval_sends_nothing_that_was_not_sent(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11, P20: approve, then cancel, before a worker took it up."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    await decide(bench, await asked(bench, run_id), "approve")
    assert (await bench.cancel(run_id)).outcome == "cancelled"
    await bench.drain()
    assert await bench.status(run_id) == "cancelled"
    assert (await asked(bench, run_id)).status == "approved"
    assert sent_digests(simulator, order) == []


async def test_approve_and_cancel_meet_and_both_say_the_truth(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11, P20: whoever is first, nothing is sent and nobody is told otherwise."""
    bench, order = make_refunds(), an_order()
    run_id = await refund_asked_for(bench, order)
    found = await asked(bench, run_id)
    async with bench.holding(run_id):
        both = [
            asyncio.create_task(decide(bench, found, "approve")),
            asyncio.create_task(bench.cancel(run_id)),
        ]
        await bench.wait_for_lock_waiters(2)
    decided, cancelled = await asyncio.gather(*both, return_exceptions=True)
    await bench.drain()
    assert await bench.status(run_id) == "cancelled"
    assert not isinstance(cancelled, BaseException)
    status = (await asked(bench, run_id)).status
    assert status == ("approved" if isinstance(decided, Decided) else "cancelled")
    assert sent_digests(simulator, order) == []


# ---- who ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor", "refusal"),
    [
        (Actor(SCOPE, "op", frozenset({"operator"})), Forbidden),
        (Actor(SCOPE, MEMBER, frozenset({"member"})), Forbidden),
        (Actor(SCOPE, "other", frozenset({"member"})), NotFound),
        (Actor(SCOPE, "root", frozenset({"admin"})), NotFound),
        (Actor("other", "ann", frozenset({"approver", "operator"})), NotFound),
    ],
    ids=["operator", "owner", "member", "admin", "elsewhere"],
)
async def test_who_lacks_the_role_decides_nothing(
    make_refunds: MakeRefunds, simulator: Simulator, actor: Actor, refusal: type[EarnestError]
) -> None:
    """P12: and whoever may not see it learns nothing."""
    bench = make_refunds()
    run_id = await refund_asked_for(bench, an_order())
    with pytest.raises(refusal):
        await decide(bench, await asked(bench, run_id), "approve", actor)
    assert (await asked(bench, run_id)).status == "pending"


async def test_who_retries_a_run_does_not_decide_about_it_nor_does_who_asked_first(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11: the run stays its owner's, and asking anew is asking."""
    bench, order = make_refunds(approver_may_be_proposer=False), an_order()
    first = await refund_asked_for(bench, order)
    await bench.cancel(first)
    again = await retrying.retry(bench.engine, SCOPE, first, by="eve")
    await bench.drain()
    found = await asked(bench, again.run.run_id)
    assert (found.proposer, sorted(found.excluded)) == (MEMBER, sorted([MEMBER, "eve"]))
    for name in (MEMBER, "eve"):
        with pytest.raises(Forbidden, match="somebody else must"):
            await decide(bench, found, "approve", Actor(SCOPE, name, frozenset({"approver"})))
    with pytest.raises(asyncpg.CheckViolationError):
        await bench.value(
            "UPDATE approval SET status = 'approved', decided_at = now(), decided_by = 'eve'"
            " WHERE approval_id = $1 RETURNING 1", found.approval_id
        )  # fmt: skip
    decided = await decide(bench, found, "approve", Actor(SCOPE, "cy", frozenset({"approver"})))
    assert decided.approval.decided_by == "cy"


async def test_a_proposer_decides_where_its_kind_does_not_forbid_it(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    bench = make_refunds()
    run_id = await refund_asked_for(bench, an_order())
    decided = await decide(bench, await asked(bench, run_id), "approve", PROPOSER)
    assert decided.approval.decided_by == MEMBER


async def test_a_proposer_does_not_decide_about_itself_by_whichever_token(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P11: keys belong to the principal. Another of its tokens is the same principal, and the
    database would refuse it as well."""
    bench, order = make_refunds(approver_may_be_proposer=False), an_order()
    run_id = await refund_asked_for(bench, order)
    engine = bench.engine
    await scopes.ensure_scope(engine, SCOPE)
    await principals.ensure_principal(engine, SCOPE, MEMBER, ["member", "approver"])
    for _ in range(2):
        token = await tokens.issue_token(engine, SCOPE, MEMBER)
        actor = await access.authenticate(engine, token)
        with pytest.raises(Forbidden, match="somebody else"):
            await decide(bench, await asked(bench, run_id), "approve", actor)
    with pytest.raises(asyncpg.CheckViolationError):
        await bench.execute(
            "UPDATE approval SET status = 'approved', decided_at = now(), decided_by = proposer"
        )
    assert (await asked(bench, run_id)).status == "pending"
    decided = await decide(bench, await asked(bench, run_id), "approve", ANN)
    await bench.drain()
    assert sent_digests(simulator, order) == [decided.approval.digest]


# ---- what it needs -----------------------------------------------------------------------------


async def test_a_decision_names_the_version_that_was_looked_at(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    bench = make_refunds()
    run_id = await refund_asked_for(bench, an_order())
    with pytest.raises(PreconditionRequired):
        await decide(bench, await asked(bench, run_id), "approve", version=None)
    with pytest.raises(StaleVersion):
        await decide(bench, await asked(bench, run_id), "approve", version=7)
    assert (await asked(bench, run_id)).version == 1


@pytest.mark.parametrize("note", ["x" * 4001, "a\x00b"], ids=["too long", "NUL"])
async def test_a_note_that_cannot_be_kept_is_refused(
    make_refunds: MakeRefunds, simulator: Simulator, note: str
) -> None:
    bench = make_refunds()
    run_id = await refund_asked_for(bench, an_order())
    with pytest.raises(InvalidRequest):
        await decide(bench, await asked(bench, run_id), "approve", note=note)


async def test_a_key_stands_for_one_decision(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P7: of one principal; told as a replay, and refused for anything else."""
    bench = make_refunds()
    first, second = [await refund_asked_for(bench, an_order()) for _ in range(2)]
    terms: dict[str, Any] = {"key": "k", "note": "fine"}
    made = await decide(bench, await asked(bench, first), "approve", **terms)
    again = await decide(bench, await asked(bench, first), "approve", **terms)
    assert (made.replayed, again.replayed, again.approval) == (False, True, made.approval)
    for decision, note in (("approve", "other"), ("reject", "fine")):
        with pytest.raises(IdempotencyConflict):
            await decide(bench, await asked(bench, first), decision, key="k", note=note)
    with pytest.raises(IdempotencyConflict):
        await decide(bench, await asked(bench, second), "approve", **terms)
    await decide(bench, await asked(bench, second), "approve", BEN, **terms)


async def test_a_decision_is_kept_in_the_audit_once(
    make_refunds: MakeRefunds, simulator: Simulator
) -> None:
    """P4: in its transaction, without the proposal (P21)."""
    bench = make_refunds()
    run_id = await refund_asked_for(bench, an_order(), "1234.56")
    for _ in range(2):
        await attempted(bench, run_id, "approve")
    await attempted(bench, run_id, "reject")
    assert await audited(bench, run_id) == 1
    detail = await bench.value("SELECT detail::text FROM audit")
    assert "approved" in detail
    assert "1234.56" not in detail
