"""Prints the figure of the model test, one JSON line, for `docs/figures.md`.

    python -m tests.model.figures [STEPS]      F2: 50,000 steps

Exit code 1 when engine and model differ; the shortest steps that show it go to standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from earnest.testing.databases import ThrowawayCluster
from tests.model.machine import Model
from tests.model.world import World

STEPS = 50_000
STEPS_AN_EXAMPLE = 50
EXAMPLES_AT_ONCE = 200

Figure = dict[str, Any]


def play(world: World, examples: int) -> int:
    """Plays that many examples; returns how many steps were compared. Raises at a difference."""
    Model.world = world
    before = Model.tally["steps"]
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_AN_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Model.tally["steps"] - before


def measure(world: World, steps: int) -> Figure:
    """Plays until that many steps were compared."""
    Model.tally.clear()
    started, divergences = time.monotonic(), 0
    try:
        while Model.tally["steps"] < steps:
            play(world, EXAMPLES_AT_ONCE)
            sys.stderr.write(f"{Model.tally['steps']} steps compared\n")
    except AssertionError:
        traceback.print_exc()
        divergences = 1
    return {
        "figure": "model test",
        "steps": Model.tally["steps"],
        "examples": Model.tally["examples"],
        "attempts_whose_owners_were_checked": Model.tally["attempts"],
        "divergences": divergences,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }


def main() -> None:
    if len(sys.argv) > 2 or (sys.argv[1:] and not sys.argv[1].isdecimal()):
        sys.exit(__doc__)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="earnest-model-") as folder:
        figure = _measured(Path(folder), int(sys.argv[1]) if sys.argv[1:] else STEPS)
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.exit(1 if figure["divergences"] else 0)


def _measured(folder: Path, steps: int) -> Figure:
    cluster = ThrowawayCluster(folder / "home").start()
    try:
        world = World(asyncio.run(cluster.copy()))
        try:
            return measure(world, steps)
        finally:
            world.close()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
