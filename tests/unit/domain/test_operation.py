"""An operation's table of moves, and when its call may be sent again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain.operation import (
    IN_DOUBT,
    MOVES,
    SENDABLE_AGAIN,
    OperationState,
    ReleaseReason,
    may_send_again,
)

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, CALL = timedelta(hours=1), timedelta(seconds=30)
seconds = st.integers(1, 10**6).map(lambda n: timedelta(seconds=n))

# ---- moves --------------------------------------------------------------------------------------


def test_an_operation_is_reserved_first() -> None:
    beginnings = [move for move in MOVES.values() if not move.sources]
    assert [(move.name, move.targets) for move in beginnings] == [
        ("reserve", frozenset({OperationState.RESERVED}))
    ]


def test_nothing_leaves_what_was_submitted() -> None:
    assert all(OperationState.SUBMITTED not in move.sources for move in MOVES.values())


def test_a_receipt_is_stored_only_after_a_begin() -> None:
    before = set().union(
        *(move.sources for move in MOVES.values() if OperationState.SUBMITTED in move.targets)
    )
    assert before == IN_DOUBT == {OperationState.SUBMITTING, OperationState.UNKNOWN}


def test_a_call_is_made_only_out_of_a_begin_or_a_sending_again() -> None:
    calling = {n for n, move in MOVES.items() if OperationState.SUBMITTING in move.targets}
    assert calling == {"begin", "send again"}


def test_only_what_surely_did_not_leave_is_tried_again() -> None:
    assert {ReleaseReason.NOT_SENT, ReleaseReason.ABSENT} == SENDABLE_AGAIN


# ---- sending again ------------------------------------------------------------------------------


def test_the_window_ends_before_the_provider_forgets() -> None:
    """Off it go the call's own time-out and a margin: a hundredth of it, a second at least."""
    last = BEGUN + HOUR - CALL - timedelta(seconds=36)
    assert may_send_again(BEGUN, last - timedelta(microseconds=1), HOUR, CALL)
    assert not may_send_again(BEGUN, last, HOUR, CALL)


def test_a_short_window_has_a_margin_of_a_second() -> None:
    window, call = timedelta(seconds=10), timedelta(seconds=2)
    last = BEGUN + timedelta(seconds=7)
    assert may_send_again(BEGUN, last - timedelta(microseconds=1), window, call)
    assert not may_send_again(BEGUN, last, window, call)


@given(seconds, seconds, st.integers(0, 10**6).map(lambda n: timedelta(seconds=n)))
def test_a_call_that_may_be_sent_ends_inside_the_window(
    window: timedelta, call: timedelta, passed: timedelta
) -> None:
    if may_send_again(BEGUN, BEGUN + passed, window, call):
        assert passed + call < window


@given(seconds, seconds)
def test_a_window_that_was_over_does_not_open_again(window: timedelta, call: timedelta) -> None:
    answers = [
        may_send_again(BEGUN, BEGUN + window * part / 20, window, call) for part in range(25)
    ]
    assert answers == sorted(answers, reverse=True)
    assert not answers[-1]


@pytest.mark.parametrize("call", [HOUR, HOUR - timedelta(seconds=36), 2 * HOUR])
def test_a_call_as_long_as_the_window_is_never_sent_again(call: timedelta) -> None:
    assert not may_send_again(BEGUN, BEGUN, HOUR, call)
