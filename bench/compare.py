"""Compares Earnest with its peers: the same work, on one PostgreSQL, round by round in one run.

    make bench                              all of them, three rounds; half an hour
    make bench ARGS="--only drain_1"        one measurement
    make bench ARGS="--quick"               very little: shows that it works

Prints a table and then one line of JSON. Ends with code 1 when a gate is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from platformdirs import user_cache_path
from rich.console import Console
from rich.table import Table

from bench.playing import Failed, Player
from bench.systems import install, systems
from earnest.apps.bench import raw
from earnest.apps.bench.database import BenchDatabase, bench_database

ROUNDS = 3
RAW = "raw"
WHATS = ("submit", "bulk", "drain_1", "drain_2", "five_steps")
MEANINGS = {
    "submit": "one by one /s",
    "bulk": "in bulk /s",
    "drain_1": "no-op, 1 worker /s",
    "drain_2": "no-op, 2 workers /s",
    "five_steps": "five-step runs /s",
}


@dataclass(frozen=True)
class Sizes:
    submit: int = 5_000
    bulk: int = 20_000
    drain: int = 10_000
    steps: int = 1_000


QUICK = Sizes(submit=50, bulk=200, drain=200, steps=20)


@dataclass(frozen=True)
class Gate:
    """Earnest's median is at least `least` times that of the other."""

    what: str
    other: str
    least: float

    @property
    def name(self) -> str:
        return f"{self.what} / {self.other}"


GATES = (
    Gate("submit", RAW, 0.6),
    Gate("drain_1", "pgqueuer", 1.0),
    Gate("five_steps", "dbos", 10.0),
    Gate("five_steps", "absurd", 10.0),
)

Rates = dict[str, dict[str, list[float]]]
"""What was measured in each round, by what and by whom."""


def main() -> None:
    asked = _arguments()
    home = Path(os.environ.get("BENCH_HOME") or user_cache_path("earnest-bench"))
    home.mkdir(parents=True, exist_ok=True)
    rates = asyncio.run(_compare(home, asked))
    medians = {what: _medians(by_name) for what, by_name in rates.items()}
    gates = _judge(medians)
    _print(medians, gates)
    told = {"figure": "peers", "rounds": ROUNDS, **_flat(medians), **gates}
    sys.stdout.write(json.dumps(told) + "\n")
    # Medians of so little work say nothing.
    sys.exit(0 if asked.quick or all("missed" not in said for said in gates.values()) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare")
    parser.add_argument("--only", action="append", choices=WHATS, help="one measurement; repeats")
    parser.add_argument("--peers", default="", help="names with commas; Earnest is always there")
    parser.add_argument("--quick", action="store_true", help="very little of each")
    return parser.parse_args()


async def _compare(home: Path, asked: argparse.Namespace) -> Rates:
    named = [name for name in asked.peers.split(",") if name]
    async with bench_database(None, _say) as server:
        players = [
            Player(system, install(system, home, _say), server, home / f"err-{system.name}.log")
            for system in systems()
            if not named or system.name in ("earnest", *named)
        ]
        return await _play(players, server, asked.only or WHATS, QUICK if asked.quick else Sizes())


async def _play(
    players: list[Player], server: BenchDatabase, whats: Sequence[str], sizes: Sizes
) -> Rates:
    """Round by round, what by what, all systems beside each other."""
    rates: Rates = {what: {} for what in whats}
    for number in range(1, ROUNDS + 1):
        for what in whats:
            if what == "submit":
                rate = await raw.insert_rate(server, sizes.submit)
                _note(rates, number, what, RAW, rate)
            for player in players:
                try:
                    found = await _measure(player, what, sizes)
                except Failed as error:
                    _say(f"round {number} of {ROUNDS}: {error}")
                    continue
                if found is not None:
                    _note(rates, number, what, player.system.name, found)
    return rates


async def _measure(player: Player, what: str, sizes: Sizes) -> float | None:
    match what:
        case "submit":
            return await player.submit_rate("submit", sizes.submit)
        case "bulk":
            return await player.submit_rate("bulk", sizes.bulk)
        case "drain_1":
            return await player.drain_rate("bulk", sizes.drain)
        case "drain_2":
            return await player.drain_rate("bulk", sizes.drain, workers=2)
        case _ if player.system.has_steps:
            return await player.drain_rate("steps", sizes.steps)
    return None


def _note(rates: Rates, number: int, what: str, name: str, rate: float) -> None:
    rates[what].setdefault(name, []).append(rate)
    _say(f"round {number} of {ROUNDS}: {what} {name} {rate:,.0f} /s")


# ---- what came of it ---------------------------------------------------------------------------


def _medians(by_name: dict[str, list[float]]) -> dict[str, float]:
    """Who failed in one round has none."""
    whole = {name: found for name, found in by_name.items() if len(found) == ROUNDS}
    return {name: _short(median(found)) for name, found in whole.items()}


def _judge(medians: dict[str, dict[str, float]]) -> dict[str, str]:
    """Each gate whose other side was measured: its ratio, and whether it is reached."""
    said = {}
    for gate in GATES:
        found = medians.get(gate.what, {})
        if gate.other in found:
            own = found.get("earnest", 0.0) / found[gate.other]
            held = "reached" if own >= gate.least else "missed"
            said[gate.name] = f"{own:.2f} of at least {gate.least:g}: {held}"
    return said


def _flat(medians: dict[str, dict[str, float]]) -> dict[str, float]:
    return {
        f"{what} {name}": rate for what, found in medians.items() for name, rate in found.items()
    }


def _print(medians: dict[str, dict[str, float]], gates: dict[str, str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("system")
    for what in medians:
        table.add_column(f"{what}: {MEANINGS[what]}", justify="right")
    for name in dict.fromkeys(name for found in medians.values() for name in found):
        shown = [_shown(found.get(name), found.get("earnest")) for found in medians.values()]
        table.add_row(name, *shown)
    console.print(table)
    for name, said in gates.items():
        console.print(f"gate {name}: {said}")


def _shown(rate: float | None, own: float | None) -> str:
    """The rate, and how many times that Earnest's is."""
    if rate is None:
        return "-"
    return f"{rate:,.0f} ({own / rate:.2f})" if own is not None else f"{rate:,.0f}"


def _short(rate: float) -> float:
    return round(rate) if rate >= 100 else round(rate, 1)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
