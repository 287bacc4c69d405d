"""A person settles a doubt, with evidence (P3, P11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from earnest import App, Context, NotDone
from earnest.domain.errors import (
    Conflict,
    InDoubt,
    InvalidRequest,
    NotFound,
    PreconditionRequired,
    StaleVersion,
)
from earnest.domain.ids import new_id
from earnest.domain.operation import Operation
from earnest.engine.operations import reconciling
from earnest.engine.operations.reconciling import Verdict
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Order, Provider, shop

FOUND = {"id": "from the statement"}


async def in_doubt(bench: Bench, provider: Provider) -> Operation:
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    assert run.status == "unknown"
    return await bench.operation(run.run_id)


async def resolve(bench: Bench, operation: Operation, verdict: Verdict, **more: Any) -> Operation:
    more = {"version": operation.version, "by": MEMBER, **more}
    return await reconciling.resolve(
        bench.engine, more.pop("scope", SCOPE), operation.operation_id, verdict, **more
    )


async def test_a_person_may_say_that_it_happened_and_the_run_goes_on_with_the_receipt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: who, why and the evidence are kept; nothing is sent again."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    verdict = Verdict("submitted", "line 17 of the statement", "asked the bank", FOUND)
    settled = await resolve(bench, operation, verdict)
    assert (settled.state, settled.receipt) == ("submitted", FOUND)
    assert settled.external_ref == FOUND["id"]
    assert settled.resolution == {
        "outcome": "submitted", "by": MEMBER, "principal_id": MEMBER,
        "evidence": "line 17 of the statement", "note": "asked the bank",
    }  # fmt: skip
    assert operation.run_id is not None
    assert await bench.status(operation.run_id) == "queued"
    await bench.drain()
    run = await bench.find(operation.run_id)
    assert (run.status, run.output, run.in_doubt) == ("succeeded", FOUND, 0)
    assert len(provider.calls) == 1
    (told,) = await bench.events(operation.run_id, "operation.resolved")
    assert (told.payload["outcome"], told.payload["by"]) == ("submitted", MEMBER)
    assert "statement" not in str(told.payload)


async def test_a_person_may_say_that_it_did_not_happen_and_the_run_fails_as_not_done(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: it is not sent again; only a new revision may do it."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    settled = await resolve(bench, operation, Verdict("released", "not on the statement"))
    assert (settled.state, settled.release_reason) == ("released", "given_up")
    await bench.drain()
    assert operation.run_id is not None
    run = await bench.find(operation.run_id)
    assert (run.status, (run.error or {})["code"]) == ("failed", "not_done")
    assert len(provider.calls) == 1
    new = await bench.retry(run.run_id)
    await bench.drain()
    assert await bench.status(new.run_id) == "succeeded"
    assert provider.calls[0][0].id != provider.calls[1][0].id


async def test_a_handler_may_go_on_after_what_a_person_released(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: it arrives as `NotDone`."""
    provider = Provider()
    app = shop(provider)

    @app.run("careful")
    async def careful(ctx: Context, value: int) -> str:
        try:
            await ctx.operation("pay", app.effects["test.hold"], Order(number=17))
        except NotDone:
            return "not paid"
        return "paid"

    bench = make_bench(app)
    provider.drops(does=False)
    run = await bench.done("careful", 1)
    await bench.resolve(await bench.operation(run.run_id), "released")
    await bench.drain()
    assert (await bench.find(run.run_id)).output == "not paid"


@pytest.mark.parametrize("outcome", ["submitted", "released"])
async def test_the_same_verdict_again_is_harmless_whatever_its_version(
    make_bench: MakeBench, clock: ManualClock, outcome: str
) -> None:
    """P11."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    receipt = FOUND if outcome == "submitted" else None
    settled = await bench.resolve(operation, outcome, receipt)
    for version in (operation.version, settled.version, None):
        again = await bench.resolve(operation, outcome, receipt, version=version)
        assert again == settled
    assert await bench.findings(operation) == []
    assert (await bench.moves(operation)).count("resolve") == 1


@pytest.mark.parametrize("first", ["submitted", "released"])
async def test_a_contradiction_is_refused(
    make_bench: MakeBench, clock: ManualClock, first: str
) -> None:
    """P11."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    verdicts = {"submitted": FOUND, "released": None}
    settled = await bench.resolve(operation, first, verdicts.pop(first))
    ((second, receipt),) = verdicts.items()
    with pytest.raises(Conflict, match=f"is {first}, which contradicts '{second}'"):
        await bench.resolve(settled, second, receipt)
    assert await bench.again(operation) == settled


async def test_two_people_who_contradict_each_other_at_once_settle_it_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: both looked at the same version."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    assert operation.run_id is not None
    async with bench.holding(operation.run_id):
        both = [
            asyncio.create_task(bench.resolve(operation, "submitted", FOUND)),
            asyncio.create_task(bench.resolve(operation, "released")),
        ]
        await bench.wait_for_lock_waiters(2)
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert sum(isinstance(answer, Operation) for answer in answers) == 1
    assert sum(isinstance(answer, (Conflict, StaleVersion)) for answer in answers) == 1
    assert (await bench.moves(operation)).count("resolve") == 1


async def test_who_has_not_looked_at_the_operation_as_it_stands_decides_nothing(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: the version of `If-Match`."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    with pytest.raises(PreconditionRequired):
        await bench.resolve(operation, "released", version=None)
    with pytest.raises(StaleVersion) as stale:
        await bench.resolve(operation, "released", version=operation.version - 1)
    assert stale.value.fields == {"version": operation.version}
    assert await bench.again(operation) == operation


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict("perhaps", "e"), "outcome is `submitted`"),
        (Verdict("released", "  "), "evidence is needed"),
        (Verdict("released", "e" * 4001), "at most 4000 characters"),
        (Verdict("released", "e", "n" * 4001), "at most 4000 characters"),
        (Verdict("released", "a\x00b"), "cannot be stored"),
        (Verdict("released", "e", "a\ud800b"), "cannot be stored"),
        (Verdict("released", "e", receipt=FOUND), "leave the receipt out"),
        (Verdict("submitted", "e"), "`submitted` needs the receipt"),
        (Verdict("submitted", "e", receipt={"no": "id"}), "the receipt does not fit test.hold"),
        (Verdict("submitted", "e", receipt={"id": "a\x00b"}), "the receipt does not fit"),
    ],
    ids=str,
)
async def test_a_verdict_that_is_none_is_refused_in_one_line(
    make_bench: MakeBench, clock: ManualClock, verdict: Verdict, says: str
) -> None:
    """P11: and nothing changes."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    with pytest.raises(InvalidRequest, match=says):
        await resolve(bench, operation, verdict)
    assert await bench.again(operation) == operation


async def test_what_is_on_its_way_is_not_decided_by_a_person(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: it is no doubt yet."""
    provider = Provider()
    gate = provider.holds()
    bench = make_bench(shop(provider))
    run_id = await bench.submit("buy", {"by": "hold"})
    task = asyncio.create_task(bench.drain())
    await gate.reached()
    with pytest.raises(Conflict, match="is submitting, which contradicts"):
        await bench.resolve(await bench.operation(run_id), "released")
    gate.open()
    await task
    assert await bench.status(run_id) == "succeeded"


async def test_what_does_not_exist_here_cannot_be_decided(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P12."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    with pytest.raises(NotFound):
        await resolve(bench, operation, Verdict("released", "e"), scope="other")
    with pytest.raises(NotFound):
        await reconciling.resolve(
            bench.engine, SCOPE, new_id(), Verdict("released", "e"), by=MEMBER, version=1
        )


async def test_a_run_with_two_doubts_goes_on_when_both_are_settled(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3."""
    provider = Provider()
    app = shop(provider)

    @app.run("pays twice")
    async def pays_twice(ctx: Context, value: int) -> list[Any]:
        effect = app.effects["test.hold"]
        found = []
        for number in (1, 2):
            try:
                found.append(await ctx.operation("pay", effect, Order(number=number)))
            except InDoubt:
                found.append(None)
        return found

    bench = make_bench(app)
    provider.drops(does=True)
    provider.drops(does=True)
    run = await bench.done("pays twice", 1)
    assert (run.status, run.in_doubt) == ("unknown", 2)
    first, second = await bench.operations(run.run_id)
    await bench.resolve(first, "submitted", FOUND)
    between = await bench.find(run.run_id)
    assert (between.status, between.in_doubt) == ("unknown", 1)
    await bench.resolve(second, "submitted", FOUND)
    await bench.drain()
    assert (await bench.find(run.run_id)).output == [FOUND, FOUND]


async def test_the_desk_of_a_cancelled_run_can_still_be_cleared(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P20, P22: the run stays as it ended."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    run_id = operation.run_id
    assert run_id is not None
    await bench.cancel(run_id)
    operation = await bench.again(operation)
    assert operation.state == "unknown"
    settled = await bench.resolve(operation, "submitted", FOUND)
    assert settled.state == "submitted"
    run = await bench.find(run_id)
    assert (run.status, run.in_doubt) == ("cancelled", 0)
    assert await bench.drain() == 0


async def test_a_receipt_is_not_taken_where_its_effect_is_unknown(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P4: the app's record could not be written; a release needs no effect."""
    provider = Provider()
    bench = make_bench(shop(provider))
    operation = await in_doubt(bench, provider)
    stranger = make_bench(App("knows nothing"))
    with pytest.raises(Conflict, match=r"is not known here; resolve it where its app is \(--app\)"):
        await stranger.resolve(operation, "submitted", FOUND)
    assert await bench.again(operation) == operation
