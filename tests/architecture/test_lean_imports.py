"""What is imported when: nobody waits for a part of the program that is not used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import earnest

SERVERS = ["fastapi", "starlette", "uvicorn"]
SCREENS = ["rich", "typer", "structlog"]
CLIENTS = ["httpx", "httpx2", "httpcore"]
ENGINE = ["asyncpg", "pydantic", "earnest.engine", "earnest.store"]

BEGINNINGS = {
    "import earnest": [*SERVERS, *SCREENS, *CLIENTS, *ENGINE],
    "from earnest import App, Context, Effect, operation": [*SERVERS, *SCREENS, *CLIENTS],
    "from earnest import Client, SyncClient": [*SERVERS, *SCREENS, "httpx", *ENGINE],
    "import earnest.__main__": [*SERVERS, "structlog", *CLIENTS, *ENGINE],
    # What a command on a database stands on.
    "import earnest.assembly, earnest.doors.api.showing": [*SERVERS, *CLIENTS],
}


def _modules_after(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize("statement", BEGINNINGS)
def test_a_program_begins_without_what_it_does_not_use(statement: str) -> None:
    assert _modules_after(statement).isdisjoint(BEGINNINGS[statement])


def test_a_logger_brings_structlog_when_something_is_logged() -> None:
    logger = (
        "import sys\nfrom earnest.engine.process.logs import get_logger\nlog = get_logger('one')"
    )
    assert "structlog" not in _modules_after(logger)
    quietly = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):"
    assert "structlog" in _modules_after(f"{logger}\n{quietly} log.info('one')")


def test_every_public_name_is_there() -> None:
    for name in earnest.__all__:
        assert getattr(earnest, name).__module__.startswith("earnest.")
    assert set(earnest.__all__) <= set(dir(earnest))


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        earnest.Engine  # type: ignore[attr-defined] # noqa: B018
