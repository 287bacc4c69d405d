"""The shipped suite for effects: right ones pass it, and each wrong one fails where it is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from earnest import App, Effect
from earnest.engine.process.engine import Engine
from earnest.testing.clock import HeldClock
from earnest.testing.conformance import EffectConformance
from earnest.testing.far_ends import FarEnd, SimulatedBank
from earnest.testing.simulator import Simulator
from earnest.testing.trial import Trial
from tests.engine.far_end import TRUST
from tests.testing import effects_on_trial as trials


@pytest.fixture
async def client(earnest_simulator: Simulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=earnest_simulator.url, verify=TRUST) as opened:
        yield opened


@pytest.fixture
def far_end(earnest_simulator: Simulator, client: httpx2.AsyncClient) -> SimulatedBank:
    return SimulatedBank(earnest_simulator, client)


class RefundConformance(EffectConformance):
    """Those of the banks, as a user would write them down."""

    made: type[trials._Refund]

    @pytest.fixture
    def effect(self, client: httpx2.AsyncClient) -> Effect[Any, Any]:
        return self.made(client)

    @pytest.fixture
    def asked(self) -> trials.RefundRequest:
        return trials.RefundRequest()

    @pytest.fixture
    def far_end(self, far_end: SimulatedBank) -> FarEnd:
        return far_end


class TestResend(RefundConformance):
    made = trials.Keyed


class TestLookup(RefundConformance):
    made = trials.Queryable


class TestHold(RefundConformance):
    made = trials.Opaque


# ---- those that do not keep their side ---------------------------------------------------------

WRONG = {
    trials.NewKeyForEachCall: ("the_id_of_the_operation_goes_along", "a_lost_reply_does_not"),
    trials.TriesAgainByItself: ("a_lost_reply_does_not",),
    trials.FailureIsRefusal: ("a_lost_request_is_not", "a_lost_reply_does_not"),
    trials.RefusalIsDoubt: ("a_refusal_is_told",),
    trials.FailureIsAbsence: ("a_provider_that_cannot_tell",),
    trials.MakesUpReceipts: ("an_answer_without_sense",),
}


@pytest.fixture
def earnest_app() -> App:
    return App("trials")


@pytest.mark.parametrize(
    ("wrong", "question"), [(wrong, one) for wrong, ones in WRONG.items() for one in ones]
)
async def test_an_effect_that_is_wrong_fails_the_question_it_is_wrong_at(
    wrong: type[trials._Refund],
    question: str,
    client: httpx2.AsyncClient,
    far_end: SimulatedBank,
    earnest_engine: Engine,
    earnest_clock: HeldClock,
) -> None:
    effect = wrong(client)
    earnest_engine.effects[wrong.kind] = effect
    trial = Trial(effect, trials.RefundRequest(), far_end, earnest_engine, earnest_clock)
    (test,) = [name for name in dir(EffectConformance) if question in name]
    more = {"how": "failing"} if "cannot_tell" in question else {}
    with pytest.raises(AssertionError):
        await getattr(EffectConformance(), test)(trial, **more)


def test_an_absence_that_is_believed_before_the_call_is_over_is_noticed(
    client: httpx2.AsyncClient,
) -> None:
    effect = trials.BelievesAbsenceTooSoon(client)
    with pytest.raises(AssertionError, match="a call that is still on its way"):
        EffectConformance().test_an_absence_is_only_a_proof_where_a_late_arrival_does_no_harm(
            effect
        )
