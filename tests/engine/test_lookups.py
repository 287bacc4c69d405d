"""Looking up: a provider that can be asked settles a doubt, if its answer is a proof (P2, P3)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from earnest import App, Context, Inconclusive
from earnest.domain.errors import Conflict, NotFound
from earnest.domain.operation import Operation
from earnest.domain.run import Run
from earnest.engine.operations import reconciling
from earnest.engine.process.instances import Instance, process_name, this_host
from earnest.testing.clock import ManualClock
from tests.engine.bench import Bench
from tests.engine.conftest import MakeBench
from tests.engine.provider import Lookup, LookupDedupes, Provider, Receipt, shop

NOT_DONE: Any = None


async def in_doubt(bench: Bench, provider: Provider, by: str, *, does: bool) -> Run:
    """A run in doubt whose provider was asked once already, and could not tell."""
    provider.drops(does=does)
    provider.answers.append(Inconclusive("try later"))
    run = await bench.done("buy", {"by": by})
    assert run.status == "unknown"
    assert provider.asked == [provider.calls[0][0].id]
    return run


async def asked(bench: Bench, operation: Operation) -> list[str]:
    return [lookup.answer.value for lookup in await bench.lookups(operation)]


@pytest.mark.parametrize("by", ["lookup", "dedupes", "never"])
async def test_what_the_provider_knows_is_adopted_and_the_run_goes_on(
    make_bench: MakeBench, clock: ManualClock, by: str
) -> None:
    """P2, P3: the receipt counts as if the call had given it."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, by, does=True)
    await clock.advance(seconds=1)
    await bench.drain()
    after = await bench.find(run.run_id)
    assert (after.status, after.output) == ("succeeded", {"id": f"receipt of {provider.done[0]}"})
    operation = await bench.operation(run.run_id)
    assert operation.state == "submitted"
    assert await asked(bench, operation) == ["inconclusive", "found"]
    assert await bench.moves(operation) == ["reserve", "begin", "doubt", "resolve"]
    assert operation.resolution == {
        "outcome": "submitted", "by": "look_up", "evidence": "found by its id",
    }  # fmt: skip
    assert (await bench.told(run.run_id))[-5:] == [
        "operation.submitted", "operation.resolved", "run.resumed", "attempt.started",
        "run.succeeded",
    ]  # fmt: skip
    assert len(provider.calls) == len(provider.done) == 1


# ---- absence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["lookup", "dedupes", "never"])
async def test_an_absence_is_no_proof_while_it_may_still_turn_into_a_presence(
    make_bench: MakeBench, clock: ManualClock, by: str
) -> None:
    """P2, P3: the effect says for how long (`absent_after`); until then it is asked again."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, by, does=False)
    await clock.advance(minutes=5, seconds=-1)
    operation = await bench.look_up(await bench.operation(run.run_id))
    assert operation.state == "unknown"
    assert await asked(bench, operation) == ["inconclusive", "absent"]
    assert operation.lookup_due_at is not None
    assert operation.lookup_due_at > clock.now


async def test_an_absence_counts_later_if_the_provider_recognises_a_repeated_id(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: a late arrival could do no harm; it is sent again under the same id."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "dedupes", does=False)
    await clock.advance(minutes=5)
    await bench.drain()
    operation = await bench.operation(run.run_id)
    assert await bench.status(run.run_id) == "succeeded"
    assert await asked(bench, operation) == ["inconclusive", "absent"]
    assert await bench.moves(operation) == [
        "reserve", "begin", "doubt", "resolve", "reserve again", "begin", "confirm",
    ]  # fmt: skip
    first, second = (call for call, _ in provider.calls)
    assert first.id == second.id
    assert len(provider.done) == 1


async def test_the_time_of_an_absence_counts_from_the_last_sending(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "dedupes", does=False)
    provider.drops(does=False)
    await clock.advance(minutes=5)
    await bench.drain()
    again = await bench.operation(run.run_id)
    assert (again.state, again.submitting_at) == ("unknown", clock.now)
    await clock.advance(minutes=4)
    assert (await bench.look_up(again)).state == "unknown"
    await clock.advance(minutes=1)
    assert (await bench.look_up(again)).state == "released"


async def test_an_absence_proves_nothing_while_the_sender_may_still_send(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: a deadline is no proof; a frozen process sends when it thaws."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=False)
    await clock.advance(days=30)
    operation = await bench.look_up(await bench.operation(run.run_id))
    assert operation.state == "unknown"


async def sent_by(bench: Bench, operation: Operation, host: str, process: str) -> None:
    """Says that another process sent it."""
    other = Instance(uuid.uuid4(), host, process)
    async with bench.engine.database.connection() as tx:
        await other.enter(tx)
    await bench.execute(
        "UPDATE operation SET instance_id = $1 WHERE operation_id = $2",
        other.instance_id, operation.operation_id,
    )  # fmt: skip


async def test_an_absence_counts_when_the_sending_process_provably_ended(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: same machine, and the operating system knows no such process any more."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=False)
    operation = await bench.operation(run.run_id)
    sender = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    await sent_by(bench, operation, this_host(), process_name(sender.pid))
    await clock.advance(minutes=5)
    assert (await bench.look_up(operation)).state == "unknown"
    await sender.communicate(b"")
    released = await bench.look_up(operation)
    assert (released.state, released.release_reason) == ("released", "absent")


async def test_an_absence_told_before_it_could_count_does_not_count_afterwards(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: the answer is slow, and the call arrives after it was given."""

    class Slow(LookupDedupes):
        async def lookup(self, call: Any) -> Receipt | None:
            found = await super().lookup(call)
            await clock.advance(minutes=1)
            return found

    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "dedupes", does=False)
    bench.engine.effects["test.lookup.dedupes"] = Slow(provider)
    await clock.advance(minutes=4, seconds=30)
    operation = await bench.look_up(await bench.operation(run.run_id))
    assert operation.state == "unknown"
    assert (await bench.look_up(operation)).state == "released"


async def test_an_absence_told_while_the_sender_still_lived_does_not_count_when_it_has_ended(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: it may have sent in between."""
    sender = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)

    class Slow(Lookup):
        async def lookup(self, call: Any) -> Receipt | None:
            found = await super().lookup(call)
            if sender.returncode is None:
                await sender.communicate(b"")
            return found

    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=False)
    operation = await bench.operation(run.run_id)
    await sent_by(bench, operation, this_host(), process_name(sender.pid))
    bench.engine.effects["test.lookup"] = Slow(provider)
    await clock.advance(minutes=5)
    assert (await bench.look_up(operation)).state == "unknown"
    assert (await bench.look_up(operation)).state == "released"


async def test_of_a_process_on_another_machine_nothing_is_provable(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2: also if it carries a number that nobody has here."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=False)
    operation = await bench.operation(run.run_id)
    await sent_by(bench, operation, "another boot/pid:[1]", "999999:1")
    await clock.advance(days=1)
    assert (await bench.look_up(operation)).state == "unknown"


async def test_where_absence_is_never_a_proof_a_person_decides(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "never", does=False)
    await clock.advance(days=30)
    operation = await bench.look_up(await bench.operation(run.run_id))
    assert operation.state == "unknown"
    await bench.resolve(operation, "released")
    await bench.drain()
    assert await bench.status(run.run_id) == "failed"
    assert provider.done == []


# ---- no answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "noted"),
    [
        (Inconclusive("ask tomorrow"), "inconclusive"),
        (ConnectionError("nobody there"), "inconclusive"),
        (RuntimeError("a\x00b\ud800"), "inconclusive"),
        (Inconclusive("a\x00b\ud800"), "inconclusive"),
        ({"no": "id"}, "inconclusive"),
        ({"id": "a\x00b"}, "inconclusive"),
        (Receipt(id="of another order"), "mismatched"),
    ],
    ids=[
        "cannot tell",
        "unreachable",
        "odd text",
        "odd detail",
        "garbage",
        "unstorable",
        "another",
    ],
)
async def test_what_is_no_answer_settles_nothing_and_is_asked_again(
    make_bench: MakeBench, clock: ManualClock, answer: Any, noted: str
) -> None:
    """P2, P3: also a receipt of another request."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "dedupes", does=True)
    await clock.advance(seconds=1)
    provider.answers.append(answer)
    await bench.drain()
    operation = await bench.operation(run.run_id)
    assert operation.state == "unknown"
    assert await asked(bench, operation) == ["inconclusive", noted]
    await clock.advance(minutes=1)
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"


async def test_an_answer_that_does_not_fit_is_noted_without_its_values(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P21: a provider's answer may hold secrets."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=True)
    provider.answers.append({"secret": "hunter2"})
    operation = await bench.look_up(await bench.operation(run.run_id))
    (*_, noted) = await bench.lookups(operation)
    assert noted.detail == "ValidationError: id: Field required"


async def test_a_question_that_takes_too_long_is_no_answer(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: it is bounded by the effect's time-out, as the call is."""

    class Silent(Lookup):
        timeout = "20ms"

        async def lookup(self, call: Any) -> Receipt | None:
            await asyncio.Event().wait()
            raise AssertionError("nobody answers")

    provider = Provider()
    app = shop(provider)
    app.effects["test.lookup"] = Silent(provider)
    bench = make_bench(app)
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "lookup"})
    operation = await bench.operation(run.run_id)
    (answer,) = await bench.lookups(operation)
    assert (answer.answer, answer.detail) == ("inconclusive", "TimeoutError: ")


async def test_questions_leave_the_version_that_a_person_looked_at(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: a provider that is asked every minute does not make every decision stale."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=False)
    operation = await bench.operation(run.run_id)
    await clock.advance(minutes=1)
    await bench.drain()
    assert len(provider.asked) == 2
    assert (await bench.resolve(operation, "released")).state == "released"


async def test_a_verdict_outruns_a_question_that_is_under_way(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P11: the answer comes too late and changes nothing."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=True)
    operation = await bench.operation(run.run_id)
    entered, answer = asyncio.Event(), asyncio.Event()
    effect = bench.engine.effects["test.lookup"]

    class Slow(Lookup):
        async def lookup(self, call: Any) -> Receipt | None:
            entered.set()
            await answer.wait()
            return Receipt(id="late")

    bench.engine.effects["test.lookup"] = Slow(provider)
    asking = asyncio.create_task(bench.look_up(operation))
    await entered.wait()
    bench.engine.effects["test.lookup"] = effect
    await bench.resolve(operation, "submitted", {"id": "from the statement"})
    answer.set()
    settled = await asking
    assert settled.receipt == {"id": "from the statement"}
    assert settled.resolution is not None
    assert settled.resolution["by"] == "member"


async def test_a_question_that_breaks_is_logged_and_comes_due_again(
    make_bench: MakeBench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: whatever broke, the loop that asks goes on."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=True)
    await clock.advance(seconds=1)

    async def breaks(*_: object) -> None:
        raise KeyError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(reconciling, "look_up", breaks)
        await bench.drain()
    assert await bench.status(run.run_id) == "unknown"
    await clock.advance(seconds=30)
    await bench.drain()
    assert await bench.status(run.run_id) == "succeeded"


# ---- who asks ----------------------------------------------------------------------------------


async def test_two_processes_do_not_ask_the_same_question_at_once(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: the one that takes it asks; if it dies, the question comes due again."""
    provider = Provider()
    app = shop(provider)
    one, other = make_bench(app), make_bench(app)
    run = await in_doubt(one, provider, "lookup", does=True)
    operation = await one.operation(run.run_id)
    await clock.advance(seconds=1)
    key = (operation.scope_id, operation.operation_id)
    assert await reconciling.take_due(one.engine, 10) == [key]
    assert await reconciling.take_due(other.engine, 10) == []
    await clock.advance(seconds=30)
    assert await reconciling.take_due(other.engine, 10) == [key]


async def test_a_process_takes_no_question_about_an_effect_that_it_does_not_know(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await in_doubt(bench, provider, "lookup", does=True)
    await clock.advance(seconds=1)
    app = App("knows nothing")

    @app.run("idle")
    async def idle(ctx: Context, value: int) -> None:
        pass

    stranger = make_bench(app)
    await stranger.drain()
    operation = await bench.operation(run.run_id)
    assert (operation.state, len(provider.asked)) == ("unknown", 1)
    with pytest.raises(Conflict, match="is not known to this process"):
        await stranger.look_up(operation)


async def test_a_provider_that_cannot_be_asked_is_not_asked(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3: `hold` waits for a person."""
    provider = Provider()
    bench = make_bench(shop(provider))
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "hold"})
    operation = await bench.operation(run.run_id)
    assert operation.lookup_due_at is None
    await clock.advance(days=1)
    await bench.drain()
    assert await bench.status(run.run_id) == "unknown"
    with pytest.raises(Conflict, match="cannot be asked; settle the operation with evidence"):
        await bench.look_up(operation)


async def test_looking_up_what_is_not_in_doubt_is_harmless(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P3."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "lookup"})
    operation = await bench.operation(run.run_id)
    assert await bench.look_up(operation) == operation
    assert provider.asked == []


async def test_what_does_not_exist_here_cannot_be_looked_up(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P12."""
    provider = Provider()
    bench = make_bench(shop(provider))
    run = await bench.done("buy", {"by": "lookup"})
    operation = await bench.operation(run.run_id)
    with pytest.raises(NotFound):
        await reconciling.look_up(bench.engine, "other", operation.operation_id)
