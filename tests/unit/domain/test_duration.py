"""Durations as people write them."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.domain.duration import Duration, duration, in_words
from earnest.domain.errors import SettingInvalid


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("1.5 m", timedelta(seconds=90)),
        (" 24h ", timedelta(days=1)),
        ("7d", timedelta(days=7)),
        ("0s", timedelta(0)),
        (2, timedelta(seconds=2)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(hours=3), timedelta(hours=3)),
    ],
)
def test_a_duration_is_what_it_says(written: Duration, meant: timedelta) -> None:
    assert duration(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "",
        "5",
        "5 weeks",
        "s",
        "1h30m",
        "-5s",
        "1e3s",
        "٣s",
        -1,
        -0.001,
        timedelta(seconds=-1),
        math.nan,
        math.inf,
        "99999999999d",
        1e300,
    ],
    ids=repr,
)
def test_what_is_no_duration_is_refused_in_one_line(written: Duration) -> None:
    with pytest.raises(SettingInvalid) as refusal:
        duration(written)
    assert repr(written) in refusal.value.detail
    assert "\n" not in refusal.value.detail


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_grows_with_its_number(number: int, unit: str) -> None:
    assert duration(f"{number}{unit}") < duration(f"{number + 1}{unit}")


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(seconds=119), "119 seconds"),
        (timedelta(minutes=2), "2 minutes"),
        (timedelta(hours=5, minutes=50), "5 hours"),
        (timedelta(days=3), "3 days"),
        (timedelta(seconds=-5), "0 seconds"),
    ],
)
def test_a_span_is_told_in_its_largest_whole_unit(span: timedelta, words: str) -> None:
    assert in_words(span) == words
