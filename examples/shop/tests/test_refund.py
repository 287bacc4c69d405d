"""The money goes out once: counted at the bank, not in the shop."""

from __future__ import annotations

import pytest
from httpx2 import AsyncClient

from earnest.testing.conformance import EffectConformance
from earnest.testing.far_ends import SimulatedBank
from earnest.testing.simulator import Simulator
from earnest.testing.verbs import AssertSubmitted, CrashAt, Drain
from shop.app import Order, Refund, RefundRequest, give_back, refund

pytestmark = pytest.mark.usefixtures("bank")

ORDER = Order(id=17, paid="20.00")


async def test_a_refund_is_asked_for_once_however_often_the_button_is_pressed(
    assert_submitted: AssertSubmitted, drain: Drain, earnest_simulator: Simulator
) -> None:
    assert await give_back(ORDER) == await give_back(ORDER)
    assert_submitted(refund, input=ORDER, key="refund-17", count=1)
    assert (await drain(to_the_end=True)).ended == {"succeeded": 1}
    (sent,) = earnest_simulator.truth("bank")
    assert (sent["request"]["order_id"], sent["request"]["amount"]) == (17, "20.00")


async def test_the_money_is_sent_once_although_the_reply_is_lost(
    drain: Drain, earnest_simulator: Simulator
) -> None:
    earnest_simulator.put_fault("bank", "accept_then_drop")
    await give_back(ORDER)
    await drain(ahead="1h")
    assert len(earnest_simulator.truth("bank")) == 1


@pytest.mark.parametrize("point", ["begin.after", "call.after"])
async def test_the_money_is_sent_once_although_the_worker_is_killed(
    crash_at: CrashAt, drain: Drain, earnest_simulator: Simulator, point: str
) -> None:
    await give_back(ORDER)
    await crash_at(point)
    assert (await drain(ahead="1h", to_the_end=True)).ended == {"succeeded": 1}
    assert len(earnest_simulator.truth("bank")) == 1


class TestRefund(EffectConformance):
    """Does the effect keep its side of the promise?"""

    @pytest.fixture
    def effect(self) -> Refund:
        return Refund()

    @pytest.fixture
    def asked(self) -> RefundRequest:
        return RefundRequest(order_id=17, amount="20.00")

    @pytest.fixture
    def far_end(self, earnest_simulator: Simulator, bank: AsyncClient) -> SimulatedBank:
        return SimulatedBank(earnest_simulator, bank)
