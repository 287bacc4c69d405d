"""Crash points: named places, and a hook that is told when one is passed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from earnest.domain import crash_points


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    crash_points.install(None)


def test_without_a_hook_a_point_is_passed_in_silence() -> None:
    assert not crash_points.watched()
    crash_points.reach("begin.before")


def test_a_hook_is_told_every_point_that_is_passed() -> None:
    passed: list[str] = []
    crash_points.install(passed.append)
    assert crash_points.watched()
    crash_points.reach("begin.before")
    crash_points.reach("begin.after")
    assert passed == ["begin.before", "begin.after"]


def test_a_hook_takes_the_place_of_the_one_before_and_can_be_taken_away() -> None:
    first: list[str] = []
    second: list[str] = []
    crash_points.install(first.append)
    crash_points.install(second.append)
    crash_points.reach("settle.before")
    crash_points.install(None)
    crash_points.reach("settle.after")
    assert (first, second) == ([], ["settle.before"])


def test_what_a_hook_raises_is_raised_at_the_point() -> None:
    def die(point: str) -> None:
        raise SystemExit(point)

    crash_points.install(die)
    with pytest.raises(SystemExit, match=r"confirm\.before"):
        crash_points.reach("confirm.before")


def test_every_point_has_a_side_before_and_a_side_after() -> None:
    names = {point.rpartition(".")[0] for point in crash_points.POINTS}
    assert names == set(crash_points.NAMES)
    assert len(crash_points.POINTS) == 2 * len(names)
