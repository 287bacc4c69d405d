"""Prints the figures of the tests of faults, one JSON line each, for `docs/figures.md`.

    python -m tests.faults.figures crashes [SEEDS]      F1: the whole crash matrix, with 3 seeds
    python -m tests.faults.figures frozen               every point of the call × every bank
    python -m tests.faults.figures restarts [COUNT]     F3: 50 restarts of the database

Exit code 1 when a figure is not what is promised. Progress goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog

from earnest.domain.crash_points import OF_RUNS
from earnest.testing.databases import ThrowawayCluster
from earnest.testing.simulator import running_simulator
from tests.faults import freezing, matrix
from tests.faults.driving import Stage, open_stage
from tests.faults.matrix import Case, Outcome
from tests.faults.processes import Processes
from tests.faults.restarting import restart_under_load

SIDE_BY_SIDE = 2
TOGETHER = 12  # cases that share a database and a simulator

Figure = dict[str, Any]


def main() -> None:
    name, *rest = sys.argv[1:] or ["--help"]
    if name not in _FIGURES or len(rest) > 1:
        sys.exit(__doc__)
    _quiet()
    with TemporaryDirectory(prefix="earnest-faults-") as folder:
        figure, kept = _FIGURES[name](Path(folder), *map(int, rest))
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.exit(0 if kept else 1)


# ---- the crash matrix --------------------------------------------------------------------------


def _crashes(folder: Path, seeds: int = len(matrix.SEEDS)) -> tuple[Figure, bool]:
    waiting = list(matrix.every_case(range(seeds)))
    outcomes: list[Outcome] = []
    started = time.monotonic()
    _on_a_cluster(folder, lambda cluster: _side_by_side(cluster, folder, waiting, outcomes))
    points = Counter(crash.partition(":")[0] for found in outcomes for crash in found.crashes)
    faults = {
        kind: sum(len(getattr(found.verdict, kind)) for found in outcomes)
        for kind in ("doubled", "lost", "wrong", "broken")
    }
    figure = {
        "figure": "crash matrix",
        "cases": len(outcomes),
        "crashes": points.total(),
        "points": len(points),
        "fewest_crashes_at_a_point": min(points.values()),
        "missed": sum(bool(found.missed) for found in outcomes),
        "seeds": seeds,
        "double_effects": faults["doubled"],
        "lost_runs": faults["lost"],
        "wrong_final_states": faults["wrong"],
        "broken_tables": faults["broken"],
        "minutes": round((time.monotonic() - started) / 60, 1),
    }
    for found in outcomes:
        for line in found.faults():
            _say(f"{found.case}: {line}")
    kept = not any(found.faults() for found in outcomes) and len(points) == 2 * len(OF_RUNS)
    return figure, kept


async def _side_by_side(
    cluster: ThrowawayCluster, folder: Path, waiting: list[Case], outcomes: list[Outcome]
) -> None:
    async def lane(number: int) -> None:
        with Processes(_made(folder / f"lane-{number}")) as processes:
            while waiting:
                cases = [waiting.pop(0) for _ in waiting[:TOGETHER]]
                async with _new_stage(cluster, processes) as stage:
                    outcomes.extend([await matrix.play(case, stage) for case in cases])
                _say(f"{len(outcomes)} cases played, {len(waiting)} to go")

    await asyncio.gather(*(lane(number) for number in range(SIDE_BY_SIDE)))


# ---- frozen workers ----------------------------------------------------------------------------


def _frozen(folder: Path) -> tuple[Figure, bool]:
    thawed: list[freezing.Thawed] = []

    async def play_all(cluster: ThrowawayCluster) -> None:
        with Processes(_made(folder / "processes")) as processes:
            for point, bank in product(freezing.POINTS, freezing.BANKS):
                async with _new_stage(cluster, processes) as stage:
                    thawed.append(await freezing.play(point, bank, stage))
                _say(f"{point} at the {bank} bank")

    _on_a_cluster(folder, play_all)
    doubled = sum(one.refunds > 1 for one in thawed)
    wrong = sum(one.run.status != "succeeded" or one.refunds != 1 for one in thawed)
    broken = sum(len(one.broken) for one in thawed)
    figure = {
        "figure": "frozen workers",
        "cases": len(thawed),
        "double_effects": doubled,
        "wrong_final_states": wrong,
        "broken_tables": broken,
        "settled_by_a_late_receipt": sum("late_receipt" in one.resolved_by for one in thawed),
    }
    return figure, not (doubled or wrong or broken)


# ---- restarts of the database ------------------------------------------------------------------


def _restarts(folder: Path, count: int = 50) -> tuple[Figure, bool]:
    with running_simulator() as simulator, Processes(_made(folder / "processes")) as processes:
        home = folder / "home"
        found = asyncio.run(restart_under_load(home, simulator, processes, count))
    figure = {
        "figure": "database restarts",
        "restarts": len(found.recoveries),
        "accepted_runs": found.accepted,
        "refunds": found.refunds,
        "lost_runs": len(found.lost),
        "double_effects": len(found.doubled),
        "broken_tables": len(found.broken),
        "recovery_s_median": round(statistics.median(found.recoveries), 2),
        "recovery_s_max": round(max(found.recoveries), 2),
    }
    faults = [*found.lost, *found.doubled, *found.broken]
    return figure, not faults and max(found.recoveries) < 3


# ---- where it is played ------------------------------------------------------------------------


def _on_a_cluster(
    folder: Path, play: Callable[[ThrowawayCluster], Coroutine[Any, Any, None]]
) -> None:
    """A server with its default settings, so that every commit is on the disk."""
    cluster = ThrowawayCluster(folder / "home", settings={}).start()
    try:
        asyncio.run(play(cluster))
    finally:
        cluster.stop()


@asynccontextmanager
async def _new_stage(cluster: ThrowawayCluster, processes: Processes) -> AsyncIterator[Stage]:
    url = await cluster.copy()
    with running_simulator() as simulator:
        async with open_stage(url, simulator, processes) as stage:
            yield stage
    await cluster.drop(url)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _quiet() -> None:
    """Only the figure goes to standard output; a pool that reconnects is no news here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


_FIGURES: dict[str, Callable[..., tuple[Figure, bool]]] = {
    "crashes": _crashes,
    "frozen": _frozen,
    "restarts": _restarts,
}

if __name__ == "__main__":
    main()
