"""Approvals: a run asks, waits without a worker, and acts on the answer (P11, P25)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from earnest import ApprovalExpired, ApprovalRejected, Approved, Context, PlainContext
from earnest.domain import canonical, ids
from earnest.domain.approval import Approval, Proposal
from earnest.domain.errors import InvalidRequest, NotFound, PayloadTooLarge
from earnest.domain.run import Wait
from earnest.engine.approvals import reading
from earnest.engine.attempts.settling import Ending, Wish
from earnest.engine.process.actors import Actor
from earnest.store import approvals
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.deciders import ANN, BEN, all_asked, asked, decide, open_one
from tests.engine.handlers import plain_work, work
from tests.engine.provider import EFFECTS, Hold, Order, Provider, shop

PROPOSAL = {"order": 17, "amount": "20.00"}


async def asks(ctx: Context) -> Any:
    found = await ctx.approve("refund", PROPOSAL, role="approver", expires_in="24h")
    return {"by": found.decided_by, "note": found.note}


def paying(bench_app: Any, provider: Provider) -> Any:
    """The handler given, and an effect at the provider."""
    bench_app.effect(Hold(provider))
    return bench_app


def pays(number: int = 17, **terms: Any) -> Any:
    async def handler(ctx: Context) -> Any:
        approval = ctx.approve(**{"expires_in": "24h", **terms})
        return await ctx.operation("pay", Hold, Order(number=number), approval=approval)

    return handler


# ---- asking ------------------------------------------------------------------------------------


async def test_a_run_that_asks_holds_no_worker_and_says_for_whose_decision_it_waits(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11, P25."""
    bench = make_bench(work(asks))
    run = await bench.done("work")
    found = await asked(bench, run.run_id)
    until = clock.now + timedelta(hours=24)
    assert (run.status, run.waiting_on) == (
        "waiting",
        [
            {
                "kind": "approval",
                "name": "refund",
                "approval_id": ids.show("apr", found.approval_id),
                "role": "approver",
                "expires_at": until.isoformat(),
            }
        ],
    )
    assert (found.status, found.proposal, found.expires_at) == ("pending", PROPOSAL, until)
    assert found.digest == canonical.digest(canonical.encode(PROPOSAL))
    assert (found.proposer, found.operation_id, found.effect) == (MEMBER, None, None)
    assert await bench.outcomes(run.run_id) == ["parked"]
    assert await bench.lease_until(run.run_id) is None


async def test_a_decision_wakes_the_run_and_is_its_answer(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11, P4: the decision, its event and the wake are one."""
    bench = make_bench(work(asks))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve", note="it is a good customer")
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.waiting_on) == ("succeeded", None)
    assert run.output == {"by": "ann", "note": "it is a good customer"}
    assert await bench.told(run_id) == [
        "run.submitted", "attempt.started", "approval.requested", "run.waiting",
        "approval.decided", "run.woken", "attempt.started", "run.succeeded",
    ]  # fmt: skip


async def test_a_rejection_unhandled_ends_the_run_and_is_not_tried_again(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11."""
    bench = make_bench(work(asks))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "reject", note="not this one")
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.failures) == ("failed", 1)
    assert run.error is not None
    assert (run.error["code"], run.error["decided_by"]) == ("approval_rejected", "ann")
    assert "not this one" in run.error["detail"]


async def test_what_nobody_decided_in_time_is_closed_by_the_clock_of_the_database(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11, P25: the run hears of it."""
    bench = make_bench(work(asks))
    run_id = (await bench.done("work")).run_id
    await clock.advance(hours=23, minutes=59)
    assert await bench.drain() == 0
    await clock.advance(minutes=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert run.error is not None
    assert (run.status, run.error["code"]) == ("failed", "approval_expired")
    assert (await asked(bench, run_id)).status == "expired"
    assert "approval.expired" in await bench.told(run_id)


async def test_a_handler_may_go_on_from_a_no(make_bench: MakeBench, clock: ManualClock) -> None:
    """P11: the answer is the same in every attempt."""

    async def handler(ctx: Context) -> list[str]:
        heard = []
        for name in ("first", "second"):
            try:
                await ctx.approve(name, {"of": name}, expires_in="1h")
            except (ApprovalRejected, ApprovalExpired) as error:
                heard.append(error.code)
        return heard

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "reject")
    await bench.drain()
    await clock.advance(hours=1)
    await bench.drain()
    run = await bench.find(run_id)
    assert (run.status, run.output) == ("succeeded", ["approval_rejected", "approval_expired"])


async def test_a_plain_handler_asks_in_the_same_words(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    def handler(ctx: PlainContext) -> str:
        answer: Approved = ctx.approve("refund", PROPOSAL, expires_in="1h")
        receipt = ctx.operation("pay", Hold, Order(number=1), approval=ctx.approve())
        return f"{answer.decided_by} {receipt.id[:7]}"

    provider = Provider()
    bench = make_bench(paying(plain_work(handler), provider))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve")
    await bench.drain()
    assert provider.done == []
    await decide(bench, await open_one(bench, run_id), "approve", BEN)
    await bench.drain()
    assert (await bench.find(run_id)).output == "ann receipt"


async def test_repeated_names_and_keys_are_decisions_of_their_own(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def handler(ctx: Context) -> list[str]:
        return [
            (await ctx.approve("go", 1)).decided_by,
            (await ctx.approve("go", 2)).decided_by,
            (await ctx.approve("go", 3, key="third")).decided_by,
        ]

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    for actor in (ANN, BEN, ANN):
        await decide(bench, await open_one(bench, run_id), "approve", actor)
        await bench.drain()
    assert {one.name for one in await all_asked(bench, run_id)} == {"go", "go#2", "go#third"}
    assert (await bench.find(run_id)).output == ["ann", "ben", "ann"]


@pytest.mark.parametrize(
    ("terms", "proposal"),
    [
        ({"role": "boss"}, 1),
        ({"role": "member"}, 1),
        ({"expires_in": "0s"}, 1),
        ({}, object()),
    ],
    ids=["no such role", "a role that decides nothing", "no time", "not JSON"],
)
async def test_what_nobody_could_decide_is_not_put_to_anybody(
    make_bench: MakeBench, clock: ManualClock, terms: dict[str, Any], proposal: Any
) -> None:
    async def handler(ctx: Context) -> Any:
        with pytest.raises(InvalidRequest):
            await ctx.approve("go", proposal, **terms)

    bench = make_bench(work(handler))
    run = await bench.done("work")
    assert (run.status, await all_asked(bench, run.run_id)) == ("succeeded", [])


@pytest.mark.parametrize("given", ["approver", True], ids=str)
async def test_what_is_no_terms_is_refused_before_anything_is_reserved(
    make_bench: MakeBench, clock: ManualClock, given: Any
) -> None:
    async def handler(ctx: Context) -> Any:
        with pytest.raises(InvalidRequest, match=r"approval=ctx.approve\("):
            await ctx.operation("pay", Hold, Order(number=1), approval=given)

    provider = Provider()
    bench = make_bench(paying(work(handler), provider))
    run = await bench.done("work")
    assert (run.status, await bench.operations(run.run_id)) == ("succeeded", [])


async def test_a_proposal_that_nobody_can_read_is_refused(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def handler(ctx: Context) -> Any:
        with pytest.raises(PayloadTooLarge):
            await ctx.approve("go", "x" * 70_000)

    assert (await make_bench(work(handler)).done("work")).status == "succeeded"


async def test_what_is_put_to_people_is_in_no_event(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P21."""
    bench = make_bench(work(asks))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve", note="20.00 is fine")
    await bench.drain()
    for event in await bench.events(run_id):
        assert event.type == "run.succeeded" or "20.00" not in str(event.payload)


# ---- an operation that has to be approved ----------------------------------------------------


async def test_an_operation_is_sent_after_somebody_approved_its_request(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: the intent is durable before anybody is asked, and nothing is sent before the yes."""
    provider = Provider()
    bench = make_bench(paying(work(pays()), provider))
    run_id = (await bench.done("work")).run_id
    operation, found = await bench.operation(run_id), await asked(bench, run_id)
    assert (operation.state, provider.calls) == ("reserved", [])
    assert (found.operation_id, found.effect) == (operation.operation_id, Hold.kind)
    assert (found.proposal, found.digest) == (operation.request, operation.digest)
    await decide(bench, found, "approve")
    await bench.drain()
    assert (await bench.find(run_id)).status == "succeeded"
    assert len(provider.done) == 1
    assert await bench.told(run_id) == [
        "run.submitted", "attempt.started", "operation.reserved", "approval.requested",
        "run.waiting", "approval.decided", "run.woken", "attempt.started", "operation.submitting",
        "operation.submitted", "run.succeeded",
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["reject", "expire"])
async def test_a_no_sends_nothing_and_gives_the_operation_up(
    make_bench: MakeBench, clock: ManualClock, ending: str
) -> None:
    """P11: its resource key is free again at once."""
    provider = Provider()

    async def handler(ctx: Context) -> Any:
        for number in (1, 2):
            try:
                await ctx.operation(
                    f"pay {number}", Hold, Order(number=number), resource_key="17",
                    approval=ctx.approve(expires_in="1h"),
                )  # fmt: skip
            except (ApprovalRejected, ApprovalExpired):
                continue

    bench = make_bench(paying(work(handler), provider))
    run_id = (await bench.done("work")).run_id
    if ending == "reject":
        await decide(bench, await asked(bench, run_id), "reject")
    else:
        await clock.advance(hours=1)
    await bench.drain()
    stand = {one.name: (one.state, one.release_reason) for one in await bench.operations(run_id)}
    assert stand == {"pay 1": ("released", "given_up"), "pay 2": ("reserved", None)}
    assert provider.calls == []
    assert await bench.status(run_id) == "waiting"


async def test_a_call_that_was_not_sent_is_made_again_under_the_same_decision(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: the request is the same; nobody is asked twice."""
    provider = Provider()
    bench = make_bench(paying(work(pays(), retry_first="0s"), provider))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve")
    provider.is_not_reached()
    await bench.drain()
    assert (await bench.find(run_id)).status == "succeeded"
    assert (len(provider.done), len(await all_asked(bench, run_id))) == (1, 1)


@pytest.mark.parametrize("was", ["reserved", "not sent"])
async def test_code_that_asks_for_an_approval_of_what_was_reserved_without_is_held_to_it(
    make_bench: MakeBench, clock: ManualClock, was: str
) -> None:
    """P11: begin verifies it, as if it had been asked for from the start."""
    provider = Provider()

    async def handler(ctx: Context) -> Any:
        approval = ctx.approve() if ctx.attempt > 1 else None
        return await ctx.operation("pay", Hold, Order(number=17), approval=approval)

    async def breaks(order: Order) -> None:
        provider.on_prepare = None
        raise RuntimeError("the first attempt fails, as asked")

    if was == "reserved":
        provider.on_prepare = breaks
    else:
        provider.is_not_reached()
    bench = make_bench(paying(work(handler), provider))
    run_id = (await bench.done("work")).run_id
    found = await asked(bench, run_id)
    await decide(bench, found, "approve")
    await bench.drain()
    operation = await bench.operation(run_id)
    assert (operation.state, operation.approval_id) == ("submitted", found.approval_id)
    assert len(provider.done) == 1


async def test_the_time_to_decide_does_not_limit_sending(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11."""
    provider = Provider()
    bench = make_bench(paying(work(pays(expires_in="1h")), provider))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve")
    await clock.advance(hours=2)
    await bench.drain()
    assert (await bench.find(run_id)).status == "succeeded"


async def test_a_retry_by_a_person_asks_again(make_bench: MakeBench, clock: ManualClock) -> None:
    """P22, P11: another run, another operation, another decision."""
    provider = Provider()
    bench = make_bench(paying(work(pays()), provider))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "reject")
    await bench.drain()
    again = await bench.retry(run_id)
    await bench.drain()
    assert await bench.status(again.run_id) == "waiting"
    assert (await asked(bench, again.run_id)).status == "pending"
    assert provider.calls == []


async def test_operations_without_an_approval_ask_nobody(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "hold"})
    assert (run.status, await all_asked(bench, run.run_id)) == ("succeeded", [])
    assert (await bench.operation(run.run_id)).approval_id is None


@pytest.mark.parametrize("recovery", ["resend", "lookup", "hold"])
async def test_every_recovery_takes_an_approval(
    make_bench: MakeBench, clock: ManualClock, recovery: str
) -> None:
    provider = Provider(dedupes=True)
    effect = EFFECTS[recovery]

    async def handler(ctx: Context) -> Any:
        return await ctx.operation("pay", effect, Order(number=1), approval=ctx.approve())

    app = work(handler)
    app.effect(effect(provider))
    bench = make_bench(app)
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve")
    provider.drops(does=True)
    await bench.drain()
    assert len(provider.done) == 1
    assert (await bench.operation(run_id)).state in ("unknown", "submitted", "submitting")


# ---- it cannot be missed -----------------------------------------------------------------------


async def test_a_decision_that_came_before_the_parking_is_found_by_it(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: a second attempt reads it as pending, and it is decided before that one parks."""
    late: list[Bench] = []

    async def handler(ctx: Context) -> str:
        if ctx.attempt == 2:
            # As seen by an attempt that read the row before the decision was committed.
            found = await asked(late[0], ctx.claimed.run_id)
            answer = await ctx._find_approval(_proposal_of(found))
            await decide(late[0], found, "approve")
            assert answer is not None
            assert answer.status == "pending"
            await ctx._park(_wait_for(found))
        return (await ctx.approve("go", 1)).decided_by

    bench = make_bench(work(handler))
    late.append(bench)
    run_id = (await bench.done("work")).run_id
    await bench.execute(
        "UPDATE execution SET status = 'queued', waiting_on = NULL, ready = true WHERE run_id = $1",
        run_id,
    )
    await bench.drain()
    assert (await bench.find(run_id)).output == "ann"
    assert await bench.outcomes(run_id) == ["parked", "parked", "succeeded"]


def _proposal_of(found: Approval) -> Proposal:
    return Proposal(
        found.approval_id, found.name, canonical.encode(found.proposal), found.digest, found.role,
        found.proposer,
    )  # fmt: skip


def _wait_for(found: Approval) -> Wait:
    return Wait("approval", name=found.name, approval=_proposal_of(found))


async def test_parallel_branches_wait_for_decisions_of_their_own(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P25: each by its key; whichever comes first, all are heard."""

    async def handler(ctx: Context) -> list[str]:
        found = await asyncio.gather(
            *(ctx.approve("go", number, key=str(number)) for number in range(3))
        )
        return [one.decided_by for one in found]

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    for _ in range(3):
        waiting = [one for one in await all_asked(bench, run_id) if one.status == "pending"]
        await decide(bench, waiting[-1], "approve")
        await bench.drain()
    assert (await bench.find(run_id)).output == ["ann", "ann", "ann"]


async def test_a_cancel_closes_what_stands_open_and_leaves_what_was_decided(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11."""

    async def handler(ctx: Context) -> None:
        await ctx.approve("first", 1)
        await ctx.approve("second", 2)

    bench = make_bench(work(handler))
    run_id = (await bench.done("work")).run_id
    await decide(bench, await asked(bench, run_id), "approve")
    await bench.drain()
    assert (await open_one(bench, run_id)).name == "second"
    assert await bench.value("SELECT undecided FROM execution WHERE run_id = $1", run_id) == 1
    await bench.cancel(run_id)
    assert {one.name: one.status.value for one in await all_asked(bench, run_id)} == {
        "first": "approved",
        "second": "cancelled",
    }
    assert await bench.value("SELECT undecided FROM execution WHERE run_id = $1", run_id) == 0


@pytest.mark.parametrize("ending", ["cancel", "deadline", "succeed", "fail"])
async def test_whatever_ends_a_run_closes_what_it_has_put_to_people(
    make_bench: MakeBench, clock: ManualClock, ending: str
) -> None:
    """P11, P4: in the transaction of the ending, also where the ending goes in a group."""
    bench = make_bench(work(asks, deadline="1h"))
    run_id = (await bench.done("work")).run_id
    if ending == "cancel":
        await bench.cancel(run_id)
    elif ending == "deadline":
        await clock.advance(hours=2)
        await bench.drain()
    else:
        await bench.execute(
            "UPDATE execution SET status = 'queued', waiting_on = NULL WHERE run_id = $1", run_id
        )
        (claimed,) = await bench.claim()
        wish = Wish.SUCCEED if ending == "succeed" else Wish.FAIL
        await bench.worker._settler.settle(claimed, _ending(wish))
    assert (await bench.find(run_id)).final
    assert (await asked(bench, run_id)).status == "cancelled"


def _ending(wish: Wish) -> Ending:
    return Ending(wish, output=b"1" if wish is Wish.SUCCEED else None)


# ---- who sees it -------------------------------------------------------------------------------


def _actor(name: str, *roles: str, scope: str = SCOPE) -> Actor:
    return Actor(scope, name, frozenset(roles))


@pytest.mark.parametrize(
    ("actor", "sees"),
    [
        (_actor("ann", "approver"), True),
        (_actor("op", "operator"), True),
        (_actor(MEMBER, "member"), True),
        (_actor("other", "member"), False),
        (_actor("root", "admin"), False),
        (_actor("nobody"), False),
        (_actor("ann", "approver", scope="other"), False),
        (_actor(MEMBER, "member", "operator", "admin", "approver", scope="other"), False),
    ],
    ids=["approver", "operator", "owner", "member", "admin", "none", "elsewhere", "all elsewhere"],
)
async def test_who_sees_an_approval_is_decided_in_the_query(
    make_bench: MakeBench, clock: ManualClock, actor: Actor, sees: bool
) -> None:
    """P12."""
    bench = make_bench(work(asks))
    run_id = (await bench.done("work")).run_id
    found = await asked(bench, run_id)
    for status in (None, found.status):
        listed = await reading.list_approvals(bench.engine, actor, status, None, 10)
        assert listed == ([found] if sees else [])
    if sees:
        assert await reading.find_approval(bench.engine, actor, found.approval_id) == found
    else:
        with pytest.raises(NotFound):
            await reading.find_approval(bench.engine, actor, found.approval_id)


async def test_the_run_of_an_approval_is_shown_without_its_input(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P21."""
    bench = make_bench(work(asks))
    run = await bench.done("work", {"secret": "of the customer"})
    found = await asked(bench, run.run_id)
    summary = (await reading.runs_of(bench.engine, SCOPE, [found]))[run.run_id]
    assert (summary.kind, summary.input, summary.output) == ("work", None, None)


async def test_a_page_of_approvals_goes_on_where_the_last_one_ended(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    bench = make_bench(work(asks))
    made = [await asked(bench, (await bench.done("work")).run_id) for _ in range(3)]
    found = await reading.list_approvals(bench.engine, ANN, None, None, 2)
    last = found[-1]
    after = (last.requested_at, last.approval_id)
    found += await reading.list_approvals(bench.engine, ANN, None, after, 2)
    assert sorted(one.approval_id for one in found) == sorted(one.approval_id for one in made)
    assert await approvals.find(bench.engine.database, "other", made[0].approval_id) is None
