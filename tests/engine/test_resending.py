"""Sending again: only a declared `resend`, inside its window, with the same bytes (P2)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from earnest.testing.clock import ManualClock
from tests.engine.conftest import MakeBench
from tests.engine.provider import Provider, shop

AT_ONCE = (timedelta(0),)


async def test_a_doubtful_call_is_sent_again_under_the_same_id_with_the_same_bytes(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P2."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider), resend_waits=AT_ONCE)
    provider.drops(does=True)
    run = await bench.done("buy", {"by": "resend"})
    assert run.status == "succeeded"
    assert len(provider.done) == 1
    first, second = provider.calls
    assert (first[0].id, first[1]) == (second[0].id, second[1])
    assert [first[0].sends, second[0].sends] == [1, 2]
    operation = await bench.operation(run.run_id)
    assert await bench.moves(operation) == [
        "reserve", "begin", "doubt", "send again", "confirm",
    ]  # fmt: skip


@pytest.mark.parametrize("second", ["is_not_reached", "refuses"])
async def test_how_a_repetition_failed_proves_nothing_of_the_call_that_it_repeats(
    make_bench: MakeBench, clock: ManualClock, second: str
) -> None:
    """P2, P3: that the second call was refused (an expired password, say) or not sent does not
    release what the first one may have done; the third finds out."""
    provider = Provider(dedupes=True)
    bench = make_bench(shop(provider), resend_waits=AT_ONCE)
    provider.drops(does=True)
    getattr(provider, second)()
    run = await bench.done("buy", {"by": "resend"})
    operation = await bench.operation(run.run_id)
    assert await bench.moves(operation) == [
        "reserve", "begin", "doubt", "send again", "doubt", "send again", "confirm",
    ]  # fmt: skip
    assert run.status == "succeeded"
    assert len(provider.done) == 1
