"""Prints the table of clients and cases, one JSON line, for `docs/figures.md`.

    python -m tests.doors.streams.clients.figures [CLIENT …] [--only WORDS]

Without a name all clients are tried; with `--only`, the cases whose promise holds those words.

Exit code 1 when a client was not given what it is owed, or is not on this machine. What failed is
told on standard error.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from argparse import ArgumentParser, RawTextHelpFormatter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
import uvloop

from earnest.testing.databases import ThrowawayCluster
from tests.doors.streams.clients.drivers import CLIENTS, Client, driving
from tests.doors.streams.clients.matrix import EVERY_CASE, Played, Verdict, play_all
from tests.doors.streams.clients.playing import open_house


def main() -> None:
    arguments = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    arguments.add_argument("clients", nargs="*", default=_names())
    arguments.add_argument("--only", default="")
    asked = arguments.parse_args()
    clients = [client for client in CLIENTS if client.name in asked.clients]
    cases = [case for case in EVERY_CASE if asked.only in case.promise]
    missing = [needs for client in clients if (needs := client.needs())]
    if missing or not clients:
        sys.exit("; ".join(missing) or f"the clients are: {', '.join(_names())}")
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="earnest-clients-") as folder:
        cluster = ThrowawayCluster(Path(folder)).start()
        try:
            found = uvloop.run(_play(cluster, clients, cases))
        finally:
            cluster.stop()
    sys.stdout.write(json.dumps(_figure(cases, found)) + "\n")
    sys.exit(0 if all(verdict.kept for verdicts in found.values() for verdict in verdicts) else 1)


def _names() -> list[str]:
    return [client.name for client in CLIENTS]


async def _play(
    cluster: ThrowawayCluster, clients: list[Client], cases: list[Played]
) -> dict[str, list[Verdict]]:
    """By client, with its version."""
    found: dict[str, list[Verdict]] = {}
    for client in clients:
        begun = time.monotonic()
        async with open_house(await cluster.copy()) as house, driving(client) as driver:
            verdicts = await play_all(house, client, driver, cases)
        found[f"{client.name} {driver.version}"] = verdicts
        for verdict in verdicts:
            if not verdict.kept:
                sys.stderr.write(f"{client.name}: {verdict.promise}: {verdict.why}\n")
        sys.stderr.write(f"{client.name}: {time.monotonic() - begun:.0f} s\n")
    return found


def _figure(cases: list[Played], found: dict[str, list[Verdict]]) -> dict[str, Any]:
    notes: dict[str, int] = {}
    rows = []
    for place, case in enumerate(cases):
        cells = [_cell(verdicts[place], notes) for verdicts in found.values()]
        rows.append([case.promise, *cells])
    every = [verdict for verdicts in found.values() for verdict in verdicts]
    return {
        "figure": "clients",
        "cases": len(cases),
        "kept": sum(verdict.why is None for verdict in every),
        "not_kept": sum(not verdict.kept for verdict in every),
        "not_applicable": sum(not verdict.applies for verdict in every),
        "table": {"columns": ["case", *found], "rows": rows, "notes": list(notes)},
    }


def _cell(verdict: Verdict, notes: dict[str, int]) -> str:
    if verdict.why is None:
        return "yes"
    if verdict.applies:
        return "**no**"
    return f"n/a ({notes.setdefault(verdict.why, len(notes) + 1)})"


if __name__ == "__main__":
    main()
