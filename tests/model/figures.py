"""Prints the figure of the model test, one JSON line, for `docs/figures.md`.

    python -m tests.model.figures [STEPS]      F2: 50,000 steps

Exit code 1 when engine and model diverge. Progress goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from earnest.testing.databases import ThrowawayCluster
from tests.model.machine import Model
from tests.model.test_model import run_examples
from tests.model.world import World

EXAMPLES = 50


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    with TemporaryDirectory(prefix="earnest-model-") as folder:
        cluster = ThrowawayCluster(Path(folder) / "home").start()
        try:
            figure = _measure(cluster, wanted)
        finally:
            cluster.stop()
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.exit(0 if figure["divergences"] == 0 else 1)


def _measure(cluster: ThrowawayCluster, wanted: int) -> dict[str, object]:
    world = World(asyncio.run(cluster.copy()))
    Model.world = world
    started, steps, divergences = time.monotonic(), 0, 0
    try:
        while steps < wanted and not divergences:
            try:
                steps += run_examples(world, EXAMPLES)
            except AssertionError as error:
                divergences += 1
                sys.stderr.write(f"{error}\n")
            sys.stderr.write(f"{steps} steps compared\n")
    finally:
        world.close()
    return {
        "figure": "engine against model",
        "steps": steps,
        "divergences": divergences,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }


if __name__ == "__main__":
    main()
