"""The options that commands share, each with its variable, and what they come to together.

A home may hold a file `earnest.env` with lines `EARNEST_NAME=value`: they stand for variables that
are not set, so that a command needs no more than the home to find its app and its scope.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from earnest.domain.errors import HomeUnusable
from earnest.domain.working import CONCURRENCY, DRAIN
from earnest.doors.cli.logs import LogFormat
from earnest.doors.cli.parts import Told

SETTINGS_FILE = "earnest.env"


def _settle_home(given: Path | None) -> Path:
    """Runs before the other options are read: what the home's file says counts as variables."""
    from earnest.store.home import default_home

    home = (given or default_home()).expanduser()
    for name, value in _settings_of(home).items():
        os.environ.setdefault(name, value)
    return home


def _settings_of(home: Path) -> dict[str, str]:
    try:
        lines = (home / SETTINGS_FILE).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}  # whoever uses the home says what is wrong with it
    except (OSError, UnicodeError) as error:
        raise HomeUnusable(f"{home / SETTINGS_FILE} cannot be read: {error}") from error
    pairs = (line.strip().partition("=") for line in lines)
    return {name: value for name, _, value in pairs if name.startswith("EARNEST_")}


Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="EARNEST_HOME",
        callback=_settle_home,
        is_eager=True,
        help="Folder of the embedded database. The platform's data folder if not given.",
        show_default=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="EARNEST_DATABASE_URL",
        help="A PostgreSQL to use instead of the embedded one.",
        show_default=False,
    ),
]
Apps = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        envvar="EARNEST_APP",
        metavar="MODULE:ATTRIBUTE",
        help="An app to load; may be repeated (in the variable: separated by blanks).",
        show_default=False,
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        "--scope",
        envvar="EARNEST_SCOPE",
        help="The scope to act in. The only one, or `default`, if not given.",
        show_default=False,
    ),
]
Host = Annotated[
    str, typer.Option("--host", envvar="EARNEST_HOST", help="The address to listen on.")
]
Port = Annotated[
    int, typer.Option("--port", envvar="EARNEST_PORT", min=0, max=65535, help="0: a free one.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        envvar="EARNEST_METRICS_PORT",
        min=0,
        max=65535,
        help="Serve /metrics, /livez and /readyz there, on --host.",
        show_default="not served",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        envvar="EARNEST_CONCURRENCY",
        min=1,
        help="How many runs this process works on at once.",
        show_default=str(CONCURRENCY),
    ),
]
Drain = Annotated[
    float | None,
    typer.Option(
        "--drain",
        envvar="EARNEST_DRAIN",
        min=0,
        metavar="SECONDS",
        help="How long running work may go on after a stop was asked.",
        show_default=f"{DRAIN.total_seconds():g}",
    ),
]
Log = Annotated[LogFormat, typer.Option("--log", envvar="EARNEST_LOG", help="The form of the log.")]
Json = Annotated[bool, typer.Option("--json", envvar="EARNEST_JSON", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it, to all that match.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")]
StopWithStdin = Annotated[
    bool,
    typer.Option("--stop-with-stdin", hidden=True, help="Stop when standard input is closed."),
]


def told(
    home: Path | None,
    database_url: str | None,
    apps: list[str] | None,
    *,
    makes: bool = False,
    concurrency: int | None = None,
    drain_seconds: float | None = None,
) -> Told:
    assert home is not None, "settled when the option was read"
    return Told(home, database_url or None, tuple(apps or ()), makes, concurrency, drain_seconds)
