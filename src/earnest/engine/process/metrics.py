"""Metrics: what a process counts of its own work while it works.

Counting costs less than a microsecond and waits for nobody; how it is told is `exposing.py`, and
what is counted in the database at the time of asking is `gauging.py`. Labels are of bounded sets:
kinds, lanes and effects, which are names in code, and outcomes. Never an id, a scope or a person.
Whatever there is more than so many of is counted under `other`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MOST_SERIES = 500
OTHER = "other"

DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of durations, in seconds."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a metric is called, what it says, and by what it is told apart."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


class Counter:
    """Counts up, for each set of labels."""

    def __init__(self, named: Named) -> None:
        self.named = named
        self._counts: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def add(self, *labels: str, by: float = 1) -> None:
        """From any thread. One value for each label."""
        with self._lock:
            key = _bounded(labels, self._counts)
            self._counts[key] = self._counts.get(key, 0) + by

    def read(self) -> dict[tuple[str, ...], float]:
        with self._lock:
            return dict(self._counts)


@dataclass
class Durations:
    """How many took how long, and how long all of them took together."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(DURATIONS) + 1))
    seconds: float = 0.0

    def cumulated(self) -> Iterator[tuple[str, int]]:
        """Upper bounds as they are written, each with how many took no longer."""
        so_far = 0
        for bound, count in zip((*map(str, DURATIONS), "+Inf"), self.buckets, strict=True):
            so_far += count
            yield bound, so_far


class Histogram:
    """How long something took, for each set of labels."""

    def __init__(self, named: Named) -> None:
        self.named = named
        self._taken: dict[tuple[str, ...], Durations] = {}
        self._lock = threading.Lock()

    def observe(self, seconds: float, *labels: str) -> None:
        """From any thread."""
        with self._lock:
            key = _bounded(labels, self._taken)
            durations = self._taken.setdefault(key, Durations())
            durations.buckets[bisect_left(DURATIONS, seconds)] += 1
            durations.seconds += seconds

    def read(self) -> dict[tuple[str, ...], Durations]:
        with self._lock:
            return {
                key: Durations(list(one.buckets), one.seconds) for key, one in self._taken.items()
            }


def _bounded(labels: tuple[str, ...], known: Mapping[tuple[str, ...], object]) -> tuple[str, ...]:
    if labels in known or len(known) < MOST_SERIES:
        return labels
    return (OTHER,) * len(labels)


RUNS_CLAIMED = Named("earnest_runs_claimed_total", "Runs that were claimed.", ("kind", "lane"))
ATTEMPTS_ENDED = Named(
    "earnest_attempts_ended_total",
    "Attempts that ended, by what became of the run; queued: it is tried again, fenced: it was no "
    "longer theirs, unsettled: the database could not be reached.",
    ("kind", "outcome"),
)
LEASES_LOST = Named("earnest_leases_lost_total", "Leases that were lost while work went on.")
FENCED_WRITES = Named(
    "earnest_fenced_writes_total", "Writes of attempts that were refused: the run was not theirs."
)
CALLS = Named(
    "earnest_operation_calls_total",
    "Calls of operations, by how the operation stands after it.",
    ("effect", "outcome"),
)
DELIVERIES = Named(
    "earnest_deliveries_total",
    "Messages that were sent to sinks such as webhooks; arrived or failed, which is tried again.",
    ("sink", "outcome"),
)
SWEEPS = Named(
    "earnest_sweeps_ended_total", "Sweeps that ended, complete or not.", ("effect", "outcome")
)
CLAIM_SECONDS = Named("earnest_claim_seconds", "How long a claim of a batch of runs took.")
SETTLE_SECONDS = Named(
    "earnest_settle_seconds", "How long it took from a handler's end to its stored ending."
)
CALL_SECONDS = Named(
    "earnest_operation_call_seconds", "How long a provider took to answer.", ("effect",)
)


class Metrics:
    """What one process counts."""

    def __init__(self) -> None:
        self.runs_claimed = Counter(RUNS_CLAIMED)
        self.attempts_ended = Counter(ATTEMPTS_ENDED)
        self.leases_lost = Counter(LEASES_LOST)
        self.fenced_writes = Counter(FENCED_WRITES)
        self.calls = Counter(CALLS)
        self.deliveries = Counter(DELIVERIES)
        self.sweeps = Counter(SWEEPS)
        self.claim_seconds = Histogram(CLAIM_SECONDS)
        self.settle_seconds = Histogram(SETTLE_SECONDS)
        self.call_seconds = Histogram(CALL_SECONDS)

    def counters(self) -> list[Counter]:
        return [one for one in vars(self).values() if isinstance(one, Counter)]

    def histograms(self) -> list[Histogram]:
        return [one for one in vars(self).values() if isinstance(one, Histogram)]
