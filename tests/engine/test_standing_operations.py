"""Operations standing alone: the same promises without a run, inside any program (P2, P3, P7)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import earnest
from earnest import App, CodeChanged, InDoubt, NotDone, NotSent, Refused, ResourceBusy
from earnest.domain import ids
from earnest.domain.errors import InvalidRequest, NotFound, SettingInvalid
from earnest.domain.operation import Operation
from earnest.engine.attempts.reaping import Reaper
from earnest.engine.operations import operating
from earnest.engine.process import binding, scopes
from earnest.engine.process.binding import Binding
from earnest.engine.process.engine import Engine
from earnest.engine.process.instances import Instance, process_name, this_host
from earnest.store import operations
from earnest.store.database import Database
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import EFFECTS, Order, Provider, Receipt, shop


@contextmanager
def bound(bench: Bench, principal: str = MEMBER) -> Iterator[None]:
    """As a program that has opened Earnest."""
    opened = Binding(bench.engine, SCOPE, principal)
    binding.bind(opened)
    try:
        yield
    finally:
        binding.unbind(opened)


async def pay(key: str = "order-17", by: str = "hold", number: int = 17, **more: Any) -> Receipt:
    async with earnest.operation(key, EFFECTS[by], Order(number=number), **more) as receipt:
        return receipt


async def stored(bench: Bench, key: str = "order-17", by: str = "hold") -> Operation:
    operation_id = ids.standing_operation_id(SCOPE, MEMBER, EFFECTS[by].kind, key)
    found = await operations.find(bench.engine.database, SCOPE, operation_id)
    assert found is not None, "it was reserved"
    return found


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def bench(make_bench: MakeBench, clock: ManualClock, provider: Provider) -> Iterator[Bench]:
    """A program that has opened Earnest, without a worker at work."""
    made = make_bench(shop(provider))
    with bound(made):
        yield made


async def test_it_is_done_and_gives_the_receipt_to_the_body(
    bench: Bench, provider: Provider
) -> None:
    """P1, P2: without a run; on the same desk."""
    receipt = await pay()
    operation = await stored(bench)
    assert operation.receipt == receipt.model_dump()
    assert (operation.run_id, operation.name, operation.principal_id) == (
        None, "order-17", MEMBER,
    )  # fmt: skip
    assert await bench.moves(operation) == ["reserve", "begin", "confirm"]
    assert provider.calls[0][0].id == ids.show("op", operation.operation_id)


async def test_the_same_key_and_request_give_the_same_receipt_without_a_second_call(
    bench: Bench, provider: Provider
) -> None:
    """P7."""
    assert await pay() == await pay()
    assert len(provider.calls) == 1


async def test_the_same_key_with_another_request_is_refused_and_sends_nothing(
    bench: Bench, provider: Provider
) -> None:
    """P7."""
    await pay(number=17)
    with pytest.raises(CodeChanged, match=r"send the old request again, or use another key$"):
        await pay(number=18)
    assert len(provider.calls) == 1


async def test_another_generation_principal_or_effect_is_another_operation(
    bench: Bench, provider: Provider
) -> None:
    """P7: the key includes the generation where there is one."""
    await pay("4001")
    await pay("4001/2")
    await pay("4001", by="passing")
    with bound(bench, "another"):
        await pay("4001")
    await scopes.ensure_scope(bench.engine, "other")
    async with earnest.operation("4001", EFFECTS["hold"], Order(number=17), scope="other"):
        pass
    assert len(set(provider.done)) == len(provider.done) == 5


async def test_an_error_of_the_body_does_not_undo_what_was_done(
    bench: Bench, provider: Provider
) -> None:
    """P2."""
    with pytest.raises(KeyError):
        async with earnest.operation("order-17", EFFECTS["hold"], Order(number=17)):
            raise KeyError
    assert (await stored(bench)).state == "submitted"
    await pay()
    assert len(provider.calls) == 1


# ---- several callers ---------------------------------------------------------------------------


async def found_by(count: int, at_points: Any) -> None:
    """Returns once that many callers have found the operation that stands under their key."""
    found = asyncio.Queue[str]()
    at_points(lambda point: found.put_nowait(point) if point == "reserve.after" else None)
    for _ in range(count):
        await asyncio.wait_for(found.get(), 10)


@pytest.mark.parametrize("by", ["hold", "lookup", "resend"])
async def test_callers_at_once_make_one_call_and_all_get_its_receipt(
    bench: Bench, provider: Provider, by: str, at_points: Any
) -> None:
    """P7: whoever comes while the call is on its way waits for it, also where it might be sent
    again."""
    gate = provider.holds()
    first = asyncio.create_task(pay(by=by))
    await gate.reached()
    others = [asyncio.create_task(pay(by=by)) for _ in range(3)]
    await found_by(3, at_points)
    gate.open()
    receipts = await asyncio.gather(first, *others)
    assert len(set(map(str, receipts))) == 1
    assert len(provider.calls) == 1
    operation = await stored(bench, by=by)
    assert await bench.moves(operation) == ["reserve", "begin", "confirm"]
    assert await bench.findings(operation) == []


async def test_who_waits_for_another_caller_hears_of_its_doubt(
    bench: Bench, provider: Provider, at_points: Any
) -> None:
    """P3."""
    gate = provider.holds(raises=ConnectionError("the line broke"))
    first = asyncio.create_task(pay())
    await gate.reached()
    second = asyncio.create_task(pay())
    await found_by(1, at_points)
    gate.open()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [InDoubt, InDoubt]
    assert len(provider.calls) == 1


async def test_what_a_program_that_ended_was_sending_is_sent_again_by_the_next_caller(
    make_bench: MakeBench, clock: ManualClock, provider: Provider
) -> None:
    """P2: a `resend` effect, and the operating system proves that nobody sends any more."""
    provider.dedupes = True
    gone, here = make_bench(shop(provider)), make_bench(shop(provider))
    sender = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    gone.engine.instance = Instance(uuid.uuid4(), this_host(), process_name(sender.pid))
    async with gone.engine.database.connection() as tx:
        await gone.engine.instance.enter(tx)
    gate = provider.holds()
    with bound(gone):
        frozen = asyncio.create_task(pay(by="resend"))
        await gate.reached()
    await sender.communicate(b"")
    with bound(here):
        receipt = await asyncio.wait_for(pay(by="resend"), 10)
    assert receipt.id == f"receipt of {provider.done[0]}"
    assert (len(provider.calls), len(provider.done)) == (2, 1)
    gate.open()
    assert await frozen == receipt
    assert await here.findings(await stored(here, by="resend")) == []


@pytest.mark.parametrize("by", ["hold", "lookup", "resend"])
@pytest.mark.parametrize("wait", [0, "10ms"])
async def test_who_waits_no_longer_for_another_caller_is_told_and_sends_nothing(
    bench: Bench, provider: Provider, by: str, wait: Any
) -> None:
    """P2: the call goes on, and its receipt is there for whoever asks later."""
    gate = provider.holds()
    first = asyncio.create_task(pay(by=by))
    await gate.reached()
    with pytest.raises(InDoubt, match="still on its way for another caller") as raised:
        await pay(by=by, wait=wait)
    operation = await stored(bench, by=by)
    assert raised.value.fields == {"operation_id": ids.show("op", operation.operation_id)}
    assert await bench.moves(operation) == ["reserve", "begin"]
    gate.open()
    assert await first == await pay(by=by, wait=wait)
    assert len(provider.calls) == 1


async def test_a_wait_bounds_nobodys_own_call(bench: Bench, provider: Provider) -> None:
    gate = provider.holds()
    own = asyncio.create_task(pay(wait=0))
    await gate.reached()
    gate.open()
    assert (await own).id == f"receipt of {provider.done[0]}"


async def test_a_caller_that_hangs_up_does_not_abandon_the_call(
    bench: Bench, provider: Provider
) -> None:
    """P3: the receipt is stored, and the next caller gets it."""
    gate = provider.holds()
    caller = asyncio.create_task(pay())
    await gate.reached()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await stored(bench)).state == "submitting"
    gate.open()
    await operating.finish_calls()
    assert (await stored(bench)).state == "submitted"
    assert (await pay()).id == f"receipt of {provider.done[0]}"
    assert len(provider.calls) == 1


async def test_one_key_of_a_thing_at_a_time(bench: Bench, provider: Provider) -> None:
    """P15."""
    await pay("first", resource_key="gallery 4001")
    with pytest.raises(ResourceBusy):
        await pay("second", resource_key="gallery 4001")
    assert len(provider.calls) == 1


# ---- surely not done ---------------------------------------------------------------------------


async def test_a_refusal_is_raised_and_remembered(bench: Bench, provider: Provider) -> None:
    """P2: the body does not run."""
    provider.refuses()
    for _ in range(2):
        with pytest.raises(Refused, match="no such order"):
            async with earnest.operation("order-17", EFFECTS["hold"], Order(number=17)):
                pytest.fail("the body must not run")
    assert len(provider.calls) == 1


async def test_what_was_not_sent_is_sent_by_the_next_caller_under_the_same_id(
    bench: Bench, provider: Provider
) -> None:
    """P2."""
    provider.is_not_reached()
    with pytest.raises(NotSent):
        await pay()
    await pay()
    assert len({call.id for call, _ in provider.calls}) == 1
    assert len(provider.done) == 1


# ---- doubt -------------------------------------------------------------------------------------


async def test_a_doubt_is_raised_and_waits_on_the_desk(bench: Bench, provider: Provider) -> None:
    """P3: the next caller hears the same and sends nothing; a person settles it."""
    provider.drops(does=True)
    with pytest.raises(InDoubt):
        await pay()
    operation = await stored(bench)
    with pytest.raises(InDoubt) as doubt:
        await pay()
    assert doubt.value.fields == {"operation_id": ids.show("op", operation.operation_id)}
    assert operation.state == "unknown"
    assert len(provider.calls) == 1
    await bench.resolve(operation, "submitted", {"id": "found"})
    assert (await pay()).id == "found"


async def test_what_a_person_released_is_not_done_under_this_key(
    bench: Bench, provider: Provider
) -> None:
    """P2, P3."""
    provider.drops(does=False)
    with pytest.raises(InDoubt):
        await pay()
    await bench.resolve(await stored(bench), "released")
    with pytest.raises(NotDone, match=r"another key may do it$"):
        await pay()
    assert len(provider.calls) == 1


async def test_the_next_caller_asks_a_provider_that_can_be_asked(
    bench: Bench, provider: Provider
) -> None:
    """P3: there may be no worker that does."""
    provider.drops(does=True)
    with pytest.raises(InDoubt):
        await pay(by="lookup")
    receipt = await pay(by="lookup")
    assert receipt.id == f"receipt of {provider.done[0]}"
    assert (len(provider.calls), len(provider.asked)) == (1, 1)


async def test_a_worker_settles_it_as_it_does_those_of_runs(
    bench: Bench, provider: Provider, clock: ManualClock
) -> None:
    """P3."""
    provider.dedupes = True
    for by in ("lookup", "resend"):
        provider.drops(does=True)
        with pytest.raises(InDoubt):
            await pay(by=by)
    await bench.drain()
    for by in ("lookup", "resend"):
        assert (await stored(bench, by=by)).state == "submitted"
    assert len(provider.done) == 2


# ---- the caller is gone ------------------------------------------------------------------------


async def test_the_reaper_doubts_a_call_after_its_deadline_and_a_grace(
    bench: Bench, provider: Provider, clock: ManualClock
) -> None:
    """P3: 30 seconds for the call and 45 more; not a second earlier."""
    gate = provider.holds()
    caller = asyncio.create_task(pay())
    await gate.reached()
    await clock.advance(seconds=74)
    await bench.worker._reaper.look()
    assert (await stored(bench)).state == "submitting"
    await clock.advance(seconds=1)
    await bench.worker._reaper.look()
    operation = await stored(bench)
    assert operation.state == "unknown"
    gate.open()
    assert (await caller).id == f"receipt of {provider.done[0]}"
    settled = await stored(bench)
    assert settled.state == "submitted"
    assert settled.resolution == {"outcome": "submitted", "by": "late_receipt"}


async def test_the_reaper_doubts_at_once_the_call_of_a_process_that_is_gone(
    bench: Bench, provider: Provider, clock: ManualClock
) -> None:
    """P3."""
    gate = provider.holds()
    caller = asyncio.create_task(pay())
    await gate.reached()
    dead = [bench.engine.instance.instance_id]
    await bench.worker._reaper._reap_calls([uuid.uuid4()])
    assert (await stored(bench)).state == "submitting"
    await bench.worker._reaper._reap_calls(dead)
    assert (await stored(bench)).state == "unknown"
    gate.open()
    await caller


async def test_without_a_reaper_the_next_caller_doubts_a_call_whose_time_is_over(
    bench: Bench, provider: Provider, clock: ManualClock
) -> None:
    """P3: it does not wait once more, the desk shows it, and the provider is asked."""
    gate = provider.holds()
    gone = asyncio.create_task(pay(by="lookup"))
    await gate.reached()
    await clock.advance(seconds=75)
    with pytest.raises(InDoubt):
        await asyncio.wait_for(pay(by="lookup"), 10)
    operation = await stored(bench, by="lookup")
    assert operation.state == "unknown"
    receipt = await pay(by="lookup")
    assert receipt.id == f"receipt of {provider.done[0]}"
    gate.open()
    assert await gone == receipt
    assert (len(provider.calls), await bench.findings(operation)) == (1, [])


async def test_a_call_on_whose_row_somebody_sits_does_not_hold_up_the_doubt_of_others(
    bench: Bench, provider: Provider, clock: ManualClock
) -> None:
    """P3: it is found again by the next look."""
    keys = ["first", "second"]
    gates = [provider.holds() for _ in keys]
    callers = [asyncio.create_task(pay(key)) for key in keys]
    for gate in gates:
        await gate.reached()
    await clock.advance(seconds=75)
    async with (
        Database(bench.engine.database.url, settings={"lock_timeout": "20ms"}) as impatient,
        impatient.connection() as sitting,
        sitting.transaction(),
    ):
        await sitting.execute("SELECT FROM operation WHERE name = 'first' FOR UPDATE")
        reaper = Reaper(Engine(impatient))
        await reaper.look()
        assert [(await stored(bench, key)).state for key in keys] == ["submitting", "unknown"]
    await bench.worker._reaper.look()
    assert (await stored(bench, "first")).state == "unknown"
    for gate in gates:
        gate.open()
    await asyncio.gather(*callers)


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "k" * 256, "a\x00b", "a\ud800b", 5, None, b"k"])
async def test_a_key_that_cannot_be_kept_is_refused(
    bench: Bench, provider: Provider, key: Any
) -> None:
    """P7: in one line, and nothing is reserved."""
    with pytest.raises(InvalidRequest, match="an operation's key has 1 to 255 characters"):
        await pay(key)
    assert provider.calls == []


@pytest.mark.parametrize("resource_key", ["", "k" * 501, "a\x00b", 5, b"k"])
async def test_a_resource_key_that_cannot_be_kept_is_refused(
    bench: Bench, provider: Provider, resource_key: Any
) -> None:
    with pytest.raises(InvalidRequest, match="a resource key has 1 to 500 characters, as a text"):
        await pay(resource_key=resource_key)
    assert provider.calls == []


@pytest.mark.parametrize("effect", [dict, None, "bank.refund"], ids=str)
async def test_what_is_no_effect_is_refused(bench: Bench, effect: Any) -> None:
    with pytest.raises(SettingInvalid, match=r"is no effect; name a subclass of earnest\.Effect"):
        async with earnest.operation("order-17", effect, Order(number=17)):
            pass


async def test_a_program_that_has_not_opened_earnest_is_told_how() -> None:
    """P1: one line that says what to do."""
    with pytest.raises(SettingInvalid, match="Earnest is not open in this process"):
        await pay()


async def test_an_effect_that_needs_arguments_must_be_given_to_the_app(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P1."""
    with (
        bound(make_bench(App("knows nothing"))),
        pytest.raises(SettingInvalid, match="cannot be made without arguments; give the app"),
    ):
        await pay()


# ---- scopes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["ghost", "", "No Scope", "a\0", "\ud800"])
async def test_nothing_is_sent_in_a_scope_that_is_not_there(
    bench: Bench, provider: Provider, scope: str
) -> None:
    """P3: what came of it would be seen by nobody who looks at the scopes there are."""
    with pytest.raises((NotFound, InvalidRequest), match="scope"):
        await pay(scope=scope)
    assert provider.calls == []
    assert await bench.value("SELECT count(*) FROM operation") == 0


async def test_an_operation_may_be_made_in_another_scope_that_is_there(
    bench: Bench, provider: Provider
) -> None:
    await scopes.ensure_scope(bench.engine, "other")
    await pay()
    await pay(scope="other")
    assert len({call.id for call, _ in provider.calls}) == 2
    assert [call.scope_id for call, _ in provider.calls] == [SCOPE, "other"]
