"""A run's table of moves, its pauses between attempts, and what it waits for."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain import ids
from earnest.domain.run import (
    ACTIVE,
    COUNTED,
    FINAL,
    MOVES,
    AttemptOutcome,
    RetryPolicy,
    RunStatus,
    Wait,
)

POLICY = RetryPolicy(5, timedelta(seconds=2), 2.0, timedelta(minutes=10))
fractions = st.floats(0, 1, exclude_max=True)

# ---- moves --------------------------------------------------------------------------------------


def test_a_status_is_active_or_final() -> None:
    assert set(RunStatus) == ACTIVE | FINAL
    assert not ACTIVE & FINAL


@pytest.mark.parametrize("move", MOVES.values(), ids=lambda move: move.name)
def test_nothing_leaves_a_final_status(move: object) -> None:
    assert not FINAL & getattr(move, "sources")  # noqa: B009


def test_every_status_is_reached_and_every_active_one_is_left() -> None:
    reached = set().union(*(move.targets for move in MOVES.values()))
    left = set().union(*(move.sources for move in MOVES.values()))
    assert (reached, left) == (set(RunStatus), set(ACTIVE))


def test_a_run_is_queued_first() -> None:
    beginnings = [move for move in MOVES.values() if not move.sources]
    assert [(move.name, move.targets) for move in beginnings] == [
        ("submit", frozenset({RunStatus.QUEUED}))
    ]


def test_a_doubt_is_left_only_by_a_resolution_or_a_cancel() -> None:
    leaving = {name for name, move in MOVES.items() if RunStatus.UNKNOWN in move.sources}
    assert leaving == {"resolve", "cancel"}


def test_only_an_owner_succeeds() -> None:
    succeeding = {name for name, move in MOVES.items() if RunStatus.SUCCEEDED in move.targets}
    assert succeeding == {"succeed"}
    assert MOVES["succeed"].sources == {RunStatus.RUNNING}


def test_waiting_and_handing_back_use_up_no_attempt() -> None:
    assert {
        AttemptOutcome.FAILED,
        AttemptOutcome.TIMEOUT,
        AttemptOutcome.LOST,
    } == COUNTED


# ---- pauses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "seconds"), [(0, 2), (1, 2), (2, 4), (3, 8), (20, 600)])
def test_a_pause_doubles_up_to_the_longest(failures: int, seconds: int) -> None:
    longest = POLICY.delay(failures, 0.999_999)
    assert timedelta(seconds=seconds * 0.99) < longest < timedelta(seconds=seconds)
    assert POLICY.delay(failures, 0) == timedelta(seconds=seconds / 2)


@given(st.integers(1, 10_000), fractions)
def test_a_pause_is_in_the_upper_half_of_its_window(failures: int, fraction: float) -> None:
    window = min(2.0 * 2 ** min(failures - 1, 60), 600)
    pause = POLICY.delay(failures, fraction).total_seconds()
    assert window / 2 - 1e-6 <= pause <= window + 1e-6


@given(st.integers(1, 1000), fractions, st.floats(1, 10))
def test_no_number_of_failures_breaks_a_policy(
    failures: int, fraction: float, factor: float
) -> None:
    policy = replace(POLICY, factor=factor, longest=timedelta(days=300))
    assert timedelta(0) <= policy.delay(failures, fraction) <= timedelta(days=300)


@given(st.integers(1, 100), fractions)
def test_without_pauses_the_next_attempt_is_at_once(failures: int, fraction: float) -> None:
    policy = replace(POLICY, first=timedelta(0))
    assert policy.delay(failures, fraction) == timedelta(0)


# ---- waits --------------------------------------------------------------------------------------


def test_a_wait_shows_what_is_waited_for_and_nothing_else() -> None:
    until = datetime(2026, 1, 1, tzinfo=UTC)
    child = uuid.UUID(int=7 << 76 | 2 << 62)
    shown = [
        Wait("time", until=until).as_json(),
        Wait("signal", name="go", number=2).as_json(),
        Wait("children", run_ids=(child,)).as_json(),
    ]
    assert shown == [
        {"kind": "time", "until": "2026-01-01T00:00:00+00:00"},
        {"kind": "signal", "name": "go", "number": 2},
        {"kind": "children", "run_ids": [ids.show("run", child)]},
    ]
