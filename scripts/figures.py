"""Measures, and writes `docs/figures.md` from what was measured.

    python scripts/figures.py               every figure
    python scripts/figures.py crashes …     only these; the others stay as they were last measured

Each figure is one command that prints one JSON line. What it printed is kept in `docs/figures/`,
with the day and the machine; the page is rendered from these files and never edited by hand.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "figures"

HEAD = """# Figures

Each table was printed by the command above it, on the machine and day named beside it.
Regenerate with `make figures` (or `make figures ARGS=crashes` for one of them); never edit by hand.
"""


@dataclass(frozen=True)
class Measurement:
    """A command that prints one JSON line, and what its figures mean."""

    name: str
    title: str
    means: str
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(("python -m", self.module, *self.arguments))


MEASUREMENTS = (
    Measurement(
        "crashes",
        "Crash matrix",
        "A process is killed by SIGKILL at every named point, before and after the commit, at the "
        "first and a later passing, with three seeds. Effects are counted at the provider.",
        "tests.faults.figures",
        ("crashes",),
    ),
    Measurement(
        "frozen",
        "Frozen workers",
        "A worker is stopped by SIGSTOP at each point of the call, past its lease, another one "
        "takes over, and the first is let go on.",
        "tests.faults.figures",
        ("frozen",),
    ),
    Measurement(
        "restarts",
        "Database restarts under load",
        "The server is stopped every two seconds, in turn fast and at once, while runs are "
        "submitted and refunds are paid. Recovery is the time from its end to the first commit.",
        "tests.faults.figures",
        ("restarts",),
    ),
    Measurement(
        "model",
        "Engine against model",
        "Random moves of several workers, doors, providers and clocks, on the engine with a real "
        "database and on a small model in memory; both are compared after every step.",
        "tests.model.figures",
    ),
    Measurement(
        "crossing",
        "Events from one process to another",
        "Two servers of the API and two workers on one PostgreSQL: from the statement that wrote "
        "an event to the reader of the scope's feed at the other server. The long transaction asks "
        "for a run by SQL at the beginning and commits at the end.",
        "tests.doors.streams.crossing",
    ),
    Measurement(
        "clients",
        "Clients of the streams",
        "Each case with each client: a real server, and a relay that breaks the way between the "
        "two as the case wants it. `httpx-sse` comes again in the loop that its documentation "
        "shows; what curl prints is taken apart by our own reader; the browser's token is added "
        "on the way, since an `EventSource` sends none. `n/a`: not made for what the case asks.",
        "tests.doors.streams.clients.figures",
    ),
    Measurement(
        "stalled",
        "Readers that do not read",
        "Twenty readers of a run that says 12 kB twenty times a second, first alone, then beside "
        "200 that ask for all of it and read nothing. Times are from the statement that wrote.",
        "tests.doors.streams.load",
        ("stalled",),
    ),
    Measurement(
        "idle",
        "Idle streams",
        "Five thousand readers of a run to which nothing happens, in one process. Each is told "
        "every 15 seconds that its stream lives, and is looked at again then.",
        "tests.doors.streams.load",
        ("idle",),
    ),
    Measurement(
        "fan_out",
        "One event to many",
        "Twenty events, one by one, to a thousand readers of one process; beside a plain Starlette "
        "loop in which each reader asks the table every second, without tokens or limits.",
        "tests.doors.streams.load",
        ("fan-out",),
    ),
    Measurement(
        "fuzz",
        "Requests that nobody thought of",
        "schemathesis makes requests from the OpenAPI document, right and wrong ones, and follows "
        "its links, at a server in a process of its own with a worker; by the tokens of seven "
        "people of two scopes. Every answer is held against the document: status, media type, "
        "headers, body.",
        "tests.doors.fuzz.play",
    ),
    Measurement(
        "bench",
        "Speed",
        "Medians of three rounds in one run. What each figure is, `earnest bench` says beside it.",
        "earnest",
        ("bench", "--json"),
    ),
    Measurement(
        "peers",
        "Speed beside peers",
        "The same work on the same PostgreSQL, in turn in one run, each system with the settings "
        "that were found best for it: see `bench/README.md`. Medians of three rounds, a second.",
        "bench.compare",
    ),
)


def main() -> None:
    wanted = sys.argv[1:] or [measurement.name for measurement in MEASUREMENTS]
    by_name = {measurement.name: measurement for measurement in MEASUREMENTS}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        sys.exit(f"there is no figure {unknown[0]!r}; there are: {', '.join(by_name)}")
    KEPT.mkdir(exist_ok=True)
    kept = [measure(by_name[name]) for name in wanted]
    (ROOT / "docs" / "figures.md").write_text(render(), encoding="utf-8")
    sys.exit(0 if all(kept) else 1)


def measure(measurement: Measurement) -> bool:
    """Runs the command and keeps what it printed. False when the figure is not what is promised."""
    sys.stderr.write(f"{measurement.title}: {measurement.command}\n")
    command = [sys.executable, "-m", measurement.module, *measurement.arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if not lines:
        sys.exit(f"{measurement.command} printed nothing (exit code {done.returncode})")
    found: dict[str, Any] = json.loads(lines[-1])
    record = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "found": found}
    path = KEPT / f"{measurement.name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return done.returncode == 0


def render() -> str:
    parts = [HEAD]
    for measurement in MEASUREMENTS:
        path = KEPT / f"{measurement.name}.json"
        if path.exists():
            parts.append(section(measurement, json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def section(measurement: Measurement, record: dict[str, Any]) -> str:
    found = record["found"]
    rows = [
        f"| {name.replace('_', ' ')} | {shown(value)} |"
        for name, value in found.items()
        if name not in ("figure", "table")
    ]
    head = [
        f"## {measurement.title}",
        "",
        measurement.means,
        "",
        f"`{measurement.command}` · {record['day']} · {record['machine']}",
        "",
        "| | |",
        "| --- | --- |",
    ]
    return "\n".join([*head, *rows, "", *grid(found.get("table"))])


def grid(table: dict[str, Any] | None) -> list[str]:
    """A figure's own table, with numbered notes below it, where it has one."""
    if table is None:
        return []
    lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    notes = [f"{number}. {note}." for number, note in enumerate(table["notes"], 1)]
    shown_lines = [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
    return [*shown_lines, "", *notes, *([""] if notes else [])]


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return "not measured" if value is None else str(value)


def machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, PostgreSQL 18 embedded, default durability"
    )


if __name__ == "__main__":
    main()
