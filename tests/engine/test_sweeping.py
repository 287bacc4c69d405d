"""Sweeping: what a provider did beside what is recorded; both differences, and no wrong one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import earnest
from earnest import Listed
from earnest.domain import ids
from earnest.domain.sweep import Difference, Sweep
from earnest.engine.process import binding
from earnest.engine.process.actors import Actor, Role, local
from earnest.engine.process.scopes import ensure_scope
from earnest.engine.sweeping import requesting
from earnest.engine.sweeping.sweeping import SweepSettings, take_and_sweep
from earnest.store import sweeps
from earnest.store.sweeps import DifferenceFilter
from tests.engine.bench import SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.listing_bank import ABSENT_IS_PROOF, Bank, Hold, Order, listing_shop

AT_ONCE = SweepSettings(lag=timedelta(0), lease=timedelta(seconds=5), page=4)
ME = local(SCOPE, "olga")


@dataclass
class Sweeps:
    """A bench with one bank that can list, and what its sweeps find."""

    bench: Bench
    bank: Bank
    by: str
    settings: SweepSettings = AT_ONCE

    @property
    def effect(self) -> str:
        return f"listed.{self.by}"

    async def sweep(self, since: datetime | None = None) -> Sweep:
        engine = self.bench.engine
        asked = (await requesting.request(engine, ME, self.effect, since)).sweep
        assert await take_and_sweep(engine, self.settings, asked)
        return await requesting.find_sweep(engine, ME, asked.sweep_id)

    async def until_absent_is_proof(self) -> None:
        """Until the effect's own `absent_after` is over for all that was moved so far."""
        await self.bench.wait_until_true(ABSENT_IS_PROOF)

    async def complete(self, since: datetime | None = None) -> Sweep:
        done = await self.sweep(since)
        assert (done.state, done.why) == ("complete", None)
        return done

    async def differences(self, state: str | None = "open") -> list[Difference]:
        only = DifferenceFilter(state)
        return await requesting.list_differences(self.bench.engine, ME, only, None, 1000)

    async def found(self, state: str | None = "open") -> set[tuple[str, str]]:
        """Why and the subject of each."""
        return {(one.found.why.value, one.found.subject) for one in await self.differences(state)}

    async def buy(self, number: int = 17) -> str:
        """A payment that goes well; returns its operation's id."""
        run = await self.bench.done("buy", {"by": self.by, "number": number})
        assert run.status == "succeeded", run
        return ids.show("op", (await self.bench.operation(run.run_id)).operation_id)

    async def buy_in_doubt(self, *, does: bool) -> uuid.UUID:
        """A payment whose answer was lost; the run's id."""
        self.bank.drops.append(does)
        run = await self.bench.done("buy", {"by": self.by})
        assert run.status == "unknown"
        return run.run_id


@pytest.fixture
async def at_bank(make_bench: MakeBench) -> Any:
    async def make(by: str = "hold", settings: SweepSettings = AT_ONCE, **bank: Any) -> Sweeps:
        at = Bank(**bank)
        bench = make_bench(listing_shop({by: at}))
        await ensure_scope(bench.engine, SCOPE, by="olga")
        return Sweeps(bench, at, by, settings)

    return make


def bare(operation_id: str) -> str:
    return str(ids.read("op", operation_id))


# ---- both differences --------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["hold", "lookup"])
async def test_both_differences_are_found_and_what_is_in_order_is_not(
    at_bank: Any, by: str
) -> None:
    at = await at_bank(by)
    bought = [await at.buy(number) for number in range(7)]
    planted = [at.bank.do(operation_id, 1).id for operation_id in (None, "op_else", new_op())]
    for gone in bought[:2]:
        at.bank.forget(gone)
    if by == "lookup":
        await at.until_absent_is_proof()
    sweep = await at.complete()
    assert await at.found() == {
        *(("no_operation", ref) for ref in planted),
        *(("not_listed", bare(one)) for one in bought[:2]),
    }
    assert (sweep.counts.listed, sweep.counts.matched) == (8, 5)
    counts = await requesting.open_counts(at.bench.engine, sweep)
    assert {kind.value: count for kind, count in counts.items()} == {
        "effect_without_record": 3, "record_without_effect": 2,
    }  # fmt: skip
    told = {one.found.subject: one.found for one in await at.differences()}
    assert told[planted[1]].listed_id == "op_else"
    assert told[bare(bought[0])].operation_id == ids.read("op", bought[0])


def new_op() -> str:
    return ids.show("op", ids.new_id())


async def test_the_same_difference_is_one_however_often_it_is_found(at_bank: Any) -> None:
    at = await at_bank()
    at.bank.forget(await at.buy())
    at.bank.do(None, 1)
    first = await at.complete()
    before = await at.differences()
    assert at.bank.lists == 2, "what seems missing is looked for in a second list"
    second = await at.complete(first.since)
    after = await at.differences()
    assert [one.difference_id for one in after] == [one.difference_id for one in before]
    assert [one.found_at for one in after] == [one.found_at for one in before]
    assert at.bank.lists == 3, "what is known to be missing needs none"
    for sweep in (first, second):
        seen = await requesting.differences_of(at.bench.engine, ME, sweep, None, 10)
        assert len(seen) == 2
    assert await at.bench.value("SELECT count(*) FROM finding WHERE closed_at IS NULL") == 2


async def test_a_difference_that_is_no_more_vanishes_and_one_that_comes_back_is_open_again(
    at_bank: Any,
) -> None:
    at = await at_bank()
    bought = await at.buy()
    at.bank.do(None, 1)
    [mine, theirs] = at.bank.deeds
    at.bank.deeds = [theirs]
    await at.complete()
    assert len(await at.found()) == 2
    at.bank.deeds = [mine]
    await at.complete()
    assert await at.found() == set()
    assert len(await at.found("vanished")) == 2
    assert await at.bench.value("SELECT count(*) FROM finding WHERE closed_at IS NULL") == 0
    at.bank.deeds = [theirs]
    await at.complete(datetime.now(UTC) - timedelta(hours=1))
    assert await at.found() == {("no_operation", theirs.receipt.id), ("not_listed", bare(bought))}
    assert await at.bench.value("SELECT count(*) FROM finding") == 2


async def test_what_a_person_closed_stays_closed(at_bank: Any) -> None:
    at = await at_bank()
    at.bank.do(None, 1)
    await at.complete()
    [found] = await at.differences()
    engine = at.bench.engine
    closed = await requesting.close(engine, ME, found.difference_id, "the old till did it")
    assert (closed.state, closed.closed_by, closed.version) == ("closed", "olga", 2)
    again = await requesting.close(engine, ME, found.difference_id, "the old till did it")
    assert again == closed
    with pytest.raises(earnest.EarnestError, match="closed already"):
        await requesting.close(engine, ME, found.difference_id, "another note")
    await at.complete()
    assert await at.found() == set()
    assert len(await at.found("closed")) == 1
    kept = await at.bench.value("SELECT count(*) FROM audit WHERE action = 'difference.closed'")
    assert kept == 1


async def test_a_difference_is_on_the_desk_beside_its_operation(at_bank: Any) -> None:
    at = await at_bank()
    await at.buy()
    whole, at.bank.deeds = at.bank.deeds, []
    await at.complete()
    run_id = await at.bench.value("SELECT run_id FROM run")
    operation = await at.bench.operation(run_id)
    [finding] = await at.bench.findings(operation)
    assert finding["kind"] == "record_without_effect"
    assert finding["detail"]["why"] == "not_listed"
    at.bank.deeds = whole
    await at.complete()
    assert await at.bench.findings(operation) == []


# ---- what explains an effect -------------------------------------------------------------------


@pytest.mark.parametrize("by", ["hold", "lookup"])
async def test_a_doubt_that_the_list_knows_is_settled_as_by_a_look_up(
    at_bank: Any, by: str
) -> None:
    """P3, P4: with the app's own record, and the run goes on."""
    at = await at_bank(by, cannot_be_asked=True)
    run_id = await at.buy_in_doubt(does=True)
    sweep = await at.complete()
    assert (await at.found(None), sweep.counts.settled, sweep.counts.matched) == (set(), 1, 1)
    operation = await at.bench.operation(run_id)
    assert (operation.state, at.bank.recorded) == (
        "submitted", [ids.show("op", operation.operation_id)],
    )  # fmt: skip
    assert operation.resolution == {
        "outcome": "submitted", "by": "sweep", "evidence": "found in the provider's list",
    }  # fmt: skip
    await at.bench.drain()
    assert await at.bench.status(run_id) == "succeeded"
    assert len(at.bank.deeds) == 1


async def test_a_doubt_that_the_list_does_not_know_stays_one(at_bank: Any) -> None:
    at = await at_bank()
    run_id = await at.buy_in_doubt(does=False)
    await at.complete()
    assert await at.found(None) == set()
    assert await at.bench.status(run_id) == "unknown"


async def test_without_its_receipt_a_provider_that_can_be_asked_is_asked(at_bank: Any) -> None:
    at = await at_bank("lookup", tells_receipts=False, cannot_be_asked=True)
    run_id = await at.buy_in_doubt(does=True)
    at.bank.cannot_be_asked = False
    assert (await at.complete()).counts.settled == 1
    assert (await at.bench.operation(run_id)).resolution["by"] == "look_up"


async def test_a_receipt_of_another_request_settles_nothing(at_bank: Any) -> None:
    at = await at_bank()
    run_id = await at.buy_in_doubt(does=True)
    at.bank.deeds[0].receipt.number = 99
    await at.complete()
    operation = await at.bench.operation(run_id)
    assert operation.state == "unknown"
    assert operation.lookup_due_at is None, "nobody can be asked"
    assert await at.found() == {("another_request", at.bank.deeds[0].receipt.id)}


async def test_a_second_effect_under_one_operation_is_found(at_bank: Any) -> None:
    """P2: the one that the record names is in order, the other one is not."""
    at = await at_bank()
    bought = await at.buy()
    second = at.bank.do(bought, 17)
    await at.complete()
    assert await at.found() == {("another_effect", second.id)}


async def test_a_doubt_with_two_effects_is_settled_by_one_and_the_other_is_found(
    at_bank: Any,
) -> None:
    at = await at_bank()
    run_id = await at.buy_in_doubt(does=True)
    second = at.bank.do(at.bank.deeds[0].operation_id, 17)
    await at.complete()
    operation = await at.bench.operation(run_id)
    assert operation.external_ref == at.bank.deeds[0].receipt.id
    assert await at.found() == {("another_effect", second.id)}


async def test_what_was_done_otherwise_than_asked_is_found(at_bank: Any) -> None:
    at = await at_bank(tells_requests=True, tells_receipts=False)
    await at.buy()
    await at.buy()
    at.bank.deeds[0].request = Order(number=17, amount="200.00")
    await at.complete()
    assert await at.found() == {("another_request", at.bank.deeds[0].receipt.id)}


async def test_what_is_recorded_as_not_done_does_not_explain_an_effect(at_bank: Any) -> None:
    at = await at_bank(tells_receipts=False)
    run_id = await at.buy_in_doubt(does=True)
    await at.bench.resolve(await at.bench.operation(run_id), "released")
    await at.bench.drain()
    await at.complete()
    assert await at.found() == {("released", at.bank.deeds[0].receipt.id)}


@pytest.mark.parametrize("gone", ["the run goes on", "just released"])
async def test_what_may_be_sent_again_is_not_judged_yet(at_bank: Any, gone: str) -> None:
    """A late arrival: the run that sends it again will find it done."""
    at = await at_bank("lookup", SweepSettings(lag=timedelta(0), page=4))
    run_id = await _released_as_absent(at)
    if gone == "just released":
        await at.bench.cancel(run_id)
        at.settings = SweepSettings(page=4)
        await at.bench.execute("UPDATE operation SET released_at = clock()")
    else:
        await at.until_absent_is_proof()
    operation = await at.bench.operation(run_id)
    at.bank.do(ids.show("op", operation.operation_id), 17)
    assert (await at.complete()).counts.unjudged == 1
    assert await at.found(None) == set()


async def _released_as_absent(at: Sweeps) -> uuid.UUID:
    """A run that is about to send again what was proved absent."""
    at.bank.cannot_be_asked = True
    at.bank.drops.append(False)
    run_id = await at.bench.submit("buy", {"by": at.by})
    await at.bench.drain()
    assert await at.bench.status(run_id) == "unknown"
    at.bank.cannot_be_asked = False
    await at.until_absent_is_proof()
    released = await at.bench.look_up(await at.bench.operation(run_id))
    assert (released.state, released.release_reason) == ("released", "absent")
    assert await at.bench.status(run_id) == "queued"
    return run_id


@asynccontextmanager
async def acting_in(at: Sweeps, scope: str) -> AsyncIterator[None]:
    bound = binding.Binding(at.bench.engine, scope, "clerk")
    binding.bind(bound)
    try:
        yield
    finally:
        binding.unbind(bound)


async def test_effects_of_other_scopes_are_theirs(at_bank: Any, make_bench: MakeBench) -> None:
    """P12: also of a scope that nobody has made; by what the records say, or by what is listed."""
    at = await at_bank()
    await ensure_scope(at.bench.engine, "other", by="olga")
    for scope in ("other", "ghost"):
        async with acting_in(at, scope), earnest.operation("order", Hold, Order(number=1)):
            pass
    assert (await at.complete()).counts.elsewhere == 2
    at.bank.drops.append(True)
    with pytest.raises(earnest.InDoubt):
        async with acting_in(at, "ghost"), earnest.operation("doubt", Hold, Order(number=2)):
            pass
    assert (await at.complete()).counts.elsewhere == 3, "known by its id alone"
    at.bank.deeds.pop()
    at.bank.tells_ids = False
    assert (await at.complete()).counts.elsewhere == 2
    at.bank.do(new_op(), 1)
    at.bank.deeds[-1].scope_id = "theirs"
    at.bank.tells_ids = at.bank.tells_scopes = True
    assert (await at.complete()).counts.elsewhere == 3
    assert await at.found(None) == set()


async def test_what_has_no_operation_id_is_recognised_by_its_name(at_bank: Any) -> None:
    at = await at_bank(tells_ids=False)
    bought = [await at.buy(number) for number in range(3)]
    planted = at.bank.do(None, 1)
    at.bank.forget(bought[0])
    await at.complete()
    assert await at.found() == {("no_operation", planted.id), ("not_listed", bare(bought[0]))}


async def test_what_may_be_an_operation_in_doubt_is_not_said_to_be_unknown(at_bank: Any) -> None:
    at = await at_bank(tells_ids=False)
    before = at.bank.do(None, 1)
    before_it = at.bank.deeds[0].at = datetime.now(UTC) - timedelta(hours=1)
    run_id = await at.buy_in_doubt(does=True)
    since = before_it - timedelta(hours=1)
    sweep = await at.complete(since)
    assert await at.found() == {("no_operation", before.id)}
    assert sweep.counts.unjudged == 1
    receipt = {"id": "another", "number": 17}
    await at.bench.resolve(await at.bench.operation(run_id), "submitted", receipt)
    await at.complete(since)
    operation = await at.bench.operation(run_id)
    assert await at.found() == {
        ("no_operation", before.id),
        ("no_operation", at.bank.deeds[1].receipt.id),
        ("not_listed", str(operation.operation_id)),
    }


async def test_what_cannot_be_judged_any_more_has_not_vanished(at_bank: Any) -> None:
    at = await at_bank(tells_ids=False)
    at.bank.do(None, 1)
    await at.complete()
    assert len(await at.found()) == 1
    await at.buy_in_doubt(does=False)
    assert (await at.complete()).counts.unjudged == 1
    assert len(await at.found()) == 1


async def test_a_call_on_its_way_explains_what_was_done(at_bank: Any) -> None:
    at = await at_bank()
    run_id = await at.buy_in_doubt(does=True)
    await at.bench.execute(
        "UPDATE operation SET state = 'submitting', unknown_since = NULL, call_until = clock()"
    )
    sweep = await at.complete()
    assert (sweep.counts.matched, await at.found(None)) == (1, set())
    assert (await at.bench.operation(run_id)).state == "submitting"


# ---- clocks, lag, pages ------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [-4, 4])
async def test_a_clock_that_is_off_accuses_nobody(at_bank: Any, minutes: int) -> None:
    at = await at_bank(ahead=timedelta(minutes=minutes))
    since = datetime.now(UTC) - timedelta(seconds=1)
    for number in range(3):
        await at.buy(number)
    await at.complete(since)
    assert await at.found(None) == set()


async def test_what_was_done_before_the_time_that_was_asked_about_is_not_judged(
    at_bank: Any,
) -> None:
    at = await at_bank()
    at.bank.do(None, 1)
    await at.complete(datetime.now(UTC))
    assert await at.found(None) == set()


async def test_a_list_that_lags_behind_accuses_nobody(at_bank: Any) -> None:
    """Five minutes where the effect does not say how long."""
    at = await at_bank(settings=SweepSettings())
    at.bank.forget(await at.buy())
    await at.complete()
    assert (await at.found(None), at.bank.lists) == (set(), 1)
    await at.bench.execute(
        "UPDATE operation SET first_begun_at = first_begun_at - interval '6 min', "
        "submitted_at = submitted_at - interval '6 min'"
    )
    await at.complete()
    assert len(await at.found()) == 1


async def test_what_moves_from_one_page_to_another_meanwhile_is_not_missed(at_bank: Any) -> None:
    at = await at_bank()
    for number in range(8):
        await at.buy(number)
    whole = list(at.bank.deeds)

    def shift(page: int) -> None:
        if at.bank.lists == 1:
            at.bank.deeds = whole[1:] if page == 1 else whole

    at.bank.before_page = shift
    await at.complete()
    assert (await at.found(None), at.bank.lists) == (set(), 2)


async def test_a_provider_that_can_be_asked_has_the_last_word(at_bank: Any) -> None:
    at = await at_bank("lookup")
    bought = await at.buy()
    whole = list(at.bank.deeds)
    await at.until_absent_is_proof()

    async def nothing(time: datetime) -> Any:
        at.bank.deeds = whole
        for _ in ():
            yield

    at.bank.list = nothing
    sweep = await at.complete()
    assert (await at.found(None), sweep.counts.asked, at.bank.asked) == (set(), 1, [bought])
    at.bank.cannot_be_asked = True
    assert (await at.complete()).counts.unjudged == 1
    assert await at.found(None) == set()


async def test_a_missing_one_stays_missing_while_the_provider_cannot_tell(at_bank: Any) -> None:
    at = await at_bank("lookup")
    at.bank.forget(await at.buy())
    await at.until_absent_is_proof()
    await at.complete()
    at.bank.cannot_be_asked = True
    await at.complete()
    assert len(await at.found()) == 1


async def test_a_sweep_ends_though_the_provider_goes_on(at_bank: Any) -> None:
    """P10: what is done after the list was asked for is the next sweep's."""
    at = await at_bank(settings=replace(AT_ONCE, skew=timedelta(minutes=1)))
    planted = at.bank.do(None, 1)
    whole = at.bank.list

    async def endless(time: datetime) -> Any:
        async for one in whole(time):
            yield one
        when = datetime.now(UTC) + timedelta(minutes=2)
        while True:
            when += timedelta(seconds=1)
            yield Listed(at=when, external_ref=f"later-{when.isoformat()}")

    at.bank.list = endless
    sweep = await at.complete()
    assert await at.found(None) == {("no_operation", planted.id)}
    assert sweep.counts.listed == 1


async def test_a_list_without_an_order_is_read_to_its_end(at_bank: Any) -> None:
    at = await at_bank()
    for number in range(3):
        await at.buy(number)
    whole = at.bank.list

    async def newest_first(time: datetime) -> Any:
        later = datetime.now(UTC) + timedelta(hours=1)
        for number in range(9):
            yield Listed(at=later - timedelta(seconds=number), external_ref=f"later-{number}")
        async for one in whole(time):
            yield one

    at.bank.list = newest_first
    assert (await at.complete()).counts.matched == 3
    assert await at.found(None) == set()


# ---- lists that go wrong -----------------------------------------------------------------------


async def test_a_list_that_breaks_off_accuses_nobody_of_what_it_did_not_come_to(
    at_bank: Any,
) -> None:
    at = await at_bank()
    planted = at.bank.do(None, 1)
    bought = [await at.buy(number) for number in range(9)]
    at.bank.forget(bought[0])
    at.bank.breaks_after = 6
    sweep = await at.sweep()
    assert (sweep.state, sweep.why) == ("incomplete", "ConnectionError: the list broke off")
    assert sweep.counts.listed >= 4
    assert await at.found() == {("no_operation", planted.id)}, "this was listed"
    at.bank.breaks_after = None
    await at.complete()
    assert await at.found() == {("no_operation", planted.id), ("not_listed", bare(bought[0]))}
    at.bank.deeds, at.bank.breaks_after = at.bank.deeds[1:], 0
    await at.sweep()
    assert len(await at.found()) == 2, "nothing vanishes because of a list that broke off"


async def _gives(value: Any) -> Any:
    yield value


WRONG_LISTS = {
    "not Listed": lambda _: _gives(("op_1", {"id": "r"})),
    "write it as an async generator": lambda _: None,
    "does not fit listed.hold": lambda _: _gives(
        Listed(at=datetime.now(UTC), receipt={"number": 1})
    ),
}


@pytest.mark.parametrize("told", WRONG_LISTS)
async def test_a_list_that_is_none_says_what_is_wrong(at_bank: Any, told: str) -> None:
    at = await at_bank()
    at.bank.list = WRONG_LISTS[told]
    sweep = await at.sweep()
    assert sweep.state == "incomplete"
    assert told in (sweep.why or "")


@pytest.mark.parametrize("at", [None, datetime.now()])  # noqa: DTZ005
def test_a_listed_thing_needs_a_time_with_its_zone(at: Any) -> None:
    with pytest.raises(ValueError, match="with its zone"):
        Listed(at=at, external_ref="r")


def test_a_listed_thing_needs_a_name() -> None:
    with pytest.raises(ValueError, match="or the operation's id"):
        Listed(at=datetime.now(UTC))


async def test_no_more_than_a_page_is_held(at_bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: however long the list is."""
    from earnest.engine.sweeping import judging, sweeping

    at = await at_bank()
    for _ in range(50):
        at.bank.do(None, 1)
    held: list[int] = []
    judge = judging.judge

    async def judged(database: Any, frame: Any, items: Any) -> Any:
        held.append(len(items))
        return await judge(database, frame, items)

    monkeypatch.setattr(sweeping, "judge", judged)
    await at.complete()
    assert (max(held), sum(held)) == (at.settings.page, 50)
    assert len(await at.found()) == 50
    assert await at.bench.value("SELECT count(*) FROM sweep_seen") == 0


# ---- who sweeps --------------------------------------------------------------------------------


async def test_a_sweep_whose_sweeper_is_gone_is_begun_anew(at_bank: Any) -> None:
    """P6: what the first one writes after that is refused."""
    at = await at_bank()
    at.bank.do(None, 1)
    engine = at.bench.engine
    asked = (await requesting.request(engine, ME, at.effect)).sweep
    held = await engine.database.promise(
        "sweep", lambda tx: sweeps.take(tx, [at.effect], timedelta(seconds=60))
    )
    assert held is not None
    assert not await take_and_sweep(engine, at.settings)
    await at.bench.execute("UPDATE sweep SET lease_until = clock() - interval '1 s'")
    renewed = await engine.database.promise(
        "sweep", lambda tx: sweeps.renew(tx, held, timedelta(seconds=60))
    )
    assert not renewed, "an expired lease is never revived"
    assert await take_and_sweep(engine, at.settings)
    done = await requesting.find_sweep(engine, ME, asked.sweep_id)
    assert (done.state, done.takes) == ("complete", 2)
    assert len(await at.found()) == 1


async def test_what_only_an_earlier_begin_of_the_sweep_found_vanishes(at_bank: Any) -> None:
    at = await at_bank()
    for _ in range(6):
        at.bank.do(None, 1)
    engine, whole = at.bench.engine, at.bank.list
    reached = asyncio.Event()

    async def stuck(time: datetime) -> Any:
        async for one in whole(time):
            yield one
        reached.set()
        await asyncio.sleep(3600)

    at.bank.list = stuck
    asked = (await requesting.request(engine, ME, at.effect)).sweep
    sweeping = asyncio.create_task(take_and_sweep(engine, at.settings))
    await reached.wait()
    sweeping.cancel()
    await asyncio.wait({sweeping})
    assert len(await at.found()) == 4
    at.bank.list, at.bank.deeds = whole, at.bank.deeds[1:]
    assert await take_and_sweep(engine, at.settings)
    done = await requesting.find_sweep(engine, ME, asked.sweep_id)
    seen = await requesting.differences_of(engine, ME, done, None, 10)
    assert (done.state, len(seen), len(await at.found())) == ("complete", 5, 5)
    assert len(await at.found("vanished")) == 1


async def test_a_sweep_that_ends_its_sweepers_is_given_up(at_bank: Any) -> None:
    at = await at_bank()
    await requesting.request(at.bench.engine, ME, at.effect)
    await at.bench.execute("UPDATE sweep SET takes = 5")
    assert await take_and_sweep(at.bench.engine, at.settings)
    [given_up] = await requesting.list_sweeps(at.bench.engine, ME, None, None, None, 10)
    assert given_up.state == "incomplete"
    assert "its sweeper ended each time" in (given_up.why or "")


async def test_a_sweeper_that_is_stopped_hands_back_and_shows_how_far_it_was(at_bank: Any) -> None:
    """P19."""
    at = await at_bank()
    for _ in range(9):
        at.bank.do(None, 1)
    engine = at.bench.engine
    asked = (await requesting.request(engine, ME, at.effect)).sweep
    reached, whole = asyncio.Event(), at.bank.list

    async def slow(time: datetime) -> Any:
        count = 0
        async for one in whole(time):
            yield one
            count += 1
            if count == 5:
                reached.set()
                await asyncio.sleep(3600)

    at.bank.list = slow
    sweeping = asyncio.create_task(take_and_sweep(engine, at.settings))
    await reached.wait()
    now = await requesting.find_sweep(engine, ME, asked.sweep_id)
    assert (now.state, now.stage, now.counts.listed) == ("running", "listing", 4)
    sweeping.cancel()
    await asyncio.wait({sweeping})
    now = await requesting.find_sweep(engine, ME, asked.sweep_id)
    assert (now.state, now.takes) == ("queued", 0)
    at.bank.list = whole
    assert await take_and_sweep(engine, at.settings)
    assert len(await at.found()) == 9


# ---- asking for one ----------------------------------------------------------------------------


async def test_one_sweep_of_an_effect_is_under_way_at_a_time(at_bank: Any) -> None:
    at = await at_bank()
    engine = at.bench.engine
    asked = (await requesting.request(engine, ME, at.effect)).sweep
    with pytest.raises(earnest.EarnestError, match="is under way: sweep_"):
        await requesting.request(engine, ME, at.effect)
    assert await requesting.request_all(engine, ME) == [asked]


@pytest.mark.parametrize(
    ("effect", "told"),
    [("unlisted.hold", "has no `list_since`"), ("nobody.knows", "is known here")],
)
async def test_what_nobody_can_list_is_not_swept(at_bank: Any, effect: str, told: str) -> None:
    at = await at_bank()
    with pytest.raises(earnest.EarnestError, match=told):
        await requesting.request(at.bench.engine, ME, effect)


async def test_the_next_sweep_goes_on_where_the_last_one_could_not_judge(at_bank: Any) -> None:
    """What was begun long ago and got its receipt since has been in no sweep yet."""
    at = await at_bank()
    first = await at.complete()
    assert timedelta(days=6) < datetime.now(UTC) - first.since < timedelta(days=8)
    second = await at.complete()
    assert first.asked_at is not None
    assert second.since == first.asked_at - timedelta(minutes=10)
    at.bank.forget(await at.buy())
    await at.bench.execute("UPDATE operation SET first_begun_at = clock() - interval '3 days'")
    third = await at.complete()
    assert datetime.now(UTC) - third.since > timedelta(days=2)
    assert len(await at.found()) == 1


async def test_an_effect_that_lags_longer_is_looked_at_from_further_back(
    at_bank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hold, "absent_after", "2h")
    at = await at_bank()
    first = await at.complete()
    second = await at.complete()
    assert first.asked_at is not None
    assert second.since == first.asked_at - timedelta(hours=2, minutes=5)


async def test_code_that_cannot_compare_accuses_nobody_and_ends_no_worker(
    at_bank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await at_bank()
    await at.buy()
    await at.buy_in_doubt(does=True)

    def broken(*_: object) -> bool:
        raise KeyError("number")

    monkeypatch.setattr(Hold, "matches", broken)
    async with at.bench.at_work():
        sweep = await at.complete()
    assert (await at.found(None), sweep.counts.matched) == (set(), 2)


async def test_only_an_operator_asks_and_closes(at_bank: Any) -> None:
    """P12."""
    at = await at_bank()
    at.bank.do(None, 1)
    sweep = await at.complete()
    [found] = await at.differences()
    engine = at.bench.engine
    admin = Actor(SCOPE, "adam", frozenset({Role.ADMIN}))
    assert await requesting.find_sweep(engine, admin, sweep.sweep_id) == sweep
    with pytest.raises(earnest.EarnestError, match="needs the role operator"):
        await requesting.request(engine, admin, at.effect)
    with pytest.raises(earnest.EarnestError, match="needs the role operator"):
        await requesting.close(engine, admin, found.difference_id, "a note")
    stranger = local("other", "otto")
    with pytest.raises(earnest.EarnestError, match="no such difference"):
        await requesting.close(engine, stranger, found.difference_id, "a note")
    with pytest.raises(earnest.EarnestError, match="no such sweep"):
        await requesting.find_sweep(engine, stranger, sweep.sweep_id)
