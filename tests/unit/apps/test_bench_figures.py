"""Medians, percentiles and ratios of the benchmark."""

from __future__ import annotations

from earnest.apps.bench.figures import FIGURES, NAMES, Figure, middle, percentiles, ratio
from earnest.apps.bench.rounds import MEASUREMENTS


def test_a_round_that_was_disturbed_does_not_move_the_median() -> None:
    assert middle([9000.0, 10_000.0, 1.0]) == 9000
    assert middle(
        [{"p50": 2.0, "p99": 30.0}, {"p50": 1.0, "p99": 9.0}, {"p50": 4.0, "p99": 5.0}]
    ) == {
        "p50": 2.0,
        "p99": 9.0,
    }


def test_percentiles_are_of_all_samples_and_in_milliseconds() -> None:
    seconds = [number / 1000 for number in range(101)]
    assert percentiles(seconds[::-1]) == {"p50": 50.0, "p99": 99.0}
    assert percentiles([0.25]) == {"p50": 250.0, "p99": 250.0}


def test_a_ratio_needs_both_sides() -> None:
    figure = Figure("own", "/s", "", beside="other")
    assert ratio(figure, {"own": 30.0, "other": 60.0}) == 0.5
    assert ratio(figure, {"own": 30.0, "other": None}) is None
    assert ratio(Figure("own", "/s", ""), {"own": 30.0}) is None


def test_each_figure_is_measured_once_and_stands_beside_one_of_the_same_run() -> None:
    measured = [name for measurement in MEASUREMENTS for name in measurement.figures]
    assert sorted(measured) == sorted(NAMES)
    assert {figure.beside for figure in FIGURES} - {None} <= set(NAMES)
