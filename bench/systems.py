"""The systems that are compared: pinned versions, each with the settings that were found best for
it on a machine of two cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class System:
    """`done`: SQL that says how many of `{count}` tasks are finished. `settings`: variables of its
    script, and `for_two` others where two workers run. `has_steps`: it runs workflows of steps.
    `python` and `script`: another one's own; by default an environment made from `requires`."""

    name: str
    done: str
    requires: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    for_two: Mapping[str, str] = field(default_factory=dict)
    has_steps: bool = False
    python: str = ""
    script: str = ""

    @property
    def path(self) -> Path:
        return Path(self.script) if self.script else PEERS / f"peer_{self.name}.py"


SYSTEMS = (
    System(
        "earnest",
        "SELECT count(*) FROM earnest.execution WHERE status = 'succeeded'",
        settings={"CONCURRENCY": "500"},
        has_steps=True,
        python=sys.executable,
    ),
    System(
        "pgqueuer",
        "SELECT {count} - count(*) FROM pgqueuer",
        ("pgqueuer[asyncpg]==1.6.0", "uvloop==0.23.*"),
        {"CONCURRENCY": "250", "UVLOOP": "1"},
    ),
    System(
        "procrastinate",
        "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.*"),
        {"CONCURRENCY": "10"},
    ),
    System(
        "chancy",
        "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'",
        ("chancy==0.26.0", "psycopg[binary]==3.3.*"),
        {"CONCURRENCY": "1000"},
    ),
    System(
        "dbos",
        "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
        ("dbos==3.4.0",),
        {"THREADS": "4", "POOL": "20"},
        {"CONCURRENCY": "500", "POLL": "0.1"},
        has_steps=True,
    ),
    System(
        "absurd",
        "SELECT count(*) FROM absurd.t_default WHERE state = 'completed'",
        ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.*"),
        {"CONCURRENCY": "1", "BATCH": "50"},
        has_steps=True,
    ),
)


def systems() -> list[System]:
    """Those above, and those in the JSON file that `BENCH_PEERS` names: an object with the fields
    of a `System` for each name."""
    more: dict[str, dict[str, Any]] = {}
    if path := os.environ.get("BENCH_PEERS"):
        more = json.loads(Path(path).read_text(encoding="utf-8"))
    return [*SYSTEMS, *(System(name, **fields) for name, fields in more.items())]


def install(system: System, home: Path, say: Callable[[str], None]) -> str:
    """The Python to run its script with; its environment is made when it is not there yet."""
    if system.python:
        return system.python
    folder = home / f"venv-{system.name}"
    python, mark = folder / "bin" / "python", folder / "earnest-bench.txt"
    wanted = "\n".join(system.requires)
    if not mark.exists() or mark.read_text(encoding="utf-8") != wanted:
        say(f"installing {system.name} into {folder}")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *system.requires], check=True)
        mark.write_text(wanted, encoding="utf-8")
    return str(python)
