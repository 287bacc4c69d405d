"""The course of a benchmark: every measurement once a round, and the median of the rounds. What is
compared with each other is measured next to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from earnest.apps.bench import drains, fanout, reads, starts, submits
from earnest.apps.bench.bench import Bench
from earnest.apps.bench.figures import NAMES, Value, Values, middle
from earnest.apps.bench.processes import time_import

ROUNDS = 3

Say = Callable[[str], None]
"""Gets a line about how far it is."""


@dataclass(frozen=True, slots=True)
class Measurement:
    figures: tuple[str, ...]
    measure: Callable[[Bench], Awaitable[Values]]


async def _measure_import(_: Bench) -> Values:
    """Everything that a program with a run kind and an effect begins with."""
    seconds = await time_import("from earnest import App, Context, Effect, operation")
    return {"import_s": seconds}


MEASUREMENTS = (
    Measurement(("raw_insert_per_s", "submit_per_s", "bulk_submit_per_s"), submits.measure),
    Measurement(("raw_batch_cycle_per_s", "drain_per_s", "worker_peak_rss_mb"), drains.measure_one),
    Measurement(("drain_2_workers_per_s",), drains.measure_two),
    Measurement(("five_step_runs_per_s",), drains.measure_steps),
    Measurement(("start_latency_ms",), starts.measure),
    Measurement(("import_s",), _measure_import),
    Measurement(("api_get_per_s", "plain_get_per_s"), reads.measure),
    Measurement(("stream_fanout_ms",), fanout.measure),
)


async def play(bench: Bench, only: Collection[str], say: Say) -> dict[str, Value | None]:
    """All figures in their order; those that were not asked for are `None`, unless they were
    measured beside one that was."""
    wanted = [one for one in MEASUREMENTS if not only or not set(only).isdisjoint(one.figures)]
    found: dict[str, list[Value]] = {}
    for number in range(1, ROUNDS + 1):
        for measurement in wanted:
            say(f"round {number} of {ROUNDS}: {', '.join(measurement.figures)}")
            for name, value in (await measurement.measure(bench)).items():
                if value is not None:
                    found.setdefault(name, []).append(value)
    return {name: middle(found[name]) if name in found else None for name in NAMES}
