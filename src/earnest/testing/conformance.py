"""Conformance: does your effect keep its side of the promise?

At most once is kept by two: Earnest writes down what it sends, and the effect tells the truth about
its provider. This suite asks an effect, against a far end that misbehaves, the questions at which
effects are wrong: is a failed question taken for an absence, a failed call for a refusal, does the
operation's id go along?

    class TestRefund(EffectConformance):
        @pytest.fixture
        def effect(self):
            return Refund()

        @pytest.fixture
        def asked(self):
            return RefundRequest(order_id=17, amount="20.00")

        @pytest.fixture
        def far_end(self, earnest_simulator, client):
            return SimulatedBank(earnest_simulator, client)

The tests are async and run by whatever runs the project's own: with pytest-asyncio in strict mode
mark the class with `pytest.mark.asyncio`, otherwise with `pytest.mark.anyio`. Each test gets a far
end that has done nothing yet; an effect whose client belongs to one event loop needs a new one for
each test.
"""

from __future__ import annotations

from typing import Any

import pytest

from earnest.domain.duration import duration
from earnest.domain.errors import Refused
from earnest.domain.operation import OperationState, Recovery
from earnest.engine.app import App
from earnest.engine.process.effects import Effect
from earnest.testing.far_ends import FarEnd
from earnest.testing.trial import Trial


class EffectConformance:
    """Derive from it in a class whose name begins with `Test`, and define three fixtures: `effect`
    (an instance), `asked` (a request that the far end accepts) and `far_end`."""

    # ---- what a user gives -------------------------------------------------------------------

    @pytest.fixture
    def effect(self) -> Effect[Any, Any]:
        raise pytest.UsageError(f"{type(self).__name__}: define the fixture `effect`: the instance")

    @pytest.fixture
    def asked(self) -> Any:
        raise pytest.UsageError(f"{type(self).__name__}: define the fixture `asked`: a request")

    @pytest.fixture
    def far_end(self) -> FarEnd:
        raise pytest.UsageError(f"{type(self).__name__}: define the fixture `far_end`: a FarEnd")

    @pytest.fixture
    def earnest_app(self, effect: Effect[Any, Any]) -> App:
        """An app that knows this effect only."""
        app = App("conformance")
        app.effect(effect)
        return app

    @pytest.fixture
    def trial(
        self,
        effect: Effect[Any, Any],
        asked: Any,
        far_end: FarEnd,
        earnest_engine: Any,
        earnest_clock: Any,
    ) -> Trial:
        return Trial(effect, asked, far_end, earnest_engine, earnest_clock)

    # ---- what is asked -----------------------------------------------------------------------

    async def test_it_is_done_once_and_its_receipt_is_remembered(self, trial: Trial) -> None:
        receipt = await trial.ask()
        assert await trial.ask() == receipt, "asked again, it gave another receipt"
        assert len(trial.far_end.done()) == 1, "it was done again"

    async def test_the_id_of_the_operation_goes_along(self, trial: Trial) -> None:
        if trial.recovery is Recovery.HOLD:
            pytest.skip("a provider that neither honours an id nor can be asked about one")
        await trial.ask()
        assert list(trial.far_end.done()) == [trial.id], "send `call.id` along, and nothing else"

    async def test_a_refusal_is_told_and_remembered(self, trial: Trial) -> None:
        trial.far_end.refuse()
        for _ in range(2):
            outcome = await trial.try_to_ask()
            assert isinstance(outcome, Refused), f"a refusal was told as {outcome!r}"
        assert not trial.far_end.done(), "what was refused was sent again"

    async def test_a_lost_reply_does_not_do_it_twice(self, trial: Trial) -> None:
        trial.far_end.lose_reply()
        await trial.has_to_end_done()

    async def test_an_answer_without_sense_is_a_doubt(self, trial: Trial) -> None:
        trial.far_end.garble_reply()
        told = await trial.try_to_ask()
        assert await trial.was_doubted(), f"an answer that makes no sense was told as {told!r}"
        await trial.has_to_end_done()

    async def test_a_lost_request_is_not_taken_for_done(self, trial: Trial) -> None:
        trial.far_end.lose_request()
        first = await trial.try_to_ask()
        assert not isinstance(first, Refused), "what the provider did not say was told as a refusal"
        await trial.settle()
        await trial.has_to_end_truthfully()

    @pytest.mark.parametrize("how", ["unreachable", "failing"])
    async def test_a_provider_that_cannot_tell_has_not_said_no(
        self, trial: Trial, how: str
    ) -> None:
        if trial.recovery is not Recovery.LOOKUP:
            pytest.skip("this provider is never asked")
        trial.far_end.lose_reply()
        await trial.try_to_ask()
        with getattr(trial.far_end, how)():
            await trial.settle()
            state = await trial.state()
        assert state is OperationState.UNKNOWN, (
            "lookup() has to raise when it cannot tell; None means that the provider does not know "
            f"the operation. The operation is {state} although the provider was {how}"
        )
        await trial.has_to_end_done()

    @pytest.mark.parametrize("point", ["begin.after", "call.after"])
    async def test_a_process_that_dies_around_the_call_does_not_make_it_twice(
        self, trial: Trial, point: str
    ) -> None:
        if not trial.far_end.apart:
            pytest.skip("the far end lives in this process and dies with it")
        await trial.die_at(point)
        await trial.settle()
        if point == "call.after":
            await trial.has_to_end_done()
        else:
            await trial.has_to_end_truthfully()

    def test_an_absence_is_only_a_proof_where_a_late_arrival_does_no_harm(
        self, effect: Effect[Any, Any]
    ) -> None:
        if effect.absent_after is None:
            pytest.skip("an absence is never taken as proof")
        assert duration(effect.absent_after) >= duration(effect.timeout), (
            f"absent_after={effect.absent_after!r} is shorter than the time-out of the call "
            f"({effect.timeout!r}): a call that is still on its way would be taken for absent"
        )
