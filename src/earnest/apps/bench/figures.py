"""What is measured: the figures of `earnest bench`, and what each stands beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

Value: TypeAlias = float | dict[str, float]
"""A number, or a number for each percentile."""

Values: TypeAlias = Mapping[str, Value | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """`beside`: the figure of the same run that it is compared with."""

    name: str
    unit: str
    means: str
    beside: str | None = None


FIGURES = (
    Figure("raw_insert_per_s", "/s", "one row a commit, one connection, no Earnest"),
    Figure("submit_per_s", "/s", "app.submit, one by one", "raw_insert_per_s"),
    Figure("bulk_submit_per_s", "/s", "app.submit_many, 1,000 a commit", "raw_insert_per_s"),
    Figure("raw_batch_cycle_per_s", "/s", "two updates a row, 100 rows a commit, no Earnest"),
    Figure("drain_per_s", "/s", "no-op runs, one worker process", "raw_batch_cycle_per_s"),
    Figure("drain_2_workers_per_s", "/s", "no-op runs, two worker processes", "drain_per_s"),
    Figure("five_step_runs_per_s", "/s", "runs of five remembered steps, one worker process"),
    Figure("start_latency_ms", "ms", "from app.submit to the handler's first line"),
    Figure("worker_peak_rss_mb", "MB", "the one worker's memory at its most"),
    Figure("import_s", "s", "importing App, Context, Effect and operation"),
    Figure("api_get_per_s", "/s", "GET /v1/runs/{id}, 8 connections", "plain_get_per_s"),
    Figure("plain_get_per_s", "/s", "a Starlette route that does nothing, on the same server"),
    Figure("stream_fanout_ms", "ms", "from a signal to each of 1,000 readers of its run"),
)

NAMES = tuple(figure.name for figure in FIGURES)


def middle(rounds: Sequence[Value]) -> Value:
    """The median of several rounds; of percentiles that of each."""
    parts = [value for value in rounds if isinstance(value, dict)]
    if parts:
        return {name: _short(median(part[name] for part in parts)) for name in parts[0]}
    return _short(median(value for value in rounds if not isinstance(value, dict)))


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The 50th and the 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {f"p{part}": ordered[round(last * part / 100)] * 1000 for part in (50, 99)}


def ratio(figure: Figure, values: Values) -> float | None:
    """How it stands to the figure beside it."""
    own, other = values.get(figure.name), values.get(figure.beside or "")
    if not isinstance(own, int | float) or not isinstance(other, int | float) or not other:
        return None
    return own / other


def _short(value: float) -> float:
    """Three or more digits that count."""
    return round(value) if value >= 1000 else round(value, 1 if value >= 10 else 3)
