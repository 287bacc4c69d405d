"""A lease as its holder sees it: believed in for less time than by the database, and lost once."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from msgspec.structs import replace

from earnest.engine.runs import leasing
from earnest.engine.runs.leasing import HeldLease, Leases, drop_lapsed
from earnest.store.executions import Claimed

RUN = uuid.UUID(int=1)
CLAIMED = Claimed(
    scope_id="shop", run_id=RUN, kind="work", lane="default", fence=1, owner_token=uuid.UUID(int=2),
    parent_run_id=None, failures=0, max_attempts=3, deadline_at=None, input=None,
    principal_id="alice", context={}, labels={}, conversation_id=None, traceparent=None,
)  # fmt: skip
NEXT = replace(CLAIMED, fence=2, owner_token=uuid.UUID(int=3))


class Holder:
    """Holds leases on a clock that the test moves, and notes what it hears."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.leases = Leases(timedelta(seconds=45))
        self.heard: list[str] = []

    def hold(self, claimed: Claimed = CLAIMED) -> HeldLease:
        number = claimed.fence
        return self.leases.hold(
            claimed,
            self.now,
            lambda: self.heard.append(f"lost {number}"),
            lambda: self.heard.append(f"cancel {number}"),
        )


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Holder:
    made = Holder()
    monkeypatch.setattr(leasing, "boot_seconds", lambda: made.now)
    return made


def test_a_lease_is_believed_in_from_before_it_was_asked_for(holder: Holder) -> None:
    held = holder.hold()
    holder.now += 44.9
    assert held.valid()
    holder.now += 0.1
    assert not held.valid()


def test_a_renewal_counts_from_when_it_was_asked_and_never_shortens(holder: Holder) -> None:
    held = holder.hold()
    holder.leases.extend(held, holder.now + 10)
    assert held.until == holder.now + 55
    holder.leases.extend(held, holder.now + 5)
    assert held.until == holder.now + 55


def test_a_lapsed_lease_is_lost_and_told_once(holder: Holder) -> None:
    held = holder.hold()
    holder.now += 45
    for _ in range(3):
        drop_lapsed(holder.leases)
    assert (holder.heard, held.lost) == (["lost 1"], True)


def test_what_was_lost_is_not_believed_in_again_whatever_is_renewed(holder: Holder) -> None:
    held = holder.hold()
    held.lose()
    holder.leases.extend(held, holder.now + 100)
    assert not held.valid()


def test_a_stop_is_told_once(holder: Holder) -> None:
    held = holder.hold()
    held.tell_cancel()
    held.tell_cancel()
    assert holder.heard == ["cancel 1"]


def test_the_next_attempt_of_a_run_ends_the_belief_of_the_last(holder: Holder) -> None:
    first = holder.hold()
    second = holder.hold(NEXT)
    assert (first.valid(), second.valid()) == (False, True)
    assert holder.heard == ["lost 1"]


def test_a_lease_is_found_by_run_and_fence_until_it_is_let_go(holder: Holder) -> None:
    first, second = holder.hold(), holder.hold(NEXT)
    assert holder.leases.find(CLAIMED.key, 1) is first
    holder.leases.let_go(first)
    holder.leases.let_go(first)
    assert holder.leases.find(CLAIMED.key, 1) is None
    assert holder.leases.all() == [second]


def test_the_clock_of_belief_goes_on_forward() -> None:
    assert leasing.boot_seconds() <= leasing.boot_seconds()
